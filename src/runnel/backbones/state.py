"""State: what a backbone carries from one token to the next.

A `State` holds the states of S sequences. Every tensor has the sequence (a "row") as its first dimension, the layer as
its second, and is fp32 unless asked otherwise, so that one row is one contiguous block that can be saved, forked or
handed to another step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from runnel.errors import StateError

_FORMAT = "runnel-state-1"


class State:
    """The states of S sequences.

    Args:
        tensors: name -> tensor (S, L, ...); the names and shapes are the backbone's (`Backbone.state_shapes`).
        tokens: (S,) int64, how many tokens each sequence has read.
    """

    def __init__(self, tensors: Mapping[str, Tensor], tokens: Tensor) -> None:
        self.tensors = dict(tensors)
        self.tokens = tokens
        for name, tensor in self.tensors.items():
            if tensor.shape[0] != tokens.shape[0]:
                raise StateError(
                    f"state tensor {name!r} has {tensor.shape[0]} rows but `tokens` has {tokens.shape[0]}; all need the same"
                )

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

    def select(self, rows: Sequence[int] | Tensor) -> State:
        """A new state with these rows, in this order (rows may repeat). Memory is copied."""
        index = torch.as_tensor(rows, dtype=torch.int64, device=self.tokens.device)
        tensors = {k: v.index_select(0, index.to(v.device)) for k, v in self.tensors.items()}  # the counts stay on the CPU
        return State(tensors, self.tokens.index_select(0, index))

    def fork(self, copies: int) -> State:
        """`copies` copies of a state of one sequence, e.g. a query prefix to be continued by many documents."""
        if len(self) != 1:
            raise StateError(f"fork() takes the state of one sequence, got {len(self)}; select() one row first")
        return self.select([0] * copies)

    @staticmethod
    def concatenate(states: Iterable[State]) -> State:
        """The rows of all `states`, in order."""
        parts = list(states)
        if not parts:
            raise StateError("concatenate() needs at least one state, got none")
        names = parts[0].tensors
        return State({k: torch.cat([p.tensors[k] for p in parts]) for k in names}, torch.cat([p.tokens for p in parts]))

    def clone(self) -> State:
        return State({k: v.clone() for k, v in self.tensors.items()}, self.tokens.clone())

    def detach(self) -> State:
        return State({k: v.detach() for k, v in self.tensors.items()}, self.tokens)

    def to(self, target: torch.dtype | torch.device | str) -> State:
        """The same state in another floating dtype or on another device."""
        tokens = self.tokens if isinstance(target, torch.dtype) else self.tokens.to(target)
        return State({k: v.to(target) for k, v in self.tensors.items()}, tokens)

    def save(self, path: str | Path, *, fingerprint: str, extra: Mapping[str, Tensor] | None = None) -> None:
        """Write a safetensors file that `load` accepts only for a model with the same fingerprint.

        `extra` tensors travel in the same file (a stream keeps its running sums there).
        """
        tensors = {f"state.{k}": v.contiguous() for k, v in self.tensors.items()}
        tensors |= {f"extra.{k}": v.contiguous() for k, v in (extra or {}).items()}
        tensors["tokens"] = self.tokens
        target = Path(path)
        partial = target.with_name(target.name + ".partial")
        save_file(
            tensors, partial, metadata={"format": _FORMAT, "fingerprint": fingerprint, "names": json.dumps(sorted(self.tensors))}
        )
        partial.replace(target)  # a reader sees the old file or the whole new one, never a half

    @staticmethod
    def load(path: str | Path, *, fingerprint: str) -> tuple[State, dict[str, Tensor]]:
        """Read what `save` wrote: (state, extra tensors).

        Raises:
            StateError: the file is damaged, not a state, or belongs to another model.
        """
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != _FORMAT:
                    raise StateError(
                        f"{path} is not a saved runnel state (format {metadata.get('format')!r}, expected {_FORMAT!r})"
                    )
                if metadata["fingerprint"] != fingerprint:
                    raise StateError(
                        f"{path} was saved by another model (fingerprint {metadata['fingerprint'][:12]}, this model is "
                        f"{fingerprint[:12]}); "
                        "load it with the model that wrote it, or read the text again"
                    )
                tensors = {key: file.get_tensor(key) for key in file.keys()}
        except (SafetensorError, FileNotFoundError, OSError) as error:
            raise StateError(f"cannot read the saved state {path}: {error}") from error
        state = State({k[6:]: v for k, v in tensors.items() if k.startswith("state.")}, tensors["tokens"])
        return state, {k[6:]: v for k, v in tensors.items() if k.startswith("extra.")}
