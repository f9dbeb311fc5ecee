"""State: what a backbone carries from one token to the next.

A `State` holds the states of S sequences. Every tensor has the sequence (a "row") as its first
dimension, the layer as its second, and is fp32 unless asked otherwise, so that one row is one
contiguous block that can be saved, forked or handed to another step.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from runnel.errors import StateError

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


class State:
    """The states of S sequences.

    Args:
        tensors: name -> tensor (S, L, ...); the names and shapes are the backbone's
            (`Backbone.state_shapes`).
        tokens: (S,) int64 on the CPU, how many tokens each sequence has read.
    """

    def __init__(self, tensors: Mapping[str, Tensor], tokens: Tensor) -> None:
        self.tensors = dict(tensors)
        self.tokens = tokens

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def bytes(self) -> int:
        """Bytes held by all rows together."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.tensors.values())).dtype

    def check(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        source: str = "the state",
        rows: int | None = None,
    ) -> Self:
        """Return the state if it has a backbone's tensors: kernels take their shapes on trust.

        Args:
            shapes: name -> shape of one row (`Backbone.state_shapes`).
            source: what the state is or where it came from, for messages.
            rows: how many sequences it must hold (default: any).

        Raises:
            StateError: a tensor is missing, unexpected, of another shape or not of floating point.
        """
        held = {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}
        expected = {
            name: (len(self) if rows is None else rows, *shape) for name, shape in shapes.items()
        }
        floats = {
            name: tensor.dtype
            for name, tensor in self.tensors.items()
            if tensor.dtype not in _FLOATS
        }
        if held != expected or floats:
            raise StateError(
                f"{source} has the tensors {held} {floats or ''}, expected {expected} of floating"
                " point; use the model that made it, or read the text again"
            )
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the tensors as "state.NAME", and "tokens", to store them; `of` reads them."""
        tensors = {f"state.{name}": t.detach().cpu().numpy() for name, t in self.tensors.items()}
        return {**tensors, "tokens": self.tokens.numpy()}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> Self:
        """Return the state that was stored as `arrays`, among others; `shapes` as for `check`.
        Raise StateError or KeyError if it has not these tensors.
        """
        tensors = {name: torch.from_numpy(arrays[f"state.{name}"]) for name in shapes}
        return cls(tensors, torch.from_numpy(arrays["tokens"])).check(shapes)

    def select(self, rows: Sequence[int] | Tensor) -> "State":
        """Return a copy of these rows, in this order; rows may repeat."""
        index = torch.as_tensor(rows, dtype=torch.int64)
        tensors = {k: v.index_select(0, index.to(v.device)) for k, v in self.tensors.items()}
        return State(tensors, self.tokens.index_select(0, index))

    @staticmethod
    def concatenate(states: Iterable["State"]) -> "State":
        """Return one state with the rows of all `states`, in order."""
        parts = list(states)
        return State(
            {k: torch.cat([p.tensors[k] for p in parts]) for k in parts[0].tensors},
            torch.cat([p.tokens for p in parts]),
        )

    def clone(self) -> "State":
        return State({k: v.clone() for k, v in self.tensors.items()}, self.tokens.clone())

    def to(self, target: torch.dtype | torch.device | str) -> "State":
        """Return the state in another floating dtype or on another device; the counts stay on the
        CPU.
        """
        return State({k: v.to(target) for k, v in self.tensors.items()}, self.tokens)
