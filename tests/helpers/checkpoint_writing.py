"""Checkpoints for tests: folders, what loading them gives, and weights files as large as published
ones, of zeros.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from runnel.backbones.checkpoint.load import (
    Checkpoint,
    build,
    load_backbone,
    meta_backbone,
    recognize,
)
from runnel.backbones.checkpoint.tensors import from_tensors
from runnel.backbones.mamba2.model import Mamba2Config
from runnel.errors import CheckpointError

_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def write_checkpoint(
    folder: Path, tensors: dict[str, Tensor], config: object = None, file: str = "model.safetensors"
) -> Path:
    """A folder with these weights and, if there is one, this config: text as it is, anything else
    as JSON.
    """
    folder.mkdir(exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(
            config if isinstance(config, str) else json.dumps(config)
        )
    save = save_file if file.endswith(".safetensors") else torch.save
    save(tensors, folder / file)
    return folder


def built(tensors: dict[str, Tensor], config: dict[str, Any] | None) -> Checkpoint:
    """What loading a folder with these weights and, if there is one, this config gives, without the
    folder.
    """
    known = recognize(config, from_tensors(tensors, "some.file"), "that/folder")
    backbone = build(
        known.architecture,
        known.config,
        known.backbone,
        torch.float32,
        torch.device("cpu"),
        "that/folder",
    )
    return Checkpoint(backbone, {}, known.layout, Path("that/folder"), {})


def refused(source: Path | tuple[dict[str, Tensor], dict[str, Any] | None], *varying: str) -> None:
    """Assert that loading a folder, or what it would hold, fails with a message of reasonable
    length that has these parts.
    """
    with pytest.raises(CheckpointError) as caught:
        if isinstance(source, Path):
            load_backbone(source, "float32")
        else:
            built(*source)
    message = str(caught.value)
    assert (source.name if isinstance(source, Path) else "that/folder") in message and len(
        message
    ) < 700
    assert all(part in message for part in varying), message


def write_sparse(path: Path, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> int:
    """A safetensors file of zeros; returns its size."""
    header: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        start = end
        end += math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header)
    text = text.ljust(len(text) + -len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text.encode())
        file.truncate(8 + len(text) + end)
    return path.stat().st_size


def shapes_of(config: Mamba2Config) -> dict[str, tuple[int, ...]]:
    return {
        f"backbone.{name}": tuple(tensor.shape)
        for name, tensor in meta_backbone("mamba2", config).state_dict().items()
    }
