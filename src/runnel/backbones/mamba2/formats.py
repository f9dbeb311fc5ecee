"""Mamba-1 and Mamba-2 in every published format: state-spaces, transformers, Mistral, single-pass scanners, bare tensors.

Options that change what is computed are refused.

G groups   N state size   Di inner size   Cd convolution channels = Di + 2 G N
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runnel.backbones.checkpoint.tensors import Stored, count_layers, shape_of, some
from runnel.backbones.checkpoint.values import ATTENTION, number, refuse_names, whole
from runnel.backbones.families import BACKBONES, READS
from runnel.backbones.mamba1.model import Mamba1Config
from runnel.backbones.mamba2.model import Mamba2Config
from runnel.errors import CheckpointError

Config = Mamba1Config | Mamba2Config

# Keys of ssm_cfg that say how weights were initialized or which kernel ran, not what is computed.
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

_HYBRID_NAMES = (  # pattern of a tensor name -> why models that have recurrent layers cannot be loaded
    (r"self_attn\.|mixer\.(Wqkv|q_proj|k_proj|rotary_emb)|\.attention\.|\.attn\.", f"it is a hybrid: it {ATTENTION}"),
    (r"\.(mlp|feed_forward|ffn)\.|\.norm2\.", "it has feed-forward layers between the recurrent ones (d_intermediate > 0)"),
)


def read_mamba(
    config: Mapping[str, Any], tensors: Mapping[str, Stored], where: str
) -> tuple[str, Config, dict[str, Stored], dict[str, Stored]]:
    """Return the layout in words, the config, tensors by the module's names, and a scanner's head ("weight", "bias").

    Args:
        config: contents of config.json or params.json; empty if the folder has none; shapes decide then.
        tensors: all tensors of the checkpoint by their name in the file.
        where: folder, for messages.

    Raises:
        CheckpointError: a hybrid, an unknown option, or config and tensors contradict each other.
    """
    backbone, heads = sort_tensors(tensors, where)
    architecture = _architecture(backbone, where)
    if "dim" in config:  # before model_type: these files say "mamba" whatever they hold
        declared, layout = "mamba2", "Mistral's own"
        parsed: Config = _from_native(config, backbone, where)
    elif config.get("model_type") in ("mamba", "mamba2") and "hidden_size" in config:
        declared, layout = {"mamba": "mamba1", "mamba2": "mamba2"}[config["model_type"]], "transformers"
        parsed = _from_transformers(config, declared, where)
    elif "d_model" in config:
        layout = "state-spaces original"
        declared, parsed = _from_original(config, where)
    else:
        declared, layout = architecture, "bare tensors"
        parsed = _from_shapes(backbone, architecture, where)
    if declared != architecture:
        raise CheckpointError(
            f"{where}: config.json describes {BACKBONES[declared].title} but the tensors are those of "
            f"{BACKBONES[architecture].title}; "
            "config and weights do not belong together"
        )
    return "single-pass scanner" if heads else layout, parsed, backbone, heads


def _architecture(names: Mapping[str, Stored], where: str) -> str:
    """Return the architecture that the tensor names belong to."""
    mixers = {name.split(".mixer.")[1] for name in names if ".mixer." in name}
    refuse_names(names, _HYBRID_NAMES if mixers else (), where)
    if not mixers.isdisjoint({"x_proj.weight", "dt_proj.weight"}):
        if "dt_bias" in mixers:
            raise CheckpointError(f"{where} has layers of both Mamba-1 (x_proj) and Mamba-2 (dt_bias); {READS}")
        return "mamba1"
    if not mixers.isdisjoint({"dt_bias", "norm.weight"}):
        return "mamba2"
    raise CheckpointError(
        f"{where} is of an unknown kind: its tensors ({some(sorted(names)) or 'none'}) belong to no model it knows; {READS}"
    )


def _from_transformers(config: Mapping[str, Any], architecture: str, where: str) -> Config:
    """Source: MambaConfig and Mamba2Config of transformers 5.23; what it ignores (norm_before_gate, rms_norm) is ignored here."""
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise CheckpointError(f"{where}: hidden_act is {config['hidden_act']!r}; published models use silu, and so does runnel")
    shape: dict[str, Any] = {
        "vocab_size": whole(config, "vocab_size", where),
        "hidden_size": whole(config, "hidden_size", where),
        "num_layers": whole(config, "num_hidden_layers", where),
        "conv_width": whole(config, "conv_kernel", where, 4),
        "expand": whole(config, "expand", where, 2),
        "norm_eps": number(config.get("layer_norm_epsilon", 1e-5), "layer_norm_epsilon", where),
        "proj_bias": bool(config.get("use_bias", False)),
        "conv_bias": bool(config.get("use_conv_bias", True)),
    }
    if architecture == "mamba1":
        rank = None if config.get("time_step_rank", "auto") == "auto" else whole(config, "time_step_rank", where)
        return Mamba1Config(**shape, state_size=whole(config, "state_size", where, 16), dt_rank=rank)
    head_size = whole(config, "head_dim", where, 64)
    inner = shape["hidden_size"] * shape["expand"]
    heads = whole(config, "num_heads", where, inner // head_size)
    if heads * head_size != inner:
        raise CheckpointError(f"{where}: num_heads x head_dim is {heads} x {head_size}, expected expand x hidden_size = {inner}")
    low, high = _limits(config, "time_step_limit", where)
    return Mamba2Config(
        **shape,
        state_size=whole(config, "state_size", where, 128),
        head_size=head_size,
        groups=whole(config, "n_groups", where, 8),
        dt_min=low,
        dt_max=high,
    )


def _from_native(config: Mapping[str, Any], tensors: Mapping[str, Stored], where: str) -> Mamba2Config:
    """Read Mistral's own files: they give `dim`, `n_layers` and `n_groups`; head and state size are read from the tensors."""
    _refuse_feed_forward(config, where)
    refuse_options(config, where)
    groups = whole(config, "n_groups", where, 8)
    return Mamba2Config(
        vocab_size=padded_vocab(config, where, multiple=1),
        hidden_size=whole(config, "dim", where),
        num_layers=whole(config, "n_layers", where),
        **_head_shape(tensors, groups, where),
    )


def _from_original(config: Mapping[str, Any], where: str) -> tuple[str, Config]:
    """Source: MambaConfig, Mamba and Mamba2 of state-spaces/mamba e9594ce; `norm_epsilon` is not in its files, always 1e-5."""
    _refuse_feed_forward(config, where)
    refuse_options(config, where)
    ssm = dict(config.get("ssm_cfg") or {})
    layer = ssm.get("layer", "Mamba1")
    if layer not in ("Mamba1", "Mamba2"):
        raise CheckpointError(f"{where}: ssm_cfg.layer is {layer!r}; {READS}")
    shape: dict[str, Any] = {
        "vocab_size": padded_vocab(config, where, multiple=8),
        "hidden_size": whole(config, "d_model", where),
        "num_layers": whole(config, "n_layer", where),
        "conv_width": whole(ssm, "d_conv", where, 4),
        "expand": whole(ssm, "expand", where, 2),
        "proj_bias": bool(ssm.get("bias", False)),
        "conv_bias": bool(ssm.get("conv_bias", True)),
    }
    known = {"d_conv", "d_state", "expand", "bias", "conv_bias"}
    if layer == "Mamba1":
        refuse_ssm(ssm, known | {"dt_rank"}, where)
        rank = None if ssm.get("dt_rank", "auto") == "auto" else whole(ssm, "dt_rank", where)
        return "mamba1", Mamba1Config(**shape, state_size=whole(ssm, "d_state", where, 16), dt_rank=rank)
    refuse_ssm(ssm, known | {"headdim", "ngroups", "dt_limit", "d_ssm", "D_has_hdim", "rmsnorm", "norm_before_gate"}, where)
    if ssm.get("d_ssm") not in (None, shape["expand"] * shape["hidden_size"]):
        raise CheckpointError(
            f"{where}: ssm_cfg.d_ssm is {ssm['d_ssm']}; layers with a part outside the recurrence are not supported"
        )
    for key, published in (("D_has_hdim", False), ("rmsnorm", True), ("norm_before_gate", False)):
        if ssm.get(key, published) != published:
            raise CheckpointError(
                f"{where}: ssm_cfg.{key} is {ssm[key]}; every published model has {published}, and so does runnel"
            )
    low, high = _limits(ssm, "dt_limit", where)
    return "mamba2", Mamba2Config(
        **shape,
        state_size=whole(ssm, "d_state", where, 128),
        head_size=whole(ssm, "headdim", where, 64),
        groups=whole(ssm, "ngroups", where, 1),
        dt_min=low,
        dt_max=high,
    )


def _from_shapes(tensors: Mapping[str, Stored], architecture: str, where: str) -> Config:
    """Return the config of a checkpoint without a config file."""
    vocab, hidden = shape_of(tensors, "embeddings.weight", 2, where)
    mixer = "layers.0.mixer."
    inner = shape_of(tensors, mixer + "out_proj.weight", 2, where)[1]
    if not hidden or inner % hidden:
        raise CheckpointError(
            f"{where}: mis-shaped first layer: inner size {inner} is not a multiple of the hidden size {hidden}"
        )
    shape: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_layers": count_layers(tensors),
        "expand": inner // hidden,
        "conv_width": shape_of(tensors, mixer + "conv1d.weight", 3, where)[2],
        "conv_bias": mixer + "conv1d.bias" in tensors,
        "proj_bias": mixer + "in_proj.bias" in tensors,
    }
    if architecture == "mamba1":
        rank = shape_of(tensors, mixer + "dt_proj.weight", 2, where)[1]
        return Mamba1Config(**shape, state_size=shape_of(tensors, mixer + "A_log", 2, where)[1], dt_rank=rank)
    return Mamba2Config(**shape, **_head_shape(tensors, None, where))


def _head_shape(tensors: Mapping[str, Stored], groups: int | None, where: str) -> dict[str, Any]:
    """Return head_size, groups and state_size of a Mamba-2 checkpoint from its first layer: Cd = Di + 2 G N."""
    inner = shape_of(tensors, "layers.0.mixer.out_proj.weight", 2, where)[1]
    heads = shape_of(tensors, "layers.0.mixer.A_log", 1, where)[0]
    both = shape_of(tensors, "layers.0.mixer.conv1d.weight", 3, where)[0] - inner  # channels of B and C together
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


# ---- values ----------------------------------------------------------------------------------------------------------


def refuse_options(config: Mapping[str, Any], where: str) -> None:
    """Raise CheckpointError for options of the original formats that change the computation."""
    if config.get("attn_layer_idx"):
        raise CheckpointError(f"{where} is a hybrid (attn_layer_idx is {config['attn_layer_idx']}): it {ATTENTION}")
    if config.get("rms_norm", True) is not True:
        raise CheckpointError(f"{where} uses LayerNorm (rms_norm is {config['rms_norm']}); every published model uses RMSNorm")


def _refuse_feed_forward(config: Mapping[str, Any], where: str) -> None:
    if config.get("d_intermediate"):
        raise CheckpointError(
            f"{where} has feed-forward layers between the recurrent ones (d_intermediate is {config['d_intermediate']}); "
            "published Mamba-1 and Mamba-2 models have none"
        )


def refuse_ssm(ssm: Mapping[str, Any], known: set[str], where: str) -> None:
    """Raise CheckpointError for keys of ssm_cfg that are neither known nor without effect on the computation."""
    if unknown := sorted(ssm.keys() - known - _SSM_IGNORED):
        raise CheckpointError(
            f"{where}: ssm_cfg has options that runnel does not know: {some(unknown)}; its vectors would be a guess"
        )


def _limits(config: Mapping[str, Any], key: str, where: str) -> tuple[float, float]:
    """Return the lower and upper bound of the time step."""
    value = config.get(key) or (0.0, float("inf"))
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise CheckpointError(f"{where}: {key} is {value!r} in its config, expected two numbers")
    return number(value[0], key, where), number(value[1], key, where)


def padded_vocab(config: Mapping[str, Any], where: str, multiple: int) -> int:
    """Return the rows of the embedding table: the vocabulary rounded up."""
    multiple = whole(config, "pad_vocab_size_multiple", where, multiple)
    return -(-whole(config, "vocab_size", where) // multiple) * multiple


# ---- tensor names ----------------------------------------------------------------------------------------------------


def sort_tensors(tensors: Mapping[str, Stored], where: str) -> tuple[dict[str, Stored], dict[str, Stored]]:
    """Return tensors by the module's names, and a scanner's head; the LM head, which is not part of a backbone, is left out."""
    backbone: dict[str, Stored] = {}
    heads: dict[str, Stored] = {}
    original: dict[str, str] = {}
    for name, stored in tensors.items():
        plain = name.removeprefix("model.").removeprefix("backbone.")
        plain = "embeddings.weight" if plain == "embedding.weight" else plain
        if plain in original:
            raise CheckpointError(f"{where} holds the same tensor twice, as {original[plain]!r} and {name!r}; keep one")
        original[plain] = name
        if plain.startswith("binary_head."):
            heads[plain.removeprefix("binary_head.")] = stored
        elif plain != "lm_head.weight":
            backbone[plain] = stored
    table = backbone.get("embeddings.weight")
    if table is not None and len(table.shape) == 2:  # else it is reported later as missing or mis-shaped
        if "lm_head.weight" in original:
            _check_lm_head(original["lm_head.weight"], tensors, table.shape, where)
        if heads:
            _check_scanner(heads, table.shape[1], where)
    return backbone, heads


def _check_lm_head(name: str, tensors: Mapping[str, Stored], expected: tuple[int, ...], where: str) -> None:
    if tensors[name].shape != expected:
        raise CheckpointError(
            f"{where}: mis-shaped tensor {name!r} is {tensors[name].shape}, expected {expected} like the embedding"
        )


def _check_scanner(heads: Mapping[str, Stored], hidden_size: int, where: str) -> None:
    if unknown := sorted(heads.keys() - {"weight", "bias"}):
        raise CheckpointError(f"{where}: unexpected tensor binary_head.{unknown[0]}; a scanner's head has only weight and bias")
    if "weight" not in heads:
        raise CheckpointError(f"{where}: missing tensor binary_head.weight; the scanner's head is incomplete")
    outputs = heads["weight"].shape[0] if heads["weight"].shape else 0
    for name, expected in (("weight", (outputs, hidden_size)), ("bias", (outputs,))):
        if name in heads and heads[name].shape != expected:
            raise CheckpointError(f"{where}: mis-shaped tensor binary_head.{name} is {heads[name].shape}, expected {expected}")
