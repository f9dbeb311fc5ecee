"""Mamba-2 in every published format: state-spaces, transformers, Mistral, single-pass scanners, bare tensors.

G groups   N state size   Di inner size   Cd convolution channels = Di + 2 G N
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runnel.backbones.checkpoint.state_spaces import (
    COMMON,
    MISTRAL,
    MIXER,
    ORIGINAL,
    TRANSFORMERS,
    find_layout,
    read_sizes,
    refuse_ssm,
    sort_tensors,
    ssm_options,
)
from runnel.backbones.checkpoint.tensors import Stored, shape_of, some
from runnel.backbones.checkpoint.values import number, whole
from runnel.backbones.families import READS
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.errors import CheckpointError


def read_mamba2(
    config: Mapping[str, Any], tensors: Mapping[str, Stored], where: str
) -> tuple[str, Mamba2Config, dict[str, Stored], dict[str, Stored]]:
    """Read as `read_mamba1` does."""
    backbone, heads = sort_tensors(tensors, where)
    if not any(name.endswith((".mixer.dt_bias", ".mixer.norm.weight")) for name in backbone):
        names = some(sorted(backbone)) or "none"
        raise CheckpointError(f"{where} is of an unknown kind: its tensors ({names}) belong to no model it knows; {READS}")
    layout = find_layout(config, Mamba2.title, where)
    sizes = read_sizes(layout, config, backbone, where)
    inner = sizes["hidden_size"] * sizes.get("expand", 0)
    if layout == TRANSFORMERS:
        state = _declared(config, ("state_size", "head_dim", "n_groups", "time_step_limit"), 8, where)
        told = whole(config, "num_heads", where, inner // state["head_size"])
        if told * state["head_size"] != inner:
            raise CheckpointError(
                f"{where}: num_heads x head_dim is {told} x {state['head_size']}, expected expand x hidden_size = {inner}"
            )
    elif layout == ORIGINAL:
        _refuse_variants(ssm_options(config), inner, where)
        state = _declared(ssm_options(config), ("d_state", "headdim", "ngroups", "dt_limit"), 1, where)
    else:
        state = _head_shape(backbone, whole(config, "n_groups", where, 8) if layout == MISTRAL else None, where)
    return "single-pass scanner" if heads else layout, Mamba2Config(**sizes, **state), backbone, heads


def _declared(options: Mapping[str, Any], names: tuple[str, str, str, str], groups: int, where: str) -> dict[str, Any]:
    """Return what a config says under these names: state size, head size, groups (default: `groups`), limits of the time step."""
    limits = options.get(names[3]) or (0.0, float("inf"))
    if not isinstance(limits, list | tuple) or len(limits) != 2:
        raise CheckpointError(f"{where}: {names[3]} is {limits!r} in its config, expected two numbers")
    return {
        "state_size": whole(options, names[0], where, 128),
        "head_size": whole(options, names[1], where, 64),
        "groups": whole(options, names[2], where, groups),
        "dt_min": number(limits[0], names[3], where),
        "dt_max": number(limits[1], names[3], where),
    }


def _refuse_variants(ssm: Mapping[str, Any], inner: int, where: str) -> None:
    refuse_ssm(ssm, COMMON | {"headdim", "ngroups", "dt_limit", "d_ssm", "D_has_hdim", "rmsnorm", "norm_before_gate"}, where)
    if ssm.get("d_ssm") not in (None, inner):
        raise CheckpointError(
            f"{where}: ssm_cfg.d_ssm is {ssm['d_ssm']}; layers with a part outside the recurrence are not supported"
        )
    for key, published in (("D_has_hdim", False), ("rmsnorm", True), ("norm_before_gate", False)):
        if ssm.get(key, published) != published:
            raise CheckpointError(
                f"{where}: ssm_cfg.{key} is {ssm[key]}; every published model has {published}, and so does runnel"
            )


def _head_shape(tensors: Mapping[str, Stored], groups: int | None, where: str) -> dict[str, Any]:
    """Return head_size, groups and state_size from the first layer: Cd = Di + 2 G N."""
    inner = shape_of(tensors, MIXER + "out_proj.weight", 2, where)[1]
    heads = shape_of(tensors, MIXER + "A_log", 1, where)[0]
    both = shape_of(tensors, MIXER + "conv1d.weight", 3, where)[0] - inner  # channels of B and C together
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
