"""Read xLSTM-7B's two layouts: transformers' (config.json) and the official folder (config.yaml).

Both have the same names inside of blocks. Sizes come from the tensors, and the config must agree.
Options that change what is computed are refused; options that choose kernels, or that no
implementation reads, are not looked at. Source: xLSTMConfig of transformers 5.23, xLSTMLargeConfig
of NX-AI/xlstm 032a6fb.
"""

from collections.abc import Collection, Mapping
from operator import itemgetter

from runnel.backbones.checkpoint.config_values import OFF, expect_agreement, expect_options, number
from runnel.backbones.checkpoint.tensors import (
    Recognized,
    Stored,
    count_layers,
    expect_fit,
    renamed,
    shape_of,
)
from runnel.backbones.xlstm.model import Xlstm, XlstmConfig

# beginnings: file -> module
_NAMES = (("embedding.", "embeddings."), ("out_norm.", "norm_f."), ("blocks.", "layers."))
_HALVES: dict[str, tuple[str, ...]] = {
    "ifgate_preact": ("igate_preact", "fgate_preact"),
    "proj_up_gate_z": ("proj_up_gate", "proj_up"),
}
_KERNELS = ("chunkwise_kernel", "sequence_kernel", "step_kernel")


def recognizes(config: Mapping[str, object], names: Collection[str]) -> bool:
    """See `Recognized`."""
    return any("mlstm_layer." in name for name in names)


def read(config: Mapping[str, object], tensors: Mapping[str, Stored], where: str) -> Recognized:
    """See `Recognized`."""
    named = _split_fused(renamed(tensors, _module_name, where), where)
    layout = (
        "bare tensors" if not config else "transformers" if "model_type" in config else "official"
    )
    allowed = {"use_bias": OFF, "add_qk_norm": OFF, "weight_mode": ("single", "fused")}
    # With "siging" the input gate is a sigmoid: such a kernel is refused, as no other value than
    # None is allowed. transformers ignores add_out_norm: there the norm is always on.
    allowed |= {key: (None,) for key in _KERNELS if "siging" in str(config.get(key))}
    allowed |= {"add_out_norm": (True,)} if layout == "official" else {}
    expect_options(config, allowed, where)
    return Recognized(Xlstm.architecture, layout, _config(config, named, where), named, {})


def _config(config: Mapping[str, object], tensors: Mapping[str, Stored], where: str) -> XlstmConfig:
    def rows(name: str) -> int:
        return shape_of(tensors, f"layers.0.{name}.weight", 2, where)[0]

    vocab, hidden = shape_of(tensors, "embeddings.weight", 2, where)
    layers = count_layers(tensors)
    heads = rows("mlstm_layer.igate_preact")
    expect_agreement(
        config,
        {
            "vocab_size": vocab,
            "embedding_dim": hidden,
            "hidden_size": hidden,
            "num_blocks": layers,
            "num_hidden_layers": layers,
            "num_heads": heads,
        },
        where,
    )
    return XlstmConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        qk_size=rows("mlstm_layer.q"),
        v_size=rows("mlstm_layer.v"),
        ffn_size=rows("ffn.proj_up"),
        gate_cap=number(config.get("gate_soft_cap", 15.0), "gate_soft_cap", where),
        norm_eps=number(config.get("norm_eps", 1e-6), "norm_eps", where),
        cell_eps=number(config.get("eps", 1e-6), "eps", where),
    )


def _module_name(name: str) -> str:
    plain = name.removeprefix("model.").removeprefix("backbone.")
    for old, new in _NAMES:
        plain = new + plain.removeprefix(old) if plain.startswith(old) else plain
    return plain


def _split_fused(tensors: Mapping[str, Stored], where: str) -> dict[str, Stored]:
    """Split the matrices that weight_mode "fused" stores as one."""
    named: dict[str, Stored] = {}
    for name, stored in tensors.items():
        # PREFIX.FUSED.KIND, with KIND "weight" or "bias"
        prefix, _, kind = name.rpartition(".")
        prefix, _, fused = prefix.rpartition(".")
        if fused in _HALVES:
            expect_fit(
                len(stored.shape) > 0 and stored.shape[0] % 2 == 0,
                f"tensor {name!r} is {stored.shape}, its rows must divide into 2 parts",
                where,
            )
            targets = _HALVES[fused]
            ends = [0, stored.shape[0] // 2, stored.shape[0]]
        elif fused == "qkv_opreact":
            v_size = shape_of(tensors, prefix + ".out_proj.weight", 2, where)[1]
            total = shape_of(tensors, name, 2, where)[0]
            qk_size = (total - 2 * v_size) // 2  # v and the output gate have v_size rows each
            targets = ("q", "k", "v", "ogate_preact")
            ends = [0, qk_size, 2 * qk_size, 2 * qk_size + v_size, total]
        else:
            named[name] = stored
            continue
        for part, start, end in zip(targets, ends, ends[1:], strict=False):
            rows = (max(0, end - start), *stored.shape[1:])
            named[f"{prefix}.{part}.{kind}"] = stored.changed(rows, itemgetter(slice(start, end)))
    return named
