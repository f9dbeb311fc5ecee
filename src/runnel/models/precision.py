"""Smaller vectors: the first numbers alone, numbers of 8 bits, and bits.

n  vectors   d  numbers of a vector

Source: the conventions of `sentence_transformers.quantize_embeddings`; its results are equal, bit
for bit. But that function by default computes the ranges of 8-bit vectors from the vectors that it
quantizes. Here ranges are always given, because queries and documents need the same ranges.
"""

from typing import Literal, SupportsIndex, get_args

import numpy as np

from runnel.checks import expect_choice
from runnel.errors import InputError

Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
CALIBRATED = ("int8", "uint8")  # dtypes that need ranges, from `value_ranges`
_LEVELS = 255


def check_width(width: int | None, dimension: int) -> None:
    """Raise InputError unless vectors of `dimension` numbers can be cut to `width`; None: they are
    not cut.
    """
    whole = isinstance(width, SupportsIndex) and not isinstance(width, bool)
    if width is not None and not (whole and 1 <= width <= dimension):
        raise InputError(
            f"truncate_dim is {width!r}, the model's vectors have {dimension}; choose from 1 to"
            f" {dimension}"
        )


def truncated(vectors: np.ndarray, width: int) -> np.ndarray:
    """Return the first `width` numbers of vectors (..., d), of unit length again, if they have more
    (Kusupati et al., 2022).
    """
    if vectors.shape[-1] <= width:
        return vectors
    part = vectors[..., :width]
    return part / np.maximum(
        np.linalg.norm(part, axis=-1, keepdims=True), np.finfo(np.float32).tiny
    )


def value_ranges(vectors: np.ndarray) -> np.ndarray:
    """Return the least and the greatest value of each number, float32 (2, d), for `quantize`.

    Args:
        vectors: float32 (n, d), of a good sample of the documents.

    Raises:
        InputError: fewer than two vectors.
    """
    if vectors.ndim != 2 or len(vectors) < 2:
        raise InputError(f"ranges need at least two vectors, got an array of shape {vectors.shape}")
    return np.stack([vectors.min(axis=0), vectors.max(axis=0)]).astype(np.float32)


def check_precision(precision: str, ranges: np.ndarray | None, width: int) -> None:
    """Raise InputError for an unknown precision of vectors of `width` numbers, and for ranges that
    do not fit it.
    """
    expect_choice(precision, PRECISIONS, "precision")
    expected = (2, width) if precision in CALIBRATED else None
    came = None if ranges is None else ranges.shape
    if came != expected:
        raise InputError(
            f"{precision} vectors with ranges of shape {came}; expected shape {expected}: int8 and"
            " uint8 need value_ranges() of documents (runnel.models.precision), the same for"
            " queries and documents, the others none"
        )


def quantize(vectors: np.ndarray, precision: str, ranges: np.ndarray | None = None) -> np.ndarray:
    """Return vectors in a precision.

    Args:
        vectors: float32 (n, d).
        precision: "float32"; "int8" or "uint8": (n, d), 256 equal steps between the bounds of each
            number, values outside at the nearest bound; "ubinary": (n, d / 8) uint8, a bit for each
            number, 1 if it is positive, the first in the highest bit; "binary": the same less 128,
            int8.
        ranges: for int8 and uint8, float32 (2, d), from `value_ranges`.

    Raises:
        InputError: an unknown precision; ranges are missing, of another width, or given for a
            precision without ranges.
    """
    check_precision(precision, ranges, vectors.shape[-1])
    if precision == "float32":
        return vectors.astype(np.float32)
    if precision in ("binary", "ubinary"):
        bits = np.packbits(vectors > 0, axis=-1)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    assert ranges is not None
    low, high = ranges.astype(np.float32)
    step = (high - low) / _LEVELS  # 0 for a number that is the same in all documents
    levels = np.clip(np.floor((vectors - low) / np.where(step == 0, 1, step)), 0, _LEVELS)
    return levels.astype(np.uint8) if precision == "uint8" else (levels - 128).astype(np.int8)
