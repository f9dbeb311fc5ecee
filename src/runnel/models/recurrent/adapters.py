"""LoRA adapters on a backbone's linear layers, by PEFT; over 4-bit weights by bitsandbytes (QLoRA).

`add_lora` before training, `save_adapter` and `load_adapter` for its checkpoints, `merge` after it.

adapter.safetensors   `backbone.*.lora_A`, `backbone.*.lora_B` and `heads.*`, fp32; metadata: the
                      model's shape and LoRA settings
"""

import json
import logging
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from runnel.backbones.base import Backbone, stream_dtype
from runnel.backbones.checkpoint.shapes import check_tensors
from runnel.backbones.checkpoint.tensors import from_tensors, shapes_of
from runnel.backbones.int8 import Int8Linear
from runnel.errors import CheckpointError, InputError, errors_as
from runnel.files import replacing
from runnel.models.model import Model
from runnel.models.recurrent.model import expect_adapters

FILE = "adapter.safetensors"
_NAME = "default"  # PEFT stores adapters by name


def add_lora(
    model: Model, r: int, alpha: float, dropout: float = 0.0, four_bit: bool = False
) -> None:
    """Add LoRA adapters to all linear layers of the backbone and freeze the rest of it. They change
    nothing until trained.

    `four_bit` stores the large layers that get adapters in 4 bits (NF4 with double quantization),
    as QLoRA does.
    """
    backbone = model.backbone
    expect_adapters(model, adapted=False)
    expect_trainable(model)
    targets = sorted({name.rpartition(".")[2] for name in _linear_layers(backbone)})
    if four_bit:
        _quantize(backbone)
    # PEFT imports bitsandbytes, which then warns of kernels that it could not download.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    from peft import LoraConfig, inject_adapter_in_model

    # An encoder's layers for other forms than "texts" (`backbones/encoder/config.py`) get no
    # adapters, because `forward` does not run them. PEFT warns if the pattern matches no layer, so
    # other models get no pattern.
    others = r"(sentence|judge|pair)_layers\..*"
    exclude = (
        others if any(re.match(others, name) for name, _ in backbone.named_modules()) else None
    )
    config = LoraConfig(
        r=r,
        lora_alpha=alpha,  # type: ignore[arg-type]
        lora_dropout=dropout,
        target_modules=targets,
        exclude_modules=exclude,
    )
    inject_adapter_in_model(config, backbone, _NAME)
    wide = stream_dtype(next(backbone.parameters()))  # fp32, or fp64
    for name, parameter in backbone.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(wide)  # PEFT uses the weights' dtype
    # The mode stays the same. But `Backbone.train` also drops the kernels and the fingerprint,
    # which belong to the layers as they were.
    backbone.train(backbone.training)


def expect_trainable(model: Model) -> None:
    """Raise InputError for a model with 8-bit weights."""
    if any(isinstance(module, Int8Linear) for module in model.backbone.modules()):
        raise InputError(
            f"{model.source} has 8-bit weights, which cannot be trained; load it with"
            ' dtype="float32" or "bfloat16"'
        )


def merge(model: Model) -> None:
    """Merge the adapters into their layers' weights and remove them; 4-bit layers become fp32."""
    backbone = model.backbone
    expect_adapters(model, adapted=True)
    for name, layer in _adapters(backbone):
        base = layer.get_base_layer()
        delta = layer.get_delta_weight(_NAME)
        if base.weight.is_floating_point():
            base.weight.data = (base.weight.data.to(delta.dtype) + delta).to(base.weight.dtype)
        else:
            from bitsandbytes.functional import dequantize_4bit

            weight = dequantize_4bit(base.weight.data, base.weight.quant_state).float()
            plain: Any = nn.Linear(
                base.in_features, base.out_features, base.bias is not None, device="meta"
            )
            plain.weight = nn.Parameter(
                (weight.to(delta.dtype) + delta).float(), requires_grad=False
            )
            plain.bias = base.bias
            base = plain
        backbone.set_submodule(name, base)
    del backbone.peft_config
    backbone.train(backbone.training)  # drops the kernels and the fingerprint: see `add_lora`


def save_adapter(model: Model, folder: str | Path) -> None:
    """Write the adapters, and the heads trained with them, to `adapter.safetensors` in a folder."""
    expect_adapters(model, adapted=True)
    facts = json.dumps({"model": _shape(model), "lora": _settings(model.backbone)})
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / FILE) as file:
        save_file(
            {key: tensor.contiguous().cpu() for key, tensor in _tensors(model).items()},
            file,
            {"runnel": facts},
        )


def load_adapter(model: Model, folder: str | Path) -> None:
    """Load adapters and heads that `save_adapter` wrote; existing adapters must have the same
    settings.
    """
    path = Path(folder) / FILE
    with (
        errors_as(
            CheckpointError,
            f"cannot read the adapter {path}",
            SafetensorError,
            OSError,
            ValueError,
            advice="save or copy it again",
        ),
        safe_open(path, framework="pt") as file,
    ):
        stored = json.loads((file.metadata() or {}).get("runnel", "{}"))
        tensors = {key: file.get_tensor(key) for key in file.keys()}
    settings = _settings(model.backbone) if model.backbone.adapted else stored.get("lora")
    if (stored.get("model"), stored.get("lora")) != (_shape(model), settings):
        theirs = f"{stored.get('model')}, with {stored.get('lora')}"
        raise CheckpointError(
            f"{path} is of {theirs}; {model.source} is {_shape(model)}, with {settings}"
        )
    if not model.backbone.adapted:
        add_lora(model, **stored["lora"])
    places = _tensors(model)
    check_tensors(from_tensors(tensors, FILE), shapes_of(places), str(path))
    for key, tensor in tensors.items():
        places[key].copy_(tensor)
    model.refresh()


def _shape(model: Model) -> str:
    backbone = model.backbone
    return f"a {backbone.architecture} of {backbone.num_layers} layers, {backbone.hidden_size} wide"


def _settings(backbone: Backbone) -> dict[str, Any]:
    """Return the arguments of `add_lora` that made a backbone's adapters."""
    with_peft: Any = backbone  # PEFT has given it the attribute `peft_config`
    config = with_peft.peft_config[_NAME]
    four_bit = any(
        not layer.get_base_layer().weight.is_floating_point() for _, layer in _adapters(backbone)
    )
    return {
        "r": config.r,
        "alpha": config.lora_alpha,
        "dropout": config.lora_dropout,
        "four_bit": four_bit,
    }


def _linear_layers(backbone: Backbone) -> list[str]:
    return [name for name, module in backbone.named_modules() if isinstance(module, nn.Linear)]


def _quantize(backbone: Backbone) -> None:
    """Replace the large linear layers with 4-bit layers."""
    # not in its __all__
    from bitsandbytes.nn import Linear4bit, Params4bit  # type: ignore[attr-defined]

    for name in _linear_layers(backbone):
        if name.endswith(backbone.stays_wide):  # small layers that feed exponentials
            continue
        layer: Any = backbone.get_submodule(name)
        small = Linear4bit(
            layer.in_features,
            layer.out_features,
            layer.bias is not None,
            quant_type="nf4",
            device="meta",
        )
        small.weight = Params4bit(
            layer.weight.data, requires_grad=False, quant_type="nf4", compress_statistics=True
        )
        small.bias = layer.bias
        # otherwise evaluation rearranges the bits of some layers for good
        small.support_avx512bf16_for_cpu = False
        backbone.set_submodule(name, small.to(layer.weight.device))  # `to` quantizes


def _adapters(backbone: Backbone) -> list[tuple[str, Any]]:
    """Return PEFT's layers, by name."""
    from peft.tuners.lora import LoraLayer

    return [
        (name, module) for name, module in backbone.named_modules() if isinstance(module, LoraLayer)
    ]


def _tensors(model: Model) -> dict[str, Tensor]:
    """Return the tensors of the adapters and the heads by their names in the file; no copies, so
    that `load_adapter` can write into them.
    """
    lora = {
        f"backbone.{name}.{side}": getattr(layer, side)[_NAME].weight.data
        for name, layer in _adapters(model.backbone)
        for side in ("lora_A", "lora_B")
    }
    return lora | {f"heads.{key}": tensor for key, tensor in model.heads.state_dict().items()}
