"""Weights files as large as published ones, for tests: zeros, which take no place on the disk."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

from runnel.backbones.checkpoint.load import meta_backbone
from runnel.backbones.mamba2.model import Mamba2Config

_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def write_sparse(path: Path, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> int:
    """A safetensors file of zeros; returns its size."""
    header: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header)
    text += " " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text.encode())
        file.truncate(8 + len(text) + end)
    return path.stat().st_size


def shapes_of(config: Mamba2Config) -> dict[str, tuple[int, ...]]:
    return {f"backbone.{name}": tuple(tensor.shape) for name, tensor in meta_backbone("mamba2", config).state_dict().items()}
