"""Packed sequences as tensors: their index arithmetic, and the grid of their chunks.

T  tokens of all sequences      S  sequences
Q  tokens of a chunk            N  chunks of all sequences together

`cu` are cumulative lengths (S+1,): sequence s has the tokens cu[s] to cu[s + 1] - 1.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from runnel.ops.chunks import Chunks

States = tuple[Tensor, ...]


def boundaries(tokens: int, cu_seqlens: Tensor | None, state: Tensor | None, *shape: int) -> Tensor:
    """Return the cumulative lengths (S+1,) int64 on the CPU; without `cu_seqlens` the tokens are
    one sequence. Check them, and that `state` is (S, *shape).
    """
    cu = (
        torch.tensor([0, tokens])
        if cu_seqlens is None
        else cu_seqlens.detach().to("cpu", torch.int64)
    )
    assert cu.ndim == 1 and cu[0] == 0 and cu[-1] == tokens and not (cu.diff() < 0).any(), (
        f"{tokens} tokens, cu_seqlens {cu}"
    )
    assert state is None or state.shape == (len(cu) - 1, *shape), f"state {state.shape}"
    return cu


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of arithmetic and of states: fp64 for fp64 inputs, else fp32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def copy_state(state: Tensor | None, device: torch.device, *shape: int) -> Tensor:
    """Return a contiguous fp32 copy of a state; zeros of `shape` for None."""
    if state is None:
        return torch.zeros(shape, device=device)
    return state.detach().to(torch.float32, memory_format=torch.contiguous_format, copy=True)


def power_of_two(size: int, least: int = 1) -> int:
    """Return the smallest power of two that is at least `size` and `least`."""
    return max(least, 1 << max(size - 1, 0).bit_length())


def sequence_of_token(cu: Tensor) -> Tensor:
    """Return the sequence of each token (T,)."""
    return torch.repeat_interleave(torch.arange(cu.numel() - 1), cu.diff())


class Grid:
    """Turns packed tensors (T, ...) into chunks (N, Q, ...) and back. Each sequence starts a new
    chunk, and holes fill its last one. `cu` is int64 on the CPU.

    Two sequences of 3 and 5 tokens, in chunks of 4 tokens; `_slot` has the place of each token:

        a0 a1 a2 -    b0 b1 b2 b3    b4 - - -         first = [0, 1, 3], N = 3

    Q is `chunk`, a power of two; or, to avoid padding short texts, a smaller power of two that
    holds the longest sequence.
    """

    def __init__(self, cu: Tensor, chunk: int, dtype: torch.dtype, device: torch.device) -> None:
        longest = int(cu.diff().max()) if cu.numel() > 1 else 0
        self.chunk = min(chunk, power_of_two(longest))
        # (S+1,) the first chunk of each sequence, and the number of chunks
        self.first = torch.from_numpy(Chunks.of(cu.numpy(), self.chunk).first)
        self.count = int(self.first[-1])  # N
        sequence = sequence_of_token(cu)
        begin = self.first[sequence] * self.chunk - cu[sequence]
        self._slot = (begin + torch.arange(sequence.numel())).to(device)
        self._dtype = dtype
        self._device = device

    def put(self, tensor: Tensor, hole: float = 0.0) -> Tensor:
        """Return the chunks (N, Q, ...) of a tensor (T, ...)."""
        shape = (self.count * self.chunk, *tensor.shape[1:])
        flat = torch.full(shape, hole, dtype=self._dtype, device=self._device)
        return flat.index_copy(0, self._slot, tensor.to(self._dtype)).view(
            self.count, self.chunk, *tensor.shape[1:]
        )

    def take(self, chunks: Tensor) -> Tensor:
        """Return the tensor (T, ...) of chunks (N, Q, ...)."""
        return chunks.flatten(0, 1)[self._slot]

    def carry(
        self, start: States, advance: Callable[[Tensor, States], States]
    ) -> tuple[States, States]:
        """Run a recurrence over the chunks. From the states before the sequences, `start` (S, ...),
        return the states before each chunk (N, ...) and after each sequence (S, ...).

        All sequences advance together, one chunk per turn; the longest sequences are first, so that
        the sequences that still have a chunk are always the first few. `advance` maps the indices
        of some chunks and the states before these chunks to the states after them.
        """
        counts = self.first.diff()  # chunks of each sequence
        order = counts.argsort(descending=True, stable=True)
        carried = tuple(part[order] for part in start)  # of the sequences that still have a chunk
        entering = []  # by turn: the states before the chunks of this turn, and their indices
        chunks = []
        ended = []  # by turn: the states of the sequences that had no chunk left
        for turn in range(int(counts.max()) if counts.numel() else 0):
            active = int((counts > turn).sum())
            ended.append(tuple(part[active:] for part in carried))
            carried = tuple(part[:active] for part in carried)
            index = self.first[order[:active]] + turn
            entering.append(carried)
            chunks.append(index)
            carried = advance(index, carried)
        back = order.argsort()
        # the sequences that go on longest were ended last and are the first of `order`
        end = tuple(torch.cat(parts)[back] for parts in zip(carried, *reversed(ended), strict=True))
        if not entering:
            return tuple(part[:0] for part in start), end
        place = torch.cat(chunks).argsort()
        return tuple(torch.cat(parts)[place] for parts in zip(*entering, strict=True)), end
