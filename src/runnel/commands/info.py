"""`runnel info`: what a model is and what fits this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runnel.commands.display import print_json, stdout_console
from runnel.errors import CheckpointError, RunnelError

if TYPE_CHECKING:
    from runnel.backbones.base import Backbone
    from runnel.models.base import Model


def run(name: str, *, as_json: bool) -> int:
    """Print the facts of a model."""
    facts = describe(name)
    if as_json:
        print_json(facts)
        return 0
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for key, value in facts.items():
        table.add_row(key.replace("_", " "), _shown(value))
    stdout_console().print(table, markup=False)
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


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key}: {item}" for key, item in value.items()) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:,}" if isinstance(value, int) else str(value)
