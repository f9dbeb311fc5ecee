"""Examples as rows of Arrow files: memory does not depend on their number."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from datasets import Dataset as Table
from datasets import Features
from datasets.arrow_writer import ArrowWriter
from torch.utils.data import Dataset

from runnel.errors import InputError
from runnel.files import replacing

Made = TypeVar("Made")


def write_rows(path: Path, features: Features, rows: Iterable[dict[str, Any]], source: object = "the data") -> None:
    """Write rows to a file, one at a time. Raises InputError, which names their source, if there are none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with replacing(path) as file, ArrowWriter(path=str(file), features=features) as writer:
        for row in rows:
            writer.write(row)
            written += 1
        if not written:
            raise InputError(f"{source} has no examples to train on")
        writer.finalize()


def expect_left(rows: object, source: object, held_out: int) -> None:
    """Raise InputError if no rows are left to train on."""
    if not rows:
        raise InputError(f"{source}: data.held_out = {held_out} leaves no example to train on; lower it, or add examples")


class RowData(Dataset[tuple[str, Made]], Generic[Made]):
    """Rows with an "id" and a number of "tokens", made into items on access."""

    def __init__(self, path: str | Path) -> None:
        self._table = Table.from_file(str(path)).with_format("numpy")
        self.lengths: np.ndarray = np.asarray(self._table["tokens"][:], dtype=np.int64)  # (n,)

    @abstractmethod
    def _make(self, row: dict[str, Any]) -> Made:
        """Return the item of a row."""

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[str, Made]:
        row = self._table[int(index)]
        return str(row["id"]), self._make(row)
