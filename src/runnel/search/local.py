"""The small store: numpy arrays, JSON lines and bm25s in a plain folder, for tests and for collections that fit in memory.

    index.json             the settings
    HEAD                   the number of the commit that searches see; replacing this file commits
    000007/                one folder per commit: documents.jsonl, passages.jsonl, vectors.npy, saved.safetensors,
                           memory.safetensors

Each commit rewrites everything: simple, and slow for large collections, for which `LanceStore` is meant.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from runnel.errors import InputError, StoreError
from runnel.files import sweep, sync, write
from runnel.lock import WriterLock
from runnel.search.connection import plain_errors, plainly
from runnel.search.filters import Condition, matches
from runnel.search.matrix import PassageMatrix, best
from runnel.search.records import FORMAT, WHOLE, Commit, ContentHashes, DocumentRow, IndexSettings, PassageRow, ScoredPassage
from runnel.text.words import bm25, words_of

_KEPT_COMMITS = 3
_BLOBS = ("saved", "memory")  # binary parts of a document


class LocalStore:
    """A `Store` of plain files. Use `create` or `open`."""

    def __init__(self, folder: Path, settings: IndexSettings) -> None:
        self.settings = settings
        self.uri = str(folder)
        self._folder = folder
        self._lock = WriterLock(folder / "writer.lock", folder)
        self._matrix: PassageMatrix | None = None
        self._bm25: Any = None
        self._load(self._read_head())

    @classmethod
    def create(cls, folder: str | Path, settings: IndexSettings) -> LocalStore:
        """Create an empty index.

        Raises:
            StoreError: the folder already has an index.
        """
        folder = Path(folder)
        if (folder / "HEAD").exists():
            raise StoreError(f"{folder} already holds an index; open it, or choose another place")
        with plain_errors(str(folder)):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "index.json").write_text(json.dumps(asdict(settings), indent=2) + "\n", encoding="utf-8")
            _write_commit(folder, 0, {}, {}, settings)
            return cls(folder, settings)

    @classmethod
    def open(cls, folder: str | Path) -> LocalStore:
        """Open an existing index.

        Raises:
            StoreError: no index, or a newer format.
        """
        folder = Path(folder)
        if not (folder / "HEAD").exists():
            raise StoreError(f"there is no index at {folder}; make one with Index.create")
        with _whole(folder):
            settings = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        # Every search splits the stored texts into words, so an older format has no other words.
        return cls(folder, replace(IndexSettings.stored(settings, str(folder)), format=FORMAT))

    def close(self) -> None:
        self._lock.release()

    # ---- reading -----------------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        newest = self._read_head()
        if newest == self._number:
            return False
        self._load(newest)
        return True

    def commits(self) -> list[Commit]:
        with _whole(self._folder):
            return [_read_commit(folder) for folder in _commit_folders(self._folder) if int(folder.name) <= self._number]

    def content_hashes(self) -> dict[str, ContentHashes]:
        return {row.id: ContentHashes(row.source, row.source_hash, row.content_hash) for row in self._documents.values()}

    def documents(self, ids: Sequence[str], *, saved: bool = False) -> dict[str, DocumentRow]:
        return {name: self._documents[name] for name in ids if name in self._documents}

    def memories(self, ids: Sequence[str]) -> dict[str, bytes]:
        found = {name: self._documents[name].memory for name in ids if name in self._documents}
        return {name: memory for name, memory in found.items() if memory is not None}

    def passages(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], PassageRow]:
        return {key: self._passages[key] for key in keys if key in self._passages}

    def scan(self) -> Iterator[list[PassageRow]]:
        yield list(self._passages.values())

    def nearest(self, vector: np.ndarray, count: int, where: list[Condition]) -> list[ScoredPassage]:
        rows = list(self._passages.values())
        if self._matrix is None:
            vectors = np.stack([row.vector for row in rows]) if rows else np.zeros((0, self.settings.dimension), np.float32)
            metadata = {name: row.metadata for name, row in self._documents.items()}
            numbers = np.array([row.number for row in rows], dtype=np.int64)
            self._matrix = PassageMatrix([row.document for row in rows], numbers, vectors, metadata, self.uri)
        return self._matrix.nearest(vector, count, where)

    def lexical(self, query: str, count: int, where: list[Condition]) -> list[ScoredPassage]:
        rows = [row for row in self._passages.values() if row.number != WHOLE]
        terms = words_of([query])[0]
        if not rows:
            return []
        if self._bm25 is None:
            words = words_of([row.text for row in rows])
            if not any(words):
                return []
            self._bm25 = bm25().BM25()
            self._bm25.index(words, show_progress=False)
        scores = np.asarray(self._bm25.get_scores(terms)) if terms else np.zeros(len(rows), dtype=np.float32)
        if where:
            allowed = {name for name, row in self._documents.items() if matches(where, row.metadata)}
            scores = np.where([row.document in allowed for row in rows], scores, 0)
        found = best(scores, count, lambda i: (rows[i].document, rows[i].number))
        return [one for one in found if one.score > 0]

    # ---- writing -----------------------------------------------------------------------------------------------------

    @plainly
    def commit(self, documents: Sequence[DocumentRow], passages: Sequence[PassageRow], delete: Sequence[str]) -> Commit:
        self._begin()
        gone = {*(row.id for row in documents), *delete}
        kept = {name: row for name, row in self._documents.items() if name not in gone} | {row.id: row for row in documents}
        rows = {key: row for key, row in self._passages.items() if key[0] not in gone}
        return self._write(kept, rows | {(row.document, row.number): row for row in passages})

    @plainly
    def rollback(self, number: int) -> Commit:
        self._begin()
        if number not in (have := [commit.number for commit in self.commits()]):
            raise InputError(f"commit {number} cannot be restored; available are {have}")
        return self._write(*_read_rows(self._folder / f"{number:06d}"))

    def optimize(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock.acquire()
        self.refresh()

    def _write(self, documents: dict[str, DocumentRow], passages: dict[tuple[str, int], PassageRow]) -> Commit:
        _write_commit(self._folder, self._number + 1, documents, passages, self.settings)
        self._load(self._number + 1)
        for folder in _commit_folders(self._folder)[:-_KEPT_COMMITS]:
            shutil.rmtree(folder)
        return _read_commit(self._folder / f"{self._number:06d}")

    def _read_head(self) -> int:
        with _whole(self._folder):
            return int((self._folder / "HEAD").read_text(encoding="utf-8"))

    def _load(self, number: int) -> None:
        self._number = number
        with _whole(self._folder):
            _read_commit(self._folder / f"{number:06d}")
            self._documents, self._passages = _read_rows(self._folder / f"{number:06d}")
        self._matrix, self._bm25 = None, None


@contextmanager
def _whole(folder: Path) -> Iterator[None]:
    """Convert errors of reading a store's files to a StoreError about damage."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise StoreError(
            f"{folder} is damaged: {' '.join(str(error).split())}; restore it from a copy, or index the documents again"
        ) from error


def _commit_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name.isdigit())


def _read_commit(folder: Path) -> Commit:
    return Commit(**json.loads((folder / "commit.json").read_text(encoding="utf-8")))


def _read_rows(folder: Path) -> tuple[dict[str, DocumentRow], dict[tuple[str, int], PassageRow]]:
    from safetensors.numpy import load_file

    kept = {name: load_file(folder / f"{name}.safetensors") for name in _BLOBS}
    documents = {}
    for line in (folder / "documents.jsonl").read_text(encoding="utf-8").splitlines():
        value = json.loads(line)
        value |= {name: values[value["id"]].tobytes() for name, values in kept.items() if value["id"] in values}
        documents[value["id"]] = DocumentRow(**value)
    vectors = np.load(folder / "vectors.npy")
    lines = (folder / "passages.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [PassageRow(**json.loads(line), vector=vector) for line, vector in zip(lines, vectors, strict=True)]
    return documents, {(row.document, row.number): row for row in rows}


def _write_commit(
    folder: Path,
    number: int,
    documents: dict[str, DocumentRow],
    passages: dict[tuple[str, int], PassageRow],
    settings: IndexSettings,
) -> None:
    from safetensors.numpy import save_file

    new = folder / f"{number:06d}"
    shutil.rmtree(new, ignore_errors=True)  # from a writer that did not reach HEAD
    new.mkdir()
    count = sum(key[1] != WHOLE for key in passages)
    commit = {"number": number, "documents": len(documents), "passages": count, "time": time.time()}
    (new / "commit.json").write_text(json.dumps(commit) + "\n", encoding="utf-8")
    _write_lines(new / "documents.jsonl", documents.values(), _BLOBS)
    _write_lines(new / "passages.jsonl", passages.values(), ("vector",))
    vectors = [row.vector for row in passages.values()]
    np.save(new / "vectors.npy", np.stack(vectors) if vectors else np.zeros((0, settings.dimension), np.float32))
    for name in _BLOBS:
        blobs = {row.id: getattr(row, name) for row in documents.values()}
        arrays = {key: np.frombuffer(blob, np.uint8) for key, blob in blobs.items() if blob is not None}
        save_file(arrays, new / f"{name}.safetensors")
    for path in (*new.iterdir(), new, folder):
        sync(path)
    sweep(folder)
    write(folder / "HEAD", str(number))


def _write_lines(path: Path, rows: Any, without: Sequence[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            value = {name: getattr(row, name) for name in row.__slots__ if name not in without}
            file.write(json.dumps(value, ensure_ascii=True) + "\n")
