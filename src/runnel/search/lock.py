"""One writer at a time: a lock that the operating system gives back when its holder ends, however it ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from runnel.errors import StoreBusy


class WriterLock:
    """The right to write to an index in a local folder. Held until `release`, or until the process ends.

    Raises:
        StoreBusy: another process holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "writer.lock"
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        if self._file is not None:
            return
        file = open(self._path, "a+", encoding="utf-8")
        if not _try_lock(file):
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise StoreBusy(f"{self._path.parent} is being written by another process ({holder}); wait until it is done")
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _try_lock(file: IO[str]) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
