"""Read xLSTM-7B's two layouts: transformers' (config.json) and the official folder (config.yaml).

    D  hidden size      H  heads      F  width of the feed-forward layers

Both have the same names inside of blocks. Widths come from the tensors and are checked against the config's rule. Options that
change what is computed are refused; those that choose kernels, or that no implementation reads, are not looked at.
Source: xLSTMConfig of transformers 5.23, xLSTMLargeConfig of NX-AI/xlstm 032a6fb.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runnel.backbones.checkpoint.tensors import Stored, count_layers, renamed, shape_of
from runnel.backbones.checkpoint.values import number, whole
from runnel.backbones.xlstm.model import XlstmConfig
from runnel.errors import CheckpointError

_NAMES = (("embedding.", "embeddings."), ("out_norm.", "norm_f."), ("blocks.", "layers."))  # beginnings: file -> module
_KERNELS = ("chunkwise_kernel", "sequence_kernel", "step_kernel")


def read_xlstm(
    config: Mapping[str, Any] | None, tensors: Mapping[str, Stored], where: str
) -> tuple[str, XlstmConfig, dict[str, Stored]]:
    """Return the layout in words, the config, and tensors by the module's names; without a config, shapes decide."""
    config = config or {}
    _refuse_variants(config, where)
    named = _split_fused(renamed(tensors, _module_name, where), where)
    if not config:
        return "bare tensors", _from_shapes(named, where), named
    layout = "transformers" if "model_type" in config else "official"
    # transformers ignores add_out_norm: there the norm is always on
    if layout == "official" and config.get("add_out_norm", True) is not True:
        raise CheckpointError(
            f"{where}: add_out_norm is {config['add_out_norm']!r}; published models have a norm at the end, and so does runnel"
        )
    return layout, _from_config(config, named, where), named


# ---- config ------------------------------------------------------------------------------------------------------------


def _refuse_variants(config: Mapping[str, Any], where: str) -> None:
    for key in _KERNELS:
        if "siging" in str(config.get(key, "")):
            raise CheckpointError(
                f"{where}: {key} is {config[key]!r}: its input gate is a sigmoid, which is another model; "
                "runnel reads xLSTM with exponential input gates, as in xLSTM-7B"
            )
    for key in ("use_bias", "add_qk_norm"):
        if config.get(key):
            raise CheckpointError(f"{where}: {key} is {config[key]!r}; published models have False, and so does runnel")
    if config.get("weight_mode", "single") not in ("single", "fused"):
        raise CheckpointError(f"{where}: weight_mode is {config['weight_mode']!r}; expected 'single' or 'fused'")


def _from_config(config: Mapping[str, Any], tensors: Mapping[str, Stored], where: str) -> XlstmConfig:
    hidden = _either(config, "embedding_dim", "hidden_size", where)
    widths = _widths(tensors, where)
    for key, width, default in (("qk_dim_factor", "qk_size", 0.5), ("v_dim_factor", "v_size", 1.0)):
        _expect(widths[width], int(hidden * number(config.get(key, default), key, where)), key, where)
    multiple = whole(config, "ffn_round_up_to_multiple_of", where, 64)
    factor = config.get("ffn_proj_factor", 2.667 if "model_type" in config else 2.6667)
    exact = hidden * number(factor, "ffn_proj_factor", where)
    _expect(widths["ffn_size"], int((exact + multiple - 1) // multiple * multiple), "ffn_proj_factor", where)  # on floats
    return XlstmConfig(
        vocab_size=whole(config, "vocab_size", where),
        hidden_size=hidden,
        num_layers=_either(config, "num_blocks", "num_hidden_layers", where),
        num_heads=whole(config, "num_heads", where),
        **widths,
        gate_cap=number(config.get("gate_soft_cap", 15.0), "gate_soft_cap", where),
        norm_eps=number(config.get("norm_eps", 1e-6), "norm_eps", where),
        cell_eps=number(config.get("eps", 1e-6), "eps", where),
    )


def _from_shapes(tensors: Mapping[str, Stored], where: str) -> XlstmConfig:
    vocab, hidden = shape_of(tensors, "embeddings.weight", 2, where)
    heads = shape_of(tensors, "layers.0.mlstm_layer.igate_preact.weight", 2, where)[0]
    return XlstmConfig(vocab, hidden, count_layers(tensors), heads, **_widths(tensors, where))


def _widths(tensors: Mapping[str, Stored], where: str) -> dict[str, int]:
    return {
        "qk_size": shape_of(tensors, "layers.0.mlstm_layer.q.weight", 2, where)[0],
        "v_size": shape_of(tensors, "layers.0.mlstm_layer.v.weight", 2, where)[0],
        "ffn_size": shape_of(tensors, "layers.0.ffn.proj_up.weight", 2, where)[0],
    }


def _either(config: Mapping[str, Any], official: str, transformers: str, where: str) -> int:
    """Return a number that a config may give under either of two names, or both."""
    values = {whole(config, key, where) for key in (official, transformers) if config.get(key) is not None}
    if len(values) == 2:
        raise CheckpointError(
            f"{where}: {official} is {config[official]} but {transformers} is {config[transformers]}; they must be the same"
        )
    return values.pop() if values else whole(config, official, where)


def _expect(found: int, declared: int, key: str, where: str) -> None:
    if found != declared:
        raise CheckpointError(
            f"{where}: {key} of its config makes a width of {declared}, but the tensors have {found}; "
            "config and weights do not belong together"
        )


# ---- tensors -----------------------------------------------------------------------------------------------------------


def _module_name(name: str) -> str:
    plain = name.removeprefix("model.").removeprefix("backbone.")
    for old, new in _NAMES:
        plain = new + plain.removeprefix(old) if plain.startswith(old) else plain
    return plain


def _split_fused(tensors: Mapping[str, Stored], where: str) -> dict[str, Stored]:
    """Split the matrices that weight_mode "fused" stores as one."""
    named: dict[str, Stored] = {}
    for name, stored in tensors.items():
        layer, _, fused = name.rpartition("mlstm_layer.")
        if layer and (found := re.fullmatch(r"ifgate_preact\.(weight|bias)", fused)):
            prefix = layer + "mlstm_layer."
            parts = _even_parts(stored, 2, name, where)
            named |= {f"{prefix}{gate}gate_preact.{found[1]}": part for gate, part in zip("if", parts, strict=True)}
        elif layer and fused == "qkv_opreact.weight":
            prefix = layer + "mlstm_layer."
            v_size = shape_of(tensors, prefix + "out_proj.weight", 2, where)[1]
            total = shape_of(tensors, name, 2, where)[0]
            qk_size = (total - 2 * v_size) // 2
            ends = [0, qk_size, 2 * qk_size, 2 * qk_size + v_size, total]
            for part, start, end in zip(("q", "k", "v", "ogate_preact"), ends, ends[1:], strict=False):
                named[f"{prefix}{part}.weight"] = _rows(stored, start, end)
        elif name.endswith(".ffn.proj_up_gate_z.weight"):
            prefix = name.removesuffix("proj_up_gate_z.weight")
            parts = _even_parts(stored, 2, name, where)
            named |= {f"{prefix}{part}.weight": rows for part, rows in zip(("proj_up_gate", "proj_up"), parts, strict=True)}
        else:
            named[name] = stored
    return named


def _even_parts(stored: Stored, parts: int, name: str, where: str) -> list[Stored]:
    if not stored.shape or stored.shape[0] % parts:
        raise CheckpointError(f"{where}: mis-shaped tensor {name!r} is {stored.shape}, its rows must divide into {parts} parts")
    size = stored.shape[0] // parts
    return [_rows(stored, part * size, (part + 1) * size) for part in range(parts)]


def _rows(stored: Stored, start: int, end: int) -> Stored:
    """Return rows [start, end) of a tensor, not read yet."""
    return replace(stored, shape=(max(0, end - start), *stored.shape[1:]), read=lambda: stored.read()[start:end])
