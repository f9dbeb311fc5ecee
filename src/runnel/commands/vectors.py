"""Vectors that `runnel embed` and others make: a row of a journal for each, then files."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from runnel.errors import InputError, describe
from runnel.files import replacing
from runnel.journal import Journal

if TYPE_CHECKING:
    import numpy as np

FORMATS = (".npy", ".jsonl")
_BLOCK_ROWS = 4096  # vectors in memory at a time


def vector_journal(path: Path, settings: Mapping[str, object], *, ranges: bool = False) -> Journal:
    """Make the journal of a .npy or .jsonl file, with `ranges` also of the file of the ranges that it computes.

    A row's value is [id, digest of the text, whether the text was cut, number of tokens], its bytes the vector in float32.
    """
    if path.suffix not in FORMATS:
        raise InputError(f"{path}: cannot write {path.suffix or 'a name without an ending'!r}; name it {' or '.join(FORMATS)}")
    also = [path.with_suffix(".ids")] if path.suffix == ".npy" else []
    return Journal(path, settings, also=[*also, path.with_suffix(".ranges.npy")] if ranges else also)


def load_ranges(path: Path, size: int) -> np.ndarray:
    """Read the ranges (2, size) of 8-bit vectors that an earlier run wrote."""
    import numpy as np

    try:
        found = np.load(path, allow_pickle=False)
        came = f"has {found.dtype} {found.shape}" if isinstance(found, np.ndarray) else "has several arrays"
    except (OSError, ValueError, EOFError) as error:
        came = f"cannot be read ({describe(error)})"
    if came != f"has float32 {(2, size)}":
        raise InputError(f"{path} {came}; expected OUT.ranges.npy of runnel embed for these vectors, float32 (2, {size})")
    return np.asarray(found)


def finish_vectors(journal: Journal, size: int, precision: str = "float32", ranges: np.ndarray | None = None) -> dict[str, Any]:
    """Make the output files and return what OUT.json says: the settings and counts; missing ranges are computed."""
    from runnel.models.precision import CALIBRATED

    out = journal.out
    if precision in CALIBRATED and ranges is None:
        ranges = _compute_ranges(journal, size, precision, out.with_suffix(".ranges.npy"))
    cut, tokens = (sum(row.value[place] for row in journal.rows()) for place in (2, 3))
    if out.suffix == ".npy":
        with replacing(out.with_suffix(".ids")) as new, new.open("wb") as file:
            file.writelines(row.value[0].encode() + b"\n" for row in journal.rows())
    with replacing(out) as new, new.open("wb") as file:
        (_write_npy if out.suffix == ".npy" else _write_jsonl)(file, journal, size, precision, ranges)
    return journal.finish({"dimension": size, "count": len(journal), "truncated": cut, "tokens": tokens})


def _vectors(journal: Journal, size: int) -> Iterator[np.ndarray]:
    """Yield the vectors float32 (rows, size), in blocks."""
    import numpy as np

    rows = journal.rows(data=True)
    while block := b"".join(row.data for row in itertools.islice(rows, _BLOCK_ROWS)):
        yield np.frombuffer(block, dtype="<f4").reshape(-1, size)


def _compute_ranges(journal: Journal, size: int, precision: str, path: Path) -> np.ndarray:
    import numpy as np

    from runnel.models.precision import value_ranges

    if len(journal) < 2:
        raise InputError(f"{precision} vectors need the ranges of at least two vectors, got {len(journal)}; give --ranges")
    of_blocks = [value_ranges(np.concatenate([block, block])) for block in _vectors(journal, size)]
    ranges = value_ranges(np.concatenate(of_blocks))
    with replacing(path) as new, new.open("wb") as file:
        np.save(file, ranges)
    return ranges


def _write_npy(file: BinaryIO, journal: Journal, size: int, precision: str, ranges: np.ndarray | None) -> None:
    import numpy as np

    from runnel.models.precision import quantize

    none = quantize(np.empty((0, size), np.float32), precision, ranges)
    kind = none.dtype.newbyteorder("<")
    header = {"descr": kind.str, "fortran_order": False, "shape": (len(journal), none.shape[1])}
    np.lib.format.write_array_header_1_0(file, header)
    for block in _vectors(journal, size):
        file.write(np.ascontiguousarray(quantize(block, precision, ranges), dtype=kind).tobytes())


def _write_jsonl(file: BinaryIO, journal: Journal, size: int, precision: str, ranges: np.ndarray | None) -> None:
    import numpy as np

    from runnel.models.precision import quantize

    rows = journal.rows()
    for block in _vectors(journal, size):
        for vector in quantize(block, precision, ranges):
            if vector.dtype == np.float32:  # the shortest numbers that read back equal
                numbers = ", ".join(np.format_float_positional(x, trim="0") for x in vector)
            else:
                numbers = ", ".join(map(str, vector.tolist()))
            name = json.dumps(next(rows).value[0], ensure_ascii=False)
            file.write(f'{{"id": {name}, "vector": [{numbers}]}}\n'.encode())
