"""Recognise a published checkpoint: from its config first, confirmed by its tensor names and shapes.

Every format becomes the same pair: a config dataclass, and tensors under the names of the module in `mamba1.py` or
`mamba2.py`. What looks similar but computes something else is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from runnel.backbones.checkpoint_configs import (
    ATTENTION,
    READS,
    Config,
    count_layers,
    from_native,
    from_original,
    from_shapes,
    from_transformers,
    parse_config,
    title,
)
from runnel.backbones.checkpoint_files import Stored, some
from runnel.errors import CheckpointError, InputError

_LATER = "is recognised, but comes with a later version; " + READS
_REFUSED_TYPES = {  # model_type -> why
    "falcon_mamba": "Falcon-Mamba normalises B, C and dt in every layer; run as Mamba-1 it would give wrong vectors",
    "mamba3": "Mamba-3 has another recurrence (rotated states, no convolution)",
    "rwkv": "RWKV-4 has another recurrence than RWKV-7",
    "rwkv5": "RWKV-5 has another recurrence than RWKV-7",
    "rwkv6": "RWKV-6 has another recurrence than RWKV-7",
    "rwkv7": f"RWKV-7 {_LATER}",
    "xlstm": f"xLSTM {_LATER}",
    **dict.fromkeys(("bamba", "falcon_h1", "granitemoehybrid", "jamba", "lfm2", "nemotron_h"), f"it is a hybrid: it {ATTENTION}"),
    **dict.fromkeys(("olmo_hybrid", "qwen3_next", "recurrent_gemma", "zamba", "zamba2"), f"it is a hybrid: it {ATTENTION}"),
}
_REFUSED_NAMES = (  # pattern of a tensor name -> why; the first that matches speaks
    (r"mlstm_cell|slstm_cell", "older xLSTM blocks (mlstm_cell, slstm_cell) compute something else than xLSTM-7B"),
    (r"mlstm_layer\.", f"xLSTM {_LATER}"),
    (r"\.ffn\.(s_emb|s1|s2|emb)\b|\.(qkv_emb|k_emb|v_emb)\b", "RWKV-7a, RWKV-7b and RWKV-8 have embedding tables in every layer"),
    (r"\.(att|attn)\.r_k$", f"RWKV-7 {_LATER}"),
    (r"time_maa_|time_faaaa|time_decay|time_mix_|time_first", "RWKV-4, RWKV-5 and RWKV-6 have other recurrences than RWKV-7"),
    (r"mixer\.(B_bias|C_bias|B_norm|C_norm|mimo_x)", "Mamba-3 has another recurrence (rotated states, no convolution)"),
    (r"(mixer|mamba)\.(b|c|dt)_layernorm", "its layers normalise B, C and dt, which Mamba-1 does not"),
)
_HYBRID_NAMES = (  # the same, for models that have recurrent layers
    (r"self_attn\.|mixer\.(Wqkv|q_proj|k_proj|rotary_emb)|\.attention\.|\.attn\.", f"it is a hybrid: it {ATTENTION}"),
    (r"\.(mlp|feed_forward|ffn)\.|\.norm2\.", "it has feed-forward layers between the recurrent ones (d_intermediate > 0)"),
)
_KNOWN_TYPES = {"mamba", "mamba2", *_REFUSED_TYPES}


@dataclass(frozen=True)
class Recognised:
    """What a checkpoint is: `layout` in words, its architecture and config, and its tensors sorted by what they are for."""

    layout: str
    architecture: str
    config: Config
    backbone: dict[str, Stored]
    heads: dict[str, Stored]


def recognise(config: Mapping[str, Any] | None, tensors: Mapping[str, Stored], where: str) -> Recognised:
    """Decide what a checkpoint is.

    Args:
        config: contents of config.json or params.json; None if there is none, then shapes decide.
        tensors: all tensors of the checkpoint by their name in the file.
        where: folder, for messages.

    Raises:
        CheckpointError: foreign, a near miss, or config and tensors contradict each other.
    """
    config = config or {}
    _refuse_type(config, where)
    if isinstance(config.get("runnel"), Mapping):
        return _from_runnel(config["runnel"], tensors, where)
    backbone, heads = _sort(tensors, where)
    architecture = _architecture(backbone, where)
    try:
        if "dim" in config:  # before model_type: these files say "mamba" whatever they hold
            parsed: Config = from_native(config, backbone, where)
            layout, declared = "Mistral's own", "mamba2"
        elif config.get("model_type") in ("mamba", "mamba2") and "hidden_size" in config:
            layout = "transformers"
            declared = {"mamba": "mamba1", "mamba2": "mamba2"}[config["model_type"]]
            parsed = from_transformers(config, declared, where)
        elif "d_model" in config:
            layout = "state-spaces original"
            declared, parsed = from_original(config, where)
        else:
            layout, declared = "bare tensors", architecture
            parsed = from_shapes(backbone, architecture, where)
    except InputError as error:  # the config classes speak of values a user passes; here they came from a file
        raise CheckpointError(f"{where}: its config is not a valid model: {error}") from error
    if declared != architecture:
        raise CheckpointError(
            f"{where}: config.json describes {title(declared)} but the tensors are those of {title(architecture)}; "
            "config and weights do not belong together"
        )
    _check_layers(backbone, parsed, where)
    if heads:
        layout = "single-pass scanner"
    return Recognised(f"{title(architecture)}, {layout} layout", architecture, parsed, backbone, heads)


# ---- refusals --------------------------------------------------------------------------------------------------------


def _refuse_type(config: Mapping[str, Any], where: str) -> None:
    kind = str(config.get("model_type", ""))
    if config.get("quantization_config"):
        raise CheckpointError(f"{where} holds quantised weights (quantization_config); load the unquantised checkpoint")
    if kind in _REFUSED_TYPES:
        raise CheckpointError(f"{where} is a {kind!r} checkpoint: {_REFUSED_TYPES[kind]}")
    if kind and kind not in _KNOWN_TYPES and "dim" not in config and "runnel" not in config:
        close = get_close_matches(kind, sorted(_KNOWN_TYPES), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise CheckpointError(f"{where} is a {kind!r} checkpoint, which runnel does not know; {READS}{hint}")


def _architecture(names: Mapping[str, Stored], where: str) -> str:
    """The architecture that the tensor names belong to."""
    mixers = {name.split(".mixer.")[1] for name in names if ".mixer." in name}
    for pattern, reason in (*_REFUSED_NAMES, *(_HYBRID_NAMES if mixers else ())):
        if found := next((name for name in names if re.search(pattern, name)), None):
            raise CheckpointError(f"{where} cannot be loaded: {reason} (tensor {found!r})")
    if not mixers.isdisjoint({"x_proj.weight", "dt_proj.weight"}):
        if "dt_bias" in mixers:
            raise CheckpointError(f"{where} has layers of both Mamba-1 (x_proj) and Mamba-2 (dt_bias); {READS}, not mixtures")
        return "mamba1"
    if not mixers.isdisjoint({"dt_bias", "norm.weight"}):
        return "mamba2"
    raise CheckpointError(
        f"{where} is of an unknown kind: its tensors ({some(sorted(names)) or 'none'}) belong to no model it knows; {READS}"
    )


# ---- tensor names ----------------------------------------------------------------------------------------------------


def _sort(tensors: Mapping[str, Stored], where: str) -> tuple[dict[str, Stored], dict[str, Stored]]:
    """Tensors under the module's names, and those of a scanner's head; the LM head is no part of a backbone and is left out."""
    backbone: dict[str, Stored] = {}
    heads: dict[str, Stored] = {}
    original: dict[str, str] = {}
    for name, stored in tensors.items():
        plain = name.removeprefix("model.").removeprefix("backbone.")
        plain = "embeddings.weight" if plain == "embedding.weight" else plain
        if plain in original:
            raise CheckpointError(f"{where} holds the same tensor twice, as {original[plain]!r} and {name!r}; keep one")
        original[plain] = name
        if plain.startswith("binary_head."):
            heads[plain.removeprefix("binary_head.")] = stored
        elif plain != "lm_head.weight":
            backbone[plain] = stored
    table = backbone.get("embeddings.weight")
    if table is not None and len(table.shape) == 2:  # else it is reported later as missing or mis-shaped
        if "lm_head.weight" in original:
            _check_lm_head(original["lm_head.weight"], tensors, table.shape, where)
        if heads:
            _check_scanner(heads, table.shape[1], where)
    return backbone, heads


def _check_lm_head(name: str, tensors: Mapping[str, Stored], expected: tuple[int, ...], where: str) -> None:
    if tensors[name].shape != expected:
        raise CheckpointError(
            f"{where}: mis-shaped tensor {name!r} is {tensors[name].shape}, expected {expected} like the embedding"
        )


def _check_scanner(heads: Mapping[str, Stored], hidden_size: int, where: str) -> None:
    if unknown := sorted(heads.keys() - {"weight", "bias"}):
        raise CheckpointError(f"{where}: unexpected tensor binary_head.{unknown[0]}; a scanner's head has only weight and bias")
    if "weight" not in heads:
        raise CheckpointError(f"{where}: missing tensor binary_head.weight; the scanner's head is incomplete")
    outputs = heads["weight"].shape[0] if heads["weight"].shape else 0
    for name, expected in (("weight", (outputs, hidden_size)), ("bias", (outputs,))):
        if name in heads and heads[name].shape != expected:
            raise CheckpointError(f"{where}: mis-shaped tensor binary_head.{name} is {heads[name].shape}, expected {expected}")


def _check_layers(backbone: Mapping[str, Stored], config: Config, where: str) -> None:
    """One message for a wrong number of layers, in place of hundreds of missing tensors."""
    found = count_layers(backbone)
    if found != config.num_layers:
        which = "missing" if found < config.num_layers else "unexpected"
        raise CheckpointError(
            f"{where}: {which} tensors: its config says {config.num_layers} layers, the weights have {found}; download both again"
        )


# ---- runnel's own folders ---------------------------------------------------------------------------------------------


def _from_runnel(description: Mapping[str, Any], tensors: Mapping[str, Stored], where: str) -> Recognised:
    """A folder that runnel wrote: `backbone.*` and `heads.*`, and the backbone's config as `to_dict` gave it."""
    declared = description.get("backbone")
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
    return Recognised(f"{title(architecture)}, runnel layout", architecture, config, backbone, heads)


def _with_scale(name: str, tensors: Mapping[str, Stored], where: str) -> Stored:
    """`name`, multiplied by its per-row scale where it is stored in 8 bits."""
    matrix, scale = tensors[name], tensors.get(name + ".scale")
    if scale is None:
        return matrix
    if len(matrix.shape) != 2 or scale.shape != matrix.shape[:1]:
        raise CheckpointError(
            f"{where}: mis-shaped tensor '{name}.scale' is {scale.shape}, expected {matrix.shape[:1]}, one per row"
        )
    return Stored(matrix.shape, matrix.file, lambda: matrix.read().float() * scale.read()[:, None])
