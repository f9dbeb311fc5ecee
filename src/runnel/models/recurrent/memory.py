"""The remembered document of a recurrent model: the state after it.

D  width of hidden vectors
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.state import State
from runnel.models.memory import Remembered, StatePrecision
from runnel.ops.numba_math import as_array


@dataclass(frozen=True, eq=False)
class DocumentState(Remembered):
    """The state after a document, in a precision, with a hidden vector and its distinct token ids.

    The vector is the mean of the document's hidden vectors; for the query's likelihood the last
    one, which predicts the first token of the query (`scorer.py`).
    """

    text: str
    # By name: "tokens" (1,), the number of tokens; "mean" or "last" (D,), the vector; "ids", the
    # distinct token ids, sorted; "state.NAME", each tensor of the state; "scale.NAME", its scales
    # in 8 bits.
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, text: str, arrays: Mapping[str, np.ndarray]) -> Self:
        # numpy has no bf16: its bits are stored as uint16
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return cls(
            text,
            {
                name: t.view(torch.bfloat16) if t.dtype == torch.uint16 else t
                for name, t in tensors.items()
            },
        )

    def arrays(self) -> Mapping[str, np.ndarray]:
        return {name: as_array(tensor) for name, tensor in self.tensors.items()}

    @classmethod
    def keep(
        cls,
        text: str,
        state: State,
        vector: Tensor,
        ids: np.ndarray,
        precision: StatePrecision,
        *,
        kept_vector: Literal["mean", "last"] = "mean",
    ) -> Self:
        """Keep a state of one row in a precision, with `vector` under the name `kept_vector`; ids
        are sorted.
        """
        tensors = {"tokens": state.tokens, kept_vector: vector, "ids": torch.from_numpy(ids)}
        whole = sum(tensor.numel() for tensor in state.tensors.values())
        for name, tensor in state.tensors.items():
            # Under a percent of the state: saves nothing, and may scale the rest (xLSTM's m and n)
            if 100 * tensor.numel() < whole:
                tensors[f"state.{name}"] = tensor
            elif precision == "int8" and tensor.shape[-1] >= 16:
                # short last dimensions (conv tails) are a few percent
                scale = (tensor.abs().amax(dim=-1, keepdim=True) / 127).clamp(min=1e-30)
                tensors |= {
                    f"state.{name}": (tensor / scale).round().to(torch.int8),
                    f"scale.{name}": scale,
                }
            else:
                tensors[f"state.{name}"] = (
                    tensor if precision == "fp32" else tensor.to(torch.bfloat16)
                )
        return cls(text, tensors)

    def vector(self, name: Literal["mean", "last"]) -> Tensor:
        """Return the vector (D,) fp32 of this name. Raise KeyError if it was not kept."""
        return self.tensors[name].float()

    @property
    def ids(self) -> np.ndarray:
        """The distinct token ids of the document, sorted."""
        return self.tensors["ids"].int().numpy()

    def fill(self, state: State, place: int) -> None:
        """Fill row `place` of a state with this document's. In place, because a row is as large as
        a processor's cache, and there are many rows.
        """
        for name, tensor in state.tensors.items():
            tensor[place].copy_(self.tensors[f"state.{name}"][0])
            if f"scale.{name}" in self.tensors:
                tensor[place].mul_(self.tensors[f"scale.{name}"][0])
        state.tokens[place] = self.tensors["tokens"][0]
