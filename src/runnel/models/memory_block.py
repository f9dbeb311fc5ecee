"""One block of remembered documents: its tensors and their digest."""

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
    """Return the tensors with a digest of their names, dtypes, shapes and numbers, and of `owner`."""
    digest = hashlib.blake2b(owner.encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return tensors | {"digest": torch.tensor(list(digest.digest()), dtype=torch.uint8)}


def read_sealed(read: Callable[[], dict[str, Tensor]], source: str, owner: str | None = "") -> dict[str, Tensor]:
    """Read what `seal` returned and check its digest (owner None: checked before)."""
    try:
        tensors = read()
        digest = tensors.pop("digest").tolist()
    except (SafetensorError, OSError, KeyError) as error:
        raise StateError(f"cannot read remembered documents from {source}: {error}; remember or index them again") from error
    if owner is not None and digest != seal(tensors, owner)["digest"].tolist():
        raise StateError(f"the remembered documents from {source} are damaged; remember or index them again")
    return tensors


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
