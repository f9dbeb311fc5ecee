"""Write files whole or not at all: a reader, or the next run after a crash, sees the old file or the new one.

`WriterLock` is for one writer at a time; the system releases it when its holder ends, even by a crash. Files with fixed names,
such as locks, are opened with `open_own`: a folder may come from somebody else.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO

from runnel.errors import InputError, StoreBusy, StoreError

_HALVES = "backslashreplace"  # half of a surrogate pair, which UTF-8 lacks, becomes its escape in JSON
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


@contextmanager
def naming(path: Path, written: Path | None = None) -> Iterator[None]:
    """Add `path` to an error of the operating system that names no file (such as a full disk) or names the file `written`."""
    try:
        yield
    except Exception as error:
        match = _OS_ERROR.search(str(error)) if written is not None else None
        code = error.errno if isinstance(error, OSError) else match and int(match[1])  # safetensors reports them as text
        if code is not None and getattr(error, "filename", None) in (None, str(written)):
            error = OSError(code, os.strerror(code), str(path))
        raise error


def expect_replaceable(path: Path) -> None:
    """Raise OSError if `path` cannot be a file to write: its directory does not exist, or it is a directory or a device."""
    problem = None
    if not path.parent.is_dir():
        problem = errno.ENOENT, "no such directory; create it first", str(path.parent)
    elif path.is_dir():
        problem = errno.EISDIR, "is a directory; name a file", str(path)
    elif (path.exists() and not path.is_file()) or path.parent == Path("/dev"):  # /dev/stdout is a link, perhaps to a file
        problem = errno.EINVAL, "is not a regular file; name another one", str(path)
    if problem:
        raise OSError(*problem)


def create_folder(path: Path) -> Path:
    """Create a folder, with the folders that it is in, unless it exists; return it."""
    if file := next((parent for parent in (path, *path.parents) if parent.is_file()), None):
        raise InputError(f"{file} is a file; name a folder for the results")
    path.mkdir(parents=True, exist_ok=True)
    return path


def sibling(path: Path, ending: str) -> Path:
    """Return the path with `ending` after its name."""
    return path.with_name(path.name + ending)


def signature(path: str | Path | int) -> tuple[int, int, int]:
    """Return numbers that change when a file changes; an open file is given by its descriptor."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def digest(*texts: str) -> str:
    """Return a short digest of texts in their order."""
    found = hashlib.blake2b(digest_size=16)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        found.update(len(data).to_bytes(8, "little") + data)
    return found.hexdigest()


def file_digest(path: str | Path) -> str:
    """Return a short digest of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def open_own(path: Path, *, mode: int = 0o666) -> BinaryIO:
    """Open a file that runnel keeps beside a user's files, to read and append; create it, with `mode`, if it does not exist."""

    def opener(name: str, flags: int) -> int:
        if not path.is_symlink():
            # Without waiting for the other end of a pipe. Windows has neither flag.
            handle = os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), mode)
            facts = os.fstat(handle)
            if stat.S_ISREG(facts.st_mode) and facts.st_nlink < 2:
                return handle
            os.close(handle)
        raise StoreError(f"{path} is a link, a hard link or no regular file, so writing it could change another file; remove it")

    return open(path, "a+b", opener=opener)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces `path` once all of it is on disk.

    Several processes may replace one file: the last one wins. If the block fails, `path` is unchanged. A killed process
    leaves NAME.xxxxxxxx.partial, which nothing reads; `sweep` removes it.
    """
    expect_replaceable(path)
    partial = path.with_name(f"{path.name}.{token_hex(4)}.partial")
    try:
        with naming(path, partial):
            partial.touch(exist_ok=False)  # never through a link
            yield partial
            sync(partial)
            partial.replace(path)
            sync(path.parent)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write(path: Path, data: bytes | str) -> None:
    """Replace the file `path` with these bytes, or with this text in UTF-8."""
    with replacing(path) as partial:
        partial.write_bytes(data.encode() if isinstance(data, str) else data)


def write_json(path: Path, value: Any) -> None:
    """Replace the file `path` with a value in JSON, indented."""
    write(path, json.dumps(value, indent=2, ensure_ascii=False).encode(errors=_HALVES) + b"\n")


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """Replace the file `path` with JSON lines, one for each of the rows, which may be a stream."""
    with replacing(path) as new, new.open("wb") as file:
        file.writelines(json.dumps(row, ensure_ascii=False).encode(errors=_HALVES) + b"\n" for row in rows)


def sweep(folder: Path, name: str = "") -> None:
    """Remove the partial files of killed writers of `name`, or of any file. Call it only while holding the writers' lock."""
    for partial in folder.glob(f"{glob.escape(name) or '*'}.{'[0-9a-f]' * 8}.partial"):
        partial.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or a folder's directory entries, are on disk."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)  # Windows syncs only files opened for writing
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_CONTENT = re.compile(rb"(process \d+\s*)?")
_LOCKED_BYTE = 1 << 30  # far after the content: Windows lets no other process read a locked byte


class WriterLock:
    """The exclusive right to write `what`, a folder or file: the lock file `path`, until `release` or the end of the process."""

    def __init__(self, path: Path, what: Path) -> None:
        self._path, self._what = path, what
        self._file: BinaryIO | None = None

    def acquire(self) -> None:
        """Take the lock; do nothing if it is already held."""
        while self._file is None:
            file = open_own(self._path)
            locked = _try_lock(file)
            file.seek(0)
            content = _CONTENT.fullmatch(file.read(64))
            if content is None:
                file.close()
                raise StoreError(f"{self._path} has other content than a lock file of runnel; move it away")
            if not locked:
                file.close()
                holder = content[0].decode().strip() or "another process"
                raise StoreBusy(f"{self._what} is being written by {holder}; wait until it is done")
            if not _is_at(file, self._path):  # the holder removed the file after it was opened here
                file.close()
                continue
            file.truncate(0)
            file.write(b"process %d\n" % os.getpid())
            file.flush()
            self._file = file

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
