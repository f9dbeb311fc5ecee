"""Shared by the readers of published Mamba-1 and Mamba-2 checkpoints (`formats.py` of both).

A layout is one publisher's way to write the config:

    transformers           of the transformers library
    state-spaces original  of the models' authors (state-spaces/mamba), with options of a layer in
                           `ssm_cfg`
    Mistral's own          of Mistral's files (Codestral Mamba)
    bare tensors           no config, or an unknown one

A reader calls, in this order:

    sort_tensors   the backbone's tensors by runnel's names, and a scanner's head. A single-pass
                   scanner (paper E) is a published model that scores sentences: a Mamba with one
                   more linear layer, `binary_head`
    find_layout    the layout; raises for options that change what is computed
    read_sizes     sizes from the tensors; where the config says them too, it must agree
    ssm_options    `ssm_cfg`; `refuse_ssm` raises for keys of it that runnel does not know
"""

from collections.abc import Mapping, Set
from typing import Any

from runnel.backbones.checkpoint.config_values import (
    OFF,
    expect_agreement,
    expect_options,
    number,
    whole_number,
)
from runnel.backbones.checkpoint.shapes import check_tensors, some
from runnel.backbones.checkpoint.tensors import Stored, count_layers, expect_fit, renamed, shape_of
from runnel.errors import CheckpointError

TRANSFORMERS, ORIGINAL, MISTRAL, BARE = (
    "transformers",
    "state-spaces original",
    "Mistral's own",
    "bare tensors",
)
# keys of ssm_cfg that are read for both models
COMMON = frozenset({"d_conv", "d_state", "expand", "bias", "conv_bias"})
FIRST_MIXER = "layers.0.mixer."  # begins names of the first layer's tensors, which have all sizes
_HEAD = "binary_head."
# the names in runnel's configs of the sizes that a layout's config may say: what it calls them
_NAMES: dict[str, dict[str, str]] = {
    TRANSFORMERS: {
        "hidden_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "conv_width": "conv_kernel",
        "expand": "expand",
        "proj_bias": "use_bias",
        "conv_bias": "use_conv_bias",
    },
    ORIGINAL: {
        "hidden_size": "d_model",
        "num_layers": "n_layer",
        "conv_width": "d_conv",
        "expand": "expand",
        "proj_bias": "bias",
        "conv_bias": "conv_bias",
    },
    MISTRAL: {"hidden_size": "dim", "num_layers": "n_layers"},
    BARE: {},
}
# Keys of ssm_cfg that say how weights were initialized or which kernel ran, not what is computed.
_SSM_IGNORED = {
    "dt_min",
    "dt_max",
    "dt_init",
    "dt_scale",
    "dt_init_floor",
    "A_init_range",
    "conv_init",
    "layer",
    "chunk_size",
    "use_fast_path",
    "use_mem_eff_path",
    "device",
    "dtype",
    "process_group",
    "sequence_parallel",
}


def find_layout(config: Mapping[str, object], title: str, where: str) -> str:
    """Return the layout in words. `title` is what the tensors are, "Mamba-1" or "Mamba-2": a config
    of the original layout must name that class.

    Source: MambaConfig, Mamba and Mamba2 of state-spaces/mamba e9594ce; MambaConfig and
        Mamba2Config of transformers 5.23.
    """
    if "dim" in config:  # before model_type: these files say "mamba" whatever they hold
        layout = MISTRAL
    elif config.get("model_type") in ("mamba", "mamba2") and "hidden_size" in config:
        expect_options(config, {"hidden_act": ("silu", "swish")}, where)
        # Nothing else is refused: the library ignores norm_before_gate and rms_norm too.
        return TRANSFORMERS
    elif "d_model" in config:
        layout = ORIGINAL
        # the class is called Mamba1 or Mamba2; a config that does not say means Mamba1
        expect_options(
            {"layer": "Mamba1", **ssm_options(config)}, {"layer": (title.replace("-", ""),)}, where
        )
    else:
        return BARE
    # options of the original formats that change the computation: attention, another norm
    expect_options(
        config, {"attn_layer_idx": OFF, "rms_norm": (True,), "d_intermediate": (*OFF, 0)}, where
    )
    return layout


def read_sizes(
    layout: str, config: Mapping[str, object], tensors: Mapping[str, Stored], where: str
) -> dict[str, Any]:
    """Return the fields that runnel's configs of Mamba-1 and Mamba-2 have in common."""
    vocab, hidden = shape_of(tensors, "embeddings.weight", 2, where)
    inner = shape_of(tensors, FIRST_MIXER + "out_proj.weight", 2, where)[1]
    expect_fit(
        hidden > 0 and inner % hidden == 0,
        f"first layer: inner size {inner} of the hidden size {hidden}",
        where,
    )
    sizes: dict[str, Any] = {
        "hidden_size": hidden,
        "num_layers": count_layers(tensors),
        "conv_width": shape_of(tensors, FIRST_MIXER + "conv1d.weight", 3, where)[2],
        "expand": inner // hidden,
        "proj_bias": FIRST_MIXER + "in_proj.bias" in tensors,
        "conv_bias": FIRST_MIXER + "conv1d.bias" in tensors,
    }
    expect_agreement(
        {**ssm_options(config), **config},
        {theirs: sizes[ours] for ours, theirs in _NAMES[layout].items()},
        where,
    )
    if layout != BARE:
        # The rows of the embedding table: the vocabulary rounded up. The original code rounds up
        # to 8 if the config does not say, the others do not.
        multiple = whole_number(
            config, "pad_vocab_size_multiple", where, 8 if layout == ORIGINAL else 1
        )
        rows = -(-whole_number(config, "vocab_size", where) // multiple) * multiple
        expect_agreement({"vocab_size": rows}, {"vocab_size": vocab}, where)
    if layout == TRANSFORMERS:  # `norm_epsilon` is not in the original files, always 1e-5
        sizes["norm_eps"] = number(
            config.get("layer_norm_epsilon", 1e-5), "layer_norm_epsilon", where
        )
    return {"vocab_size": vocab, **sizes}


def ssm_options(config: Mapping[str, Any]) -> dict[str, object]:
    """Return `ssm_cfg` of the original layout, empty if the config has none."""
    return dict(config.get("ssm_cfg") or {})


def refuse_ssm(ssm: Mapping[str, object], known: Set[str], where: str) -> None:
    """Raise CheckpointError for keys of ssm_cfg that are neither known nor without effect on the
    computation.
    """
    if unknown := sorted(ssm.keys() - known - _SSM_IGNORED):
        raise CheckpointError(
            f"{where}: ssm_cfg has options that runnel does not know: {some(unknown)}; its vectors"
            " would be a guess"
        )


def sort_tensors(
    tensors: Mapping[str, Stored], where: str
) -> tuple[dict[str, Stored], dict[str, Stored]]:
    """Return the backbone's tensors by the names of runnel's module, and a scanner's head ("weight"
    and mostly "bias"), empty if there is none.

    Raises:
        CheckpointError: the head does not fit the embedding table. A table that is missing or has
            another number of dimensions is reported later.
    """
    backbone = renamed(tensors, _module_name, where)
    heads = {name: backbone.pop(name) for name in list(backbone) if name.startswith(_HEAD)}
    table = backbone.get("embeddings.weight")
    if heads and table is not None and len(table.shape) == 2:
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
