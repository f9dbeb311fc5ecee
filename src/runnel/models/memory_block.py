"""One block of remembered documents: its tensors, their digest, and what is checked before a kernel sees them.

n  documents of a block   L  layers   D  width of hidden vectors
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from runnel.backbones.state import State
from runnel.errors import StateError

Precision = Literal["fp32", "bf16", "int8"]


@dataclass(frozen=True)
class Remembered:
    """One document as a reranker remembers it: its state, the mean of its hidden vectors (D,), its distinct token ids."""

    id: str
    text: str | None
    state: State
    mean: Tensor
    unique_ids: np.ndarray


def seal(tensors: dict[str, Tensor], owner: str = "") -> dict[str, Tensor]:
    """Return the tensors of a block with their digest, which also covers `owner`."""
    return tensors | {"digest": _digest(tensors, owner)}


def _digest(tensors: Mapping[str, Tensor], owner: str) -> Tensor:
    digest = hashlib.blake2b(owner.encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return torch.tensor(list(digest.digest()), dtype=torch.uint8)


def read_block(read: Callable[[], dict[str, Tensor]], rows: int, source: str, owner: str | None = "") -> dict[str, Tensor]:
    """Read the tensors of a block and check that they hold `rows` documents and match their digest (owner None: known to)."""
    try:
        tensors = read()
        digest = tensors.pop("digest")
    except (SafetensorError, OSError, KeyError) as error:
        raise StateError(f"cannot read remembered documents from {source}: {error}; remember or index them again") from error
    if not _is_block(tensors, rows) or not (owner is None or torch.equal(digest, _digest(tensors, owner))):
        raise StateError(f"the remembered documents from {source} are damaged; remember or index them again")
    return tensors


def _is_block(tensors: Mapping[str, Tensor], rows: int) -> bool:
    """Return whether tensors are as `pack` makes them for `rows` documents: names, dtypes, lengths and positions in range."""
    tokens, mean, ids, stops = (tensors.get(name) for name in ("tokens", "mean", "unique.ids", "unique.stops"))
    if tokens is None or mean is None or ids is None or stops is None:
        return False
    counted = all(tensor.dtype == torch.int64 and tensor.shape == (rows,) for tensor in (tokens, stops))
    averaged = mean.ndim == 2 and mean.dtype in (torch.float32, torch.float64)
    if not (counted and averaged and ids.ndim == 1 and ids.dtype == torch.int32):
        return False
    ends = [0, *stops.tolist()]
    if ends != sorted(ends) or ends[-1] != len(ids) or bool((tokens < 0).any()):
        return False
    for key, tensor in tensors.items():
        group, _, name = key.partition(".")
        scale = tensors.get(f"scale.{name}")
        if (group == "scale" and f"state.{name}" not in tensors) or group not in ("state", "scale", "tokens", "mean", "unique"):
            return False
        if group == "state" and not _is_packed(tensor, scale):
            return False
    return all(len(tensor) == rows for key, tensor in tensors.items() if key != "unique.ids")


def _is_packed(tensor: Tensor, scale: Tensor | None) -> bool:
    if scale is None:
        return tensor.ndim > 1 and tensor.dtype in (torch.float32, torch.bfloat16)
    return (
        tensor.ndim > 1 and tensor.dtype == torch.int8 and scale.dtype == torch.float32 and scale.shape == (*tensor.shape[:-1], 1)
    )


def pack(documents: Sequence[Remembered], precision: Precision) -> dict[str, Tensor]:
    """Return the block of these documents."""
    tensors: dict[str, Tensor] = {
        "tokens": torch.cat([d.state.tokens for d in documents]),
        "mean": torch.stack([d.mean for d in documents]),
        "unique.ids": torch.from_numpy(np.concatenate([d.unique_ids for d in documents])),
        "unique.stops": torch.from_numpy(np.cumsum([len(d.unique_ids) for d in documents])),
    }
    whole = sum(tensor.numel() for tensor in documents[0].state.tensors.values())
    for name in documents[0].state.tensors:
        tensor = torch.cat([d.state[name] for d in documents])
        if 100 * documents[0].state[name].numel() < whole:  # small, and may scale the others (xLSTM's m and n)
            tensors[f"state.{name}"] = tensor
        elif precision == "int8" and tensor.shape[-1] >= 16:  # short last dimensions (conv tails) are a few percent of the bytes
            scale = (tensor.abs().amax(dim=-1, keepdim=True) / 127).clamp(min=1e-30)
            tensors[f"state.{name}"] = (tensor / scale).round().to(torch.int8)
            tensors[f"scale.{name}"] = scale
        else:
            tensors[f"state.{name}"] = tensor if precision == "fp32" else tensor.to(torch.bfloat16)
    return tensors


def row_of(tensors: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    """Return one row of a block as a block."""
    ids = unique_ids_of(tensors, row)
    unique = {"unique.ids": ids, "unique.stops": torch.tensor([len(ids)])}
    return unique | {name: tensor[row : row + 1] for name, tensor in tensors.items() if name not in unique}


def unique_ids_of(tensors: Mapping[str, Tensor], row: int) -> Tensor:
    """Return the sorted distinct token ids of a document of a block."""
    stops = tensors["unique.stops"]
    return tensors["unique.ids"][int(stops[row - 1]) if row else 0 : int(stops[row])]


def unpack(tensors: Mapping[str, Tensor], row: int, state: State, place: int) -> None:
    """Fill a row of a state in place: rows are as large as a processor's cache, and there are many."""
    for name, tensor in state.tensors.items():
        tensor[place].copy_(tensors[f"state.{name}"][row])
        if f"scale.{name}" in tensors:
            tensor[place].mul_(tensors[f"scale.{name}"][row])
    state.tokens[place] = tensors["tokens"][row]
