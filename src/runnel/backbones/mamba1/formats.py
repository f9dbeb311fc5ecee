"""Mamba-1 in every published format: state-spaces, transformers, single-pass scanners (paper E: a
Mamba with one output head, which scores sentences), bare tensors.
"""

from collections.abc import Collection, Mapping

from runnel.backbones.checkpoint import state_spaces as published
from runnel.backbones.checkpoint.config_values import expect_agreement
from runnel.backbones.checkpoint.tensors import Recognized, Stored, shape_of
from runnel.backbones.mamba1.model import Mamba1, Mamba1Config


def recognizes(config: Mapping[str, object], names: Collection[str]) -> bool:
    """See `Recognized`."""
    return any(name.endswith((".mixer.x_proj.weight", ".mixer.dt_proj.weight")) for name in names)


def read(config: Mapping[str, object], tensors: Mapping[str, Stored], where: str) -> Recognized:
    """See `Recognized`. Tensors of an output head make the layout a single-pass scanner."""
    backbone, scanner_head = published.sort_tensors(tensors, where)
    layout = published.find_layout(config, Mamba1.title, where)
    sizes = published.read_sizes(layout, config, backbone, where)
    sizes["state_size"] = shape_of(backbone, published.FIRST_MIXER + "A_log", 2, where)[1]
    sizes["dt_rank"] = shape_of(backbone, published.FIRST_MIXER + "dt_proj.weight", 2, where)[1]
    ssm = published.ssm_options(config)
    if layout == published.ORIGINAL:
        published.refuse_ssm(ssm, published.COMMON | {"dt_rank"}, where)
    # a rank "auto" is computed from the hidden size
    says = {name: value for name, value in {**config, **ssm}.items() if value != "auto"}
    expect_agreement(
        says,
        {
            "state_size": sizes["state_size"],
            "d_state": sizes["state_size"],
            "time_step_rank": sizes["dt_rank"],
            "dt_rank": sizes["dt_rank"],
        },
        where,
    )
    return Recognized(
        Mamba1.architecture,
        "single-pass scanner" if scanner_head else layout,
        Mamba1Config(**sizes),
        backbone,
        scanner_head,
    )
