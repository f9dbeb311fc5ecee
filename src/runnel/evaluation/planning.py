"""How a text is cut for a memory budget: Paper D's vertical inference, where `segment` tokens go through all layers at a time.

V  tokens of a segment (a step of the engine)        Q  tokens of a chunk, inside one operator
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from runnel.backbones.base import Backbone
from runnel.engine import Engine

# Longer steps were no faster in the sweep of docs/performance.md: layers are read from memory once a step either way, and what
# a step writes outgrows the caches.
ENOUGH = 4096
_ROUND = 64  # chunks of every operator divide it


@dataclass(frozen=True)
class Plan:
    """A segment that fits a budget.

    Args:
        segment: tokens of a step (`Engine(step_tokens=...)`).
        step_bytes: working memory of such a step, rounded up.
        state_bytes: fp32 state of one sequence.
        memory_bytes: the budget.
    """

    segment: int
    step_bytes: int
    state_bytes: int
    memory_bytes: int

    def __str__(self) -> str:
        mib = 2.0**20
        return (
            f"segments of {self.segment:,} tokens: {self.step_bytes / mib:,.0f} MiB a step, {self.state_bytes / mib:,.1f} MiB "
            f"of state a text, of {self.memory_bytes / mib:,.0f} MiB"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan(backbone: Backbone, memory_bytes: int) -> Plan:
    """The segment for a budget: as long as fits, up to where longer ones gain nothing.

    Args:
        memory_bytes: what steps and states may take beyond the weights.

    Raises:
        InputError: too little for one segment; the message says how much is needed.
    """
    fits = Engine(backbone, memory_bytes=memory_bytes).step_tokens
    segment = min(fits, ENOUGH)
    if segment > _ROUND:
        segment -= segment % _ROUND
    return Plan(segment, segment * backbone.step_bytes_per_token, backbone.state_bytes, memory_bytes)
