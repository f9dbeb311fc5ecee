"""Describe a checkpoint or a model that torch computes, without loading its weights: a name goes
in, `CheckpointFacts` and the parts of the model come out.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from runnel.backbones.checkpoint.finding import find_checkpoint, read_config
from runnel.backbones.checkpoint.load import Checkpoint, meta_backbone, open_weights, recognize
from runnel.backbones.checkpoint.shapes import check_tensors
from runnel.backbones.checkpoint.tensors import shapes_of
from runnel.backbones.encoder.model import Encoder
from runnel.errors import CheckpointError
from runnel.models.checkpoint_facts import CheckpointFacts, describe_tokenizer
from runnel.models.foreign.bare import read_bare
from runnel.models.foreign.transformers import read_encoder
from runnel.models.recurrent.model import described_model


def describe_checkpoint(source: str | Path) -> CheckpointFacts:
    """Recognize a checkpoint, named as for `load_backbone`, without loading it."""
    path = find_checkpoint(source)
    tensors = open_weights(path)
    checkpoint = recognize(read_config(path), tensors, str(path))
    backbone = meta_backbone(checkpoint.architecture, checkpoint.config)
    check_tensors(checkpoint.backbone, shapes_of(backbone.state_dict()), str(path))
    stored: Counter[str] = Counter()
    for tensor in tensors.values():
        if tensor.dtype is not None:
            bytes_ = torch.Size(tensor.shape).numel() * tensor.dtype.itemsize
            stored[str(tensor.dtype).removeprefix("torch.")] += bytes_
    folder = path if path.is_dir() else path.parent
    tables = {module.weight for module in backbone.modules() if isinstance(module, nn.Embedding)}
    return CheckpointFacts(
        path,
        checkpoint.layout,  # what format it has, in words
        backbone,
        weights=shapes_of(dict(backbone.named_parameters())),
        matrices=backbone.matrices,
        embedding_parameters=sum(table.numel() for table in tables),
        heads={name: tensor.shape for name, tensor in checkpoint.heads.items()},
        files={
            name: (folder / name).stat().st_size
            for name in sorted({tensor.file for tensor in tensors.values()})
        },
        stored=dict(stored),
    )


def describe_parts(described: CheckpointFacts, name: str) -> dict[str, Any]:
    """Return tokenizer, markers, heads, templates and prompts, as loading would combine them. Like
    loading, it may lower a transformer's max_tokens (`read_encoder`).
    """
    # tensors of the right shapes without memory: all numbers of one are the same zero
    heads = {key: torch.zeros(()).expand(shape) for key, shape in described.heads.items()}
    backbone = described.backbone
    config = read_config(described.checkpoint) or {}
    checkpoint = Checkpoint(backbone, heads, described.layout, described.folder, config)
    if "runnel" in config:
        model = described_model(described.folder, checkpoint, name)
    else:
        try:
            if isinstance(backbone, Encoder):
                model = read_encoder(described.folder, backbone, name)
            else:
                model = read_bare(described.folder, checkpoint, name)
        except CheckpointError as error:
            return {
                "tokenizer": None,
                "markers": None,
                "heads": {},
                "templates": {},
                "prompts": {},
                "problem": str(error),
            }
    return {
        **describe_tokenizer(described.folder, model.tokenizer),
        "heads": {
            key: {
                "kind": type(head.for_inference).__name__,
                "parameters": sum(weight.numel() for weight in head.parameters()),
            }
            | ({"unit": model.unit} if key == "sentences" else {})
            for key, head in model.heads.items()
        },
        "templates": {key: str(template) for key, template in model.templates.items()},
        "prompts": model.prompts,
        "problem": None,
    }
