"""How much of a text an engine reads at a time, for a memory budget.

Vertical inference takes V tokens through all layers before the next V: memory depends on V, not on the text. Inside an operator
the parallel form works on chunks of Q tokens.

V  tokens of a segment (a step of the engine)        Q  tokens of a chunk
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from runnel.backbones.base import Backbone
from runnel.errors import InputError
from runnel.ops.backend import choose
from runnel.ops.mlstm.torch import CHUNK as MLSTM_CHUNK
from runnel.ops.ssd.torch import CHUNK as SSD_CHUNK
from runnel.ops.wkv7.torch import CHUNK as WKV7_CHUNK

# Tokens of a step where none are asked for. On a CPU longer ones gain little (docs/performance.md). On a GPU those of the
# linear-time embedding paper (4.2, E.1): one text by 4096 tokens, a batch by 32 x 512. Not measured here.
_CPU_STEP, _GPU_TEXT, _GPU_STEP = 1024, 4096, 16384
# The longest step for a budget. Longer ones were no faster on a CPU: layers are read from memory once a step either way, and
# what a step writes outgrows the caches.
ENOUGH = 4096
_ROUND = 64  # chunks of every operator divide it
_STATES = 4  # rows of state: two requests in progress, one being forked, one being handed out
_TIMED = 512  # tokens at most of the step that is timed

# Architecture -> its recurrence, the Q at which its plain torch form is fastest (longer or shorter chunks take more memory, too),
# and how many copies of a chunk's tensors that form has in memory at a time, as measured.
_PLAIN = {"mamba2": ("ssd", SSD_CHUNK, 7), "rwkv7": ("wkv7", WKV7_CHUNK, 20), "xlstm": ("mlstm", MLSTM_CHUNK, 5)}


@dataclass(frozen=True)
class Plan:
    """What an engine does with a memory budget; `Engine(backbone, plan)` does it.

    Args:
        segment: V, tokens of a step.
        chunk: Q, where the operator runs in plain torch; None where it has none, or compiled kernels have theirs built in.
        step_bytes: working memory of such a step, rounded up.
        state_bytes: fp32 state of one text. An engine has up to four of its own.
        memory_bytes: the budget.
        tokens_per_s: speed to expect, from one step run here; None where the backbone has no weights to run.
    """

    segment: int
    chunk: int | None
    step_bytes: int
    state_bytes: int
    memory_bytes: int
    tokens_per_s: float | None = None

    @property
    def expected_bytes(self) -> int:
        """Memory to expect beyond the weights, rounded up."""
        return self.step_bytes + _STATES * self.state_bytes

    def __str__(self) -> str:
        mib = 2.0**20
        chunk = "" if self.chunk is None else f", chunks of {self.chunk}"
        speed = "" if self.tokens_per_s is None else f", about {self.tokens_per_s:,.0f} tokens/s"
        return (
            f"segments of {self.segment:,} tokens{chunk}: {self.step_bytes / mib:,.0f} MiB a step, "
            f"{self.state_bytes / mib:,.1f} MiB of state a text, of {self.memory_bytes / mib:,.0f} MiB{speed}"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def default_steps(backbone: Backbone) -> tuple[int, int]:
    """Return the default numbers of tokens of a step: with one text alone, and with several.

    Raises:
        InputError: half of what a GPU has free is too little for one token.
    """
    if backbone.device.type != "cuda":
        return _CPU_STEP, _CPU_STEP
    room = fit(backbone, torch.cuda.mem_get_info(backbone.device)[0] // 2).segment
    return min(_GPU_TEXT, room), room


def fit(backbone: Backbone, memory_bytes: int) -> Plan:
    """The longest segment for a budget, up to where longer ones gain nothing; nothing is run.

    Args:
        memory_bytes: what steps and states may take beyond the weights.

    Raises:
        InputError: too little for one segment; the message says how much is needed.
    """
    chunk = _plain_chunk(backbone)
    each = backbone.step_bytes_per_token + (0 if chunk is None else _plain_bytes(backbone, chunk))
    fixed = _STATES * backbone.state_bytes
    segment = min((memory_bytes - fixed) // each, _GPU_STEP if backbone.device.type == "cuda" else ENOUGH)
    if segment < 1:
        raise InputError(
            f"memory_bytes={memory_bytes:,} is too small: this model's states take {fixed:,} bytes and one token {each:,}; "
            f"give at least {fixed + _ROUND * each:,}"
        )
    if segment > _ROUND:
        segment -= segment % _ROUND
    if chunk is not None:
        chunk = min(chunk, 1 << (segment - 1).bit_length())  # as the operators do
    return Plan(segment, chunk, segment * each, backbone.state_bytes, memory_bytes)


def plan(backbone: Backbone, memory_bytes: int) -> Plan:
    """`fit` with the speed to expect: one step is run, after a first one that compiles kernels and makes buffers."""
    found = fit(backbone, memory_bytes)
    if backbone.device.type == "meta":
        return found
    tokens = min(found.segment, _TIMED)
    ids = torch.arange(tokens, device=backbone.device) % min(backbone.vocab_size, 100)
    with torch.no_grad():
        for _ in range(2):
            start = time.perf_counter()
            backbone(ids)[0].sum().item()  # on a GPU this waits for the result
            seconds = time.perf_counter() - start
    return replace(found, tokens_per_s=tokens / seconds)


def _plain_chunk(backbone: Backbone) -> int | None:
    """Q of the operator's plain torch form, if that is what runs."""
    if backbone.fast is not None or backbone.device.type == "meta" or backbone.architecture not in _PLAIN:
        return None  # on meta it is described, to be run elsewhere
    operator, chunk, _ = _PLAIN[backbone.architecture]
    wide = torch.float64 if any(p.dtype == torch.float64 for p in backbone.parameters()) else torch.float32
    return chunk if choose(operator, "auto", torch.empty(0, device=backbone.device, dtype=wide)) == "torch" else None


def _plain_bytes(backbone: Backbone, chunk: int) -> int:
    """Bytes for each token that chunks of Q take in plain torch: states between chunks, weights within, inputs and outputs."""
    _, _, copies = _PLAIN[backbone.architecture]
    heads, rows, columns = max((shape[1:] for shape in backbone.state_shapes().values() if len(shape) == 4), key=lambda s: s[0])
    return 4 * copies * heads * (rows * columns // chunk + chunk + max(rows, columns))
