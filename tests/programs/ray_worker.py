"""A worker of `runnel.integrations.ray` that reads small parts, logs them beside the folder of the shards, and stops on demand.

A file named by the variable HANG, or else FOLDER.hang, holds a number: while it is there, a worker stays at its part of that
number.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from runnel.integrations.ray_worker import Worker

PART = 4  # documents


class Part(NamedTuple):
    """A part that a worker has begun: its process and threads, and the id of the first document."""

    process: int
    torch_threads: int
    numba_threads: int
    first: str


def log_of(folder: Path) -> Path:
    return folder.with_suffix(".log")


def hang_of(folder: Path) -> Path:
    return Path(os.environ.get("HANG") or folder.with_suffix(".hang"))


def parts_begun(folder: Path) -> list[Part]:
    log = log_of(folder)
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    parts = (line.split(" ", 3) for line in lines)
    return [Part(int(process), int(torch), int(numba), first) for process, torch, numba, first in parts]


class LoggedWorker(Worker):
    def load(self, job: Any) -> Any:
        import numba
        import torch

        from runnel.search import encoding

        folder, encode, begun = Path(job.folder), encoding.DocumentEncoder.encode, []

        def logged(self: Any, rows: Any, *arguments: Any, **options: Any) -> Any:
            with log_of(folder).open("a", encoding="utf-8") as log:
                log.write(f"{os.getpid()} {torch.get_num_threads()} {numba.config.NUMBA_NUM_THREADS} {rows[0].id}\n")
            begun.append(rows[0].id)
            hang = hang_of(folder)
            while hang.exists() and len(begun) == int(hang.read_text()):
                time.sleep(0.05)
            return encode(self, rows, *arguments, **options)

        encoding._BATCH_DOCUMENTS = PART
        encoding.DocumentEncoder.encode = logged  # type: ignore[method-assign]
        return super().load(job)
