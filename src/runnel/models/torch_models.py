"""Models that torch computes: loaded from a folder of runnel's or another library's, and saved."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from runnel.backbones.checkpoint.finding import read_config
from runnel.backbones.checkpoint.load import Checkpoint, NoRandomNumbers, load_checkpoint
from runnel.backbones.checkpoint.tensors import check_tensors, from_tensors
from runnel.backbones.int8 import quantize
from runnel.backbones.library import Library
from runnel.errors import InputError
from runnel.files import replacing, write, write_json
from runnel.models import embedding_rwkv, heads, torch_heads
from runnel.models.bare import read_bare
from runnel.models.base import VERSION, Description, Model, head_options
from runnel.models.foreign import Job
from runnel.models.heads import (
    Head,
    LateInteraction,
    Pooling,
    check_pooling,
    head_kind,
    vector_head,
)
from runnel.models.torch_heads import TorchHead
from runnel.models.transformers import is_transformer, load_transformer, pair_notation, save_library
from runnel.ops.backend import plain_numbers
from runnel.records import expect_choice
from runnel.text.templates import Template

HEADS: dict[str, Any] = {
    head_kind(head): head
    for module in (heads, torch_heads, embedding_rwkv)
    for head in vars(module).values()
    if isinstance(head, type)
    and issubclass(head, Head)
    and head not in (Head, TorchHead, LateInteraction)
}


@plain_numbers()
def load_with_torch(
    path: Path,
    prefix: str,
    dtype: str | torch.dtype,
    device: str,
    source: str,
    *,
    pooling: Pooling | None,
    template: str | None,
    job: Job,
) -> Model:
    """Load a model; see `load_model`."""
    folder, config = path if path.is_dir() else path.parent, read_config(path) or {}
    if prefix or ("runnel" not in config and is_transformer(folder, config)):
        options: Any = {"pooling": pooling, "template": template, "job": job, "prefix": prefix}
        backbone, parts = load_transformer(folder, config, dtype, device, **options)
        return Model(backbone, **vars(parts), source=source)
    checkpoint = load_checkpoint(path, dtype=dtype, device=device)
    if "runnel" in config:
        model = read_folder(folder, config["runnel"], checkpoint, source)
    else:
        model = Model(checkpoint.backbone, **vars(read_bare(folder, checkpoint)), source=source)
    if pooling is not None:
        check_pooling(pooling, model.backbone.title, causal=model.backbone.recurrent)
        model.heads["embed"] = vector_head(pooling).module()
    if template is not None:
        before = "" if model.tokenizer.begin_id is None else "{begin}"
        model.templates["rerank"] = Template.parse(
            pair_notation(template, folder, model.tokenizer, before)
        )
    return model


def read_folder(
    folder: Path, config: Mapping[str, Any], checkpoint: Checkpoint, source: str
) -> Model:
    """Return the model in a folder that runnel wrote."""
    read = Description.read(config, source)
    return read.model(
        folder, checkpoint.backbone, _read_heads(read.heads, checkpoint, source), source
    )


def write_model(model: Model, folder: Path, weights: str) -> None:
    """See `Model.write`."""
    expect_choice(weights, ("as_is", "int8"), "weights")
    expect_adapters(model, False)  # a model folder cannot hold them
    folder.mkdir(parents=True, exist_ok=True)
    write(
        folder / "README.md",
        model.card or f"# A runnel model\n\nArchitecture: {model.backbone.architecture}.\n",
    )
    if isinstance(model.backbone, Library):
        save_library(
            model.backbone, folder, weights, model.tokenizer, model.templates, model.prompts
        )
        return
    tensors: dict[str, Tensor] = {}
    for prefix, module in (("backbone", model.backbone), ("heads", model.heads)):
        for name, tensor in module.state_dict().items():
            # in layers that run in 8 bits
            key = f"{prefix}.{name.replace('weight_scale', 'weight.scale')}"
            wide = tensor.ndim == 2 and tensor.shape[1] >= 64 and tensor.is_floating_point()
            if weights == "int8" and wide and prefix == "heads":
                # a head has few weights, and 8 bits would change its scores
                tensors[key] = tensor.half()
            elif weights == "int8" and wide:
                tensors[key], tensors[key + ".scale"] = quantize(tensor)
            else:
                tensors[key] = tensor.detach().contiguous().clone()
    config = {
        "runnel": {
            "version": VERSION,
            "backbone": {
                "architecture": model.backbone.architecture,
                "config": model.backbone.config.to_dict(),
            },
            "heads": {name: head.config for name, head in model.heads.items()},
            "templates": {name: template.to_dict() for name, template in model.templates.items()},
            "prompts": model.prompts,
            "markers": {"begin": model.tokenizer.begin_id, "end": model.tokenizer.end_id},
            "unit": model.unit,
        }
    }
    model.tokenizer.save(folder)
    # sentence-transformers saves in every process of a run
    with replacing(folder / "model.safetensors") as partial:
        save_file(tensors, partial, metadata={"format": "pt"})
    write_json(folder / "config.json", config)


def expect_adapters(model: Model, adapted: bool) -> None:
    """Raise InputError unless a model's backbone has adapters, or has none; none can be added to
    one without torch.
    """
    if model.backbone.without_torch:
        model.backbone()  # raises
    if model.backbone.adapted != adapted:
        came, expected = ("already", "none") if model.backbone.adapted else ("no", "some")
        raise InputError(
            f"{model.source} has {came} adapters; expected {expected}: see add_lora(), merge() and"
            " save_adapter()"
        )


def _read_heads(
    config: Mapping[str, Mapping[str, Any]], checkpoint: Checkpoint, source: str
) -> nn.ModuleDict:
    """Read the heads with their weights, and allocate memory only after checking the weights'
    shapes.
    """
    with torch.device("meta"), NoRandomNumbers():
        built = {
            name: head_options(HEADS, name, head, checkpoint.backbone, source)
            for name, head in config.items()
        }
        heads = nn.ModuleDict(
            {name: kind.module(**options) for name, (kind, options) in built.items()}
        )
    wanted = heads.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
    check_tensors(from_tensors(checkpoint.heads, "the heads"), shapes, source)
    # Not `to_empty`: on meta tensors it imports sympy, which takes longer than everything else
    # here.
    heads.load_state_dict(
        {
            name: tensor.to(wanted[name].dtype, copy=True)
            for name, tensor in checkpoint.heads.items()
        },
        assign=True,
    )
    return heads
