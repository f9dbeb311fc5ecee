"""Mamba-2 in every published format: state-spaces, transformers, Mistral, single-pass scanners,
bare tensors.

G groups   N state size   Di inner size   Cd convolution channels = Di + 2 G N
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

# where a config does not say
_GROUPS = {published.TRANSFORMERS: 8, published.ORIGINAL: 1, published.MISTRAL: 8}
# what a layout calls the number and size of heads, the state size, the groups, the limits of the
# time step
_NAMES = {
    published.TRANSFORMERS: ("num_heads", "head_dim", "state_size", "n_groups", "time_step_limit"),
    published.ORIGINAL: ("nheads", "headdim", "d_state", "ngroups", "dt_limit"),
}
_VARIANTS = {"D_has_hdim": (False,), "rmsnorm": (True,), "norm_before_gate": (False,)}


def recognizes(config: Mapping[str, object], names: Collection[str]) -> bool:
    """See `Recognized`."""
    return any(name.endswith((".mixer.dt_bias", ".mixer.norm.weight")) for name in names)


def read(config: Mapping[str, object], tensors: Mapping[str, Stored], where: str) -> Recognized:
    """See `Recognized`; the heads are a scanner's."""
    backbone, heads = published.sort_tensors(tensors, where)
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
    heads_key, size_key, state_key, groups_key, limits_key = _NAMES.get(
        layout, ("", "", "", "n_groups", "")
    )
    # channels of B and C together
    both = shape_of(backbone, published.MIXER + "conv1d.weight", 3, where)[0] - inner
    # Tensors alone do not tell the groups; 256 states is the most of any published model with one.
    groups = whole_number(
        options, groups_key, where, _GROUPS.get(layout, 1 if both <= 2 * 256 else None)
    )
    count = shape_of(backbone, published.MIXER + "A_log", 1, where)[0]
    fits = count > 0 and inner % count == 0 and both >= 2 * groups and both % (2 * groups) == 0
    expect_fit(
        fits,
        f"first layer: {count} heads of {inner} channels, {groups} groups of {both} channels of B"
        " and C",
        where,
    )
    sizes |= {"head_size": inner // count, "groups": groups, "state_size": both // (2 * groups)}
    if heads_key:
        weights = {
            heads_key: inner // sizes["head_size"],
            size_key: sizes["head_size"],
            state_key: sizes["state_size"],
        }
        expect_agreement({state_key: 128, **options}, weights, where)
        limits = options.get(limits_key) or (0.0, float("inf"))
        low, high = (
            limits if isinstance(limits, list | tuple) and len(limits) == 2 else (limits, limits)
        )
        sizes |= {
            "dt_min": number(low, limits_key, where),
            "dt_max": number(high, limits_key, where),
        }
    return Recognized(
        Mamba2.architecture,
        "single-pass scanner" if heads else layout,
        Mamba2Config(**sizes),
        backbone,
        heads,
    )
