"""What padding costs: floating-point operations for texts of given lengths, packed and padded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runnel.backbones.base import Backbone
from runnel.errors import InputError

WAYS = ("packed", "padded_sorted", "padded")  # in the order in which they are shown
COUNTS = {"": "linear layers, recurrence, attention", "standard_": "2 x parameters, attention"}  # by the keys' prefix


def padding(lengths: Sequence[int], batch: int, backbone: Backbone) -> dict[str, int]:
    """Count the work of `backbone` for texts of these lengths in batches of `batch`, each padded to its longest text.

    Returns:
        "texts", "batch", "tokens" (of all texts), "padded" and "padded_sorted" (tokens read in the given order, and sorted by
        length), "flops" (per token in linear layers, convolution and recurrence), and for each of `WAYS` "packed_flops" by
        `Backbone.flops` and "standard_packed_flops" by `Backbone.standard_flops`.

    Raises:
        InputError: no lengths, one below 1, or a batch below 1.
    """
    if not lengths or min(lengths) < 1 or batch < 1:
        raise InputError("lengths must be whole numbers from 1, at least one of them, and so must the batch")
    read = {"packed": list(lengths), "padded": _padded(lengths, batch), "padded_sorted": _padded(sorted(lengths), batch)}
    facts = {"texts": len(lengths), "batch": batch, "tokens": sum(lengths), "flops": backbone.flops_per_token}
    facts |= {way: sum(read[way]) for way in ("padded", "padded_sorted")}
    for prefix, count in zip(COUNTS, (backbone.flops, backbone.standard_flops), strict=True):
        facts |= {f"{prefix}{way}_flops": sum(map(count, tokens)) for way, tokens in read.items()}
    return facts


def read_lengths(path: str) -> tuple[int, ...]:
    """Read lengths in tokens from a file with one whole number a line.

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
    return tuple(lengths)


def _padded(lengths: Sequence[int], batch: int) -> list[int]:
    """Return the lengths that texts are padded to."""
    return [max(lengths[i - i % batch : i - i % batch + batch]) for i in range(len(lengths))]
