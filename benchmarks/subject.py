"""Subjects of timing: a model through the engine, and the matrix products of its linear layers
alone.

T  tokens of a text      B  texts      D  width of hidden vectors
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from benchmarks.shapes import DTYPES, describe_subject, load_subject
from runnel.backbones.base import Backbone
from runnel.backbones.int8 import Int8Linear
from runnel.engine import Engine, Request
from runnel.errors import BackendUnavailable, NumericalError
from runnel.hardware import available_memory
from runnel.request import as_tensor

IDS = 100  # random token ids are below 100; every vocabulary has that many
LINEAR_TILE = 1024  # tokens of one product if texts are not cut
_CHECKED = (130, 70)  # lengths of the texts whose hidden vectors are compared
_SHORT_S = 1.0


class Subject:
    """A model and its engine; callers choose the segment."""

    title = "runnel"

    def __init__(self, model: str, dtype: str, device: str) -> None:
        self.name = model
        self.dtype = DTYPES[dtype]
        self.device = device
        self.backbone = load_subject(model, self.dtype, device)
        self._engines: dict[tuple[int, bool], Engine] = {}

    def run(self, ids: Tensor, segment: int | None) -> None:
        """Read ids (B, T), `segment` tokens of all texts per step; None: all in one step."""
        self.read(list(ids), segment)

    def read(self, texts: Sequence[Tensor], segment: int | None) -> None:
        """Read texts (T,) of any lengths, packed, as `run` does."""
        engine = (
            self.engine(sum(map(len, texts)), whole=True)
            if segment is None
            else self.engine(segment)
        )
        engine.run([Request(text.numpy()) for text in texts])

    def engine(self, step_tokens: int, whole: bool = False) -> Engine:
        """Return the engine of a step size."""
        if (step_tokens, whole) not in self._engines:
            self._engines[step_tokens, whole] = Engine(self.backbone, step_tokens, whole=whole)
        return self._engines[step_tokens, whole]

    def hidden(self, texts: Sequence[Tensor]) -> Tensor:
        """Return hidden vectors (tokens of all texts, D) fp32 of texts (T,).

        Segments are shorter than the texts, so that packing and carried states are checked too.
        """
        engine = self.engine(max(16, sum(map(len, texts)) // 4))
        results = engine.run([Request(text.numpy(), positions=range(len(text))) for text in texts])
        return torch.cat([as_tensor(result.hidden) for result in results]).float()

    def plain_hidden(self, texts: Sequence[Tensor]) -> Tensor:
        """Return the same from the plain torch path in fp64, which shares no kernel with the timed
        path.

        Raises:
            MemoryError: the weights in fp64 do not fit into memory.
        """
        with plain_backbone(self.name, self.device) as plain, torch.inference_mode():
            return torch.cat([plain(text.to(plain.device))[0] for text in texts]).float()


class LinearLayers:
    """The matrix products of a backbone alone: the same weights in the same dtype, 8-bit layers in
    bf16.
    """

    title = "linear layers"

    def __init__(self, backbone: Backbone) -> None:
        self._layers = backbone.linear_layers()
        self._buffers: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    @cached_property
    def weights(self) -> list[Tensor]:
        """The model's weights, with bf16 copies of 8-bit layers made at first use: runs that
        measure memory must have none.
        """
        return [
            m.weight.to(torch.bfloat16) if isinstance(m, Int8Linear) else m.weight.detach()
            for m in self._layers
        ]

    @property
    def flops_per_token(self) -> int:
        return 2 * sum(layer.in_features * layer.out_features for layer in self._layers)

    def run(self, ids: Tensor, segment: int | None) -> None:
        """Multiply random inputs, one row for each of the ids (B, T)."""
        total = ids.numel()
        tile = min(total, segment or LINEAR_TILE)
        with torch.inference_mode():
            for start in range(0, total, tile):
                n = min(tile, total - start)
                for weight in self.weights:
                    x, out = self._buffer(weight, tile)
                    torch.mm(x[:n], weight.t(), out=out[:n])

    def error(self) -> float:
        """Return the largest difference of a product from its value in fp64, over the root mean
        square.
        """
        weight = self.weights[0]
        x, out = self._buffer(weight, 64)
        with torch.inference_mode():
            torch.mm(x, weight.t(), out=out)
            expected = x.double() @ weight.double().t()
            return float((out.double() - expected).abs().max() / expected.square().mean().sqrt())

    def _buffer(self, weight: Tensor, tile: int) -> tuple[Tensor, Tensor]:
        """Return the input and output of a product. Layers of one shape share them, as in a model,
        so that they stay cached.
        """
        key = (*weight.shape, tile)
        if key not in self._buffers:
            x = torch.randn(tile, weight.shape[1], device=weight.device).to(weight.dtype)
            self._buffers[key] = (
                x,
                torch.zeros(tile, weight.shape[0], dtype=weight.dtype, device=weight.device),
            )
        return self._buffers[key]


class Clock:
    """A timer of runs over random ids."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._generator = torch.Generator().manual_seed(1)
        self._seen: set[tuple[object, ...]] = set()

    def ids(self, batch: int, tokens: int) -> Tensor:
        """Return random ids (batch, tokens)."""
        return torch.randint(0, IDS, (batch, tokens), generator=self._generator)

    def once(self, call: Callable[[], object]) -> float:
        """Return the seconds of a call."""
        self._wait()
        start = time.perf_counter()
        call()
        self._wait()
        return time.perf_counter() - start

    def seconds(
        self,
        run: Callable[[Tensor, int | None], None],
        batch: int,
        tokens: int,
        segment: int | None,
    ) -> float:
        """Return the seconds of one run. The first run of a short cell allocates buffers, on a GPU
        it also tunes kernels for the size, so it is repeated.
        """
        ids = self.ids(batch, tokens)
        cell = (run, batch, tokens, segment)
        seconds = self.once(lambda: run(ids, segment))
        if cell not in self._seen and (seconds < _SHORT_S or self._device == "cuda"):
            seconds = self.once(lambda: run(ids, segment))
        self._seen.add(cell)
        return seconds

    def _wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


def checked_texts() -> list[Tensor]:
    """Return the texts, random ids (T,), whose hidden vectors are compared before timing."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(0, IDS, (length,), generator=generator) for length in _CHECKED]


@contextlib.contextmanager
def plain_backbone(name: str, device: str) -> Iterator[Backbone]:
    """Load a model's weights in fp64, which no kernel supports.

    Raises:
        MemoryError: the weights do not fit into memory.
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


def check_device(device: str) -> None:
    """Raise BackendUnavailable for a missing GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable(
            "a GPU was requested but torch sees none; use --device cpu, or install a CUDA build of"
            " torch"
        )


def roofline_dtype(dtype: str) -> str:
    """Return the dtype of the linear layers that a run is compared with: int8 is compared with
    bf16.
    """
    return "bf16" if dtype == "int8" else dtype
