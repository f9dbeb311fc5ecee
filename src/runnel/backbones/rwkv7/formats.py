"""RWKV-7 checkpoints as published: the official flat `.pth`, the layout of flash-linear-attention
(fla), and EmbeddingRWKV.

Both become the names of the module in `model.py`. All sizes are read from shapes: no formula gives
the ranks of every published model, and published configs carry a wrong number of heads. What looks
similar but computes something else is refused by name.

D  hidden size
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from operator import itemgetter

from torch import Tensor

from runnel.backbones.checkpoint.config_values import OFF, expect_agreement, expect_options, number
from runnel.backbones.checkpoint.shapes import some
from runnel.backbones.checkpoint.tensors import (
    Recognized,
    Stored,
    count_layers,
    expect_fit,
    renamed,
    shape_of,
)
from runnel.backbones.rwkv7.model import Rwkv7, Rwkv7Config
from runnel.errors import CheckpointError

# of EmbeddingRWKV's rerankers: the layers of the embedder whose states they read
READ_LAYERS = "reranker_layer_idx"
# in the order in which the oldest fla files stack them
_MIXES = ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g")
_NOT_IN_FIRST = ("att.v0", "att.v_down.weight", "att.v_up.weight")  # module names


@dataclass(frozen=True)
class _Layout:
    """How a published format names things: file name -> module name, at the top and within each
    layer.
    """

    name: str
    blocks: str  # what the layers are called
    top: Mapping[str, str]
    layer: Mapping[str, str]
    head: str  # the LM head, which is no part of a backbone
    transposed: frozenset[str] = frozenset()  # of `layer`: stored as (in, out)
    # whether what the first layer does not use may be there, and is left out
    idle_in_first: bool = False


def _norms(names: Mapping[str, str]) -> dict[str, str]:
    return {
        f"{theirs}.{part}": f"{ours}.{part}"
        for theirs, ours in names.items()
        for part in ("weight", "bias")
    }


# "wavg" are the four low-rank pairs w, a, v and g, each a "down" and an "up" matrix (`cpu.py`)
_OFFICIAL = _Layout(
    name="official",
    blocks="blocks",
    top={
        "emb.weight": "embeddings.weight",
        **_norms({"blocks.0.ln0": "norm_0", "ln_out": "norm_f"}),
    },
    layer={
        **_norms({"ln1": "norm_att", "ln2": "norm_ffn", "att.ln_x": "att.ln_x"}),
        **{
            f"att.{name}": f"att.{name}"
            for name in (*_MIXES, "w0", "a0", "v0", "k_k", "k_a", "r_k")
        },
        **{
            f"att.{name}.weight": f"att.{name}.weight"
            for name in ("receptance", "key", "value", "output")
        },
        **{f"att.{name}1": f"att.{name}_down.weight" for name in "wavg"},
        **{f"att.{name}2": f"att.{name}_up.weight" for name in "wavg"},
        **{name: name for name in ("ffn.x_k", "ffn.key.weight", "ffn.value.weight")},
    },
    head="head.weight",
    transposed=frozenset(f"att.{name}{half}" for name in "wavg" for half in "12"),
    idle_in_first=True,
)
_FLA = _Layout(
    name="flash-linear-attention",
    blocks="layers",
    top={
        "embeddings.weight": "embeddings.weight",
        **_norms({"layers.0.pre_norm": "norm_0", "norm": "norm_f"}),
    },
    layer={
        **_norms({"attn_norm": "norm_att", "ffn_norm": "norm_ffn", "attn.g_norm": "att.ln_x"}),
        **{f"attn.{name}": f"att.{name}" for name in (*_MIXES, "k_k", "k_a", "r_k")},
        "attn.r_proj.weight": "att.receptance.weight",
        "attn.k_proj.weight": "att.key.weight",
        "attn.v_proj.weight": "att.value.weight",
        "attn.o_proj.weight": "att.output.weight",
        **{f"attn.{name}_lora.lora.0.weight": f"att.{name}_down.weight" for name in "wavg"},
        **{f"attn.{name}_lora.lora.2.weight": f"att.{name}_up.weight" for name in "wavg"},
        **{f"attn.{name}_lora.lora.2.bias": f"att.{name}0" for name in "wav"},
        **{name: name for name in ("ffn.x_k", "ffn.key.weight", "ffn.value.weight")},
    },
    head="lm_head.weight",
)


def recognizes(config: Mapping[str, object], names: Collection[str]) -> bool:
    """See `Recognized`."""
    return any(
        re.search(r"(^|\.)(att|attn)\.r_k$|^(rwkv|reranker)\.blocks\.", name) for name in names
    )


def read(config: Mapping[str, object], tensors: Mapping[str, Stored], where: str) -> Recognized:
    """See `Recognized`. EmbeddingRWKV has the official names after `rwkv.`, and heads: `head.*`,
    `reranker.*`, `READ_LAYERS`.

    Source: package/src/rwkv_emb/model.py in howard-hou/EmbeddingRWKV 13613c0.
    """
    if not any(name.startswith(("rwkv.blocks.", "reranker.blocks.")) for name in tensors):
        return read_rwkv7(config, tensors, where)
    heads = {
        name: stored
        for name, stored in tensors.items()
        if name.startswith(("head.", "reranker.", READ_LAYERS))
    }
    if not (tensors.keys() - heads.keys()):
        raise CheckpointError(
            f"{where} holds a reranker (reranker.*) without the embedder whose states it reads; put"
            " both .pth files and the tokenizer into one folder, and load the folder"
        )
    # whole numbers, where all other tensors are weights
    if (layers := heads.get(READ_LAYERS)) is not None:
        heads[READ_LAYERS] = layers.changed(layers.shape, Tensor.float)
    backbone = {
        name.removeprefix("rwkv."): stored for name, stored in tensors.items() if name not in heads
    }
    return read_rwkv7({}, backbone, where)._replace(layout="EmbeddingRWKV", heads=heads)


def read_rwkv7(
    config: Mapping[str, object], tensors: Mapping[str, Stored], where: str
) -> Recognized:
    """Read a backbone. Without a config, as for official files, shapes decide; a leading `model.`
    makes no difference.
    """
    _refuse_options(config, where)
    stored = renamed(
        _unstacked(tensors), lambda name: name.removeprefix("model."), where, unused=""
    )
    layouts = [
        layout
        for layout in (_OFFICIAL, _FLA)
        if any(name.startswith(f"{layout.blocks}.") for name in stored)
    ]
    if len(layouts) != 1:
        came = some(sorted(stored)) or "none"
        raise CheckpointError(
            f"{where}: its tensors ({came}) do not belong to one RWKV-7 model: expected layers"
            " named blocks.0 ... or layers.0 ..."
        )
    named = _module_names(stored, layouts[0])
    return Recognized(Rwkv7.architecture, layouts[0].name, _config(config, named, where), named, {})


def _config(config: Mapping[str, object], tensors: Mapping[str, Stored], where: str) -> Rwkv7Config:
    """Read sizes from shapes and `norm_eps` from the config, whose other sizes must agree, except
    heads and ranks.
    """
    vocab, hidden = shape_of(tensors, "embeddings.weight", 2, where)
    heads, head_size = shape_of(tensors, "layers.0.att.r_k", 2, where)
    expect_fit(
        heads * head_size == hidden,
        f"first layer: {heads} heads of {head_size} of {hidden} channels",
        where,
    )
    layers = count_layers(tensors)
    expect_agreement(
        config,
        {
            "vocab_size": vocab,
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "head_dim": head_size,
        },
        where,
    )
    ranks = {
        "decay_rank": "layers.0.att.w_down",
        "a_rank": "layers.0.att.a_down",
        "gate_rank": "layers.0.att.g_down",
    }
    if layers > 1:
        ranks["v_rank"] = "layers.1.att.v_down"
    return Rwkv7Config(
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=layers,
        head_size=head_size,
        ffn_size=shape_of(tensors, "layers.0.ffn.key.weight", 2, where)[0],
        norm_eps=number(config.get("norm_eps", 1e-5), "norm_eps", where),
        **{rank: shape_of(tensors, f"{name}.weight", 2, where)[0] for rank, name in ranks.items()},
    )


def _refuse_options(config: Mapping[str, object], where: str) -> None:
    """Raise CheckpointError for options that change what is computed. Source: RWKV7Config of
    flash-linear-attention bc3b101.

    `attn_mode` and the fuse_* options choose a kernel. (With fuse_norm its removal keys, k * k_k,
    are divided by sqrt(|.|^2 + 1e-6) in place of |.|; official models, which these are converted
    from, are not.)
    """
    expect_options(
        config,
        {"attn": OFF, "hidden_act": ("sqrelu",), "norm_first": (True,), "norm_bias": (True,)},
        where,
    )
    widths = config.get("value_dim")  # of all layers, or a list
    for width in widths if isinstance(widths, list) else [widths]:
        expect_options(
            {"value_dim": width}, {"value_dim": (config.get("hidden_size"), None)}, where
        )


def _unstacked(tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """Split the six mixes that the oldest fla files keep in one tensor."""
    stored: dict[str, Stored] = {}
    for name, tensor in tensors.items():
        parts = {
            name.removesuffix("x_x") + mix: tensor.changed(tensor.shape[1:], itemgetter(i))
            for i, mix in enumerate(_MIXES)
        }
        if (
            name.endswith(".attn.x_x")
            and tensor.shape[:1] == (len(_MIXES),)
            and tensors.keys().isdisjoint(parts)
        ):
            stored |= parts
        else:
            stored[name] = tensor
    return stored


def _module_names(stored: Mapping[str, Stored], layout: _Layout) -> dict[str, Stored]:
    """Return every tensor by its name and shape in the module; what belongs to none keeps its name,
    and is refused later.
    """
    named: dict[str, Stored] = {}
    for name, tensor in stored.items():
        ours = layout.top.get(name)
        if (
            ours is None
            and (match := re.fullmatch(rf"{layout.blocks}\.(\d{{1,6}})\.(.+)", name))
            and match[2] in layout.layer
        ):
            ours = f"layers.{match[1]}.{layout.layer[match[2]]}"
            if match[2] not in layout.transposed:
                tensor = _flat(tensor, ours)
            elif len(tensor.shape) == 2:  # else reported later as mis-shaped
                tensor = tensor.changed(tensor.shape[::-1], Tensor.t)
            # stored although the first layer does not use it
            if match[1] == "0" and layout.idle_in_first and layout.layer[match[2]] in _NOT_IN_FIRST:
                continue
        if name != layout.head:
            named[ours or name] = tensor
    return named


def _flat(stored: Stored, name: str) -> Stored:
    """Return a vector stored as (1, 1, D), whose dimensions but the last are 1, with one dimension;
    anything else unchanged.
    """
    if stored.shape[:-1].count(1) != len(stored.shape) - 1 or name.endswith((".weight", ".r_k")):
        return stored
    return stored.changed(stored.shape[-1:], Tensor.flatten)
