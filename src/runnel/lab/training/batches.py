"""Batches of rows of about equal length, filled up to a budget of tokens; the same on every machine for one seed and epoch.

A row of T tokens joins the group where k = max_tokens // T rows fill a batch, so any k rows of the group fit the budget: rows can
be shuffled for every epoch while the number of batches stays the same, which schedules, progress and resuming rely on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

_FINE = 8  # up to 8 rows per batch each count has its own group; larger counts are rounded down to 1/8 of a power of 2


class TokenBatches(Sampler[list[int]]):
    """Lists of row numbers, as a `DataLoader`'s `batch_sampler`: in an epoch each row is in exactly one batch of one process.

    No batch has more than `max_tokens` tokens, except a single row that is longer. All processes get the same number of batches,
    and the batches of one step have rows of about the same length; if there are too few rows for that, some batches are empty.
    """

    def __init__(
        self,
        lengths: Sequence[int] | NDArray[np.int64],
        max_tokens: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        max_rows: int | None = None,
        world: int = 1,
        rank: int = 0,
    ) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.max_tokens, self.seed, self.shuffle, self.world, self.rank = max_tokens, seed, shuffle, world, rank
        self.epoch = 0
        fitting = np.clip(max_tokens // np.maximum(self.lengths, 1), 1, max_rows or len(self.lengths) or 1)
        step = 2 ** np.maximum(np.log2(fitting // _FINE, where=fitting >= _FINE, out=np.zeros(len(fitting))).astype(np.int64), 0)
        self._rows = fitting // step * step  # (rows,) rows of this length in a batch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._all(0)) // self.world

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._all(self.epoch)[self.rank :: self.world]:
            yield batch.tolist()

    def _all(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the batches of all processes, with the batches of one step next to each other."""
        rng = np.random.default_rng((self.seed, epoch if self.shuffle else 0))
        count = len(self.lengths)
        order = rng.permutation(count) if self.shuffle else np.arange(count)
        batches: list[NDArray[np.int64]] = []
        rest = order[:0]
        for rows in np.unique(self._rows)[::-1].tolist():  # short rows first: the remaining ones fit among longer rows
            if len(rest) > rows:
                batches.append(rest)
                rest = order[:0]
            members = np.concatenate([rest, order[self._rows[order] == rows]])
            whole = len(members) // rows * rows
            batches.extend(members[:whole].reshape(-1, rows))
            rest = members[whole:]
        if len(rest):
            batches.append(rest)
        batches = _divisible(batches, self.world)
        if self.shuffle:
            steps = rng.permutation(len(batches) // self.world)
            batches = [batches[step * self.world + place] for step in steps.tolist() for place in range(self.world)]
        return batches


def _divisible(batches: list[NDArray[np.int64]], world: int) -> list[NDArray[np.int64]]:
    """Make the number of batches divisible by `world`: cut the largest in two, or add empty ones if none can be cut."""
    while len(batches) % world:
        largest = max(range(len(batches)), key=lambda i: len(batches[i]))
        rows = batches[largest]
        batches[largest : largest + 1] = [rows[: len(rows) // 2], rows[len(rows) // 2 :]] if len(rows) > 1 else [rows, rows[:0]]
    return batches
