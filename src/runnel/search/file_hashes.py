"""Hashes of files, which tell whether an indexed file has changed.

A file whose size and times have not changed since its hash was stored keeps the hash, and is not
read.
"""

import hashlib
import json
import stat
import time
from contextlib import suppress
from pathlib import Path

from runnel.files import write

_FORMAT = 1
# The longest time, in nanoseconds, in which a file can change twice and get the same time of
# change: the coarsest clock of a file system has ticks of two seconds.
_TICK_NS = 2_000_000_000


class FileHashes:
    """The hashes of files that one caller reads again and again; kept at `path` between processes,
    if it is given.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        # by path: size, times of change of content and of status, SHA-256
        self._entries: dict[str, tuple[int, int, int, str]] = {}
        # SHA-256 of each file asked for since this object was made, by path
        self.current: dict[str, str] = {}
        # By path, the SHA-256 of content of which something could not be read. Callers fill it, and
        # do not try a file again while its content is the same.
        self.failures: dict[str, str] = {}
        self._text = ""  # the content of the file at `path`, which `save` compares
        # a damaged file counts as missing
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            self._text = path.read_text(encoding="utf-8") if path is not None else "{}"
            stored = json.loads(self._text)
            if stored.get("format") == _FORMAT:
                self._entries = {name: tuple(entry) for name, entry in stored["files"].items()}
                self.failures = dict(stored["failures"])

    def sha256(self, file: Path) -> str:
        """Return the SHA-256 of a file's content. For a pipe, a socket or a device, which are never
        read, return "special".
        """
        name = str(file)
        status = file.stat()
        signature = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        old = self._entries.get(name)
        if not stat.S_ISREG(status.st_mode):
            digest = "special"
        elif old is not None and old[:3] == signature:
            digest = old[3]
        else:
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            self._entries.pop(name, None)
            # A file that has changed just now is read again next time: a second change within the
            # same tick of the clock would not show in its times.
            if max(signature[1:]) + _TICK_NS < time.time_ns():
                self._entries[name] = (*signature, digest)
        self.current[name] = digest
        return digest

    def save(self) -> None:
        """Store the hashes of the files in `current`, if there is a path."""
        if self._path is None:
            return
        files = {name: entry for name, entry in self._entries.items() if name in self.current}
        failures = {
            name: digest
            for name, digest in self.failures.items()
            if self.current.get(name) == digest
        }
        text = json.dumps(
            {"format": _FORMAT, "files": files, "failures": failures}, separators=(",", ":")
        )
        if text != self._text:
            write(self._path, text)
