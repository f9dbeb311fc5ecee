"""The cache of documents whose reading took long, in the user's cache folder, for later questions.

    find/CONTENT-MODEL.safetensors    "document": the canonical text with its places, as JSON; "sentences": their vectors

CONTENT is a digest of the file and of the options for reading it, MODEL of the model's files, so entries never become outdated.
The digest of an entry covers its name, so an entry in the place of another is reported. The modification time of an entry is
its last use: when all together are larger than `LIMIT_BYTES`, those that were used longest ago are removed.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from runnel import __version__
from runnel.errors import InputError, ReadError, describe
from runnel.files import digest, file_digest, write
from runnel.formats import ROWS
from runnel.text.documents.document import HEAD_BYTES, DocumentText, recognize

if TYPE_CHECKING:
    from runnel.models.base import Model
    from runnel.models.sentence_retriever import SentenceRetriever
    from runnel.models.sentence_vectors import SentenceVectors

log = logging.getLogger("runnel")
LONG_S = 2.0  # to read a file, from which on it is remembered
LIMIT_BYTES = 1 << 30  # of all entries
_ABANDONED_S = 3600  # no writer takes so long: an older partial file is of a killed process
_MODEL_FILES = (".json", ".safetensors", ".txt")
_digests: WeakKeyDictionary[Model, str] = WeakKeyDictionary()  # of loaded models, which may outlive a command


def open_cache(
    load: Callable[[], SentenceRetriever],
    model: str,
    reading: Sequence[str | None],
    *,
    remember: bool | None = None,
    report: Callable[[str], None] = log.warning,
) -> DocumentCache | None:
    """Return the cache of documents. Other arguments as of `DocumentCache`.

    Args:
        remember: True also stores what was read in a moment; with False, and without a home folder, there is no cache.
    """
    folder = cache_folder()
    if folder is None and remember:
        raise InputError("there is no home folder to remember documents in; set RUNNEL_CACHE to a folder")
    if folder is None or remember is False:
        return None
    return DocumentCache(folder, load, model, reading, keep=bool(remember), report=report)


def cache_folder() -> Path | None:
    """Return the folder of the cache: in $RUNNEL_CACHE, or in the platform's default; None without a home folder."""
    if chosen := os.environ.get("RUNNEL_CACHE"):
        return Path(chosen).absolute() / "find"
    common = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(common) if os.path.isabs(common) else Path.home() / ".cache") / "runnel" / "find"
    except RuntimeError:  # a user without a home
        return None


def stored_files(folder: Path) -> list[tuple[float, int, Path]]:
    """Return the time of its last use, the bytes and the path of each file of a cache, latest first."""
    files = []
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # another process has removed it
            status = path.lstat()
            if not path.is_dir():
                files.append((status.st_mtime, status.st_size, path))
    return sorted(files, reverse=True)


def trim(folder: Path, most_bytes: int) -> None:
    """Remove what was used longest ago until the rest has `most_bytes`, and the partial files of killed writers."""
    total = 0
    for used, size, path in stored_files(folder):
        total += size
        if total > most_bytes or (path.suffix == ".partial" and time.time() - used > _ABANDONED_S):
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Entry:
    """What the cache knows a file's document by."""

    name: str  # the file
    content: str  # digest of the file and of the options for reading it


@dataclass
class DocumentCache:
    """The cache entries of one model and one set of reading options."""

    folder: Path
    load: Callable[[], SentenceRetriever]  # called when needed
    model: str
    reading: Sequence[str | None]  # encoding, unit, and the OCR command if there is one
    keep: bool = False  # whether to add all documents, however quickly they were read
    report: Callable[[str], None] = log.warning
    _failed: bool = field(default=False, init=False)  # the folder cannot be written

    def entry(self, name: str) -> Entry | None:
        """Return the entry of a file's document; None if it can have none."""
        if name == "-":
            self._note("standard input is not remembered")
            return None
        try:
            if not os.path.isfile(name):  # a pipe can be read only once
                if os.path.exists(name) and not os.path.isdir(name):
                    self._note(f"{name} is not a regular file, so it is not remembered")
                return None
            if _holds_rows(name):
                self._note(f"{name} contains rows, which are not remembered")
                return None
            return Entry(name, self._content(name))
        except (OSError, ReadError):
            return None  # reported when it is read

    def get(self, entry: Entry) -> tuple[DocumentText, SentenceVectors] | None:
        """Return a remembered document, or None. A damaged entry is reported and removed."""
        if entry.content not in self._stored or not self.load().remembers:
            return None
        path = self._path(entry)
        try:
            found = _unpack(path)
            with suppress(OSError):  # of a folder that can only be read
                os.utime(path)
            return found
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.report(f"note: {entry.name} is read again: {path} cannot be used ({describe(error)})")
            with suppress(OSError):
                path.unlink()
            return None

    def put(self, entry: Entry, document: DocumentText, vectors: SentenceVectors, seconds: float) -> None:
        """Store a document if it took so many `seconds` to read, unless its file has changed since `entry`.

        A folder that cannot be written is reported once.
        """
        if not (self.keep or seconds > LONG_S) or self._failed:
            return
        path = self._path(entry)
        try:
            if self._content(entry.name) != entry.content:
                self.report(f"note: {entry.name} is not remembered: it changed while it was read")
                return
            new = not self.folder.is_dir()
            self.folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o700)  # what a user reads is private
            write(path, _pack(path, document, vectors))
            trim(self.folder, LIMIT_BYTES)
        except OSError as error:
            self._failed = True
            advice = "set RUNNEL_CACHE to a folder that can be written, or give --no-remember"
            self.report(f"note: {entry.name} is not remembered ({describe(error)}); {advice}")
            return
        if new:
            show = "`runnel info --cache` shows and empties it"
            self.report(f"note: documents are stored in {self.folder} for later questions; {show}")

    def _note(self, message: str) -> None:
        if self.keep:
            self.report(f"note: {message}")

    def _content(self, name: str) -> str:
        """Return the digest of a file, its suffix, which decides between kinds of text, and the options for reading it."""
        suffixes = "".join(Path(name).suffixes[-2:]).lower()
        return digest(file_digest(name), suffixes, __version__, json.dumps(self.reading))

    def _path(self, entry: Entry) -> Path:
        return self.folder / f"{entry.content}-{self._model_key}.safetensors"

    @cached_property
    def _stored(self) -> set[str]:
        """Digests of the contents that have an entry, with this model or another."""
        try:
            return {name.partition("-")[0] for name in os.listdir(self.folder)}
        except OSError:
            return set()

    @cached_property
    def _model_key(self) -> str:
        model = self.load().model
        if model not in _digests:  # a tenth of a second for pocket
            _digests[model] = model_digest(model, self.model)
        return _digests[model]


def model_digest(model: Model, name: str) -> str:
    """Return a digest of the files of a model and of the dtypes of its loaded weights."""
    from runnel.backbones.checkpoint.load import find_checkpoint
    from runnel.models.base import BUILT_IN

    found = BUILT_IN.get(name) or find_checkpoint(name)
    folder = found if found.is_dir() else found.parent
    dtypes = sorted({str(tensor.dtype) for tensor in model.backbone.state_dict().values()})
    files = sorted(path for path in folder.iterdir() if path.suffix in _MODEL_FILES)
    return digest(*dtypes, *(f"{path.name} {file_digest(path)}" for path in files))


def _holds_rows(name: str) -> bool:
    with open(name, "rb") as file:
        kind = recognize(file.read(HEAD_BYTES), name)
    return (recognize(b"", name) if kind == "packed" else kind) in ROWS


def _pack(path: Path, document: DocumentText, vectors: SentenceVectors) -> bytes:
    from runnel.models.container import pack

    return pack({"document": json.dumps(document.to_wire()).encode(), "sentences": vectors.to_bytes()}, "", path.name)


def _unpack(path: Path) -> tuple[DocumentText, SentenceVectors]:
    """Read the result of `_pack`; raise ValueError, KeyError or TypeError if it is damaged, or of another entry."""
    from runnel.models.container import unpack
    from runnel.models.sentence_vectors import SentenceVectors

    parts = {name: value.numpy().tobytes() for name, value in unpack(path.read_bytes(), "it", None, path.name).items()}
    document = DocumentText.from_wire(json.loads(parts["document"]))
    return document, SentenceVectors.from_bytes(parts["sentences"], document.text, "it")
