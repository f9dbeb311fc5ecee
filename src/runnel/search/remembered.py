"""The cache of documents that `runnel find` has read, in the user's cache folder, for later questions.

    find/CONTENT/MODEL.safetensors    "document": the canonical text with its places, as JSON; "sentences": their vectors

CONTENT is a digest of the file and of the options for reading it, MODEL of the model's files, so entries never become outdated.
The digest of an entry covers both names, so an entry in the place of another is reported.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from runnel.errors import ReadError, StateError, describe
from runnel.files import write
from runnel.text.documents.document import HEAD_BYTES, ROWS, DocumentText, recognize

if TYPE_CHECKING:
    from runnel.models.base import Model
    from runnel.models.sentence_retriever import SentenceRetriever
    from runnel.models.sentence_vectors import SentenceVectors

log = logging.getLogger("runnel")
_MODEL_FILES = (".json", ".safetensors", ".txt")
_DIGEST_BYTES = 20
_digests: WeakKeyDictionary[Model, str] = WeakKeyDictionary()  # of loaded models, which may outlive a command


@dataclass(frozen=True)
class Entry:
    """The place in the cache of a file's document."""

    name: str  # the file
    content: str  # digest of the file and of the options for reading it
    path: Path  # in the cache


@dataclass(frozen=True)
class DocumentCache:
    """The cache entries of one model and one set of reading options."""

    folder: Path
    load: Callable[[], SentenceRetriever]  # called when needed
    model: str
    reading: Sequence[str | None]  # encoding, unit, and the OCR command if there is one
    keep: bool = False  # whether to add documents to the cache
    report: Callable[[str], None] = log.warning

    def entry(self, name: str) -> Entry | None:
        """Return the entry of a file's document; None if it does not exist and is not to be stored."""
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
            content = self._content(name)
        except (OSError, ReadError):
            return None  # reported when it is read
        if not (self.keep or (self.folder / content).is_dir()) or not self.load().remembers:
            return None
        entry = Entry(name, content, self.folder / content / f"{self._model_key}.safetensors")
        return entry if self.keep or entry.path.exists() else None

    def get(self, entry: Entry) -> tuple[DocumentText, SentenceVectors] | None:
        """Return a remembered document, or None. A damaged entry is reported and ignored."""
        try:
            return _unpack(entry.path, self.load().model.backbone.hidden_size)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, StateError) as error:
            self.report(f"note: {entry.name} is read again: {entry.path} cannot be used ({describe(error)})")
            return None

    def put(self, entry: Entry, document: DocumentText, vectors: SentenceVectors) -> None:
        """Store a document, unless its file has changed since `entry`. A folder that cannot be written is reported."""
        try:
            if self._content(entry.name) != entry.content:
                self.report(f"note: {entry.name} is not remembered: it changed while it was read")
                return
            new = not self.folder.is_dir()
            for folder in (self.folder, entry.path.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what a user reads is private
            write(entry.path, _pack(entry.path, document, vectors))
        except OSError as error:
            self.report(f"note: {entry.name} is not remembered: {describe(error)}")
            return
        if new:
            self.report(f"note: documents are stored in {self.folder} for later questions; remove that folder to delete them")

    def _note(self, message: str) -> None:
        if self.keep:
            self.report(f"note: {message}")

    def _content(self, name: str) -> str:
        """Return the digest of a file, its suffix, which decides between kinds of text, and the options for reading it."""
        from importlib.metadata import version

        with open(name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        suffixes = "".join(Path(name).suffixes[-2:]).lower()
        return hashlib.sha256(json.dumps([digest, suffixes, version("runnel"), *self.reading]).encode()).hexdigest()

    @cached_property
    def _model_key(self) -> str:
        model = self.load().model
        if model not in _digests:  # a tenth of a second for pocket
            _digests[model] = model_digest(model, self.model)
        return _digests[model]


def model_digest(model: Model, name: str) -> str:
    """Return a digest of the files of a model and of the dtypes of its loaded weights."""
    from runnel.backbones.checkpoint.files import find_checkpoint
    from runnel.models.base import BUILT_IN

    found = BUILT_IN.get(name) or find_checkpoint(name)
    folder = found if found.is_dir() else found.parent
    dtypes = sorted({str(tensor.dtype) for tensor in model.backbone.state_dict().values()})
    digest = hashlib.sha256(json.dumps(dtypes).encode())
    for path in sorted(path for path in folder.iterdir() if path.suffix in _MODEL_FILES):
        with path.open("rb") as file:
            digest.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def _holds_rows(name: str) -> bool:
    with open(name, "rb") as file:
        kind = recognize(file.read(HEAD_BYTES), name)
    return (recognize(b"", name) if kind == "packed" else kind) in ROWS


def _digest(path: Path, document: bytes) -> bytes:
    whose = "/".join(path.parts[-2:]).encode()
    return hashlib.blake2b(whose + document, digest_size=_DIGEST_BYTES).digest()


def _pack(path: Path, document: DocumentText, vectors: SentenceVectors) -> bytes:
    import numpy as np
    from safetensors.numpy import save

    text = json.dumps(document.to_wire()).encode()
    parts = {"document": text, "digest": _digest(path, text), "sentences": vectors.to_bytes()}  # the last has its own digest
    return save({name: np.frombuffer(part, dtype=np.uint8) for name, part in parts.items()})


def _unpack(path: Path, width: int) -> tuple[DocumentText, SentenceVectors]:
    """Read the result of `_pack`; raise StateError if it is damaged, or of another entry."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    from runnel.models.sentence_vectors import SentenceVectors

    try:
        parts = {name: value.tobytes() for name, value in load(path.read_bytes()).items()}
        text = parts["document"]
        if _digest(path, text) != parts["digest"]:
            raise StateError("its digest differs: it is damaged, or an entry of another file or model")
        document = DocumentText.from_wire(json.loads(text))
        return document, SentenceVectors.from_bytes(parts["sentences"], document.text, width)
    except (SafetensorError, ValueError, KeyError, TypeError, IndexError) as error:
        raise StateError(str(error)) from error
