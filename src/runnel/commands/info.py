"""`runnel info`: what a model is and what fits this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.commands.display import print_json
from runnel.errors import CheckpointError, RunnelError

if TYPE_CHECKING:
    from runnel.backbones.base import Backbone
    from runnel.models.base import Model

_NAMES = {"weight_bytes": "weights", "state_bytes_per_sequence": "state per sequence", "memory_free_bytes": "free memory"}


def run(name: str, *, as_json: bool) -> int:
    """Print the facts of a model."""
    facts = describe(name)
    if as_json:
        print_json(facts)
        return 0
    shown = {_NAMES.get(key, key.replace("_", " ")): (key, value) for key, value in facts.items()}
    width = 2 + max(map(len, shown))
    for name_shown, (key, value) in shown.items():
        sys.stdout.write(f"{name_shown:<{width}}{_shown(key, value, width)}\n")
    return 0


def describe(name: str) -> dict[str, object]:
    """The facts `runnel info` prints."""
    from runnel.backbones.checkpoint import load_backbone
    from runnel.models.base import load_model

    model: Model | None = None
    try:
        model = load_model(name)
        backbone = model.backbone
    except RunnelError as error:
        if not Path(name).is_dir():
            raise
        try:
            backbone = load_backbone(name)  # a bare backbone is worth describing; the reason why it is no model is the error
        except CheckpointError:
            raise error from None
    facts = {"model": name, "architecture": backbone.architecture, **_sizes(backbone)}
    if model is not None:
        facts |= _model_facts(model)
    return facts | _machine(backbone)


def _sizes(backbone: Backbone) -> dict[str, object]:
    parameters = list(backbone.parameters())
    kinds = sorted({str(p.dtype).removeprefix("torch.") for p in parameters})
    return {
        "layers": backbone.num_layers,
        "width": backbone.hidden_size,
        "vocabulary": backbone.vocab_size,
        "parameters": sum(p.numel() for p in parameters),
        "weight_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "dtype": " and ".join(kinds),
        "device": str(backbone.device),
        "state_bytes_per_sequence": backbone.state_bytes,
        "state": {key: list(shape) for key, shape in backbone.state_shapes().items()},
    }


def _model_facts(model: Model) -> dict[str, object]:
    return {
        "heads": {
            key: f"{type(head).__name__}, {sum(p.numel() for p in head.parameters()):,} parameters"
            for key, head in model.heads.items()
        },
        "templates": {key: str(template) for key, template in model.templates.items()},
        "prompts": model.prompts,
        "step_tokens": model.engine.step_tokens,
    }


def _machine(backbone: Backbone) -> dict[str, object]:
    import torch

    from runnel.hardware import available_memory, cores, has_native_bf16

    free = available_memory()
    return {
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "native_bf16": has_native_bf16(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "memory_free_bytes": free,
        "states_that_fit": free // backbone.state_bytes,
    }


def _shown(key: str, value: object, indent: int) -> str:
    if isinstance(value, dict):
        return ("\n" + " " * indent).join(f"{name}: {item}" for name, item in value.items()) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int):
        return _size(value) if "_bytes" in key else f"{value:,}"
    return str(value)


def _size(size: float) -> str:
    """Bytes in the unit that gives a number below 1024."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"
