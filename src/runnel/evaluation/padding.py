"""What padding costs: floating-point operations for texts of given lengths, packed and padded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runnel.backbones.base import Backbone
from runnel.errors import InputError

FLOPS = ("packed_flops", "padded_sorted_flops", "padded_flops")  # in the order in which they are shown
COUNTS = {"": "linear layers, recurrence, attention", "standard_": "2 x parameters, attention"}  # by the keys' prefix


@dataclass(frozen=True)
class Padding:
    """Useful and padded work for a list of texts.

    Args:
        tokens: in all texts together; what packed batches read.
        padded: tokens that batches of the given order read when each is padded to its longest text.
        padded_sorted: the same when the texts are sorted by length first.
        flops: per useful token in linear layers, convolution and recurrence.
        packed_flops, padded_flops, padded_sorted_flops: of all texts, by `Backbone.flops`.
        standard_packed_flops, standard_padded_flops, standard_padded_sorted_flops: by `Backbone.standard_flops`.
    """

    texts: int
    batch: int
    tokens: int
    padded: int
    padded_sorted: int
    flops: int
    packed_flops: int
    padded_flops: int
    padded_sorted_flops: int
    standard_packed_flops: int
    standard_padded_flops: int
    standard_padded_sorted_flops: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def padding(lengths: Sequence[int], batch: int, backbone: Backbone) -> Padding:
    """Count the work that `backbone` has with texts of these lengths, in batches of `batch`.

    Raises:
        InputError: no lengths, one below 1, or a batch below 1.
    """
    if not lengths or min(lengths) < 1 or batch < 1:
        raise InputError("lengths must be whole numbers from 1, at least one of them, and so must the batch")
    ways = {"packed": list(lengths), "padded": _padded(lengths, batch), "padded_sorted": _padded(sorted(lengths), batch)}
    counts = {
        f"{prefix}{way}_flops": sum(map(count, tokens))
        for prefix, count in (("", backbone.flops), ("standard_", backbone.standard_flops))
        for way, tokens in ways.items()
    }
    texts, tokens, padded, padded_sorted = len(lengths), *map(sum, ways.values())
    return Padding(texts, batch, tokens, padded, padded_sorted, flops=backbone.flops_per_token, **counts)


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


def _padded(lengths: Sequence[int], batch: int) -> list[int]:
    """Return the lengths that texts are padded to."""
    return [max(lengths[i - i % batch : i - i % batch + batch]) for i in range(len(lengths))]
