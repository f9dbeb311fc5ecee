"""Shared by the readers of published formats: values of a config, and tensors of a file, read and
checked where they are used.

The file is mapped: a page comes into memory when it is first used, and `read_tensor` gives the
pages of a tensor back that it converts, so that converting a file of any size keeps one of its
tensors in memory at a time. Pickles are only ever opened with `weights_only=True`, which builds
tensors and plain containers and runs no code from the file.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from runnel.backbones.checkpoint.finding import damaged_weights
from runnel.backbones.checkpoint.shapes import some
from runnel.backbones.config import BackboneConfig
from runnel.errors import CheckpointError, NumericalError

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_SMALL = 1 << 16  # bytes, not worth a call that drops pages of neighbors too
_AROUND = 1 << 22  # bytes that a system may map around what is read: twice its largest pages


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, not read yet."""

    shape: tuple[int, ...]
    file: str
    read: Callable[[], Tensor]
    # the file's; None where `read` computes the tensor from others
    dtype: torch.dtype | None = None
    # what it is computed from if in 8 bits: numbers (N, K) int8, a scale per row (N,)
    rows: tuple[Stored, Stored] | None = None
    # where the file is mapped, as addresses; None: `read` returns memory of its own
    mapping: tuple[int, int] | None = None

    def changed(self, shape: tuple[int, ...], change: Callable[[Tensor], Tensor]) -> Stored:
        """Return what `change` makes of the tensor, not read yet."""
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
    """Return tensors in memory as `Stored`; `mapped` are the addresses where
    their file is mapped.
    """

    def stored(tensor: Tensor) -> Stored:
        at = tensor.data_ptr() if mapped and tensor.layout == torch.strided else 0
        mapping = next(((first, last) for first, last in mapped if first <= at < last), None)
        # Kernels want whole elements at whole addresses.
        read = tensor.clone if at % tensor.itemsize else lambda: tensor
        return Stored(tuple(tensor.shape), origin, read, tensor.dtype, mapping=mapping)

    return {name: stored(tensor) for name, tensor in tensors.items()}


def open_file(path: Path) -> dict[str, Stored]:
    """Return every tensor of a weights file by its name in the file, without reading any."""
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
    if isinstance(content, dict):  # EmbeddingRWKV has a list of numbers
        lists = {key: value for key, value in content.items() if isinstance(value, list) and value}
        content |= {
            key: torch.tensor(value)
            for key, value in lists.items()
            if all(type(number) is int and abs(number) < 1 << 31 for number in value)
        }
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
    """Read a tensor and check every number in it; a copy where dtype and device (default: the
    tensor's) are others.
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
        low, high = torch.aminmax(tensor)  # both carry a NaN on; needs no further memory
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise NumericalError(
                f"{where}: {place} holds NaN or infinite numbers; the checkpoint is damaged or its"
                " training failed: use another"
            )
    converted = tensor.to(device or tensor.device, dtype or tensor.dtype).contiguous()
    if stored.rows or converted.data_ptr() != tensor.data_ptr():
        for part in stored.rows or (stored,):
            _give_back(part)
    return converted


def shape_of(tensors: Mapping[str, Stored], name: str, ndim: int, where: str) -> tuple[int, ...]:
    """Return the shape of a tensor that must exist and have `ndim` dimensions."""
    expect_tensor(tensors, name, where, ndim)
    return tensors[name].shape


def expect_tensor(
    tensors: Mapping[str, Stored], name: str, where: str, ndim: int | None = None
) -> None:
    """Raise CheckpointError unless a tensor exists and has `ndim` dimensions; None: any number."""
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


def renamed(
    tensors: Mapping[str, Stored],
    rename: Callable[[str], str],
    where: str,
    *,
    unused: str = "lm_head.weight",
) -> dict[str, Stored]:
    """Return tensors by their new names, without the unused one, which is no part of a backbone."""
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


def count_layers(names: Mapping[str, Stored]) -> int:
    """Count the different numbers of "layers.{i}." in the names."""
    return len({m[1] for name in names if (m := re.match(r"layers\.(\d{1,6})\.", name))})


def _mapped(path: Path) -> list[tuple[int, int]]:
    """Return the addresses where this process has mapped a file; nothing where the system does not
    tell.
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
    """Drop the pages of a mapped tensor, and those that the system mapped around them, from memory;
    the next use reads the file.

    Pages that were written to would lose that: so this is for loading, before anybody has the
    tensors.
    """
    if stored.mapping is None:
        return
    storage = stored.read().untyped_storage()
    first = max(stored.mapping[0], storage.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE - _AROUND)
    last = min(stored.mapping[1], storage.data_ptr() + storage.nbytes() + _AROUND)
    if storage.nbytes() >= _SMALL and first < last:
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED
        )


OFF: tuple[Any, ...] = (None, False, [], {})  # an option that published models do not use
# BiMambaModel, LlamaBiForMNTP; not BigBird, BioGpt
_BOTH_WAYS_CLASS = re.compile(r"(^|[a-z0-9])Bi(?=[A-Z])|[Bb]idirec")
_BOTH_WAYS_KEY = re.compile("bi_?direc", re.IGNORECASE)


def reads_both_ways(config: Mapping[str, Any]) -> str | None:
    """Return what in a config.json says that a token is read with later tokens too; None if nothing
    does.
    """
    if config.get("is_causal") is True:
        return None
    for key, value in config.items():
        if (key == "is_causal" and value is False) or (_BOTH_WAYS_KEY.search(key) and value):
            return f"{key} is {value!r}"
    classes = [*(config.get("architectures") or []), *code_classes(config)]
    named = next((name for name in classes if _BOTH_WAYS_CLASS.search(str(name))), None)
    return named and f"it names the class {named}"


def code_classes(config: Mapping[str, Any]) -> list[str]:
    """Return the classes that auto_map of a config.json names, other than tokenizers."""
    named = config.get("auto_map") or {}
    return (
        [str(name) for key, name in named.items() if key != "AutoTokenizer"]
        if isinstance(named, Mapping)
        else [str(named)]
    )


def expect_options(
    config: Mapping[str, Any],
    known: Mapping[str, tuple[Any, ...]],
    where: str,
    what: str = "published models have",
) -> None:
    """Raise CheckpointError for an option that changes what is computed, unless it has one of the
    `known` values.
    """
    for key, values in known.items():
        if config.get(key, values[0]) not in values:
            expected = " or ".join(map(repr, values[:2]))
            raise CheckpointError(
                f"{where}: {key} is {config[key]!r} in its config, {what} {expected}"
            )


def expect_agreement(config: Mapping[str, Any], weights: Mapping[str, Any], where: str) -> None:
    """Raise CheckpointError if a config says something else than the weights; None: it does not
    say.
    """
    said = {key: value for key, value in config.items() if value is not None}
    expect_options(
        said, {key: (value,) for key, value in weights.items()}, where, "in the weights it is"
    )


def expect_fit(fits: bool, what: str, where: str) -> None:
    """Raise CheckpointError for shapes that contradict each other."""
    if not fits:
        raise CheckpointError(
            f"{where}: mis-shaped {what}; the weights are damaged, or belong to another model"
        )


def whole(config: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    """Return a positive whole number of a config."""
    value = config.get(key, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        came = "is missing" if value is None else f"is {value!r}"
        raise CheckpointError(
            f"{where}: {key} {came} in its config, expected a positive whole number"
        )
    return value


def number(value: object, key: str, where: str) -> float:
    """Return a JSON number; infinity may also be a word, which transformers 5 wraps as
    {"__float__": "Infinity"}.
    """
    if isinstance(value, Mapping):
        value = value.get("__float__")
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{where}: {key} is {value!r} in its config, expected a number"
        ) from error
