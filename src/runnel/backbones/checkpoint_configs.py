"""Configs of the published formats, as Mamba1Config and Mamba2Config. Options that change what is computed are refused.

G groups   N state size   Di inner size   Cd convolution channels = Di + 2 G N
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from runnel.backbones.checkpoint_files import Stored, some
from runnel.backbones.mamba1 import Mamba1Config
from runnel.backbones.mamba2 import Mamba2Config
from runnel.errors import CheckpointError, InputError

Config = Mamba1Config | Mamba2Config

READS = "this version of runnel reads Mamba-1 and Mamba-2 checkpoints"
ATTENTION = "mixes attention layers with recurrent ones, so its memory grows with the text and no fixed-size state can carry it"
# Keys of ssm_cfg that say how weights were initialised or which kernel ran, not what is computed.
_SSM_IGNORED = {"dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "A_init_range", "conv_init"}
_SSM_IGNORED |= {
    "layer",
    "chunk_size",
    "use_fast_path",
    "use_mem_eff_path",
    "device",
    "dtype",
    "process_group",
    "sequence_parallel",
}


def parse_config(architecture: str, values: Mapping[str, Any], where: str) -> Config:
    """The config dataclass of `architecture` from its `to_dict` form.

    Raises:
        CheckpointError: unknown architecture, unknown or missing keys, or values that make no model.
    """
    classes: dict[str, type[Mamba1Config] | type[Mamba2Config]] = {"mamba1": Mamba1Config, "mamba2": Mamba2Config}
    if architecture not in classes:
        raise CheckpointError(f"{where}: unknown architecture {architecture!r}; this version of runnel has {', '.join(classes)}")
    try:
        return classes[architecture].from_dict(dict(values))
    except (CheckpointError, InputError, TypeError) as error:
        raise CheckpointError(f"{where}: its config is not a valid {title(architecture)} model: {error}") from error


def from_transformers(config: Mapping[str, Any], architecture: str, where: str) -> Config:
    """Source: MambaConfig and Mamba2Config of transformers 5.23; what it ignores (norm_before_gate, rms_norm) is ignored here."""
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise CheckpointError(f"{where}: hidden_act is {config['hidden_act']!r}; published models use silu, and so does runnel")
    shape: dict[str, Any] = {
        "vocab_size": _whole(config, "vocab_size", where),
        "hidden_size": _whole(config, "hidden_size", where),
        "num_layers": _whole(config, "num_hidden_layers", where),
        "conv_width": _whole(config, "conv_kernel", where, 4),
        "expand": _whole(config, "expand", where, 2),
        "norm_eps": _number(config.get("layer_norm_epsilon", 1e-5), "layer_norm_epsilon", where),
        "proj_bias": bool(config.get("use_bias", False)),
        "conv_bias": bool(config.get("use_conv_bias", True)),
    }
    if architecture == "mamba1":
        rank = None if config.get("time_step_rank", "auto") == "auto" else _whole(config, "time_step_rank", where)
        return Mamba1Config(**shape, state_size=_whole(config, "state_size", where, 16), dt_rank=rank)
    head_size = _whole(config, "head_dim", where, 64)
    inner = shape["hidden_size"] * shape["expand"]
    heads = _whole(config, "num_heads", where, inner // head_size)
    if heads * head_size != inner:
        raise CheckpointError(f"{where}: num_heads x head_dim is {heads} x {head_size}, expected expand x hidden_size = {inner}")
    low, high = _limits(config, "time_step_limit", where)
    return Mamba2Config(
        **shape,
        state_size=_whole(config, "state_size", where, 128),
        head_size=head_size,
        groups=_whole(config, "n_groups", where, 8),
        dt_min=low,
        dt_max=high,
    )


def from_native(config: Mapping[str, Any], tensors: Mapping[str, Stored], where: str) -> Mamba2Config:
    """Mistral's own files give `dim`, `n_layers` and `n_groups`; head and state size are read from the tensors."""
    _refuse_options(config, where)
    groups = _whole(config, "n_groups", where, 8)
    return Mamba2Config(
        vocab_size=_padded_vocab(config, where, multiple=1),
        hidden_size=_whole(config, "dim", where),
        num_layers=_whole(config, "n_layers", where),
        **_head_shape(tensors, groups, where),
    )


def from_original(config: Mapping[str, Any], where: str) -> tuple[str, Config]:
    """Source: MambaConfig, Mamba and Mamba2 of state-spaces/mamba e9594ce; `norm_epsilon` is not in its files, always 1e-5."""
    _refuse_options(config, where)
    ssm = dict(config.get("ssm_cfg") or {})
    layer = ssm.get("layer", "Mamba1")
    if layer not in ("Mamba1", "Mamba2"):
        raise CheckpointError(f"{where}: ssm_cfg.layer is {layer!r}; {READS}")
    shape: dict[str, Any] = {
        "vocab_size": _padded_vocab(config, where, multiple=8),
        "hidden_size": _whole(config, "d_model", where),
        "num_layers": _whole(config, "n_layer", where),
        "conv_width": _whole(ssm, "d_conv", where, 4),
        "expand": _whole(ssm, "expand", where, 2),
        "proj_bias": bool(ssm.get("bias", False)),
        "conv_bias": bool(ssm.get("conv_bias", True)),
    }
    known = {"d_conv", "d_state", "expand", "bias", "conv_bias"}
    if layer == "Mamba1":
        _refuse_ssm(ssm, known | {"dt_rank"}, where)
        rank = None if ssm.get("dt_rank", "auto") == "auto" else _whole(ssm, "dt_rank", where)
        return "mamba1", Mamba1Config(**shape, state_size=_whole(ssm, "d_state", where, 16), dt_rank=rank)
    _refuse_ssm(ssm, known | {"headdim", "ngroups", "dt_limit", "d_ssm", "D_has_hdim", "rmsnorm", "norm_before_gate"}, where)
    if ssm.get("d_ssm") not in (None, shape["expand"] * shape["hidden_size"]):
        raise CheckpointError(
            f"{where}: ssm_cfg.d_ssm is {ssm['d_ssm']}; layers with a part beside the recurrence are not supported"
        )
    for key, published in (("D_has_hdim", False), ("rmsnorm", True), ("norm_before_gate", False)):
        if ssm.get(key, published) != published:
            raise CheckpointError(
                f"{where}: ssm_cfg.{key} is {ssm[key]}; every published model has {published}, and so does runnel"
            )
    low, high = _limits(ssm, "dt_limit", where)
    return "mamba2", Mamba2Config(
        **shape,
        state_size=_whole(ssm, "d_state", where, 128),
        head_size=_whole(ssm, "headdim", where, 64),
        groups=_whole(ssm, "ngroups", where, 1),
        dt_min=low,
        dt_max=high,
    )


def from_shapes(tensors: Mapping[str, Stored], architecture: str, where: str) -> Config:
    """The config of a checkpoint that has none."""
    vocab, hidden = _shape(tensors, "embeddings.weight", 2, where)
    mixer = "layers.0.mixer."
    inner = _shape(tensors, mixer + "out_proj.weight", 2, where)[1]
    if not hidden or inner % hidden:
        raise CheckpointError(
            f"{where}: mis-shaped first layer: inner size {inner} is not a multiple of the hidden size {hidden}"
        )
    shape: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_layers": count_layers(tensors),
        "expand": inner // hidden,
        "conv_width": _shape(tensors, mixer + "conv1d.weight", 3, where)[2],
        "conv_bias": mixer + "conv1d.bias" in tensors,
        "proj_bias": mixer + "in_proj.bias" in tensors,
    }
    if architecture == "mamba1":
        rank = _shape(tensors, mixer + "dt_proj.weight", 2, where)[1]
        return Mamba1Config(**shape, state_size=_shape(tensors, mixer + "A_log", 2, where)[1], dt_rank=rank)
    return Mamba2Config(**shape, **_head_shape(tensors, None, where))


def _head_shape(tensors: Mapping[str, Stored], groups: int | None, where: str) -> dict[str, Any]:
    """head_size, groups and state_size of a Mamba-2 checkpoint from its first layer: Cd = Di + 2 G N."""
    inner = _shape(tensors, "layers.0.mixer.out_proj.weight", 2, where)[1]
    heads = _shape(tensors, "layers.0.mixer.A_log", 1, where)[0]
    both = _shape(tensors, "layers.0.mixer.conv1d.weight", 3, where)[0] - inner  # channels of B and C together
    if groups is None and both > 2 * 256:  # 256 states is the most of any published model with one group
        raise CheckpointError(
            f"{where} has no config.json, and its tensors alone do not tell how the {both // 2} channels of B "
            "divide into groups; add its config.json"
        )
    groups = groups or 1
    if heads < 1 or inner % heads or both < 2 * groups or both % (2 * groups):
        raise CheckpointError(
            f"{where}: mis-shaped first layer: inner size {inner}, {heads} heads, {both} channels of B and C, {groups} groups"
        )
    return {"head_size": inner // heads, "groups": groups, "state_size": both // (2 * groups)}


def count_layers(names: Mapping[str, Stored]) -> int:
    """One more than the highest layer number in the names."""
    return 1 + max((int(m[1]) for name in names if (m := re.match(r"layers\.(\d{1,6})\.", name))), default=-1)


# ---- values ----------------------------------------------------------------------------------------------------------


def _refuse_options(config: Mapping[str, Any], where: str) -> None:
    """Options of the original formats that change the computation."""
    if config.get("attn_layer_idx"):
        raise CheckpointError(f"{where} is a hybrid (attn_layer_idx is {config['attn_layer_idx']}): it {ATTENTION}")
    if config.get("d_intermediate"):
        raise CheckpointError(
            f"{where} has feed-forward layers between the recurrent ones (d_intermediate is {config['d_intermediate']}); "
            f"{READS} without them"
        )
    if config.get("rms_norm", True) is not True:
        raise CheckpointError(f"{where} uses LayerNorm (rms_norm is {config['rms_norm']}); every published model uses RMSNorm")


def _refuse_ssm(ssm: Mapping[str, Any], known: set[str], where: str) -> None:
    if unknown := sorted(ssm.keys() - known - _SSM_IGNORED):
        raise CheckpointError(
            f"{where}: ssm_cfg has options that runnel does not know: {some(unknown)}; its vectors would be a guess"
        )


def _whole(config: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    value = config.get(key, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        came = "is missing" if value is None else f"is {value!r}"
        raise CheckpointError(f"{where}: {key} {came} in its config, expected a positive whole number")
    return value


def _number(value: object, key: str, where: str) -> float:
    """A JSON number; infinity may also be a word, which transformers 5 wraps as {"__float__": "Infinity"}."""
    if isinstance(value, Mapping):
        value = value.get("__float__")
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: {key} is {value!r} in its config, expected a number") from error


def _limits(config: Mapping[str, Any], key: str, where: str) -> tuple[float, float]:
    """Lower and upper bound of the time step."""
    value = config.get(key) or (0.0, float("inf"))
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise CheckpointError(f"{where}: {key} is {value!r} in its config, expected two numbers")
    return _number(value[0], key, where), _number(value[1], key, where)


def _padded_vocab(config: Mapping[str, Any], where: str, multiple: int) -> int:
    """Rows of the embedding table: the vocabulary rounded up."""
    multiple = _whole(config, "pad_vocab_size_multiple", where, multiple)
    return -(-_whole(config, "vocab_size", where) // multiple) * multiple


def _shape(tensors: Mapping[str, Stored], name: str, ndim: int, where: str) -> tuple[int, ...]:
    if name not in tensors:
        raise CheckpointError(f"{where}: missing tensor {name!r}; without it the model's shape is unknown")
    if len(tensors[name].shape) != ndim:
        raise CheckpointError(f"{where}: mis-shaped tensor {name!r} is {tensors[name].shape}, expected {ndim} dimensions")
    return tensors[name].shape


def title(architecture: str) -> str:
    """The architecture's usual name."""
    return {"mamba1": "Mamba-1", "mamba2": "Mamba-2"}.get(architecture, architecture)
