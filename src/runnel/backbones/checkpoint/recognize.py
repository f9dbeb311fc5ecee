"""Recognize a published checkpoint: from its config first, confirmed by its tensor names and shapes.

Every format becomes the same pair: a config dataclass, and tensors under the names of a backbone's module. Each architecture
has its own reader, `formats.py` in its folder (Mamba-1 and Mamba-2 share one). What looks similar but computes
something else is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from runnel.backbones.base import BackboneConfig
from runnel.backbones.checkpoint.build import parse_config
from runnel.backbones.checkpoint.tensors import Stored, some
from runnel.backbones.checkpoint.values import ATTENTION, FINE_TUNING, OLDER_RWKV, count_layers, refuse_names
from runnel.backbones.families import BACKBONES, READS
from runnel.backbones.mamba2.formats import read_mamba
from runnel.backbones.rwkv7.formats import read_rwkv7
from runnel.backbones.xlstm.formats import read_xlstm
from runnel.errors import CheckpointError, InputError

_REFUSED_TYPES = {  # model_type -> why
    "falcon_mamba": "Falcon-Mamba normalizes B, C and dt in every layer; run as Mamba-1 it would give wrong vectors",
    "mamba3": "Mamba-3 has another recurrence (rotated states, no convolution)",
    "rwkv": "RWKV-4 has another recurrence than RWKV-7",
    "rwkv5": "RWKV-5 has another recurrence than RWKV-7",
    "rwkv6": "RWKV-6 has another recurrence than RWKV-7",
    **dict.fromkeys(("bamba", "falcon_h1", "granitemoehybrid", "jamba", "lfm2", "nemotron_h"), f"it is a hybrid: it {ATTENTION}"),
    **dict.fromkeys(("olmo_hybrid", "qwen3_next", "recurrent_gemma", "zamba", "zamba2"), f"it is a hybrid: it {ATTENTION}"),
}
_REFUSED_NAMES = (  # pattern of a tensor name -> why; the first that matches speaks
    (r"mlstm_cell|slstm_cell", "older xLSTM blocks (mlstm_cell, slstm_cell) compute something else than xLSTM-7B"),
    FINE_TUNING,
    (
        r"\.ffn\.(s_emb|s_emb_x|s0|s1|s2|enn|emb)\b|\.(qkv_emb|k_emb|v_emb)\b|\.qkv\.|\.rosa",
        "RWKV-7a, RWKV-7b and RWKV-8 have embedding tables in every layer",
    ),
    OLDER_RWKV,
    (r"mixer\.(B_bias|C_bias|B_norm|C_norm|mimo_x)", "Mamba-3 has another recurrence (rotated states, no convolution)"),
    (r"(mixer|mamba)\.(b|c|dt)_layernorm", "its layers normalize B, C and dt, which Mamba-1 does not"),
)
_KNOWN_TYPES = {*_REFUSED_TYPES, *(kind for cls in BACKBONES.values() for kind in cls.model_types)}


@dataclass(frozen=True)
class Recognized:
    """A recognized checkpoint: `layout` in words, its architecture and config, and the tensors of its backbone and heads."""

    layout: str
    architecture: str
    config: BackboneConfig
    backbone: dict[str, Stored]
    heads: dict[str, Stored]


def recognize(config: Mapping[str, Any] | None, tensors: Mapping[str, Stored], where: str) -> Recognized:
    """Decide what a checkpoint is. Reads names and shapes, no weights.

    Args:
        config: contents of config.json or params.json; None if the folder has none; shapes decide then.
        tensors: all tensors of the checkpoint by their name in the file.
        where: folder, for messages.

    Raises:
        CheckpointError: foreign, a near miss, or config and tensors contradict each other.
    """
    config = config or {}
    _refuse_type(config, where)
    if "runnel" in config:
        return _from_runnel(config["runnel"], tensors, where)
    heads: dict[str, Stored] = {}
    parsed: BackboneConfig
    try:
        if any(re.search(r"(^|\.)(att|attn)\.r_k$", name) for name in tensors):
            layout, parsed, backbone = read_rwkv7(config, tensors, where)
        elif any("mlstm_layer." in name for name in tensors):
            layout, parsed, backbone = read_xlstm(config, tensors, where)
        else:
            refuse_names(tensors, _REFUSED_NAMES, where)
            layout, parsed, backbone, heads = read_mamba(config, tensors, where)
    except InputError as error:  # the config classes speak of values a user passes; here they came from a file
        raise CheckpointError(f"{where}: its config is not a valid model: {error}") from error
    found = next(cls for cls in BACKBONES.values() if cls.config_class is type(parsed))
    declared = next((cls for cls in BACKBONES.values() if config.get("model_type") in cls.model_types), found)
    if declared is not found and "dim" not in config:
        raise CheckpointError(
            f"{where}: config.json describes {declared.title} but the tensors are those of {found.title}; "
            "config and weights do not belong together"
        )
    _check_sizes(backbone, parsed, where)
    return Recognized(f"{found.title}, {layout} layout", found.architecture, parsed, backbone, heads)


# ---- refusals --------------------------------------------------------------------------------------------------------


def _refuse_type(config: Mapping[str, Any], where: str) -> None:
    kind = str(config.get("model_type", ""))
    if config.get("quantization_config"):
        raise CheckpointError(f"{where} holds quantized weights (quantization_config); load the unquantized checkpoint")
    if kind in _REFUSED_TYPES:
        raise CheckpointError(f"{where} is a {kind!r} checkpoint: {_REFUSED_TYPES[kind]}")
    if kind and kind not in _KNOWN_TYPES and "dim" not in config and "runnel" not in config:
        close = get_close_matches(kind, sorted(_KNOWN_TYPES), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise CheckpointError(f"{where} is a {kind!r} checkpoint, which runnel does not know; {READS}{hint}")


def _check_sizes(backbone: Mapping[str, Stored], config: BackboneConfig, where: str) -> None:
    """Raise CheckpointError for a config that contradicts the tensors, before a model is built from it.

    A wrong number of layers gets one message in place of hundreds of missing tensors.
    """
    found = count_layers(backbone)
    if found != config.num_layers:
        which = "missing" if found < config.num_layers else "unexpected"
        raise CheckpointError(
            f"{where}: {which} tensors: its config says {config.num_layers} layers, the weights have {found}; download both again"
        )
    largest = max((size for stored in backbone.values() for size in stored.shape), default=0)
    for name, value in config.to_dict().items():
        if name != "num_layers" and type(value) is int and value > largest:
            raise CheckpointError(
                f"{where}: its config says {name} is {value:,}, but no tensor has a dimension above {largest:,}; "
                "download both again"
            )


# ---- runnel's own folders ---------------------------------------------------------------------------------------------


def _from_runnel(description: object, tensors: Mapping[str, Stored], where: str) -> Recognized:
    """Recognize a folder that runnel wrote: tensors `backbone.*` and `heads.*`, and the backbone's config from `to_dict`."""
    declared = description.get("backbone") if isinstance(description, Mapping) else None
    if not isinstance(declared, Mapping) or not isinstance(declared.get("config"), Mapping):
        raise CheckpointError(f'{where}: config.json lacks "backbone" with an architecture and a config; save the model again')
    architecture = str(declared.get("architecture"))
    config = parse_config(architecture, declared["config"], where)
    whole = {
        name: _with_scale(name, tensors, where)
        for name in tensors
        if not (name.endswith(".scale") and name.removesuffix(".scale") in tensors)
    }
    backbone = {name.removeprefix("backbone."): stored for name, stored in whole.items() if name.startswith("backbone.")}
    heads = {name.removeprefix("heads."): stored for name, stored in whole.items() if name.startswith("heads.")}
    if stray := sorted(name for name in tensors if not name.startswith(("backbone.", "heads."))):
        raise CheckpointError(f"{where}: unexpected tensors {some(stray)}; a runnel model has only backbone.* and heads.*")
    if BACKBONES[architecture].block is not None:  # the transformers library builds the others
        _check_sizes(backbone, config, where)
    return Recognized(f"{BACKBONES[architecture].title}, runnel layout", architecture, config, backbone, heads)


def _with_scale(name: str, tensors: Mapping[str, Stored], where: str) -> Stored:
    """Return the tensor `name`, multiplied by its per-row scale if it is stored in 8 bits."""
    matrix, scale = tensors[name], tensors.get(name + ".scale")
    if scale is None:
        return matrix
    if len(matrix.shape) != 2 or scale.shape != matrix.shape[:1]:
        raise CheckpointError(
            f"{where}: mis-shaped tensor '{name}.scale' is {scale.shape}, expected {matrix.shape[:1]}, one per row"
        )
    return Stored(matrix.shape, matrix.file, lambda: matrix.read().float() * scale.read()[:, None], rows=(matrix, scale))
