"""Load a backbone from any published checkpoint.

    folder or hub id --find_checkpoint--> folder --read_config, open_weights--> dict, {name: Stored}
        --recognize--> architecture, config, tensors sorted --build--> Backbone, checked and in the wanted dtype

The LM head is left out: it is no part of a backbone.

Every published format becomes the same pair: a config dataclass, and tensors under the names of a backbone's module. Each
architecture has its own reader, `formats.py` in its folder. What looks similar but computes
something else is refused by name. Tensors are read one at a time and assigned, not copied into an initialized model: a checkpoint
in the wanted dtype stays memory-mapped and takes its own size once. Every tensor is used exactly once or named in an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from runnel.backbones.base import Backbone, BackboneConfig
from runnel.backbones.checkpoint.files import Checkpoint, find_checkpoint, open_weights, read_config
from runnel.backbones.checkpoint.tensors import Stored, check_tensors, count_layers, from_tensors, read_tensor, some
from runnel.backbones.checkpoint.values import ATTENTION, code_classes, reads_both_ways
from runnel.backbones.families import BACKBONES, READS
from runnel.backbones.int8 import check_int8, quantize, replace_linear
from runnel.errors import CheckpointError, InputError
from runnel.ops.backend import plain_numbers, wanted_device, wanted_dtype

_REFUSED_TYPES = {  # model_type -> why
    "falcon_mamba": "Falcon-Mamba normalizes B, C and dt in every layer; run as Mamba-1 it would give wrong vectors",
    **dict.fromkeys(("rwkv", "rwkv5", "rwkv6"), "RWKV-4, RWKV-5 and RWKV-6 have other recurrences than RWKV-7"),
    **dict.fromkeys(("bamba", "falcon_h1", "granitemoehybrid", "jamba", "lfm2", "nemotron_h"), f"it is a hybrid: it {ATTENTION}"),
    **dict.fromkeys(("olmo_hybrid", "qwen3_next", "recurrent_gemma", "zamba", "zamba2"), f"it is a hybrid: it {ATTENTION}"),
}
_REFUSED_NAMES = (  # pattern of a tensor name -> why; the first that matches speaks
    (r"mlstm_cell|slstm_cell", "older xLSTM blocks (mlstm_cell, slstm_cell) compute something else than xLSTM-7B"),
    (
        r"\.(lora_A|lora_B|lora_down|lora_up|bone|disha|time_state)\b",
        "it is what fine-tuning adds to a model (LoRA, Bone, a start state), not a whole one; merge it into its base model first",
    ),
    (
        r"\.(qweight|qzeros|scales|absmax|SCB|weight_(mx|rx|my|ry)|weight_(scale|format))$|\.quant_(map|state)",
        "its weights are quantized; load the originals",
    ),
    (
        r"\.ffn\.(s_emb|s_emb_x|s0|s1|s2|enn|emb)\b|\.(qkv_emb|k_emb|v_emb)\b|\.qkv\.|\.rosa",
        "RWKV-7a, RWKV-7b and RWKV-8 have embedding tables in every layer",
    ),
    (
        r"time_maa_|time_faaaa|time_decay|time_mix_|time_first",
        "RWKV-4, RWKV-5 and RWKV-6 have other recurrences than RWKV-7",
    ),
    (r"(mixer|mamba)\.(b|c|dt)_layernorm", "its layers normalize B, C and dt, which Mamba-1 does not"),
    (r"self_attn\.|mixer\.(Wqkv|q_proj|k_proj|rotary_emb)|\.attn\.(q_proj|qkv_proj|rotary)", f"it is a hybrid: it {ATTENTION}"),
)
# Copies of the authors' classes that published folders name in auto_map.
_KNOWN_CODE = re.compile(r"(^|[.-])(RWKV7|Rwkv7|Mamba|Mamba2|xLSTM)(Config|Model|ForCausalLM|PreTrainedModel)$")
_SCALED_ROWS = 512  # a block of that many rows fits in the cache
KNOWN_TYPES = {*_REFUSED_TYPES, *(kind for cls in BACKBONES.values() for kind in cls.model_types)}


def load_backbone(
    folder_or_hub_id: str | Path, dtype: str | torch.dtype = "auto", device: str | torch.device = "auto"
) -> Backbone:
    """Load a backbone, recognized by what the folder holds.

    Reads Mamba-1, Mamba-2 and Mamba-3 as published by state-spaces (pytorch_model.bin), the first two by transformers
    (safetensors, also sharded or without the `backbone.` prefix) and Mistral (Codestral, both forms), single-pass scanners, the
    formats of RWKV-7 and xLSTM in docs/models.md, and runnel's own folders.

    Args:
        folder_or_hub_id: a local folder, or a hub id (owner/name), which is downloaded once and cached.
        dtype: of linear layers and embedding: "auto" (bf16 where the processor computes it natively, else fp32), "float32",
            "bfloat16", "float64" or the torch dtype. All else, the residual stream and the state are fp32 (fp64 with fp64).
            "int8": linear layers in 8 bits and the rest as with "auto"; see `runnel.ops.int8_matmul`.
        device: "auto" (CUDA if there is one, else the CPU), or a device.

    Raises:
        CheckpointError: missing, damaged, of an unknown or refused kind, or a tensor is missing, unexpected or mis-shaped.
        NumericalError: a weight is NaN or infinite.
        BackendUnavailable: the device does not exist or has no 8-bit products.
    """
    return load_checkpoint(folder_or_hub_id, dtype=dtype, device=device).backbone


@plain_numbers()
def load_checkpoint(
    folder_or_hub_id: str | Path, *, dtype: str | torch.dtype = "auto", device: str | torch.device = "auto"
) -> Checkpoint:
    """Load a backbone and the heads stored with it; see `load_backbone` for arguments and errors."""
    target = wanted_device(device)
    wanted = wanted_dtype(dtype, target)  # before any reading: these are cheap to get wrong
    folder = find_checkpoint(folder_or_hub_id)
    config = read_config(folder)
    found = recognize(config, open_weights(folder), str(folder))
    heads = {name: read_tensor(name, stored, str(folder), torch.float32, target) for name, stored in found.heads.items()}
    backbone = build(found.architecture, found.config, found.backbone, wanted, target, str(folder))
    return Checkpoint(backbone, heads, found.layout, folder if folder.is_dir() else folder.parent)


@plain_numbers()
def build_backbone(
    architecture: str,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
) -> Backbone:
    """Build a backbone from tensors in memory, checked as a file's are; those in the wanted dtype are used as they are."""
    target = wanted_device(device)
    where = "the given model"
    parsed = parse_config(architecture, config, where)
    return build(architecture, parsed, from_tensors(tensors, "memory"), wanted_dtype(dtype, target), target, where)


# ---- recognize -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recognized:
    """A recognized checkpoint: `layout` in words, its architecture and config, and the tensors of its backbone and heads."""

    layout: str
    architecture: str
    config: BackboneConfig
    backbone: dict[str, Stored]
    heads: dict[str, Stored]


def recognize(config: Mapping[str, Any] | None, tensors: Mapping[str, Stored], where: str) -> Recognized:
    """Decide what a checkpoint is, by its config or, without one, by names and shapes. Reads no weights."""
    config = config or {}
    _refuse_type(config, where)
    if "runnel" in config:
        return _from_runnel(config["runnel"], tensors, where)
    # imported here because runnel's own folders need none of them
    from runnel.backbones.encoder.formats import is_bert, read_bert
    from runnel.backbones.mamba1.formats import read_mamba1
    from runnel.backbones.mamba2.formats import read_mamba2
    from runnel.backbones.mamba3.formats import read_mamba3
    from runnel.backbones.rwkv7.formats import read_embedding_rwkv, read_rwkv7
    from runnel.backbones.xlstm.formats import read_xlstm

    heads: dict[str, Stored] = {}
    parsed: BackboneConfig
    try:
        if is_bert(config):
            layout, parsed, backbone = read_bert(config, tensors, where)
        elif refusal := _refusal(tensors):
            raise CheckpointError(f"{where} cannot be loaded: {refusal}")
        elif any(name.startswith(("rwkv.blocks.", "reranker.blocks.")) for name in tensors):
            layout, parsed, backbone, heads = read_embedding_rwkv(tensors, where)
        elif any(re.search(r"(^|\.)(att|attn)\.r_k$", name) for name in tensors):
            layout, parsed, backbone = read_rwkv7(config, tensors, where)
        elif any("mlstm_layer." in name for name in tensors):
            layout, parsed, backbone = read_xlstm(config, tensors, where)
        elif any(name.endswith("mixer.B_bias") for name in tensors):
            layout, parsed, backbone, heads = read_mamba3(config, tensors, where)
        else:
            mamba1 = any(name.endswith((".mixer.x_proj.weight", ".mixer.dt_proj.weight")) for name in tensors)
            layout, parsed, backbone, heads = (read_mamba1 if mamba1 else read_mamba2)(config, tensors, where)
    except InputError as error:  # the config classes speak of values a user passes; here they came from a file
        raise CheckpointError(f"{where}: its config is not a valid model: {error}") from error
    found = next(cls for cls in BACKBONES.values() if cls.config_class is type(parsed))
    declared = next((cls for cls in BACKBONES.values() if config.get("model_type") in cls.model_types), found)
    if declared is not found and "dim" not in config:
        raise CheckpointError(
            f"{where}: config.json describes {declared.title} but the tensors are those of {found.title}; "
            "config and weights do not belong together"
        )
    _check_sizes(backbone, parsed, where)
    return Recognized(f"{found.title}, {layout} layout", found.architecture, parsed, backbone, heads)


# ---- refusals --------------------------------------------------------------------------------------------------------


def _refusal(names: Iterable[str]) -> str | None:
    """Return why tensors of such names cannot be loaded."""
    found = ((why, next((name for name in names if re.search(pattern, name)), None)) for pattern, why in _REFUSED_NAMES)
    return next((f"{why} (tensor {name!r})" for why, name in found if name), None)


def _refuse_type(config: Mapping[str, Any], where: str) -> None:
    kind = str(config.get("model_type", ""))
    if config.get("quantization_config"):
        raise CheckpointError(f"{where} holds quantized weights (quantization_config); load the unquantized checkpoint")
    if kind in _REFUSED_TYPES:
        raise CheckpointError(f"{where} is a {kind!r} checkpoint: {_REFUSED_TYPES[kind]}")
    if kind and kind not in KNOWN_TYPES and "dim" not in config and "runnel" not in config:
        raise CheckpointError(f"{where} is a {kind!r} checkpoint, which runnel does not know; {READS}")
    if "runnel" in config:
        return
    if (said := reads_both_ways(config)) is not None:
        raise CheckpointError(
            f"{where}/config.json: {said}, so its authors read a text both ways; runnel reads recurrent models in one direction "
            "only, and would compute other vectors. Use another model"
        )
    strange = [name for name in code_classes(config) if not _KNOWN_CODE.search(name)]
    if strange:
        raise CheckpointError(
            f"{where}/config.json: auto_map names code, {strange[0]}, which is never run here and may compute something else. "
            "If it only runs a plain model of this kind, remove auto_map from config.json"
        )


def _check_sizes(backbone: Mapping[str, Stored], config: BackboneConfig, where: str) -> None:
    """Raise CheckpointError for a config that contradicts the tensors, before hundreds of them are missing."""
    found = count_layers(backbone)
    if found != config.num_layers:
        which = "missing" if found < config.num_layers else "unexpected"
        raise CheckpointError(
            f"{where}: {which} tensors: its config says {config.num_layers} layers, the weights have {found}; download both again"
        )
    largest = max((size for stored in backbone.values() for size in stored.shape), default=0)
    for name, value in config.to_dict().items():
        if name != "num_layers" and type(value) is int and value > largest:
            raise CheckpointError(
                f"{where}: its config says {name} is {value:,}, but no tensor has a dimension above {largest:,}; "
                "download both again"
            )


# ---- runnel's own folders ---------------------------------------------------------------------------------------------


def _from_runnel(description: object, tensors: Mapping[str, Stored], where: str) -> Recognized:
    """Recognize a folder that runnel wrote: tensors `backbone.*` and `heads.*`, and the backbone's config from `to_dict`."""
    declared = description.get("backbone") if isinstance(description, Mapping) else None
    if not isinstance(declared, Mapping) or not isinstance(declared.get("config"), Mapping):
        raise CheckpointError(f'{where}: config.json lacks "backbone" with an architecture and a config; save the model again')
    architecture = str(declared.get("architecture"))
    config = parse_config(architecture, declared["config"], where)
    whole = {
        name: _with_scale(name, tensors, where)
        for name in tensors
        if not (name.endswith(".scale") and name.removesuffix(".scale") in tensors)
    }
    backbone = {name.removeprefix("backbone."): stored for name, stored in whole.items() if name.startswith("backbone.")}
    heads = {name.removeprefix("heads."): stored for name, stored in whole.items() if name.startswith("heads.")}
    if stray := sorted(name for name in tensors if not name.startswith(("backbone.", "heads."))):
        raise CheckpointError(f"{where}: unexpected tensors {some(stray)}; a runnel model has only backbone.* and heads.*")
    _check_sizes(backbone, config, where)
    return Recognized(f"{BACKBONES[architecture].title}, runnel layout", architecture, config, backbone, heads)


def _with_scale(name: str, tensors: Mapping[str, Stored], where: str) -> Stored:
    """Return the tensor `name`, multiplied by its per-row scale if it is stored in 8 bits."""
    matrix, scale = tensors[name], tensors.get(name + ".scale")
    if scale is None:
        return matrix
    if len(matrix.shape) != 2 or scale.shape != matrix.shape[:1]:
        raise CheckpointError(
            f"{where}: mis-shaped tensor '{name}.scale' is {scale.shape}, expected {matrix.shape[:1]}, one per row"
        )
    return Stored(matrix.shape, matrix.file, lambda: _scaled(matrix.read(), scale.read()), rows=(matrix, scale))


def _scaled(matrix: Tensor, scale: Tensor) -> Tensor:
    """Return the numbers of a matrix (N, K) int8 with a scale per row (N,), in fp32. Blocks of rows stay in the cache."""
    out = torch.empty(matrix.shape)
    for part, numbers, factors in zip(*(tensor.split(_SCALED_ROWS) for tensor in (out, matrix, scale)), strict=True):
        torch.mul(numbers.float(), factors[:, None], out=part)
    return out


# ---- build -----------------------------------------------------------------------------------------------------------


def parse_config(architecture: str, values: Mapping[str, Any], where: str) -> BackboneConfig:
    """Return the config of `architecture` from its `to_dict` form."""
    if architecture not in BACKBONES:
        raise CheckpointError(
            f"{where}: unknown architecture {architecture!r}; this version of runnel has {', '.join(BACKBONES)}"
        )
    cls = BACKBONES[architecture]
    try:
        return cls.config_class.from_dict(dict(values))
    except (CheckpointError, InputError, TypeError) as error:
        raise CheckpointError(f"{where}: its config is not a valid {cls.title} model: {error}") from error


def meta_backbone(architecture: str, config: BackboneConfig) -> Backbone:
    """Return a backbone on the meta device: names and shapes, no memory and no numbers."""
    with torch.device("meta"), NoRandomNumbers():
        return BACKBONES[architecture](config)  # type: ignore[call-arg]  # each class takes its own config


def build(
    architecture: str,
    config: BackboneConfig,
    stored: Mapping[str, Stored],
    dtype: torch.dtype,
    device: torch.device,
    where: str,
) -> Backbone:
    """Return a backbone of these tensors, each used once or named in an error."""
    backbone = meta_backbone(architecture, config)
    expected = {name: tuple(tensor.shape) for name, tensor in backbone.state_dict().items()}
    check_tensors(stored, expected, where)
    small = torch.float64 if dtype == torch.float64 else torch.float32
    whole, in_8_bits = dtype, tuple[str, ...]()
    if dtype == torch.int8:
        check_int8(backbone.title, backbone.int8_layers, device, where)
        whole, in_8_bits = wanted_dtype("auto", device), tuple(f"{end}.weight" for end in backbone.int8_layers)
        with torch.device("meta"), NoRandomNumbers():
            replace_linear(backbone, backbone.int8_layers)
    tensors = {}
    for name in expected:
        if name.endswith(in_8_bits):
            tensors[name], tensors[name + "_scale"] = _read_int8(name, stored[name], where)
        else:
            target = whole if name.endswith(backbone.matrices) else small
            tensors[name] = read_tensor(name, stored[name], where, target, device)
    backbone.load_state_dict(tensors, strict=True, assign=True)
    backbone.eval()
    return backbone


def _read_int8(name: str, stored: Stored, where: str) -> tuple[Tensor, Tensor]:
    """Return a weight in 8 bits and its scales: the file's own if it stores 8 bits, without loss."""
    if stored.rows is None:
        return quantize(read_tensor(name, stored, where))
    read_tensor(name, stored, where)  # for its checks
    q, scale = (part.read() for part in stored.rows)
    return q.contiguous(), scale.float().contiguous()


class NoRandomNumbers(TorchFunctionMode):
    """Skip random initialization: on the meta device it has no effect but imports torch's compiler, which takes seconds.

    `trunc_normal_`, which draws again until all numbers are within its limits and which no mode sees, is replaced meanwhile.
    """

    _RANDOM = frozenset(
        {Tensor.normal_, Tensor.uniform_, torch.nn.init.kaiming_uniform_, torch.nn.init.uniform_, torch.nn.init.normal_}
    )

    def __enter__(self) -> Self:
        self._truncated = torch.nn.init._no_grad_trunc_normal_
        setattr(torch.nn.init, "_no_grad_trunc_normal_", lambda tensor, *limits, **options: tensor)  # noqa: B010  # mypy
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        setattr(torch.nn.init, "_no_grad_trunc_normal_", self._truncated)  # noqa: B010

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in self._RANDOM:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))
