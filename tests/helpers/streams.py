"""Random hidden vectors of a text, streams of their segments, and plain weighted means."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch

WIDTH, VOCABULARY = 6, 30


def data(length: int) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
    """Ids, hidden vectors, and a weight for each id."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(0, VOCABULARY, (length,), generator=generator).numpy()
    return ids, torch.randn(length, WIDTH, generator=generator), torch.rand(VOCABULARY, generator=generator) + 0.1


def mean(ids: np.ndarray, hidden: torch.Tensor, weight: torch.Tensor, a: int, b: int) -> torch.Tensor:
    """The weighted mean of tokens [a, b)."""
    w = weight[torch.from_numpy(ids[a:b])]
    return (w @ hidden[a:b]) / w.sum()


def segments(hidden: torch.Tensor, cuts: list[int]) -> Iterator[tuple[int, torch.Tensor]]:
    """Start and hidden vectors of each segment of a text that is cut at `cuts`."""
    for a, b in pairwise([0, *sorted({c % len(hidden) for c in cuts} - {0}), len(hidden)]):
        yield a, hidden[a:b]
