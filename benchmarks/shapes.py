"""Models to measure: a model folder, a built-in name, or a named shape with random weights.

Speed and memory depend only on the shapes of weights, so published shapes need no download.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint.load import build_backbone, load_checkpoint, meta_backbone
from runnel.backbones.config import BackboneConfig
from runnel.backbones.encoder.config import EncoderConfig
from runnel.backbones.families import BACKBONES
from runnel.backbones.int8 import check_int8
from runnel.backbones.library import Library, require_library
from runnel.backbones.mamba1.model import Mamba1Config
from runnel.backbones.mamba2.model import Mamba2Config
from runnel.backbones.rwkv7.model import Rwkv7Config
from runnel.backbones.xlstm.model import XlstmConfig
from runnel.errors import InputError
from runnel.models.folder import BUILT_IN
from runnel.models.recurrent.describe import describe_checkpoint


@dataclass(frozen=True)
class TransformerConfig:
    """The fields of the transformers library's config.json, "model_type" among them."""

    library: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


ShapeConfig = BackboneConfig | TransformerConfig


# by the names in options
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "int8": torch.int8}


def _layers(width: int, layers: int, heads: int, ffn: int) -> dict[str, int]:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
    }


def _bart(width: int, layers: int) -> dict[str, int]:
    sizes = {"layers": layers, "attention_heads": width // 64, "ffn_dim": 4 * width}
    return {"d_model": width} | {
        f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in sizes.items()
    }


def _opt(width: int, layers: int, heads: int) -> dict[str, int]:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "ffn_dim": 4 * width,
    }


_ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
_PYTHIA = {"vocab_size": 50304, "max_position_embeddings": 2048}
_LLAMA = {
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_theta": 5e5,
}
_MISTRAL = _layers(4096, 32, 32, 14336) | {
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
}

# The papers' transformers: model_type, and the fields of config.json that differ from the
# transformers library's defaults.
_TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-base": ("bert", {}),
    "bert-large": ("bert", _layers(1024, 24, 16, 4096)),
    "roberta-base": ("roberta", _ROBERTA),
    "roberta-large": ("roberta", _ROBERTA | _layers(1024, 24, 16, 4096)),
    "electra-base": ("electra", _layers(768, 12, 12, 3072) | {"embedding_size": 768}),
    "electra-large": ("electra", _layers(1024, 24, 16, 4096) | {"embedding_size": 1024}),
    "bart-base": ("bart", _bart(768, 6)),
    "bart-large": ("bart", _bart(1024, 12)),
    "t5-base": ("t5", {"d_model": 768, "num_layers": 12, "num_heads": 12, "d_ff": 3072}),
    "t5-large": ("t5", {"d_model": 1024, "num_layers": 24, "num_heads": 16, "d_ff": 4096}),
    "opt-125m": ("opt", {}),
    "opt-350m": (
        "opt",
        _opt(1024, 24, 16) | {"word_embed_proj_dim": 512, "do_layer_norm_before": False},
    ),
    "opt-1.3b": ("opt", _opt(2048, 24, 32) | {"word_embed_proj_dim": 2048}),
    "pythia-160m": ("gpt_neox", _PYTHIA | _layers(768, 12, 12, 3072)),
    "pythia-410m": ("gpt_neox", _PYTHIA | _layers(1024, 24, 16, 4096)),
    "pythia-1b": ("gpt_neox", _PYTHIA | _layers(2048, 16, 8, 8192)),
    "llama-3.2-1b": ("llama", _LLAMA | _layers(2048, 16, 32, 8192)),
    "llama-3.1-70b": ("llama", _LLAMA | _layers(8192, 80, 64, 28672)),
    "qwen2-1.5b": (
        "qwen2",
        {"vocab_size": 151936, "num_key_value_heads": 2} | _layers(1536, 28, 12, 8960),
    ),
    "mistral-7b-v0.1": ("mistral", _MISTRAL | {"vocab_size": 32000, "sliding_window": 4096}),
    "mistral-7b-v0.3": (
        "mistral",
        _MISTRAL | {"vocab_size": 32768, "sliding_window": None, "rope_theta": 1e6},
    ),
}

# Published shapes; "scaled" ones keep a 7B model's proportions (heads, groups, ratios of widths)
# with less depth and width.
SHAPES: Mapping[str, tuple[str, ShapeConfig]] = {
    "mamba-130m": ("mamba1", Mamba1Config(vocab_size=50280, hidden_size=768, num_layers=24)),
    "mamba-370m": ("mamba1", Mamba1Config(vocab_size=50280, hidden_size=1024, num_layers=48)),
    "mamba-790m": ("mamba1", Mamba1Config(vocab_size=50280, hidden_size=1536, num_layers=48)),
    "mamba-1.4b": ("mamba1", Mamba1Config(vocab_size=50280, hidden_size=2048, num_layers=48)),
    "mamba2-130m": ("mamba2", Mamba2Config(vocab_size=50288, hidden_size=768, num_layers=24)),
    "mamba2-370m": ("mamba2", Mamba2Config(vocab_size=50288, hidden_size=1024, num_layers=48)),
    "mamba2-780m": ("mamba2", Mamba2Config(vocab_size=50288, hidden_size=1536, num_layers=48)),
    "mamba2-1.3b": ("mamba2", Mamba2Config(vocab_size=50288, hidden_size=2048, num_layers=48)),
    "codestral-7b": (
        "mamba2",
        Mamba2Config(vocab_size=32768, hidden_size=4096, num_layers=64, groups=8),
    ),
    "codestral-scaled": (
        "mamba2",
        Mamba2Config(vocab_size=32768, hidden_size=1024, num_layers=12, groups=8),
    ),
    "rwkv7-0.1b": ("rwkv7", Rwkv7Config(vocab_size=65536, hidden_size=768, num_layers=12)),
    "rwkv7-0.4b": ("rwkv7", Rwkv7Config(vocab_size=65536, hidden_size=1024, num_layers=24)),
    "rwkv7-7.2b": (
        "rwkv7",
        Rwkv7Config(65536, 4096, 32, decay_rank=128, a_rank=128, v_rank=96, gate_rank=480),
    ),
    "xlstm-7b": (
        "xlstm",
        XlstmConfig(50304, 4096, 32, num_heads=8, qk_size=2048, v_size=4096, ffn_size=10944),
    ),
    "xlstm-scaled": (
        "xlstm",
        XlstmConfig(50304, 1024, 6, num_heads=4, qk_size=512, v_size=1024, ffn_size=2752),
    ),
    "minilm-l12": (
        "encoder",
        EncoderConfig(30522, 384, 12, num_heads=12, intermediate_size=1536),
    ),  # and e5-small, arctic-embed-s
    "tiny": (
        "mamba2",
        Mamba2Config(vocab_size=256, hidden_size=64, num_layers=2, state_size=16, head_size=16),
    ),
    "tiny-bert": (
        "library",
        TransformerConfig({"model_type": "bert", "vocab_size": 256} | _layers(64, 2, 2, 128)),
    ),
    **{
        name: ("library", TransformerConfig({"model_type": kind} | fields))
        for name, (kind, fields) in _TRANSFORMERS.items()
    },
}


def check_name(name: str) -> None:
    """Check that a name is a shape, a built-in model, a folder or a hub id (owner/name), without
    loading it.

    Raises:
        InputError: the name is none of these; the message has the nearest names.
    """
    if (
        name in SHAPES
        or name in BUILT_IN
        or Path(name).exists()
        or re.fullmatch(r"[\w.-]+/[\w.-]+", name)
    ):
        return
    known = [*SHAPES, *BUILT_IN]
    near = get_close_matches(name, known, n=3, cutoff=0.4)
    likely = (
        f"the nearest shapes are {', '.join(near)}"
        if near
        else f"the shapes are {', '.join(known)}"
    )
    raise InputError(f"no shape, model folder or hub id {name!r}; {likely}")


def load_subject(name: str, dtype: torch.dtype, device: str = "cpu") -> Backbone:
    """Load the backbone of a named shape (always the same random weights), a built-in model, a
    folder or a hub id.

    Raises:
        InputError: the name is unknown.
        CheckpointError: the folder cannot be loaded.
        BackendUnavailable: the device is not available.
    """
    check_name(name)
    if name in SHAPES:
        architecture, config = SHAPES[name]
        return random_backbone(architecture, config, dtype, device)
    source = BUILT_IN.get(name, Path(name) if Path(name).exists() else name)
    return load_checkpoint(source, dtype=dtype, device=device).backbone


def describe_subject(name: str) -> Backbone:
    """Return the same backbone on the meta device: names and shapes without weights."""
    check_name(name)
    if name in SHAPES:
        architecture, config = SHAPES[name]
        if isinstance(config, TransformerConfig):
            with torch.device("meta"):
                return transformer(config)
        return meta_backbone(architecture, config)
    return describe_checkpoint(BUILT_IN.get(name, name)).backbone


def random_backbone(
    architecture: str, config: ShapeConfig, dtype: torch.dtype, device: str = "cpu"
) -> Backbone:
    """Return a random backbone in evaluation mode. Every weight affects the result, so that a check
    covers it.
    """
    torch.manual_seed(0)
    if isinstance(config, TransformerConfig):
        return _random_transformer(config, dtype, torch.device(device))
    model = BACKBONES[architecture](config)
    _unsettle(model)
    return build_backbone(
        architecture, config.to_dict(), model.state_dict(), dtype=dtype, device=device
    )


def transformer(config: TransformerConfig) -> Library:
    """Return a transformer with random weights, whose last token's vector represents a text."""
    hf = require_library("a transformer's shape")
    fields = {name: value for name, value in config.library.items() if name != "model_type"}
    facts = hf.AutoConfig.for_model(config.library["model_type"], **fields)
    small = (
        {"add_pooling_layer": False} if config.library["model_type"] in ("bert", "roberta") else {}
    )
    kind = hf.T5EncoderModel if config.library["model_type"] == "t5" else hf.AutoModel.from_config
    return Library(_Reader(kind(facts, **small)))


class _Reader(nn.Module):
    """A transformer as sentence-transformers would hold it, pooled at its last token and without a
    tokenizer.
    """

    tokenizer = SimpleNamespace(model_input_names=(), pad_token_id=0)

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.transformers_model, facts = model, model.config
        self.max_seq_length = (
            None
            if facts.model_type == "t5"
            else facts.max_position_embeddings - 2 * (facts.model_type == "roberta")
        )

    def get_embedding_dimension(self) -> int:
        """Return the width of the vectors; OPT may project its last layer."""
        facts = self.transformers_model.config
        return int(getattr(facts, "word_embed_proj_dim", None) or facts.hidden_size)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        hidden = self.transformers_model(**features).last_hidden_state
        return {
            "sentence_embedding": hidden[
                torch.arange(len(hidden)), features["attention_mask"].sum(dim=1) - 1
            ]
        }


def _random_transformer(
    config: TransformerConfig, dtype: torch.dtype, device: torch.device
) -> Library:
    """Return a transformer with random weights; buffers (positions) stay in fp32."""
    if dtype == torch.int8:
        check_int8(Library.title, Library.int8_layers, device, config.library["model_type"])
    backbone = transformer(config)
    _unsettle(backbone)
    for parameter in backbone.parameters():
        parameter.data = parameter.data.to(dtype)
    return backbone.to(device).eval()


@torch.no_grad()
def _unsettle(model: nn.Module) -> None:
    """Change initial weights that switch off a part of the model: zero matrices, norms of 1, closed
    gates.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and not bool(parameter.any()):
            nn.init.normal_(parameter, std=0.5 * parameter.shape[1] ** -0.5)
        elif parameter.ndim == 1:
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
        if name.endswith("embeddings.weight") and float(parameter.std()) < 1e-2:
            parameter.normal_(std=0.02)
        # a fresh xLSTM writes e^-10 of each token: nearly nothing
        if name.endswith("igate_preact.bias"):
            # with more, rounding weights to bf16 would change some vectors visibly
            parameter.add_(3)
