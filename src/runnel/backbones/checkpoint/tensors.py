"""Open weights files and read their tensors one at a time; shared by the readers of all formats.

`open_file` maps a file and returns its tensors by name as `Stored`, not read yet. A family's
`formats.py` renames and reshapes them and returns a `Recognized`. `read_tensor` reads, checks and
converts one of them; `checkpoint/load.py` calls it for each parameter of the model.

A mapped file comes into memory page by page, as its tensors are used. When `read_tensor` has
converted a tensor into memory of its own, it drops the file's pages from memory, so that a file of
any size can be converted with one of its tensors in memory at a time. Pickles are only ever opened
with `weights_only=True`, which builds tensors and plain containers and runs no code from the file.
"""

import ctypes
import mmap
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import NamedTuple, Self
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from runnel.backbones.checkpoint.finding import damaged_weights
from runnel.backbones.checkpoint.shapes import StoredShape, some
from runnel.backbones.config import BackboneConfig
from runnel.errors import CheckpointError, NumericalError

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
# Bytes: the pages of a smaller tensor stay in memory. Dropping them would drop pages of its
# neighbors too.
_SMALL = 1 << 16
# Bytes before and after a tensor that the system may have brought into memory together with it:
# twice the largest pages of Linux (2 MiB).
_AROUND = 1 << 22


@dataclass(frozen=True)
class Stored(StoredShape):
    """A tensor in a file, not read yet."""

    read: Callable[[], Tensor]
    # the dtype in the file; None where `read` computes the tensor from other tensors
    dtype: torch.dtype | None = None
    # Of a tensor in 8 bits: its two tensors in the file, numbers (outputs, inputs) int8 and a scale
    # for each output (outputs,).
    int8_and_scale: "tuple[Stored, Stored] | None" = None
    # the first and last address where the file is mapped; None: `read` returns memory of its own
    mapping: tuple[int, int] | None = None

    def changed(self, shape: tuple[int, ...], change: Callable[[Tensor], Tensor]) -> Self:
        """Return what `change` makes of the tensor, not read yet. `mapping` stays, for a `change`
        that returns a view.
        """
        return replace(self, shape=shape, read=lambda: change(self.read()))


class Recognized(NamedTuple):
    """A recognized checkpoint, whose weights are not read yet.

    Each family has `recognizes(config, names)` in its `formats.py`, which says whether a config
    (empty: none) and these names of tensors are its own, and `read(config, tensors, where)`, which
    returns this record; `where` is for messages.
    """

    architecture: str
    layout: str  # in words
    config: BackboneConfig
    backbone: dict[str, Stored]  # by the names of the module
    heads: dict[str, Stored]


def from_tensors(
    tensors: Mapping[str, Tensor], origin: str, mapped: Sequence[tuple[int, int]] = ()
) -> dict[str, Stored]:
    """Return tensors in memory as `Stored`; `mapped` has the first and last addresses of each part
    of their file that is mapped.
    """

    def stored(tensor: Tensor) -> Stored:
        # 0, an aligned address in no mapping, for a tensor that is not in a mapped file
        at = tensor.data_ptr() if mapped and tensor.layout == torch.strided else 0
        mapping = next(((first, last) for first, last in mapped if first <= at < last), None)
        # Kernels need each number at an address that is a multiple of its size.
        read = tensor.clone if at % tensor.itemsize else lambda: tensor
        return Stored(
            shape=tuple(tensor.shape), file=origin, read=read, dtype=tensor.dtype, mapping=mapping
        )

    return {name: stored(tensor) for name, tensor in tensors.items()}


def open_file(path: Path) -> dict[str, Stored]:
    """Return every tensor of a weights file by its name in the file. The file is mapped: numbers
    are read when they are used.
    """
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                content = {name: file.get_tensor(name) for name in file.keys()}
        else:  # files from before torch 1.6 are no zip archives, and cannot be mapped
            content = torch.load(path, map_location="cpu", mmap=is_zipfile(path), weights_only=True)
    except (
        SafetensorError,
        UnpicklingError,
        RuntimeError,
        EOFError,
        OSError,
        ValueError,
        KeyError,
    ) as error:
        raise damaged_weights(path, error) from error
    # Lists of whole numbers become tensors: EmbeddingRWKV, a published RWKV-7, has one.
    if isinstance(content, dict):
        lists = {key: value for key, value in content.items() if isinstance(value, list) and value}
        whole_numbers = {
            key
            for key, value in lists.items()
            if all(type(number) is int and abs(number) < 1 << 31 for number in value)
        }
        content |= {key: torch.tensor(lists[key]) for key in whole_numbers}
    if not isinstance(content, dict) or not all(
        isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items()
    ):
        keys = (
            some([str(key) for key in content])
            if isinstance(content, dict)
            else type(content).__name__
        )
        raise CheckpointError(
            f"{path} is not a flat dict of tensors (it holds {keys}); save only the model's state"
            " dict"
        )
    return from_tensors(content, path.name, _mapped(path))


def read_tensor(
    name: str,
    stored: Stored,
    where: str,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Read a tensor and check every number in it. The result is a copy if `dtype` or `device` is
    not the stored tensor's (default: the stored tensor's own).
    """
    place = f"tensor {name!r} in {stored.file}"
    try:
        tensor = stored.read().detach()
    except (OSError, RuntimeError, ValueError) as error:
        # the file changed, or vanished, since it was opened
        raise CheckpointError(
            f"{where}: cannot read {place}: {error}; copy the file again"
        ) from error
    if tensor.dtype not in _FLOATS:
        raise CheckpointError(
            f"{where}: {place} is stored as {tensor.dtype}; quantized weights cannot be loaded, use"
            " the originals"
        )
    if tensor.numel():
        # One NaN makes both of them NaN. `isfinite` of the whole tensor would need memory.
        low, high = torch.aminmax(tensor)
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise NumericalError(
                f"{where}: {place} holds NaN or infinite numbers; the checkpoint is damaged or its"
                " training failed: use another"
            )
    converted = tensor.to(device or tensor.device, dtype or tensor.dtype).contiguous()
    # The result has memory of its own, as the product of numbers and scales always has: nobody
    # reads the file's pages again.
    if stored.int8_and_scale or converted.data_ptr() != tensor.data_ptr():
        for part in stored.int8_and_scale or (stored,):
            _give_back(part)
    return converted


def shape_of(
    tensors: Mapping[str, Stored], name: str, ndim: int | None, where: str
) -> tuple[int, ...]:
    """Return the shape of a tensor. Raise CheckpointError unless it exists and has `ndim`
    dimensions; None: any number.
    """
    shape = tensors[name].shape if name in tensors else None
    if shape is None or len(shape) != (ndim or len(shape)):
        what = (
            "missing tensor"
            if shape is None
            else f"mis-shaped tensor of {len(shape)} dimensions, expected {ndim},"
        )
        raise CheckpointError(
            f"{where}: {what} {name!r}; the weights are incomplete, or belong to another config or"
            " model"
        )
    return shape


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of tensors, such as a module's `state_dict()`, for `check_tensors`."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def renamed(
    tensors: Mapping[str, Stored],
    rename: Callable[[str], str],
    where: str,
    *,
    unused: str = "lm_head.weight",
) -> dict[str, Stored]:
    """Return tensors by their new names, without the tensor whose new name is `unused`, which is no
    part of a backbone.
    """
    named: dict[str, Stored] = {}
    origins: dict[str, str] = {}
    for name, stored in tensors.items():
        new = rename(name)
        if new in origins:
            raise CheckpointError(
                f"{where} holds the same tensor twice, as {origins[new]!r} and {name!r}; keep one"
            )
        origins[new] = name
        if new != unused:
            named[new] = stored
    return named


def expect_fit(fits: bool, what: str, where: str) -> None:
    """Raise CheckpointError for shapes that contradict each other."""
    if not fits:
        raise CheckpointError(
            f"{where}: mis-shaped {what}; the weights are damaged, or belong to another model"
        )


def count_layers(names: Mapping[str, Stored]) -> int:
    """Count the different numbers of "layers.{i}." in the names."""
    return len({m[1] for name in names if (m := re.match(r"layers\.(\d{1,6})\.", name))})


def _mapped(path: Path) -> list[tuple[int, int]]:
    """Return the first and last addresses of each part of a file that this process has mapped.
    Empty on systems other than Linux, which have no /proc/self/maps.
    """
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    spans = [
        line.partition(" ")[0].split("-") for line in lines if line.endswith(f" {path.resolve()}")
    ]
    return [(int(first, 16), int(last, 16)) for first, last in spans]


def _give_back(stored: Stored) -> None:
    """Drop the pages of a mapped tensor from this process's memory, and the pages around it that
    the system brought in with it; the next use reads them from the file again.

    Without this, the memory of a process that converts a model grows to the whole file plus the
    converted weights, because the system drops mapped pages only when memory is short. It acts on
    Linux alone: `_mapped` finds nothing elsewhere.

    Numbers that somebody wrote to such pages would be lost. So it is called only while a model is
    loaded, before anybody else has the tensors.
    """
    if stored.mapping is None:
        return
    storage = stored.read().untyped_storage()  # read again, for the address of its memory
    first = max(stored.mapping[0], storage.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE - _AROUND)
    last = min(stored.mapping[1], storage.data_ptr() + storage.nbytes() + _AROUND)
    if storage.nbytes() >= _SMALL and first < last:
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED
        )
