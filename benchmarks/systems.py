"""The other systems that ours is compared with. Each is built in a process of its own (`worker.py`)
and runs random token ids.

T  tokens of a text      B  texts      D  width of hidden vectors
W  weights of the layers, without embeddings
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from benchmarks.shapes import DTYPES, describe_subject, load_subject
from runnel.backbones.base import Backbone
from runnel.backbones.library import require_library
from runnel.errors import InputError


class System(Protocol):
    """One implementation with its weights."""

    title: str

    def run(self, ids: Tensor, segment: int | None) -> None:
        """Read ids (B, T); `segment` tokens of all texts a step if the system has steps; None: all
        in one.
        """

    def hidden(self, texts: Sequence[Tensor]) -> Tensor:
        """Return hidden vectors (tokens of all texts, D) fp32 of texts (T,), to compare."""


class TransformersLibrary:
    """The transformers library's class of the same shape and the same weights."""

    title = "transformers"
    _LAYERS = ("blocks.", "layers."), ("out_norm.", "norm_f.")  # its prefixes, ours

    def __init__(self, model: str, dtype: str, device: str) -> None:
        hf = require_library("the comparison with the transformers library")
        ours = load_subject(model, torch.float32, device)
        built = counterpart(hf, ours)
        names = {self._ours(name): name for name in built.state_dict()}
        tensors = {
            names[name]: tensor for name, tensor in ours.state_dict().items() if name in names
        }
        if left := sorted(set(names) ^ set(ours.state_dict())):
            raise InputError(
                f"its {type(built).__name__} has other tensors than ours: {', '.join(left[:3])}"
            )
        built.load_state_dict(
            {name: tensor.view(built.state_dict()[name].shape) for name, tensor in tensors.items()}
        )
        self.model = built.to(device, DTYPES[dtype]).eval()
        self.device = device

    def _ours(self, name: str) -> str:
        for theirs, ours in self._LAYERS:
            name = name.replace(theirs, ours)
        return name

    def run(self, ids: Tensor, segment: int | None) -> None:
        with torch.inference_mode():
            self.model(ids.to(self.device), use_cache=False)

    def hidden(self, texts: Sequence[Tensor]) -> Tensor:
        return _hidden(self.model, texts, self.device, use_cache=False)


def _hidden(model: Any, texts: Sequence[Tensor], device: str, **options: Any) -> Tensor:
    with torch.inference_mode():
        parts = [model(text[None].to(device), **options).last_hidden_state[0] for text in texts]
    return torch.cat(parts).float().cpu()


def counterpart(hf: Any, ours: Backbone) -> nn.Module:
    """Build the transformers library's model of the same shape as ours, with random weights.

    Raises:
        InputError: the library has none.
    """
    c: Any = ours.config
    common = {
        "vocab_size": ours.vocab_size,
        "hidden_size": ours.hidden_size,
        "num_hidden_layers": ours.num_layers,
    }
    if ours.architecture == "mamba1":
        more = {
            "state_size": c.state_size,
            "conv_kernel": c.conv_width,
            "expand": c.expand,
            "time_step_rank": c.dt_rank,
        }
        return hf.MambaModel(
            hf.MambaConfig(**common, **more, layer_norm_epsilon=c.norm_eps, use_bias=c.proj_bias)
        )
    if ours.architecture == "mamba2":
        more = {
            "state_size": c.state_size,
            "conv_kernel": c.conv_width,
            "expand": c.expand,
            "num_heads": c.num_heads,
        }
        more |= {"head_dim": c.head_size, "n_groups": c.groups, "layer_norm_epsilon": c.norm_eps}
        return hf.Mamba2Model(
            hf.Mamba2Config(**common, **more, pad_token_id=0, bos_token_id=0, eos_token_id=0)
        )
    if ours.architecture == "xlstm":
        more = {
            "num_heads": c.num_heads,
            "qk_dim_factor": c.qk_size / c.hidden_size,
            "v_dim_factor": c.v_size / c.hidden_size,
        }
        more |= {
            "ffn_proj_factor": (c.ffn_size + 0.5) / c.hidden_size,
            "ffn_round_up_to_multiple_of": 1,
            "eps": c.cell_eps,
        }
        more |= {
            "gate_soft_cap": c.gate_cap,
            "norm_eps": c.norm_eps,
            "embedding_dim": c.hidden_size,
        }
        return hf.xLSTMModel(hf.xLSTMConfig(**common, **more))
    raise InputError(f"the library has no {ours.title} of this kind")


class EqualBert:
    """A transformer of about as many weights: BERT's layers of the same width, as many as it takes,
    attention by torch's SDPA.
    """

    def __init__(self, model: str, dtype: str, device: str) -> None:
        hf = require_library("the comparison with the transformers library")
        width, weights = _size(model)
        width = max(64, width - width % 64)
        layers = max(1, round(weights / (12 * width * width)))
        shape: dict[str, float] = {
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": width // 64,
        }
        # so that gradients can be compared
        shape |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        config = hf.BertConfig(
            **shape,
            intermediate_size=4 * width,
            max_position_embeddings=1 << 16,
            attn_implementation="sdpa",
        )
        torch.manual_seed(0)
        self.model = hf.BertModel(config, add_pooling_layer=False).to(device, DTYPES[dtype]).eval()
        self.title = f"BERT, {layers} layers of {width}"
        self.vocab_size, self.device = config.vocab_size, device

    def run(self, ids: Tensor, segment: int | None) -> None:
        with torch.inference_mode():
            self.model((ids % self.vocab_size).to(self.device))

    def hidden(self, texts: Sequence[Tensor]) -> Tensor:
        return _hidden(self.model, [text % self.vocab_size for text in texts], self.device)

    def plain_hidden(self, texts: Sequence[Tensor]) -> Tensor:
        """Return the same by `plain`."""
        return _hidden(self.plain(), [text % self.vocab_size for text in texts], self.device)

    def plain(self) -> Any:
        """Return the same weights in fp64, with attention written out."""
        torch.manual_seed(0)
        model = (
            type(self.model)(self.model.config, add_pooling_layer=False)
            .to(self.device, torch.float64)
            .eval()
        )
        model.set_attn_implementation("eager")
        return model


def _size(model: str) -> tuple[int, int]:
    """Return the width of a model's hidden vectors and the number of weights of its layers."""
    backbone = describe_subject(model)
    tables = sum(m.weight.numel() for m in backbone.modules() if isinstance(m, nn.Embedding))
    return backbone.hidden_size, sum(p.numel() for p in backbone.parameters()) - tables
