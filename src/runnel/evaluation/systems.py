"""The systems that a bench compares. Each is built in a process of its own (`worker.py`) and runs random token ids.

T  tokens of a text      B  texts      D  width of hidden vectors      W  weights of the layers, without embeddings
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from runnel.backbones.base import Backbone
from runnel.backbones.int8 import Int8Linear
from runnel.backbones.transformer_config import library
from runnel.engine import Engine, Request
from runnel.errors import BackendUnavailable, InputError, NumericalError
from runnel.evaluation.shapes import DTYPES, describe_subject, load_subject
from runnel.hardware import available_memory

LINEAR_TILE = 1024  # tokens of one product where a text is not cut


class System(Protocol):
    """One implementation with its weights."""

    title: str

    def run(self, ids: Tensor, segment: int | None) -> None:
        """Read ids (B, T); `segment` tokens of all texts a step where the system can do so, None: all in one."""

    def hidden(self, texts: Sequence[Tensor]) -> Tensor:
        """Hidden vectors (tokens of all texts, D) fp32 of texts (T,), to compare."""


class Runnel:
    """This package's engine. `budget`: bytes for steps and states, instead of a segment."""

    def __init__(self, model: str, dtype: str, device: str, budget: int | None = None) -> None:
        self.name, self.dtype, self.device = model, DTYPES[dtype], device
        self.backbone = load_subject(model, self.dtype, device)
        check_room(self.backbone, budget)
        self.plan = None if budget is None else Engine.plan(self.backbone, budget)
        self.title = "runnel"
        self._engines: dict[tuple[int, bool], Engine] = {}

    def run(self, ids: Tensor, segment: int | None) -> None:
        engine = self.engine(ids.numel(), whole=True) if segment is None else self.engine(segment)
        engine.run([Request(text.numpy()) for text in ids])

    def engine(self, step_tokens: int, whole: bool = False) -> Engine:
        if (step_tokens, whole) not in self._engines:
            self._engines[step_tokens, whole] = Engine(self.backbone, step_tokens, whole=whole)
        return self._engines[step_tokens, whole]

    def hidden(self, texts: Sequence[Tensor]) -> Tensor:
        """In segments shorter than the texts, so that packing and the states that are handed on are looked at too."""
        engine = self.engine(max(16, sum(map(len, texts)) // 4))
        parts = engine.run([Request(text.numpy(), positions=range(len(text))) for text in texts])
        return torch.cat(parts).float()

    def plain_hidden(self, texts: Sequence[Tensor]) -> Tensor:
        """The same by the plain torch path in fp64, which shares no kernel with what is timed.

        Raises:
            MemoryError: there is not enough for the weights in fp64.
        """
        with plain_backbone(self.name, self.device) as plain, torch.inference_mode():
            return torch.cat([plain(text)[0] for text in texts]).float()


class LinearLayers:
    """The matrix products of a backbone alone: same weights, same dtype. No implementation is faster without other arithmetic.

    Layers in 8 bits are run in bf16.
    """

    title = "linear layers"

    def __init__(self, backbone: Backbone) -> None:
        self._layers = [m for m in backbone.modules() if isinstance(m, nn.Linear | Int8Linear)]
        self._buffers: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    @cached_property
    def weights(self) -> list[Tensor]:
        """Those of the model; of 8 bits copies, made when they are first used: a run whose memory is looked at has none."""
        return [m.weight.to(torch.bfloat16) if isinstance(m, Int8Linear) else m.weight.detach() for m in self._layers]

    @property
    def flops_per_token(self) -> int:
        return 2 * sum(layer.in_features * layer.out_features for layer in self._layers)

    def run(self, ids: Tensor, segment: int | None) -> None:
        total = ids.numel()
        tile = min(total, segment or LINEAR_TILE)
        with torch.inference_mode():
            for start in range(0, total, tile):
                n = min(tile, total - start)
                for weight in self.weights:
                    x, out = self._buffer(weight, tile)
                    torch.mm(x[:n], weight.t(), out=out[:n])

    def error(self) -> float:
        """Largest difference of a product from the same in fp64, over the root mean square."""
        weight = self.weights[0]
        x, out = self._buffer(weight, 64)
        with torch.inference_mode():
            torch.mm(x, weight.t(), out=out)
            expected = x.double() @ weight.double().t()
            return float((out.double() - expected).abs().max() / expected.square().mean().sqrt())

    def _buffer(self, weight: Tensor, tile: int) -> tuple[Tensor, Tensor]:
        """Inputs and outputs of a product. Layers of one shape share them, as in a model, so that they are in the caches."""
        key = (*weight.shape, tile)
        if key not in self._buffers:
            x = torch.randn(tile, weight.shape[1], device=weight.device).to(weight.dtype)
            self._buffers[key] = x, torch.zeros(tile, weight.shape[0], dtype=weight.dtype, device=weight.device)
        return self._buffers[key]


class TransformersLibrary:
    """The transformers library's class of the same shape and the same weights."""

    title = "transformers"
    _LAYERS = ("blocks.", "layers."), ("out_norm.", "norm_f.")  # its names, ours

    def __init__(self, model: str, dtype: str, device: str) -> None:
        hf = library()
        ours = load_subject(model, torch.float32, device)
        built = counterpart(hf, ours)
        names = {self._ours(name): name for name in built.state_dict()}
        tensors = {names[name]: tensor for name, tensor in ours.state_dict().items() if name in names}
        if left := sorted(set(names) ^ set(ours.state_dict())):
            raise InputError(f"its {type(built).__name__} has other tensors than ours: {', '.join(left[:3])}")
        built.load_state_dict({name: tensor.view(built.state_dict()[name].shape) for name, tensor in tensors.items()})
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
        with torch.inference_mode():
            parts = [self.model(text[None].to(self.device), use_cache=False).last_hidden_state[0] for text in texts]
        return torch.cat(parts).float().cpu()


def counterpart(hf: Any, ours: Backbone) -> nn.Module:
    """The transformers library's model of the same shape as ours, with random weights.

    Raises:
        InputError: it has none.
    """
    c: Any = ours.config
    common = {"vocab_size": ours.vocab_size, "hidden_size": ours.hidden_size, "num_hidden_layers": ours.num_layers}
    if ours.architecture == "mamba1":
        more = {"state_size": c.state_size, "conv_kernel": c.conv_width, "expand": c.expand, "time_step_rank": c.rank}
        return hf.MambaModel(hf.MambaConfig(**common, **more, layer_norm_epsilon=c.norm_eps, use_bias=c.proj_bias))
    if ours.architecture == "mamba2":
        more = {"state_size": c.state_size, "conv_kernel": c.conv_width, "expand": c.expand, "num_heads": c.num_heads}
        more |= {"head_dim": c.head_size, "n_groups": c.groups, "layer_norm_epsilon": c.norm_eps}
        return hf.Mamba2Model(hf.Mamba2Config(**common, **more, pad_token_id=0, bos_token_id=0, eos_token_id=0))
    if ours.architecture == "xlstm":
        more = {"num_heads": c.num_heads, "qk_dim_factor": c.qk_size / c.hidden_size, "v_dim_factor": c.v_size / c.hidden_size}
        more |= {"ffn_proj_factor": (c.ffn_size + 0.5) / c.hidden_size, "ffn_round_up_to_multiple_of": 1, "eps": c.cell_eps}
        more |= {"gate_soft_cap": c.gate_cap, "norm_eps": c.norm_eps, "embedding_dim": c.hidden_size}
        return hf.xLSTMModel(hf.xLSTMConfig(**common, **more))
    raise InputError(f"the library has no {ours.title} of this kind")


class EqualBert:
    """A transformer of about as many weights: BERT's layers of the same width, as many as it takes, attention by torch's SDPA."""

    def __init__(self, model: str, dtype: str, device: str) -> None:
        hf = library()
        width, weights = _size(model)
        width = max(64, width - width % 64)
        layers = max(1, round(weights / (12 * width * width)))
        shape: dict[str, float] = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": width // 64}
        shape |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # so that gradients can be compared
        config = hf.BertConfig(**shape, intermediate_size=4 * width, max_position_embeddings=1 << 16, attn_implementation="sdpa")
        torch.manual_seed(0)
        self.model = hf.BertModel(config, add_pooling_layer=False).to(device, DTYPES[dtype]).eval()
        self.title = f"BERT, {layers} layers of {width}"
        self.vocab_size, self.device = config.vocab_size, device

    def run(self, ids: Tensor, segment: int | None) -> None:
        with torch.inference_mode():
            self.model((ids % self.vocab_size).to(self.device))

    def hidden(self, texts: Sequence[Tensor]) -> Tensor:
        with torch.inference_mode():
            parts = [self.model((text % self.vocab_size)[None].to(self.device)).last_hidden_state[0] for text in texts]
        return torch.cat(parts).float().cpu()

    def plain_hidden(self, texts: Sequence[Tensor]) -> Tensor:
        """The same by `plain`."""
        model = self.plain()
        with torch.inference_mode():
            parts = [model((text % self.vocab_size)[None].to(self.device)).last_hidden_state[0] for text in texts]
        return torch.cat(parts).float().cpu()

    def plain(self) -> Any:
        """The same weights in fp64, with attention written out."""
        torch.manual_seed(0)
        model = type(self.model)(self.model.config, add_pooling_layer=False).to(self.device, torch.float64).eval()
        model.set_attn_implementation("eager")
        return model


@contextlib.contextmanager
def plain_backbone(name: str, device: str) -> Iterator[Backbone]:
    """A model's weights in fp64, which no kernel takes.

    Raises:
        MemoryError: there is not enough for it.
    """
    needed = 8 * sum(parameter.numel() for parameter in describe_subject(name).parameters())
    if needed > 0.8 * available_memory():
        raise MemoryError(f"the check needs {needed / 2**30:.1f} GiB for the weights in fp64")
    plain = load_subject(name, torch.float64, device)
    if plain.fast is not None:
        raise NumericalError("the plain path has kernels; there is nothing to compare with")
    try:
        yield plain
    finally:
        del plain
        gc.collect()


def check_room(backbone: Backbone, budget: int | None) -> None:
    """Raise an InputError where free memory, or the budget, has no room for a segment of one token and its states."""
    free = available_memory() if backbone.device.type == "cpu" else torch.cuda.mem_get_info()[0]
    Engine(backbone, memory_bytes=free if budget is None else min(budget, free))


def check_device(device: str) -> None:
    """Raise a BackendUnavailable for a GPU that is not there, an InputError for another name than cpu or cuda."""
    if device not in ("cpu", "cuda"):
        raise InputError(f'device must be "cpu" or "cuda", got {device!r}')
    if device == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable("a GPU was asked for and torch sees none; use --device cpu, or install a CUDA build of torch")


def _size(model: str) -> tuple[int, int]:
    """Width of a model's hidden vectors and number of weights of its layers."""
    backbone = describe_subject(model)
    tables = sum(m.weight.numel() for m in backbone.modules() if isinstance(m, nn.Embedding))
    return backbone.hidden_size, sum(p.numel() for p in backbone.parameters()) - tables
