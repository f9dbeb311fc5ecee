"""Describe a checkpoint from its config and the names and shapes of its tensors, without reading weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint.files import find_checkpoint, open_weights, read_config
from runnel.backbones.checkpoint.load import meta_backbone, recognize
from runnel.backbones.checkpoint.tensors import check_tensors
from runnel.ops.backend import wanted_dtype


@dataclass(frozen=True)
class CheckpointFacts:
    """A checkpoint that was recognized and not loaded."""

    checkpoint: Path  # the folder, or the weights file that was named
    layout: str  # in words, e.g. "Mamba-2, state-spaces original layout"
    backbone: Backbone  # on the meta device: it has config, names and shapes, and no numbers
    heads: dict[str, tuple[int, ...]]  # shapes of tensors
    files: dict[str, int]  # bytes
    stored: dict[torch.dtype, int]  # bytes of all tensors

    @property
    def folder(self) -> Path:
        return self.checkpoint if self.checkpoint.is_dir() else self.checkpoint.parent

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.backbone.parameters())

    @property
    def embedding_parameters(self) -> int:
        tables = {
            id(module.weight): module.weight.numel() for module in self.backbone.modules() if isinstance(module, nn.Embedding)
        }
        return sum(tables.values())

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Return the bytes of the backbone's weights loaded with this `dtype`."""
        small = torch.float64 if dtype == torch.float64 else torch.float32
        return sum(
            parameter.numel() * (dtype if name.endswith(self.backbone.matrices) else small).itemsize
            for name, parameter in self.backbone.named_parameters()
        )

    def auto_dtype(self, device: str) -> torch.dtype:
        """Return the dtype that `load_backbone` chooses on a device, "cpu" or "cuda", by default."""
        return wanted_dtype("auto", torch.device(device))


def describe_checkpoint(source: str | Path) -> CheckpointFacts:
    """Recognize a checkpoint, named as for `load_backbone`, without loading it."""
    path = find_checkpoint(source)
    config, tensors = read_config(path), open_weights(path)
    known = recognize(config, tensors, str(path))
    backbone, layout = meta_backbone(known.architecture, known.config), known.layout
    check_tensors(known.backbone, {name: tuple(tensor.shape) for name, tensor in backbone.state_dict().items()}, str(path))
    heads = {name: tensor.shape for name, tensor in known.heads.items()}
    stored: Counter[torch.dtype] = Counter()
    for tensor in tensors.values():
        if tensor.dtype is not None:
            stored[tensor.dtype] += torch.Size(tensor.shape).numel() * tensor.dtype.itemsize
    folder = path if path.is_dir() else path.parent
    files = {name: (folder / name).stat().st_size for name in sorted({tensor.file for tensor in tensors.values()})}
    return CheckpointFacts(path, layout, backbone, heads, files, dict(stored))
