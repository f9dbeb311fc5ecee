"""Mamba-1 in every published format: state-spaces, transformers, single-pass scanners, bare tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runnel.backbones.checkpoint.state_spaces import (
    BARE,
    COMMON,
    MIXER,
    ORIGINAL,
    find_layout,
    read_sizes,
    refuse_ssm,
    sort_tensors,
    ssm_options,
)
from runnel.backbones.checkpoint.tensors import Stored, shape_of
from runnel.backbones.checkpoint.values import whole
from runnel.backbones.families import READS
from runnel.backbones.mamba1.model import Mamba1, Mamba1Config
from runnel.errors import CheckpointError


def read_mamba1(
    config: Mapping[str, Any], tensors: Mapping[str, Stored], where: str
) -> tuple[str, Mamba1Config, dict[str, Stored], dict[str, Stored]]:
    """Return the layout in words, the config (from shapes if none is given), tensors by the module's names, a scanner's head."""
    backbone, heads = sort_tensors(tensors, where)
    if any(name.endswith(".mixer.dt_bias") for name in backbone):
        raise CheckpointError(f"{where} has layers of both Mamba-1 (x_proj) and Mamba-2 (dt_bias); {READS}")
    layout = find_layout(config, Mamba1.title, where)
    sizes = read_sizes(layout, config, backbone, where)
    if layout == BARE:
        state_size = shape_of(backbone, MIXER + "A_log", 2, where)[1]
        rank = shape_of(backbone, MIXER + "dt_proj.weight", 2, where)[1]
    else:
        options, names = config, ("state_size", "time_step_rank")
        if layout == ORIGINAL:
            options, names = ssm_options(config), ("d_state", "dt_rank")
            refuse_ssm(options, COMMON | {"dt_rank"}, where)
        state_size = whole(options, names[0], where, 16)
        rank = 0 if options.get(names[1], "auto") == "auto" else whole(options, names[1], where)
    parsed = Mamba1Config(**sizes, state_size=state_size, dt_rank=rank)
    return "single-pass scanner" if heads else layout, parsed, backbone, heads
