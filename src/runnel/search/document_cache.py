"""The cache of documents whose reading took long, in the user's cache folder.

find/CACHEDIR.TAG is the mark of the folder: without it, a folder with other files is not used.
find/CONTENT-MODEL.safetensors has "document", the canonical text with its places as JSON, and
"sentences", their vectors. CONTENT is a digest of the file and of the options for reading it,
MODEL of the dtypes, and of the sizes and times of the model's files, so entries never become
outdated. The digest of an entry covers its
name, so an entry in the place of another is reported. The modification time of an entry is its
last use: when all together are larger than `LIMIT_BYTES`, the ones used longest ago are removed.
Files of other names and subfolders are not touched.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.errors import InputError, ReadError, StoreError, describe
from runnel.files import digest, expect_trusted, file_digest, signature, write
from runnel.formats import ROWS
from runnel.text.documents.document import HEAD_BYTES, DocumentText, recognize

if TYPE_CHECKING:
    from runnel.models.pocket.sentence_vectors import SentenceVectors
    from runnel.models.sentence_retriever import SentenceRetriever

LONG_S = 2.0  # to read a file, from which on it is remembered
LIMIT_BYTES = 1 << 30  # the most bytes of all entries together
_ABANDONED_S = 3600  # no writer takes so long: an older partial file is of a killed process
_MODEL_FILES = (".json", ".safetensors", ".txt")
_MARK = "CACHEDIR.TAG"  # which backup programs know, too; Source: https://bford.info/cachedir/
_MARKED = b"""Signature: 8a477f597d28d172789f06886806bc55
# This folder is the cache of `runnel find`, which removes its own files from it.
"""
_ENTRY = r"[0-9a-f]{32}-[0-9a-f]{32}\.safetensors"
_OWN_NAMES = re.compile(rf"{_ENTRY}|({_ENTRY}|{re.escape(_MARK)})\.[0-9a-f]{{8}}\.partial")


def cache_folder() -> Path:
    """Return the folder of the cache: in $RUNNEL_CACHE, else in $XDG_CACHE_HOME/runnel, else, on
    every system, in ~/.cache/runnel.

    Raises InputError if there is no home folder; a relative or an empty path is none.
    """
    if chosen := os.environ.get("RUNNEL_CACHE"):
        return Path(chosen).absolute() / "find"
    common = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not common.is_absolute():
        home = Path(os.environ.get("USERPROFILE" if os.name == "nt" else "HOME", ""))
        if not home.is_absolute():
            raise InputError("no home folder to remember documents in; set RUNNEL_CACHE to one")
        common = home / ".cache"
    return common / "runnel" / "find"


def is_cache(folder: Path) -> bool:
    """Return whether a folder is marked as a cache.

    If not, it is missing, empty, or of a version that wrote no mark.

    Raises:
        StoreError: the folder is a link or another user's, or has other files and no mark.
    """
    if not os.path.lexists(folder):
        return False
    expect_trusted(folder)
    # listed before the mark is looked for, which another process may write meanwhile
    others = [path.name for path in folder.iterdir() if not _is_own(path)]
    mark = folder / _MARK
    if mark.is_file() and not mark.is_symlink() and mark.read_bytes() == _MARKED:
        return True
    if others:
        raise StoreError(
            f"{folder} is not used as a cache: it holds {min(others)!r} and no {_MARK} of runnel; "
            "expected a new or an empty folder"
        )
    return False


def _is_own(path: Path) -> bool:
    return _OWN_NAMES.fullmatch(path.name) is not None and path.is_file() and not path.is_symlink()


def stored_files(folder: Path) -> list[tuple[float, int, Path]]:
    """Return the last use, the bytes and the path of each file of a cache, latest first.

    Errors as of `is_cache`.
    """
    files = []
    # without a mark: empty, or of an older version; for any other folder `is_cache` raises
    if is_cache(folder) or folder.is_dir():
        for path in filter(_is_own, folder.iterdir()):
            with suppress(FileNotFoundError):  # another process has removed it
                status = path.lstat()
                files.append((status.st_mtime, status.st_size, path))
    return sorted(files, reverse=True)


def trim(folder: Path, most_bytes: int) -> None:
    """Remove what was used longest ago until the rest has `most_bytes`, and the partial files of
    killed writers.
    """
    total = 0
    for used, size, path in stored_files(folder):
        total += size
        if total > most_bytes or (path.suffix == ".partial" and time.time() - used > _ABANDONED_S):
            path.unlink(missing_ok=True)


@dataclass
class DocumentCache:
    """The cache entries of one model and one set of reading options."""

    load: Callable[[], SentenceRetriever]  # called when needed
    model: str  # the name or folder of the model that `load` gives, to find its files
    # what decides how files are read: runnel's version, encoding, unit, the OCR command if any
    reading: Sequence[str | None]
    report: Callable[[str], None]
    keep: bool = False  # whether to add all documents, however quickly they were read
    _failed: bool = field(default=False, init=False)  # there is no folder, or it cannot be used

    def content(self, name: str) -> str | None:
        """Return a digest of a file and of the options for reading it; None if its document is not
        remembered.
        """
        reason = ""
        with suppress(OSError, ReadError):  # reported when it is read
            if name == "-":
                reason = "standard input is not remembered"
            elif not os.path.isfile(name):  # a pipe can be read only once
                special = os.path.exists(name) and not os.path.isdir(name)
                reason = f"{name} is not a regular file, so it is not remembered" if special else ""
            else:
                with open(name, "rb") as file:
                    kind = recognize(file.read(HEAD_BYTES), name)
                # for a packed file, the kind that its name says; `ROWS`: kinds with many documents
                if (recognize(b"", name) if kind == "packed" else kind) not in ROWS:
                    # the suffixes decide between kinds of text
                    suffixes = "".join(Path(name).suffixes[-2:]).lower()
                    return digest(file_digest(name), suffixes, json.dumps(self.reading))
                reason = f"{name} contains rows, which are not remembered"
        if reason and self.keep:
            self.report(f"note: {reason}")
        return None

    def get(self, name: str, content: str) -> tuple[DocumentText, SentenceVectors] | None:
        """Return the remembered document of a file, or None. A damaged entry is reported and
        removed.
        """
        if content not in self._stored or not self.load().remembers:
            return None
        path = self._path(content)
        try:
            entry = _unpack(path)
            with suppress(OSError):  # the folder may be read-only
                os.utime(path)
            return entry
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.report(f"note: {name} is read again: {path} cannot be used ({describe(error)})")
            with suppress(OSError):
                path.unlink()
            return None

    def put(
        self,
        name: str,
        content: str,
        document: DocumentText,
        vectors: SentenceVectors,
        seconds: float,
    ) -> None:
        """Store a document of the file `name` if reading took long (`seconds`) or `keep` is set,
        unless the `content` of the file has changed.

        A folder that is missing, from elsewhere or cannot be written is reported once.
        """
        if not (self.keep or seconds > LONG_S) or self._failed:
            return
        from runnel.models.memory import pack

        try:
            if self.content(name) != content:
                self.report(f"note: {name} is not remembered: it changed while it was read")
                return
            path = self._path(content)
            new = not is_cache(path.parent)
            if new:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write(path.parent / _MARK, _MARKED, mode=0o600)
            parts = {
                "document": json.dumps(document.to_wire()).encode(),
                "sentences": vectors.to_bytes(),
            }
            # What a user reads is private, also in a folder that is not.
            write(path, pack(parts, "", path.name), mode=0o600)
            trim(path.parent, LIMIT_BYTES)
        except FileNotFoundError:  # another process has emptied the cache meanwhile
            return
        except (OSError, InputError, StoreError) as error:
            self._failed = True
            self.report(
                f"note: {name} is not remembered ({describe(error)}); "
                "set RUNNEL_CACHE to a folder that can be written, or give --no-remember"
            )
            return
        if new:
            self.report(
                f"note: documents are stored in {path.parent} for later questions; `runnel info"
                " --cache` shows and empties it"
            )

    def _path(self, content: str) -> Path:
        return cache_folder() / f"{content}-{self._model_digest}.safetensors"

    @cached_property
    def _model_digest(self) -> str:
        """A digest of the model's dtypes and of the state of its files; to hash them takes a tenth
        of a second.
        """
        from runnel.models.folder import find_model

        place, _ = find_model(self.model)
        folder = place if place.is_dir() else place.parent
        files = sorted(path for path in folder.iterdir() if path.suffix in _MODEL_FILES)
        return digest(
            *self.load().model.backbone.dtypes,
            *(f"{path.name} {signature(path)}" for path in files),
        )

    @cached_property
    def _stored(self) -> set[str]:
        """Digests of the contents that have an entry, with this model or another."""
        try:
            return {path.name.partition("-")[0] for _, _, path in stored_files(cache_folder())}
        except (OSError, InputError, StoreError):  # reported when a document is to be stored
            return set()


def _unpack(path: Path) -> tuple[DocumentText, SentenceVectors]:
    """Read what `DocumentCache.put` wrote; raise ValueError, KeyError or TypeError if it is
    damaged, or of another entry.
    """
    from runnel.models.memory import unpack
    from runnel.models.pocket.sentence_vectors import SentenceVectors

    parts = {
        name: value.tobytes()
        for name, value in unpack(path.read_bytes(), "it", None, path.name).items()
    }
    document = DocumentText.from_wire(json.loads(parts["document"]))
    return document, SentenceVectors.from_bytes(parts["sentences"], document.text, "it")
