"""Open and decode files, and write them whole or not at all.

In this order: reading, with `decode`, which detects encodings; writing; locks. A file is written
beside its place and then replaces it at once: a reader, or the next run after a crash, sees the old
file or the new one. `WriterLock` admits one writer at a time; the system releases it when its
holder ends, even by a crash. Files with fixed names, such as locks, are opened with `open_own`,
because a folder may come from somebody else.
"""

import codecs
import errno
import glob
import hashlib
import json
import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from runnel.errors import InputError, ReadError, StoreBusy, StoreError, UnsupportedKind

# Longer marks first: UTF-32's begins with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# <meta charset="utf-8">, <?xml version="1.0" encoding="utf-8"?>
_DECLARED = re.compile(
    rb"<(?:meta[^>]*?\scharset\s*=|\?xml[^>]*?\sencoding\s*=)\s*[\"']?\s*([A-Za-z0-9_:.-]+)",
    re.IGNORECASE,
)
# encodings that browsers read as another one
WEB_NAMES = {
    "iso-8859-1": "cp1252",
    "latin-1": "cp1252",
    "latin1": "cp1252",
    "us-ascii": "cp1252",
    "ascii": "cp1252",
    "iso-8859-9": "cp1254",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc-kr": "cp949",
    "ks_c_5601-1987": "cp949",
}
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b") | {127})
_HEAD_BYTES = 1 << 16  # by which a file is taken for binary or UTF-16
_COMPARED = 10_000  # names of a folder, at most, with one that is missing
_DECLARED_WITHIN = 4096  # bytes from the start
_MOST_CONTROLS = 0.05  # the share of control characters in the first bytes of a text
# the share of bytes above ASCII in Western European text; other scripts in old encodings have more
_MOST_ACCENTS = 0.15


@dataclass(frozen=True, slots=True)
class Decoded:
    """Text, its original encoding, and a warning if that is a guess."""

    text: str
    encoding: str
    warning: str | None = None


def near_names(path: Path, show: Callable[[Path], str] = str) -> str:
    """Return what a message about a path that does not exist adds: names like its first part that
    is missing, or "".
    """
    while path.parent != path and not os.path.exists(path.parent):
        path = path.parent
    try:
        entries = os.scandir(path.parent)
    except OSError:
        return ""
    with entries:
        names = {entry.name.casefold(): entry.name for entry in islice(entries, _COMPARED)}
    near = [names[key] for key in get_close_matches(path.name.casefold(), names)]
    shown = [show(path.with_name(name)) for name in near if name.isprintable()]
    return f"; near names: {', '.join(shown)}" if shown else ""


def open_bytes(path: str | Path) -> BinaryIO:
    """Open a file for reading; "-" is standard input."""
    name = str(path)
    try:
        return sys.stdin.buffer if name == "-" else open(path, "rb")
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        messages: dict[type[Exception], str] = {
            IsADirectoryError: (
                f"{name} is a directory; give the files in it, for example {Path(name) / '*.txt'}"
            ),
            PermissionError: f"no permission to read {name}; change its mode or run as its owner",
        }
        message = messages.get(
            type(error), f"{name} cannot be read: {error}; check the path and the disk"
        )
        if name.startswith(("http://", "https://")):
            message = f"{name} is an address; download it and give the file"
        elif isinstance(error, FileNotFoundError):
            message = f"no file {name}; check the path (relative paths start at {Path.cwd()})"
            message += near_names(Path(path))
        raise ReadError(message) from error


def check_encoding(encoding: str | None) -> None:
    """Raise InputError if Python does not know the encoding, or knows it as something other than
    text, such as 'hex'.
    """
    error: Exception | None = None
    try:
        if encoding is None or codecs.lookup(encoding)._is_text_encoding:
            return
    except (LookupError, ValueError) as failure:  # ValueError: a NUL character in it
        error = failure
    raise InputError(
        f"unknown encoding {encoding!r}; expected a name such as 'utf-8', 'cp1252' or 'latin-1'"
    ) from error


def marked_encoding(head: bytes) -> str | None:
    """Return the encoding of a byte order mark at the beginning of these bytes; None without a
    mark.
    """
    return next((encoding for mark, encoding in _MARKS if head.startswith(mark)), None)


def decode(data: bytes, name: str, encoding: str | None = None, *, markup: bool = False) -> Decoded:
    """Decode a file's bytes.

    The encoding is `encoding`; else that of a byte order mark; else UTF-8 if the bytes are valid
    UTF-8; else the one declared in `markup` (html, xml); else UTF-16 without a mark if every second
    byte is NUL; else Windows' Western European encoding (cp1252), with a warning, if there are few
    bytes above ASCII. A byte order mark is dropped. Characters are never replaced.
    """
    stated = encoding or marked_encoding(data)
    if stated is None and markup:
        utf8 = None
        with suppress(UnicodeDecodeError):
            utf8 = data.decode()
        stated = _declared(data) if utf8 is None or data.isascii() else None
    if stated is not None:
        return Decoded(_decode(data, stated, name), stated)
    wide = _wide(data)
    if wide is not None:
        return Decoded(
            _decode(data, wide, name), wide, f"taken for {wide} text without a byte order mark"
        )
    nul = data.find(0)
    head = data[:_HEAD_BYTES]
    controls = len(head) - len(head.translate(None, _CONTROLS))
    if nul >= 0 or controls > _MOST_CONTROLS * len(head):
        sign = f"{controls / len(head):.0%} of its first bytes are control characters"
        if nul >= 0:
            sign = f"NUL at byte {nul}"
        raise UnsupportedKind(
            f"{name} is binary ({sign}); expected text, or a document of a kind in"
            " docs/documents.md"
        )
    try:
        return Decoded(data.decode(), "utf-8")
    except UnicodeDecodeError as error:
        return _guess(data, name, error)


def _declared(data: bytes) -> str | None:
    """Return the encoding that html or xml declares; None without one that can be right."""
    match = _DECLARED.search(data[:_DECLARED_WITHIN])
    if match is None:
        return None
    declared = match[1].decode().lower()
    declared = WEB_NAMES.get(declared, declared)  # read as browsers read these names
    try:
        codec = codecs.lookup(declared)
    except LookupError:
        return None
    # Text with an ASCII declaration cannot be UTF-16; and some of Python's codecs yield no text.
    return (
        declared
        if codec._is_text_encoding and not declared.startswith(("utf-16", "utf-32"))
        else None
    )


def _wide(data: bytes) -> str | None:
    """Return the kind of UTF-16 without a mark, by NULs in every other byte; None if it is none."""
    head = data[:_HEAD_BYTES]
    nuls = [head[side::2].count(0) / max(1, len(head[side::2])) for side in (0, 1)]
    if len(data) % 2 or min(nuls) > 0.01 or max(nuls) < 0.4:
        return None
    return "utf-16-be" if nuls[0] > nuls[1] else "utf-16-le"


def _guess(data: bytes, name: str, error: UnicodeDecodeError) -> Decoded:
    """Decode bytes that are not UTF-8 (`error`) as cp1252, if they can be; else raise ReadError."""
    if len(data.translate(None, bytes(range(128)))) <= _MOST_ACCENTS * len(data):
        with suppress(UnicodeDecodeError):
            return Decoded(
                data.decode("cp1252"),
                "cp1252",
                f"not valid utf-8 ({_place(data, error)}), read as cp1252; if that is wrong, give"
                " its encoding",
            )
    # raises the error again
    return Decoded(_decode(data, "utf-8", name, ", and does not look like cp1252"), "utf-8")


def _decode(data: bytes, encoding: str, name: str, more: str = "") -> str:
    try:
        return data.decode(encoding)
    except (UnicodeError, ValueError) as error:  # some codecs raise their own errors
        place = (
            f"{_place(data, error)}, {error.reason}"
            if isinstance(error, UnicodeDecodeError)
            else error
        )
        raise ReadError(
            f"{name} is not valid {encoding} ({place}){more}; "
            "give its encoding, for example --encoding cp1251 or encoding='shift_jis'"
        ) from error


def _place(data: bytes, error: UnicodeDecodeError) -> str:
    line = data.count(b"\n", 0, error.start) + 1
    return f"byte 0x{data[error.start]:02x} at offset {error.start}, line {line}"


def signature(path: str | Path | int) -> tuple[int, int, int]:
    """Return numbers that change when a file changes; an open file is given by its descriptor."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def digest(*texts: str) -> str:
    """Return a short digest of texts in their order."""
    combined = hashlib.blake2b(digest_size=16)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        combined.update(len(data).to_bytes(8, "little") + data)
    return combined.hexdigest()


def file_digest(path: str | Path) -> str:
    """Return a short digest of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


# ---- writing -------------------------------------------------------------------------------------

# half of a surrogate pair, which UTF-8 lacks, becomes its escape in JSON
_HALVES = "backslashreplace"
_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # "... (os error 28)", of safetensors
_PARTIAL = re.compile(r"\.[0-9a-f]{8}\.partial\Z")  # the end of the name of a temporary file


@contextmanager
def naming(path: Path, written: Path | None = None) -> Iterator[None]:
    """Add `path` to an error of the operating system that names no file (such as a full disk) or
    names the file `written`.
    """
    try:
        yield
    except Exception as error:
        match = _OS_ERROR.search(str(error)) if written is not None else None
        # safetensors reports them as text
        code = error.errno if isinstance(error, OSError) else match and int(match[1])
        if code is not None and getattr(error, "filename", None) in (None, str(written)):
            error = OSError(code, os.strerror(code), str(path))
        raise error


def expect_replaceable(path: Path) -> None:
    """Raise OSError if `path` cannot be a file to write: its directory does not exist, or it is a
    directory or a device.
    """
    # /dev/stdout is a link, perhaps to a file
    special = (path.exists() and not path.is_file()) or path.parent == Path("/dev")
    for holds, code, problem, name in (
        (not path.parent.is_dir(), errno.ENOENT, "no such directory; create it first", path.parent),
        (path.is_dir(), errno.EISDIR, "is a directory; name a file", path),
        (special, errno.EINVAL, "is not a regular file; name another one", path),
    ):
        if holds:
            raise OSError(code, problem, str(name))


def create_folder(path: Path) -> Path:
    """Create a folder, with the folders that it is in, unless it exists; return it."""
    if file := next((parent for parent in (path, *path.parents) if parent.is_file()), None):
        raise InputError(f"{file} is a file; name a folder for the results")
    path.mkdir(parents=True, exist_ok=True)
    return path


def sibling(path: Path, ending: str) -> Path:
    """Return the path with `ending` after its name."""
    return path.with_name(path.name + ending)


def open_own(path: Path) -> BinaryIO:
    """Open a file that runnel keeps beside a user's files, to read and append.

    If it does not exist, it is created for this user alone.
    """

    def opener(name: str, flags: int) -> int:
        if not path.is_symlink() and not path.is_dir():
            # Without waiting for the other end of a pipe. Windows has neither flag.
            flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
            handle = os.open(name, flags, 0o600)
            facts = os.fstat(handle)
            if stat.S_ISREG(facts.st_mode) and facts.st_nlink < 2:
                return handle
            os.close(handle)
        raise StoreError(
            f"{path} is a link, a hard link or no regular file, so writing it could change another"
            " file; remove it"
        )

    return open(path, "a+b", opener=opener)


_SAFE = "RUNNEL_SAFE_DIRECTORIES"


def expect_trusted(place: Path) -> None:
    """Raise StoreError if `place` is a link, or another user's, who may have put anything into it.

    As in git, root also trusts the user who called sudo. Everybody trusts root, who may write
    everywhere anyway. What is directly in a folder of RUNNEL_SAFE_DIRECTORIES is trusted.
    """
    if place.is_symlink():
        raise StoreError(f"{place} is a link, which may lead to files elsewhere; remove it")
    owner = place.lstat().st_uid  # 0 on Windows, as the user
    user = getattr(os, "geteuid", int)()
    trusted = ("0", str(user), os.environ.get("SUDO_UID") if user == 0 else None)
    if str(owner) not in trusted and place.parent.resolve() not in listed(_SAFE):
        safe = os.pathsep.join([*filter(None, [os.environ.get(_SAFE)]), str(place.parent)])
        raise StoreError(
            f"{place} belongs to another user ({owner}), who may have put anything into it; "
            f"if you trust it: export {_SAFE}={shlex.quote(safe)}"
        )


def listed(variable: str) -> set[Path]:
    """Return the absolute paths of folders in an environment variable."""
    names = os.environ.get(variable, "").split(os.pathsep)
    return {Path(name).resolve() for name in names if os.path.isabs(name)}


@contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[Path]:
    """Yield the path of a temporary file of this mode that replaces `path` once it is on disk.

    Several processes may replace one file: the last one wins. If the block fails, `path` is
    unchanged. A killed process leaves NAME.xxxxxxxx.partial, which nothing reads; `sweep` removes
    it.
    """
    expect_replaceable(path)
    partial = path.with_name(f"{path.name}.{token_hex(4)}.partial")
    try:
        with naming(path, partial):
            partial.touch(mode, exist_ok=False)  # never through a link
            yield partial
            sync(partial)
            partial.replace(path)
            sync(path.parent)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write(path: Path, data: bytes | str, *, mode: int = 0o666) -> None:
    """Replace the file `path` with these bytes, or with this text in UTF-8."""
    with replacing(path, mode=mode) as partial:
        partial.write_bytes(data.encode() if isinstance(data, str) else data)


def write_json(path: Path, value: object) -> None:
    """Replace the file `path` with a value in JSON, indented."""
    write(path, json.dumps(value, indent=2, ensure_ascii=False).encode(errors=_HALVES) + b"\n")


def write_jsonl(path: Path, rows: Iterable[object]) -> None:
    """Replace the file `path` with JSON lines, one for each of the rows, which may be a stream."""
    with replacing(path) as new, new.open("wb") as file:
        file.writelines(
            json.dumps(row, ensure_ascii=False).encode(errors=_HALVES) + b"\n" for row in rows
        )


def sweep(folder: Path, name: str = "") -> None:
    """Remove the partial files of killed writers of `name`, or of any file. Call it only while
    holding the writers' lock.
    """
    for path in folder.glob(f"{glob.escape(name) or '*'}.????????.partial"):
        if _PARTIAL.search(path.name):
            path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or a folder's directory entries, are on disk."""
    if path.is_dir() and os.name == "nt":
        return
    # Windows syncs only files opened for writing
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_CONTENT = re.compile(rb"(process \d+\s*)?")  # of a lock file
_LOCKED_BYTE = 1 << 30  # far after the content: Windows lets no other process read a locked byte


class WriterLock:
    """The exclusive right to write `what`, a folder or file: the lock file `path`, until `release`
    or the end of the process.
    """

    def __init__(self, path: Path, what: Path) -> None:
        self._path = path
        self._what = what
        self._file: BinaryIO | None = None

    def acquire(self, *, wait: bool = False) -> None:
        """Take the lock; do nothing if it is already held. If another process holds it, raise
        StoreBusy or, with `wait`, wait until it is free (on Windows at most 10 seconds).
        """
        while self._file is None:
            file = open_own(self._path)
            try:
                with naming(self._path):
                    held = self._take(file, wait)
            except BaseException:  # among them the error of a full disk
                with suppress(OSError):  # the same again
                    file.close()
                raise
            # Otherwise the holder removed the file after it was opened here: open the next one.
            if held:
                self._file = file
            else:
                file.close()

    def _take(self, file: BinaryIO, wait: bool) -> bool:
        """Lock an open lock file, and write this process's number into it; return whether it is
        still at its path.
        """
        locked = _try_lock(file, wait)
        file.seek(0)
        content = _CONTENT.fullmatch(file.read(64))
        if content is None:
            raise StoreError(
                f"{self._path} has other content than a lock file of runnel; move it away"
            )
        if not locked:
            holder = content[0].decode().strip() or "another process"
            raise StoreBusy(f"{self._what} is being written by {holder}; wait until it is done")
        if not _is_at(file, self._path):
            return False
        file.truncate(0)
        file.write(b"process %d\n" % os.getpid())
        file.flush()
        return True

    @contextmanager
    def held(self, *, wait: bool = False) -> Iterator[None]:
        """Hold the lock for a block; `wait` and errors as for `acquire`."""
        self.acquire(wait=wait)
        try:
            yield
        finally:
            self.release()

    def release(self, *, remove: bool = False) -> None:
        """Release the lock, and delete its file with `remove`; do nothing if it is not held."""
        if self._file is not None:
            if remove:
                # Windows cannot delete an open file; the leftover is harmless
                with suppress(OSError):
                    self._path.unlink()
            self._file.close()
            self._file = None


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


def _try_lock(file: BinaryIO, wait: bool) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(_LOCKED_BYTE)
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            raise  # such as a file system without locks
        return False
    return True
