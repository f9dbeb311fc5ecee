"""How many tokens an engine reads per step within a memory budget.

Vertical inference takes V tokens through all layers before the next V: memory depends on V, not on
the text. Inside an operator, the parallel form works on chunks of Q tokens.

V  tokens of a segment (a step of the engine)        Q  tokens of a chunk
"""

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from runnel.errors import InputError
from runnel.ops.backend import KERNELS, choose

if TYPE_CHECKING:
    from runnel.backbones.base import Backbone, PlainForm

# the default tokens of a step on a GPU, and the longest for a budget; see `engine`
GPU_STEP = 16384
# The longest step for a budget. Longer steps were no faster on a CPU: each step reads the layers
# from memory once either way, and its outputs outgrow the caches.
ENOUGH = 4096
_ROUND = 64  # a multiple of every operator's chunk
_STATES = 4  # rows of state: two requests in progress, one being forked, one being handed out
_TIMED = 512  # the most tokens of the timed step


@dataclass(frozen=True)
class Plan:
    """How an engine uses a memory budget; `Engine(backbone, plan)` runs it."""

    segment: int  # V
    # Q if the operator runs in plain torch; None: it has no chunks, or kernels with a fixed one
    chunk: int | None
    step_bytes: int  # working memory of one step, rounded up
    state_bytes: int  # fp32 state of one text; an engine has up to four of its own
    memory_bytes: int  # the budget
    # measured on one step; None if the backbone has no weights to run
    tokens_per_s: float | None = None

    def __str__(self) -> str:
        mib = 2.0**20
        chunk = "" if self.chunk is None else f", chunks of {self.chunk}"
        speed = "" if self.tokens_per_s is None else f", about {self.tokens_per_s:,.0f} tokens/s"
        return (
            f"segments of {self.segment:,} tokens{chunk}: {self.step_bytes / mib:,.0f} MiB per"
            f" step, {self.state_bytes / mib:,.1f} MiB of state per text, of"
            f" {self.memory_bytes / mib:,.0f} MiB{speed}"
        )


def fit(backbone: "Backbone", memory_bytes: int) -> Plan:
    """Return the longest useful segment within a budget of steps and states, without running the
    model.
    """
    plain = _plain_form(backbone)
    each = backbone.step_bytes_per_token + (0 if plain is None else _plain_bytes(backbone, plain))
    fixed = _STATES * backbone.state_bytes
    segment = min(
        (memory_bytes - fixed) // each, GPU_STEP if backbone.device.type == "cuda" else ENOUGH
    )
    if segment < 1:
        raise InputError(
            f"memory_bytes={memory_bytes:,} is too small: this model's states take {fixed:,} bytes"
            f" and one token {each:,}; give at least {fixed + _ROUND * each:,}"
        )
    if segment > _ROUND:
        segment -= segment % _ROUND
    # as the operators do
    chunk = None if plain is None else min(plain.chunk, 1 << (segment - 1).bit_length())
    return Plan(segment, chunk, segment * each, backbone.state_bytes, memory_bytes)


def plan(backbone: "Backbone", memory_bytes: int) -> Plan:
    """Return `fit` with the expected speed, measured on one step after a first step that compiles
    kernels and makes buffers.
    """
    untimed = fit(backbone, memory_bytes)
    if backbone.device.type == "meta":
        return untimed
    tokens = min(untimed.segment, _TIMED)
    ids = np.arange(tokens) % min(backbone.vocab_size, 100)
    blocks = np.array([*range(0, tokens, backbone.max_tokens or tokens), tokens])
    for _ in range(2):
        start = time.perf_counter()
        _read(backbone, ids, blocks)
        seconds = time.perf_counter() - start
    return replace(untimed, tokens_per_s=tokens / seconds)


def _read(backbone: Any, ids: np.ndarray, cu_seqlens: np.ndarray) -> None:
    if backbone.without_torch:
        backbone.step_forms(ids, cu_seqlens)
        return
    import torch

    with torch.no_grad():
        hidden, _ = backbone(
            torch.from_numpy(ids).to(backbone.device), torch.from_numpy(cu_seqlens)
        )
        hidden.sum().item()  # on a GPU this waits for the result


def _plain_form(backbone: "Backbone") -> "PlainForm | None":
    """Return the operator's plain torch form, None if that form does not run."""
    form = backbone.plain
    if form is None:
        return None
    import torch

    if backbone.fast is not None or (
        backbone.device.type == "meta" and form.operator in KERNELS["gpu"]
    ):
        return None  # on meta the model is only described; it runs elsewhere
    wide = any(parameter.dtype == torch.float64 for parameter in backbone.parameters())
    sample = torch.empty(0, device=backbone.device, dtype=torch.float64 if wide else torch.float32)
    return form if choose(form.operator, "auto", sample) == "torch" else None


def _plain_bytes(backbone: "Backbone", form: "PlainForm") -> int:
    """Return bytes per token of the form's chunks: states between chunks, weights within them,
    inputs and outputs.
    """
    chunk = form.chunk
    heads, rows, columns = max(
        (shape[1:] for shape in backbone.state_shapes().values() if len(shape) == 4),
        key=lambda s: s[0],
    )
    return 4 * form.copies * heads * (rows * columns // chunk + chunk + max(rows, columns))
