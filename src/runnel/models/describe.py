"""Facts about a checkpoint or a model, and what fits on this machine, without
loading the weights.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint.load import (
    Checkpoint,
    find_checkpoint,
    meta_backbone,
    open_weights,
    read_config,
    recognize,
)
from runnel.backbones.checkpoint.shapes import check_tensors
from runnel.backbones.encoder.model import Encoder
from runnel.engine import Engine
from runnel.errors import CheckpointError, InputError
from runnel.hardware import available_memory, cores
from runnel.models.folder import BUILT_IN
from runnel.models.foreign.bare import read_bare
from runnel.models.foreign.transformers import read_encoder
from runnel.models.recurrent.model import TorchModel, read_folder
from runnel.ops.backend import has_native_bf16, wanted_dtype
from runnel.text.tokenizer import Tokenizer
from runnel.text.tokenizers import tokenizer_file

_TEXT_TOKENS = 512  # length of the text whose attention is counted
_DTYPES = (torch.bfloat16, torch.float32)  # in which weights can be loaded


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
            module.weight for module in self.backbone.modules() if isinstance(module, nn.Embedding)
        }
        return sum(table.numel() for table in tables)

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Return the bytes of the backbone's weights loaded with this `dtype`."""
        small = torch.float64 if dtype == torch.float64 else torch.float32
        return sum(
            parameter.numel() * (dtype if name.endswith(self.backbone.matrices) else small).itemsize
            for name, parameter in self.backbone.named_parameters()
        )


def describe_checkpoint(source: str | Path) -> CheckpointFacts:
    """Recognize a checkpoint, named as for `load_backbone`, without loading it."""
    path = find_checkpoint(source)
    config, tensors = read_config(path), open_weights(path)
    known = recognize(config, tensors, str(path))
    backbone, layout = meta_backbone(known.architecture, known.config), known.layout
    check_tensors(
        known.backbone,
        {name: tuple(tensor.shape) for name, tensor in backbone.state_dict().items()},
        str(path),
    )
    heads = {name: tensor.shape for name, tensor in known.heads.items()}
    stored: Counter[torch.dtype] = Counter()
    for tensor in tensors.values():
        if tensor.dtype is not None:
            stored[tensor.dtype] += torch.Size(tensor.shape).numel() * tensor.dtype.itemsize
    folder = path if path.is_dir() else path.parent
    files = {
        name: (folder / name).stat().st_size
        for name in sorted({tensor.file for tensor in tensors.values()})
    }
    return CheckpointFacts(path, layout, backbone, heads, files, dict(stored))


def describe_model(name: str) -> dict[str, Any]:
    """Return the facts about a model, as JSON values; "problem" names a missing part of a bare
    checkpoint.
    """
    facts = describe_checkpoint(BUILT_IN.get(name, name))
    parts = _parts(facts, name)  # first: it may lower a transformer's max_tokens
    return {"model": name, **_checkpoint(facts), **parts, **_machine(facts)}


def _checkpoint(described: CheckpointFacts) -> dict[str, Any]:
    backbone = described.backbone
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = wanted_dtype("auto", torch.device(device))
    attention = None
    # what it adds per token, in a text of `_TEXT_TOKENS`, the longest allowed, or a passage
    if not backbone.recurrent:
        tokens = backbone.passage_tokens or min(_TEXT_TOKENS, backbone.max_tokens or _TEXT_TOKENS)
        attention = {
            "tokens": tokens,
            "flops_per_token": backbone.flops(tokens) // tokens - backbone.flops_per_token,
        }
    return {
        "path": str(described.checkpoint),
        "architecture": backbone.architecture,
        "title": backbone.title,
        "layout": described.layout,
        "layers": backbone.num_layers,
        "width": backbone.hidden_size,
        "vocabulary": backbone.vocab_size,
        "config": backbone.config.to_dict(),
        "parameters": described.parameters,
        "embedding_parameters": described.embedding_parameters,
        "files": described.files,
        "file_bytes": sum(described.files.values()),
        "stored_bytes": {_name(kind): size for kind, size in described.stored.items()},
        "device": device,
        "dtype": _name(dtype),
        "weight_bytes": described.weight_bytes(dtype),
        "recurrent": backbone.recurrent,
        "max_tokens": backbone.max_tokens,
        "passage_tokens": backbone.passage_tokens,
        "state_bytes_per_sequence": backbone.state_bytes,
        "state": {key: list(shape) for key, shape in backbone.state_shapes().items()},
        "flops_per_token": backbone.flops_per_token,
        "standard_flops_per_token": 2 * described.parameters,
        "attention": attention,
    }


def _parts(described: CheckpointFacts, name: str) -> dict[str, Any]:
    """Return tokenizer, markers, heads, templates and prompts, as loading would combine them."""
    zero = torch.zeros(())
    # right shapes, no memory
    heads = {key: zero.expand(shape) for key, shape in described.heads.items()}
    checkpoint = Checkpoint(described.backbone, heads, described.layout, described.folder)
    config = read_config(described.checkpoint) or {}
    if "runnel" in config:
        model = read_folder(described.folder, config["runnel"], checkpoint, name)
    else:
        try:
            encoder = described.backbone if isinstance(described.backbone, Encoder) else None
            rest = (
                read_bare(described.folder, checkpoint)
                if encoder is None
                else read_encoder(described.folder, encoder)
            )
        except CheckpointError as error:
            return {
                "tokenizer": None,
                "markers": None,
                "heads": {},
                "templates": {},
                "prompts": {},
                "problem": str(error),
            }
        model = TorchModel(described.backbone, **vars(rest), source=name)
    file, tokenizer = tokenizer_file(described.folder), model.tokenizer
    return {
        "tokenizer": {
            "kind": type(tokenizer).__name__.removesuffix("Tokenizer").lower(),
            "file": None if file is None else file.name,
            "tokens": tokenizer.vocab_size,
        },
        "markers": {
            "begin": _marker(tokenizer, tokenizer.begin_id),
            "end": _marker(tokenizer, tokenizer.end_id),
        },
        "heads": {
            key: {
                "kind": type(head).__name__,
                "parameters": sum(p.numel() for p in head.parameters()),
            }
            | ({"unit": model.unit} if key == "sentences" else {})
            for key, head in model.heads.items()
        },
        "templates": {key: str(template) for key, template in model.templates.items()},
        "prompts": model.prompts,
        "problem": None,
    }


def _machine(described: CheckpointFacts) -> dict[str, Any]:
    """Return what fits into the memory that is free now, with the default dtype."""
    free, loaded = (
        available_memory(),
        described.weight_bytes(wanted_dtype("auto", torch.device("cpu"))),
    )
    room, backbone = max(0, free - loaded), described.backbone
    facts_here: dict[str, Any] = {
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "native_bf16": has_native_bf16(),
        "memory_free_bytes": free,
        "fits": _fits(described, free),
        "states_that_fit": room // backbone.state_bytes if backbone.state_bytes else None,
        "step_tokens": Engine(backbone).step_tokens,
        "longest_step_tokens": _longest_step(backbone, room),
        "gpu": None,
    }
    if torch.cuda.is_available():
        name, (free, total) = torch.cuda.get_device_name(), torch.cuda.mem_get_info()
        facts_here["gpu"] = {
            "name": name,
            "memory_bytes": total,
            "memory_free_bytes": free,
            "fits": _fits(described, free),
        }
    return facts_here


def _fits(facts: CheckpointFacts, free: int) -> dict[str, bool]:
    """Return by dtype whether the weights, one step and its states fit."""
    return {
        _name(dtype): _longest_step(facts.backbone, free - facts.weight_bytes(dtype)) > 0
        for dtype in _DTYPES
    }


def _longest_step(backbone: Backbone, room: int) -> int:
    """Return the tokens of the longest step that fits into `room` bytes, 0 if none."""
    try:
        return Engine(backbone, memory_bytes=room).step_tokens
    except InputError:
        return 0


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _marker(tokenizer: Tokenizer, number: int | None) -> dict[str, Any] | None:
    if number is None:
        return None
    return {
        "id": number,
        "token": next(
            (token for token, key in tokenizer.vocabulary.items() if key == number), None
        ),
    }
