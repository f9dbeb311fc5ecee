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
    refuse_hybrids,
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
    """Return the layout in words, the config, tensors by the module's names, and a scanner's head ("weight", "bias").

    Args:
        config: contents of config.json or params.json; empty if the folder has none; shapes decide then.
        tensors: all tensors of the checkpoint by their name in the file.
        where: folder, for messages.

    Raises:
        CheckpointError: a hybrid, an unknown option, or config and tensors contradict each other.
    """
    backbone, heads = sort_tensors(tensors, where)
    refuse_hybrids(backbone, where)
    if not any(name.endswith((".mixer.dt_bias", ".mixer.norm.weight")) for name in backbone):
        names = some(sorted(backbone)) or "none"
        raise CheckpointError(f"{where} is of an unknown kind: its tensors ({names}) belong to no model it knows; {READS}")
    layout = find_layout(config, Mamba2.title, where)
    sizes = read_sizes(layout, config, backbone, where)
    if layout == TRANSFORMERS:
        state = _from_transformers(config, sizes["hidden_size"] * sizes["expand"], where)
    elif layout == ORIGINAL:
        state = _from_original(ssm_options(config), sizes["hidden_size"] * sizes["expand"], where)
    else:
        state = _head_shape(backbone, whole(config, "n_groups", where, 8) if layout == MISTRAL else None, where)
    return "single-pass scanner" if heads else layout, Mamba2Config(**sizes, **state), backbone, heads


def _from_transformers(config: Mapping[str, Any], inner: int, where: str) -> dict[str, Any]:
    head_size = whole(config, "head_dim", where, 64)
    heads = whole(config, "num_heads", where, inner // head_size)
    if heads * head_size != inner:
        raise CheckpointError(f"{where}: num_heads x head_dim is {heads} x {head_size}, expected expand x hidden_size = {inner}")
    low, high = _limits(config, "time_step_limit", where)
    return {
        "state_size": whole(config, "state_size", where, 128),
        "head_size": head_size,
        "groups": whole(config, "n_groups", where, 8),
        "dt_min": low,
        "dt_max": high,
    }


def _from_original(ssm: Mapping[str, Any], inner: int, where: str) -> dict[str, Any]:
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
    low, high = _limits(ssm, "dt_limit", where)
    return {
        "state_size": whole(ssm, "d_state", where, 128),
        "head_size": whole(ssm, "headdim", where, 64),
        "groups": whole(ssm, "ngroups", where, 1),
        "dt_min": low,
        "dt_max": high,
    }


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


def _limits(config: Mapping[str, Any], key: str, where: str) -> tuple[float, float]:
    """Return the lower and upper bound of the time step."""
    value = config.get(key) or (0.0, float("inf"))
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise CheckpointError(f"{where}: {key} is {value!r} in its config, expected two numbers")
    return number(value[0], key, where), number(value[1], key, where)
