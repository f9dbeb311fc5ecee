"""A lock for one writer at a time, which the operating system releases when its holder ends, even by a crash."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from runnel.errors import StoreBusy, StoreError
from runnel.files import open_own

_CONTENT = re.compile(rb"(process \d+\s*)?")
_LOCKED_BYTE = 1 << 30  # far after the content: Windows lets no other process read a locked byte


class WriterLock:
    """The exclusive right to write `what`, a folder or file: the lock file `path`, until `release` or the end of the process."""

    def __init__(self, path: Path, what: Path) -> None:
        self._path, self._what = path, what
        self._file: BinaryIO | None = None

    @property
    def held(self) -> bool:
        """Whether this lock has been acquired and not released."""
        return self._file is not None

    def acquire(self) -> None:
        """Take the lock; do nothing if it is already held."""
        while self._file is None:
            file = open_own(self._path)
            locked = _try_lock(file)
            file.seek(0)
            content = _CONTENT.fullmatch(file.read(64))
            problem: StoreError | None = None
            if content is None:
                problem = StoreError(f"{self._path} has other content than a lock file of runnel; move it away")
            elif not locked:
                holder = content[0].decode().strip() or "another process"
                problem = StoreBusy(f"{self._what} is being written by {holder}; wait until it is done")
            elif _is_at(file, self._path):
                file.truncate(0)
                file.write(b"process %d\n" % os.getpid())
                file.flush()
                self._file = file
                return
            file.close()  # perhaps the holder removed it after it was opened here: then look again
            if problem:
                raise problem

    def release(self, *, remove: bool = False) -> None:
        """Release the lock, and delete its file with `remove`; do nothing if it is not held."""
        if self._file is not None:
            if remove:
                with suppress(OSError):  # Windows cannot delete an open file; the leftover is harmless
                    self._path.unlink()
            self._file.close()
            self._file = None


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


def _try_lock(file: BinaryIO) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            file.seek(_LOCKED_BYTE)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
