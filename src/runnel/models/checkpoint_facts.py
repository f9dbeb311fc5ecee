"""The facts about a checkpoint that was recognized and not loaded. `models/describe.py` and
`models/recurrent/describe.py` collect them.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from runnel.text.tokenizer import Tokenizer
from runnel.text.tokenizers import tokenizer_file

DTYPE_BYTES = {"int8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class CheckpointFacts:
    """A checkpoint that was recognized and not loaded."""

    checkpoint: Path  # the folder, or the weights file that was named
    layout: str  # in words, e.g. "Mamba-2, state-spaces original layout"
    # a `Backbone` on the meta device, or an `EncoderShape`: config, names and shapes, no numbers
    backbone: Any
    weights: dict[str, tuple[int, ...]]  # shapes of the backbone's parameters
    matrices: tuple[str, ...]  # ends of the names of the weights that take the low dtype
    embedding_parameters: int
    heads: dict[str, tuple[int, ...]]  # shapes of tensors
    files: dict[str, int]  # bytes
    stored: dict[str, int]  # bytes of all tensors by dtype

    @property
    def folder(self) -> Path:
        return self.checkpoint if self.checkpoint.is_dir() else self.checkpoint.parent

    @property
    def parameters(self) -> int:
        return sum(map(prod, self.weights.values()))

    def weight_bytes(self, dtype: str) -> int:
        """Return the bytes of the backbone's weights loaded with this `dtype`."""
        small = max(DTYPE_BYTES[dtype], DTYPE_BYTES["float32"])
        return sum(
            prod(shape) * (DTYPE_BYTES[dtype] if name.endswith(self.matrices) else small)
            for name, shape in self.weights.items()
        )


def describe_tokenizer(folder: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what a model's tokenizer is, and its markers."""
    file = tokenizer_file(folder)
    return {
        "tokenizer": {
            "kind": type(tokenizer).__name__.removesuffix("Tokenizer").lower(),
            "file": None if file is None else file.name,
            "tokens": tokenizer.vocab_size,
        },
        "markers": {
            "begin": _marker(tokenizer, tokenizer.begin_id),
            "end": _marker(tokenizer, tokenizer.end_id),
        },
    }


def _marker(tokenizer: Tokenizer, number: int | None) -> dict[str, Any] | None:
    if number is None:
        return None
    return {
        "id": number,
        "token": next(
            (token for token, key in tokenizer.vocabulary.items() if key == number), None
        ),
    }
