"""Facts about a model, and what fits on this machine, without loading the weights: a name goes in,
an object for JSON comes out (`runnel info`).

An encoder that runnel saved is described here, from its config and the header of its weights file,
without torch; all other models by `recurrent/describe.py`.
"""

from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from runnel.backbones.checkpoint.finding import damaged_weights, find_checkpoint, read_config
from runnel.backbones.checkpoint.shapes import StoredShape, check_tensors
from runnel.backbones.encoder.arrays import LOW_PRECISION, weight_shapes
from runnel.backbones.encoder.config import EncoderConfig, EncoderShape
from runnel.config import valid_config
from runnel.engine import Engine
from runnel.errors import CheckpointError, InputError, needing
from runnel.hardware import available_memory, cores
from runnel.models.checkpoint_facts import DTYPE_BYTES, CheckpointFacts, describe_tokenizer
from runnel.models.description import Description
from runnel.models.folder import BUILT_IN
from runnel.models.pocket.heads import ArrayHead
from runnel.ops.backend import gpu_name, has_native_bf16
from runnel.ops.numba_math import count_threads
from runnel.text.templates import Template
from runnel.text.tokenizers import read_tokenizer

_TEXT_TOKENS = 512  # length of the text whose attention is counted
_DTYPES = ("bfloat16", "float32")  # in which weights can be loaded
# the names of dtypes in safetensors files, and the names that are reported
_NAMES = {"I8": "int8", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}


def describe_model(name: str) -> dict[str, Any]:
    """Return the facts about a model, as JSON values; "problem" names a missing part of a bare
    checkpoint, which has weights, but no heads of runnel.

    Raises:
        CheckpointError: the model is missing, damaged or of an unknown kind.
        MissingDependency: it needs torch, which is not installed.
    """
    # 1. find its folder, and decide by the config whether it is an encoder that runnel saved
    path = find_checkpoint(BUILT_IN.get(name, name))
    config = read_config(path) or {}
    read = Description.read(config["runnel"], name) if "runnel" in config else None
    # 2. read shapes and parts
    if (
        read is not None
        and read.backbone.get("architecture") == "encoder"
        and (path / "model.safetensors").is_file()
    ):
        facts = _describe_encoder(path, read)
        parts = _describe_parts(facts, read, name)
    else:
        with needing(f"the model {name} needs torch", "recurrent"):
            from runnel.models.recurrent import describe as describe_torch
        facts = describe_torch.describe_checkpoint(path)
        parts = describe_torch.describe_parts(facts, name)
    # 3. add what fits on this machine
    return {"model": name, **_checkpoint(facts), **parts, **_machine(facts)}


def _describe_encoder(folder: Path, description: Description) -> CheckpointFacts:
    """Return the facts of an encoder from its config and the header of its weights file."""
    file = folder / "model.safetensors"
    with valid_config(str(folder)):
        config = EncoderConfig.from_dict(description.backbone.get("config", {}), str(folder))
    try:
        with safe_open(file, "numpy") as weights:
            slices = {name: weights.get_slice(name) for name in weights.keys()}
            shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
            dtypes = {name: part.get_dtype() for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise damaged_weights(file, error) from error
    stored: Counter[str] = Counter()
    for name, dtype in dtypes.items():
        if dtype not in _NAMES:
            raise CheckpointError(
                f"{folder}: tensor {name!r} in {file.name} is {dtype}; expected one of"
                f" {', '.join(_NAMES)}; save the model again"
            )
        stored[_NAMES[dtype]] += prod(shapes[name]) * DTYPE_BYTES[_NAMES[dtype]]
    layers = _start_with("backbone.", shapes)
    held = {name: StoredShape(size, file.name) for name, size in layers.items()}
    check_tensors(held, weight_shapes(config), str(folder))
    return CheckpointFacts(
        folder,
        f"{EncoderShape.title}, runnel layout",
        EncoderShape(config),
        weights=layers,
        matrices=LOW_PRECISION,  # weights that take the dtype that is loaded; others stay fp32
        embedding_parameters=prod(layers["embeddings.weight"]) + prod(layers["positions.weight"]),
        heads=_start_with("heads.", shapes),
        files={file.name: file.stat().st_size},
        stored=dict(stored),
    )


def _start_with(prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in one part of a file, without the scales of 8-bit ones."""
    return {
        name.removeprefix(prefix): shape
        for name, shape in shapes.items()
        if name.startswith(prefix)
        and not (name.endswith(".scale") and name.removesuffix(".scale") in shapes)
    }


def _describe_parts(facts: CheckpointFacts, description: Description, name: str) -> dict[str, Any]:
    """Return tokenizer, markers, heads, templates and prompts of a folder that runnel wrote."""
    with valid_config(name):
        markers = description.markers
        tokenizer = read_tokenizer(facts.folder, begin=markers.begin, end=markers.end)
        templates = {
            key: str(Template.from_dict(value)) for key, value in description.templates.items()
        }
    parameters: Counter[str] = Counter()
    for weight, shape in facts.heads.items():
        if not weight.endswith(ArrayHead.fixed):  # numbers that are set, not trained
            parameters[weight.partition(".")[0]] += prod(shape)
    return {
        **describe_tokenizer(facts.folder, tokenizer),
        "heads": {
            key: {
                "kind": str(head.get("kind")).title().replace("_", ""),
                "parameters": parameters[key],
            }
            | ({"unit": description.unit} if key == "sentences" else {})
            for key, head in description.heads.items()
        },
        "templates": templates,
        "prompts": description.prompts,
        "problem": None,
    }


def _checkpoint(described: CheckpointFacts) -> dict[str, Any]:
    backbone = described.backbone
    device = "cpu" if gpu_name() is None else "cuda"
    dtype = _default_dtype(device)
    attention = None
    # attention, which adds operations to each token: in a text of `_TEXT_TOKENS`, or of the longest
    # text or passage that the model reads
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
        "stored_bytes": described.stored,
        "device": device,
        "dtype": dtype,
        "weight_bytes": described.weight_bytes(dtype),
        "recurrent": backbone.recurrent,
        "max_tokens": backbone.max_tokens,
        "passage_tokens": backbone.passage_tokens,
        "state_bytes_per_sequence": backbone.state_bytes,
        "state": {key: list(shape) for key, shape in backbone.state_shapes().items()},
        "flops_per_token": backbone.flops_per_token,
        # the usual estimate, with which papers compare models
        "standard_flops_per_token": 2 * described.parameters,
        "attention": attention,
    }


def _default_dtype(device: str) -> str:
    return "bfloat16" if device != "cpu" or has_native_bf16() else "float32"


def _machine(described: CheckpointFacts) -> dict[str, Any]:
    """Return what fits into the memory that is free now, with the default dtype."""
    free = available_memory()
    room = max(0, free - described.weight_bytes(_default_dtype("cpu")))
    backbone = described.backbone
    gpu = None
    if (name := gpu_name()) is not None:
        import torch

        gpu_free, total = torch.cuda.mem_get_info()
        gpu = {
            "name": name,
            "memory_bytes": total,
            "memory_free_bytes": gpu_free,
            "fits": _fits(described, gpu_free),
        }
    return {
        "cores": cores(),
        "threads": count_threads(),
        "native_bf16": has_native_bf16(),
        "memory_free_bytes": free,
        "fits": _fits(described, free),
        # sequences whose states fit, and the tokens that the engine computes at once, a step
        "states_that_fit": room // backbone.state_bytes if backbone.state_bytes else None,
        "step_tokens": Engine(backbone).step_tokens,
        "longest_step_tokens": _longest_step(backbone, room),
        "gpu": gpu,
    }


def _fits(described: CheckpointFacts, free: int) -> dict[str, bool]:
    """Return by dtype whether the weights, one step and its states fit."""
    return {
        dtype: _longest_step(described.backbone, free - described.weight_bytes(dtype)) > 0
        for dtype in _DTYPES
    }


def _longest_step(backbone: Any, room: int) -> int:
    """Return the tokens of the longest step that fits into `room` bytes, 0 if none."""
    try:
        return Engine(backbone, memory_bytes=room).step_tokens
    except InputError:
        return 0
