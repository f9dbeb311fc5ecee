"""What padding costs: floating-point operations for texts of given lengths, packed and padded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runnel.errors import InputError


@dataclass(frozen=True)
class Padding:
    """Useful and padded work for a list of texts.

    Args:
        tokens: in all texts together; what packed batches read.
        padded: tokens that batches of the given order read when each is padded to its longest text.
        padded_sorted: the same when the texts are sorted by length first.
        flops: per useful token.
    """

    texts: int
    batch: int
    tokens: int
    padded: int
    padded_sorted: int
    flops: int

    def to_dict(self) -> dict[str, Any]:
        """With the operations of all texts: "packed_flops", "padded_flops" and "padded_sorted_flops"."""
        return asdict(self) | {
            "packed_flops": self.tokens * self.flops,
            "padded_flops": self.padded * self.flops,
            "padded_sorted_flops": self.padded_sorted * self.flops,
        }


def padding(lengths: Sequence[int], batch: int, flops_per_token: int) -> Padding:
    """Count the tokens of `lengths` in batches of `batch` texts.

    Raises:
        InputError: no lengths, one below 1, or a batch below 1.
    """
    if not lengths or min(lengths) < 1 or batch < 1:
        raise InputError("lengths must be whole numbers from 1, at least one of them, and so must the batch")
    return Padding(len(lengths), batch, sum(lengths), _padded(lengths, batch), _padded(sorted(lengths), batch), flops_per_token)


def read_lengths(path: str) -> list[int]:
    """Lengths in tokens from a file with one whole number a line.

    Raises:
        InputError: a line is something else.
    """
    lengths = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            if not line.strip().isdecimal() or int(line) < 1:
                raise InputError(f"{path}, line {number}: expected a text's length in tokens, got {line.strip()[:40]!r}")
            lengths.append(int(line))
    if not lengths:
        raise InputError(f"{path} holds no lengths; write one whole number a line")
    return lengths


def _padded(lengths: Sequence[int], batch: int) -> int:
    groups = (lengths[i : i + batch] for i in range(0, len(lengths), batch))
    return sum(max(group) * len(group) for group in groups)
