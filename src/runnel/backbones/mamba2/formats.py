"""Mamba-2 in every published format: state-spaces, transformers, Mistral, single-pass scanners
(paper E: state-spaces' format with one output head, which scores sentences), bare tensors.

The heads of this file are Mamba-2's own, which divide its inner channels.
"""

from collections.abc import Collection, Mapping

from runnel.backbones.checkpoint import state_spaces as published
from runnel.backbones.checkpoint.config_values import (
    expect_agreement,
    expect_options,
    number,
    whole_number,
)
from runnel.backbones.checkpoint.tensors import Recognized, Stored, expect_fit, shape_of
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config

# the groups of a layout where a config does not say
_GROUPS = {published.TRANSFORMERS: 8, published.ORIGINAL: 1, published.MISTRAL: 8}
# what a layout's config calls the number and size of heads, the state size, and the limits of the
# time step; the other layouts do not name them
_NAMES = {
    published.TRANSFORMERS: ("num_heads", "head_dim", "state_size", "time_step_limit"),
    published.ORIGINAL: ("nheads", "headdim", "d_state", "dt_limit"),
}
_STATE_SIZE = 128  # of a config that does not say
# options that change what is computed, with their only values that runnel computes
_VARIANTS = {"D_has_hdim": (False,), "rmsnorm": (True,), "norm_before_gate": (False,)}


def recognizes(config: Mapping[str, object], names: Collection[str]) -> bool:
    """Return whether a checkpoint is a Mamba-2, by names of tensors that Mamba-1 does not have; see
    `Recognized`.
    """
    return any(name.endswith((".mixer.dt_bias", ".mixer.norm.weight")) for name in names)


def read(config: Mapping[str, object], tensors: Mapping[str, Stored], where: str) -> Recognized:
    """Read the sizes from the tensors, check that the config agrees, and return both with the
    tensors; see `Recognized`. Tensors of an output head make the layout a single-pass scanner.
    """
    backbone, scanner_head = published.sort_tensors(tensors, where)
    layout = published.find_layout(config, Mamba2.title, where)
    sizes = published.read_sizes(layout, config, backbone, where)
    inner = sizes["hidden_size"] * sizes["expand"]
    options = config
    if layout == published.ORIGINAL:
        options = published.ssm_options(config)
        published.refuse_ssm(
            options,
            published.COMMON | {"headdim", "ngroups", "dt_limit", "d_ssm", *_VARIANTS},
            where,
        )
        expect_options(options, {"d_ssm": (None, inner), **_VARIANTS}, where)
    # channels of B and C together
    both = shape_of(backbone, published.FIRST_MIXER + "conv1d.weight", 3, where)[0] - inner
    # Tensors alone do not tell the groups; 256 states is the most of any published model with one.
    groups_key = "ngroups" if layout == published.ORIGINAL else "n_groups"
    groups = whole_number(
        options, groups_key, where, _GROUPS.get(layout, 1 if both <= 2 * 256 else None)
    )
    count = shape_of(backbone, published.FIRST_MIXER + "A_log", 1, where)[0]
    expect_fit(
        count > 0 and inner % count == 0 and both >= 2 * groups and both % (2 * groups) == 0,
        f"first layer: {count} heads of {inner} channels, {groups} groups of {both} channels of B"
        " and C",
        where,
    )
    sizes |= {"head_size": inner // count, "groups": groups, "state_size": both // (2 * groups)}
    if layout in _NAMES:
        heads_key, size_key, state_key, limits_key = _NAMES[layout]
        expect_agreement(
            {state_key: _STATE_SIZE, **options},
            {
                heads_key: count,
                size_key: sizes["head_size"],
                state_key: sizes["state_size"],
            },
            where,
        )
        limits = options.get(limits_key) or (0.0, float("inf"))
        # some configs have one number for both limits
        low, high = (
            limits if isinstance(limits, list | tuple) and len(limits) == 2 else (limits, limits)
        )
        sizes |= {
            "dt_min": number(low, limits_key, where),
            "dt_max": number(high, limits_key, where),
        }
    return Recognized(
        Mamba2.architecture,
        "single-pass scanner" if scanner_head else layout,
        Mamba2Config(**sizes),
        backbone,
        scanner_head,
    )
