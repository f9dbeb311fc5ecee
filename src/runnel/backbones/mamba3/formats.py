"""Mamba-3 checkpoints in the layout of state-spaces/mamba: config.json with `d_model` and
`ssm_cfg`, and pytorch_model.bin. `A_activation` in `ssm_cfg` is runnel's own key, which users
add: two versions of the authors' package compute A differently from the same files.

Sizes are read from the tensors, and what the config says must agree. Options that change what is
computed are refused.

G groups   N state size   R ranks   H heads   Di inner size
"""

from collections.abc import Collection, Mapping

from runnel.backbones.checkpoint.config_values import expect_agreement, number, whole_number
from runnel.backbones.checkpoint.state_spaces import (
    MIXER,
    padded_vocab,
    refuse_options,
    refuse_ssm,
    sort_tensors,
    ssm_options,
)
from runnel.backbones.checkpoint.tensors import (
    Recognized,
    Stored,
    count_layers,
    expect_fit,
    shape_of,
)
from runnel.backbones.mamba3.model import ACTIVATIONS, Mamba3, Mamba3Config
from runnel.errors import CheckpointError

# Keys of ssm_cfg that are read, and at the end, from `fuse_pregate_headwise_norm` on, keys that say
# which kernel ran or how the model was trained; `refuse_ssm` ignores more keys of that kind.
_KNOWN = {
    "d_state",
    "headdim",
    "expand",
    "ngroups",
    "rope_fraction",
    "A_floor",
    "A_activation",
    "is_outproj_norm",
    "is_mimo",
    "mimo_rank",
    "fuse_pregate_headwise_norm",
    "dropout",
    "layer_idx",
    "n_layer",
}


def recognizes(config: Mapping[str, object], names: Collection[str]) -> bool:
    """See `Recognized`."""
    return any(name.endswith("mixer.B_bias") for name in names)


def read(config: Mapping[str, object], tensors: Mapping[str, Stored], where: str) -> Recognized:
    """See `Recognized`; the heads are a scanner's. One group is assumed if the config has none.

    Source: MambaConfig, Mamba3, Block and GatedMLP of state-spaces/mamba e9594ce.
    """
    refuse_options(config, where)
    backbone, heads = sort_tensors(tensors, where)
    ssm = ssm_options(config)
    refuse_ssm(ssm, _KNOWN, where)
    sizes = _from_shapes(backbone, ssm, where)
    says = {**ssm, **config, "mimo_rank": ssm.get("mimo_rank") if ssm.get("is_mimo") else None}
    if "vocab_size" in config:
        says["vocab_size"] = padded_vocab(config, where, multiple=8)
    if "d_intermediate" in config:
        says["d_intermediate"] = bool(config["d_intermediate"])
    stored: dict[str, object] = {
        "layer": "Mamba3",
        "d_state": sizes.state_size,
        "headdim": sizes.head_size,
        "expand": sizes.expand,
        "is_outproj_norm": sizes.out_norm,
        "is_mimo": sizes.ranks is not None,
        "mimo_rank": sizes.ranks,
        "rope_fraction": 2 * sizes.angles / sizes.state_size,
        "d_intermediate": sizes.ffn_size is not None,
        "d_model": sizes.hidden_size,
        "n_layer": sizes.num_layers,
        "vocab_size": sizes.vocab_size,
    }
    expect_agreement(says, stored, where)
    if sizes.activation not in ACTIVATIONS:
        raise CheckpointError(
            f"{where}: the files of a Mamba-3 do not say how it computes A, and"
            f" ssm_cfg.A_activation in its config is {sizes.activation!r}; set it there to"
            ' "softplus" if the model was trained with mamba-ssm 2.3.2 from PyPI, to'
            ' "heavy-tailed" if with the main branch of state-spaces/mamba of June 2026 or newer'
        )
    layout = "single-pass scanner" if heads else "state-spaces original"
    return Recognized(Mamba3.architecture, layout, sizes, backbone, heads)


def _from_shapes(
    tensors: Mapping[str, Stored], ssm: Mapping[str, object], where: str
) -> Mamba3Config:
    """Read the sizes of the first layer: in_proj has rows for z and x (Di each), B and C (R G N),
    three gates (H) and angles.
    """
    vocab, hidden = shape_of(tensors, "embeddings.weight", 2, where)
    heads, rank, width = shape_of(tensors, MIXER + "B_bias", 3, where)
    inner = shape_of(tensors, MIXER + "out_proj.weight", 2, where)[1]
    rows = shape_of(tensors, MIXER + "in_proj.weight", 2, where)[0]
    groups = whole_number(ssm, "ngroups", where, 1)
    angles = rows - 2 * inner - 2 * rank * groups * width - 3 * heads
    fits = (
        heads > 0
        and inner % heads == 0
        and hidden > 0
        and inner % hidden == 0
        and 0 < 2 * angles <= width
    )
    shapes = (
        f"{rows} rows of in_proj, inner size {inner}, {heads} heads, {rank} ranks of {width}"
        f" states, {groups} groups"
    )
    expect_fit(fits, f"first layer: {shapes}", where)
    fc2 = "layers.0.mlp.fc2.weight"
    return Mamba3Config(
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=count_layers(tensors),
        state_size=width,
        head_size=inner // heads,
        groups=groups,
        expand=inner // hidden,
        ranks=rank if MIXER + "mimo_x" in tensors else None,
        angles=angles,
        ffn_size=shape_of(tensors, fc2, 2, where)[1] if fc2 in tensors else None,
        out_norm=MIXER + "norm.weight" in tensors,
        decay_floor=number(ssm.get("A_floor", 1e-4), "A_floor", where),
        activation=ssm.get("A_activation"),  # type: ignore[arg-type]  # `read` refuses others
    )
