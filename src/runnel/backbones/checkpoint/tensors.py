"""The tensors of one weights file, read and checked where they are used.

A page of the file comes into memory when it is first used and is given back when its tensor is gone. Pickles are only ever
opened with `weights_only=True`, which builds tensors and plain containers and runs no code from the file.
"""

from __future__ import annotations

import json
import mmap
import re
import struct
import weakref
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from runnel.errors import CheckpointError, NumericalError

_DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool},
}
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_SMALL = 1 << 16  # bytes
_AROUND = 1 << 22  # bytes that a system may map around what is read: twice its largest pages
_LFS_POINTER = b"version https://git-lfs"
# Linux's value; Python has no name for it. Without it the system may refuse to map a file larger than its memory, although
# pages that are only read take none that it cannot have back.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, not read yet. `dtype` is the file's; None where `read` computes the tensor from others.

    `rows`: the two that it is computed from, if it is kept in 8 bits: numbers (N, K) int8 and one scale per row (N,).
    """

    shape: tuple[int, ...]
    file: str
    read: Callable[[], Tensor]
    dtype: torch.dtype | None = None
    rows: tuple[Stored, Stored] | None = None


def from_tensors(tensors: Mapping[str, Tensor], origin: str) -> dict[str, Stored]:
    """Return tensors in memory as `Stored`."""

    def stored(tensor: Tensor) -> Stored:
        return Stored(tuple(tensor.shape), origin, lambda: tensor, tensor.dtype)

    return {name: stored(tensor) for name, tensor in tensors.items()}


def open_file(path: Path) -> dict[str, Stored]:
    """Return every tensor of a weights file by its name in the file, without reading any."""
    return _open_safetensors(path) if path.suffix == ".safetensors" else _open_pickle(path)


def _open_safetensors(path: Path) -> dict[str, Stored]:
    try:
        with safe_open(path, framework="numpy"):  # checks that the header is whole and fits the file
            mapped = MappedFile(path)
        length = int.from_bytes(mapped.bytes(0, 8), "little")
        header = json.loads(mapped.bytes(8, 8 + length))
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, error) from error
    header.pop("__metadata__", None)
    unknown = sorted(name for name, entry in header.items() if entry["dtype"] not in _DTYPES)
    if unknown:
        raise CheckpointError(
            f"{path}: tensor {unknown[0]!r} is stored as {header[unknown[0]]['dtype']}; quantized weights cannot be loaded, "
            "use the originals"
        )

    def stored(entry: dict[str, Any]) -> Stored:
        shape, dtype = tuple(entry["shape"]), _DTYPES[entry["dtype"]]
        start, stop = (8 + length + offset for offset in entry["data_offsets"])
        return Stored(shape, path.name, lambda: mapped.tensor(start, stop, dtype).view(shape), dtype)

    return {name: stored(entry) for name, entry in header.items()}


def _open_pickle(path: Path) -> dict[str, Stored]:
    try:
        try:
            content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except RuntimeError as error:
            if "mmap can only be used" not in str(error):  # only files from before torch 1.6 cannot be mapped
                raise
            content = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        if _starts_with(path, _LFS_POINTER):
            raise _damaged(path, error) from error
        raise CheckpointError(
            f"{path} holds pickled Python objects that are not tensors, or is damaged; runnel never runs code from a checkpoint: "
            "save the plain state dict, best as model.safetensors"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise _damaged(path, error) from error
    if isinstance(content, dict):  # EmbeddingRWKV has a list of numbers
        content = {key: torch.tensor(value) if _is_numbers(value) else value for key, value in content.items()}
    if not isinstance(content, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items()):
        keys = some([str(key) for key in content]) if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(f"{path} is not a flat dict of tensors (it holds {keys}); save only the model's state dict")
    shift = _shift(path, content.values())
    if shift is None:
        return from_tensors(content, path.name)
    mapped = MappedFile(path)

    def stored(tensor: Tensor) -> Stored:
        shape, stride, offset, dtype = tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype
        start = tensor.untyped_storage().data_ptr() + shift
        stop = start + tensor.untyped_storage().nbytes()
        return Stored(shape, path.name, lambda: mapped.tensor(start, stop, dtype).as_strided(shape, stride, offset), dtype)

    return {name: stored(tensor) for name, tensor in content.items()}


def _is_numbers(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int and abs(one) < 1 << 31 for one in value)


def _shift(path: Path, tensors: Collection[Tensor]) -> int | None:
    """Return the offset from the address of a storage that torch mapped to its place in the file; None if unknown.

    torch maps the file as a whole and gives no tensor back before the last one is gone. The places of the storages are in the
    archive; the last of them is the one with the highest address.
    """
    if not zipfile.is_zipfile(path) or any(tensor.layout != torch.strided for tensor in tensors):
        return None
    addresses = {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.untyped_storage().nbytes()}
    places = set()
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for entry in archive.infolist():
            if entry.filename.endswith("/byteorder") and archive.read(entry) != b"little":
                return None  # torch has swapped the bytes of every number
            if re.search(r"/data/\d+$", entry.filename) and entry.file_size:
                file.seek(entry.header_offset + 26)
                places.add(entry.header_offset + 30 + sum(struct.unpack("<HH", file.read(4))))
    if not addresses or not places:
        return None
    shift = max(places) - max(addresses)
    return shift if {address + shift for address in addresses} == places else None


def _damaged(path: Path, error: Exception) -> CheckpointError:
    if _starts_with(path, _LFS_POINTER):
        return CheckpointError(f"{path} is a Git LFS pointer, not the weights; run `git lfs pull` in its repository")
    size = path.stat().st_size if path.exists() else 0
    if "allocate memory" in str(error):  # torch maps pickles so that the system wants to have room for a copy of all pages
        return CheckpointError(
            f"{path} has {size:,} bytes, more than this machine lets a pickle map; convert it to safetensors, which needs "
            "room for one tensor at a time, or use a machine with more memory"
        )
    return CheckpointError(f"{path} is damaged or was cut short ({size:,} bytes; {reason_of(error)}); copy or download it again")


def reason_of(error: Exception) -> str:
    """Return the first line of an error's message."""
    return next((line for line in str(error).strip().splitlines() if line), type(error).__name__)


def _starts_with(path: Path, prefix: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(prefix)) == prefix
    except OSError:
        return False


def some(names: list[str], most: int = 6) -> str:
    """Return the first few names and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def list_tensors(names: list[str]) -> str:
    """Return "tensor 'a'" or "tensors 'a', 'b' and 7 more"."""
    return f"tensor{'s' if len(names) > 1 else ''} {some([repr(name) for name in names])}"


def check_tensors(stored: Mapping[str, Stored], expected: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Raise CheckpointError unless every tensor is given exactly once; one error lists all problems."""
    problems = []
    if missing := [name for name in expected if name not in stored]:
        problems.append(f"missing {list_tensors(missing)}")
    if extra := sorted(stored.keys() - expected.keys()):
        problems.append(f"unexpected {list_tensors(extra)} in {stored[extra[0]].file}")
    for name, shape in expected.items():
        if name in stored and stored[name].shape != shape:
            problems.append(f"mis-shaped tensor {name!r} is {stored[name].shape} in {stored[name].file}, expected {shape}")
    if problems:
        raise CheckpointError(f"{where}: {some(problems, 3)}. The weights are incomplete, or belong to another config or model")


def read_tensor(name: str, stored: Stored, where: str) -> Tensor:
    """Read a tensor and check every number in it."""
    place = f"tensor {name!r} in {stored.file}"
    try:
        tensor = stored.read().detach()
    except (OSError, RuntimeError, ValueError) as error:  # the file changed, or vanished, since it was opened
        raise CheckpointError(f"{where}: cannot read {place}: {error}; copy the file again") from error
    if tensor.dtype not in _FLOATS:
        raise CheckpointError(
            f"{where}: {place} is stored as {tensor.dtype}; quantized weights cannot be loaded, use the originals"
        )
    if tensor.numel():
        low, high = torch.aminmax(tensor)  # both carry a NaN on; needs no further memory
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise NumericalError(
                f"{where}: {place} holds NaN or infinite numbers; the checkpoint is damaged or its training failed: use another"
            )
    return tensor


def shape_of(tensors: Mapping[str, Stored], name: str, ndim: int, where: str) -> tuple[int, ...]:
    """Return the shape of a tensor that must exist and have `ndim` dimensions."""
    if name not in tensors:
        raise CheckpointError(f"{where}: missing tensor {name!r}; without it the model's shape is unknown")
    if len(tensors[name].shape) != ndim:
        raise CheckpointError(f"{where}: mis-shaped tensor {name!r} is {tensors[name].shape}, expected {ndim} dimensions")
    return tensors[name].shape


def count_layers(names: Mapping[str, Stored]) -> int:
    """Count the different numbers of "layers.{i}." in the names."""
    return len({m[1] for name in names if (m := re.match(r"layers\.(\d{1,6})\.", name))})


# ---- memory ----------------------------------------------------------------------------------------------------------


class MappedFile:
    """The bytes of a file, as tensors that share its pages.

    Writing to such a tensor changes a private copy of the page, never the file. The pages of a tensor that nobody holds any
    more are given back at once, so that converting a file of any size keeps one of its tensors in memory at a time.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            if hasattr(mmap, "MAP_PRIVATE"):
                access = mmap.PROT_READ | mmap.PROT_WRITE
                self._map = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE | _NO_RESERVE, prot=access)
            else:  # Windows
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        # Spans that tensors hold. Each is shared: pages are only given back when no tensor is left on them.
        self._spans: weakref.WeakValueDictionary[tuple[int, int], memoryview] = weakref.WeakValueDictionary()

    def bytes(self, start: int, stop: int) -> bytes:
        """Return a copy of the bytes [start, stop)."""
        return self._map[start:stop]

    def tensor(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """Return the bytes [start, stop) as a tensor of one dimension; they are read when it is used."""
        if start >= stop:
            return torch.empty(0, dtype=dtype)
        span = self._spans.get((start, stop))
        if span is None:
            span = memoryview(self._map)[start:stop]
            weakref.finalize(span, _give_back, self._map, self._spans, start, stop).atexit = False
            self._spans[start, stop] = span
        tensor = torch.frombuffer(span, dtype=dtype)  # its storage holds the span
        # Kernels want whole elements at whole addresses. And a small view would keep megabytes around it in memory.
        return tensor.clone() if start % dtype.itemsize or stop - start < _SMALL else tensor


def _give_back(mapped: mmap.mmap, spans: Iterable[tuple[int, int]], start: int, stop: int) -> None:
    """Drop the whole pages within [start, stop) from memory; the next use reads them from the file again.

    The system also maps pages around those that are read, so these are dropped too, up to the nearest of `spans`.
    """
    low = max((end for _, end in spans if end <= start), default=0)
    high = min((begin for begin, _ in spans if begin >= stop), default=len(mapped))
    start, stop = max(low, start - _AROUND), min(high, stop + _AROUND)
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    size = stop // mmap.PAGESIZE * mmap.PAGESIZE - first
    if size > 0 and hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_DONTNEED, first, size)
