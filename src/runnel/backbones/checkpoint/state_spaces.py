"""Shared by the readers of Mamba-1, Mamba-2 and Mamba-3: layouts, sizes, refused options, names of tensors, a scanner's head.

Options that change what is computed are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from runnel.backbones.checkpoint.tensors import Stored, check_tensors, count_layers, renamed, shape_of, some
from runnel.backbones.checkpoint.values import ATTENTION, number, whole
from runnel.backbones.families import READS
from runnel.errors import CheckpointError

TRANSFORMERS, ORIGINAL, MISTRAL, BARE = "transformers", "state-spaces original", "Mistral's own", "bare tensors"
COMMON = frozenset({"d_conv", "d_state", "expand", "bias", "conv_bias"})  # keys of ssm_cfg in the original layout
MIXER = "layers.0.mixer."
_HEAD = "binary_head."
_TYPES = {"mamba": "Mamba-1", "mamba2": "Mamba-2"}  # model_type of the transformers library
_LAYERS = {"Mamba1": "Mamba-1", "Mamba2": "Mamba-2"}  # ssm_cfg.layer of the original layout

# Keys of ssm_cfg that say how weights were initialized or which kernel ran, not what is computed.
_SSM_IGNORED = {"dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "A_init_range", "conv_init", "layer", "chunk_size"}
_SSM_IGNORED |= {"use_fast_path", "use_mem_eff_path", "device", "dtype", "process_group", "sequence_parallel"}


def find_layout(config: Mapping[str, Any], title: str, where: str) -> str:
    """Return the layout of a Mamba-1 or Mamba-2 in words; `title` is that of the model whose tensors these are.

    Source: MambaConfig, Mamba and Mamba2 of state-spaces/mamba e9594ce; MambaConfig and Mamba2Config of transformers 5.23.
    """
    if "dim" in config:  # before model_type: these files say "mamba" whatever they hold
        layout, declared = MISTRAL, "Mamba-2"
    elif config.get("model_type") in _TYPES and "hidden_size" in config:
        layout, declared = TRANSFORMERS, _TYPES[config["model_type"]]
        if config.get("hidden_act", "silu") not in ("silu", "swish"):
            raise CheckpointError(
                f"{where}: hidden_act is {config['hidden_act']!r}; published models use silu, and so does runnel"
            )
    elif "d_model" in config:
        layer = ssm_options(config).get("layer", "Mamba1")
        if layer not in _LAYERS:
            raise CheckpointError(f"{where}: ssm_cfg.layer is {layer!r}; {READS}")
        layout, declared = ORIGINAL, _LAYERS[layer]
    else:
        layout, declared = BARE, title
    if layout in (MISTRAL, ORIGINAL):
        refuse_options(config, where)
        if config.get("d_intermediate"):
            raise CheckpointError(
                f"{where} has feed-forward layers between the recurrent ones (d_intermediate is {config['d_intermediate']}); "
                "published Mamba-1 and Mamba-2 models have none"
            )
    if declared != title:
        raise CheckpointError(
            f"{where}: config.json describes {declared} but the tensors are those of {title}; "
            "config and weights do not belong together"
        )
    return layout


def read_sizes(layout: str, config: Mapping[str, Any], tensors: Mapping[str, Stored], where: str) -> dict[str, Any]:
    """Return the fields that the configs of Mamba-1 and Mamba-2 have in common."""
    if layout == TRANSFORMERS:  # what the library ignores (norm_before_gate, rms_norm) is ignored here
        return {
            "vocab_size": whole(config, "vocab_size", where),
            "hidden_size": whole(config, "hidden_size", where),
            "num_layers": whole(config, "num_hidden_layers", where),
            "conv_width": whole(config, "conv_kernel", where, 4),
            "expand": whole(config, "expand", where, 2),
            "norm_eps": number(config.get("layer_norm_epsilon", 1e-5), "layer_norm_epsilon", where),
            "proj_bias": bool(config.get("use_bias", False)),
            "conv_bias": bool(config.get("use_conv_bias", True)),
        }
    if layout == ORIGINAL:  # `norm_epsilon` is not in its files, always 1e-5
        ssm = ssm_options(config)
        return {
            "vocab_size": padded_vocab(config, where, multiple=8),
            "hidden_size": whole(config, "d_model", where),
            "num_layers": whole(config, "n_layer", where),
            "conv_width": whole(ssm, "d_conv", where, 4),
            "expand": whole(ssm, "expand", where, 2),
            "proj_bias": bool(ssm.get("bias", False)),
            "conv_bias": bool(ssm.get("conv_bias", True)),
        }
    if layout == MISTRAL:
        return {
            "vocab_size": padded_vocab(config, where, multiple=1),
            "hidden_size": whole(config, "dim", where),
            "num_layers": whole(config, "n_layers", where),
        }
    vocab, hidden = shape_of(tensors, "embeddings.weight", 2, where)
    inner = shape_of(tensors, MIXER + "out_proj.weight", 2, where)[1]
    if not hidden or inner % hidden:
        raise CheckpointError(
            f"{where}: mis-shaped first layer: inner size {inner} is not a multiple of the hidden size {hidden}"
        )
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_layers": count_layers(tensors),
        "expand": inner // hidden,
        "conv_width": shape_of(tensors, MIXER + "conv1d.weight", 3, where)[2],
        "conv_bias": MIXER + "conv1d.bias" in tensors,
        "proj_bias": MIXER + "in_proj.bias" in tensors,
    }


# ---- options and values ----------------------------------------------------------------------------------------------


def ssm_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `ssm_cfg` of the original layout, empty if the config has none."""
    return dict(config.get("ssm_cfg") or {})


def refuse_options(config: Mapping[str, Any], where: str) -> None:
    """Raise CheckpointError for options of the original formats that change the computation."""
    if config.get("attn_layer_idx"):
        raise CheckpointError(f"{where} is a hybrid (attn_layer_idx is {config['attn_layer_idx']}): it {ATTENTION}")
    if config.get("rms_norm", True) is not True:
        raise CheckpointError(f"{where} uses LayerNorm (rms_norm is {config['rms_norm']}); every published model uses RMSNorm")


def refuse_ssm(ssm: Mapping[str, Any], known: Set[str], where: str) -> None:
    """Raise CheckpointError for keys of ssm_cfg that are neither known nor without effect on the computation."""
    if unknown := sorted(ssm.keys() - known - _SSM_IGNORED):
        raise CheckpointError(
            f"{where}: ssm_cfg has options that runnel does not know: {some(unknown)}; its vectors would be a guess"
        )


def padded_vocab(config: Mapping[str, Any], where: str, multiple: int) -> int:
    """Return the rows of the embedding table: the vocabulary rounded up."""
    multiple = whole(config, "pad_vocab_size_multiple", where, multiple)
    return -(-whole(config, "vocab_size", where) // multiple) * multiple


# ---- tensor names ----------------------------------------------------------------------------------------------------


def sort_tensors(tensors: Mapping[str, Stored], where: str) -> tuple[dict[str, Stored], dict[str, Stored]]:
    """Return tensors by the module's names, and a scanner's head ("weight" and mostly "bias")."""
    backbone = renamed(tensors, _module_name, where)
    heads = {name: backbone.pop(name) for name in list(backbone) if name.startswith(_HEAD)}
    table = backbone.get("embeddings.weight")
    if heads and table is not None and len(table.shape) == 2:  # else it is reported later as missing or mis-shaped
        weight = heads.get(_HEAD + "weight")
        outputs = weight.shape[0] if weight is not None and weight.shape else 0
        expected: dict[str, tuple[int, ...]] = {_HEAD + "weight": (outputs, table.shape[1])}
        if _HEAD + "bias" in heads:
            expected[_HEAD + "bias"] = (outputs,)
        check_tensors(heads, expected, where)
    return backbone, {name.removeprefix(_HEAD): stored for name, stored in heads.items()}


def _module_name(name: str) -> str:
    plain = name.removeprefix("model.").removeprefix("backbone.")
    return "embeddings.weight" if plain == "embedding.weight" else plain
