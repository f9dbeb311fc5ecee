"""The documents that an agent may read: files below the allowed folders, and documents of one
index.
"""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

from runnel.batching import Recent
from runnel.errors import InputError, MissingDependency, StoreError, describe
from runnel.files import near_names, signature
from runnel.models.embedder import Embedder
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.request import Progress
from runnel.search.files import left_out
from runnel.search.finding import FileDocument
from runnel.search.index import Index
from runnel.search.project import Project
from runnel.search.records import DocumentRow
from runnel.search.stores import Store, open_store
from runnel.text.documents.document import DocumentText
from runnel.text.documents.ranges import short_name
from runnel.text.documents.reader import DocumentReader
from runnel.text.folders import Root, find_files, fixed_part

_NAMED = 5  # the most files to name that an update could not read


class Models:
    """The sentence retriever (default: of the settings' model) and the index. Safe to use from
    several threads.
    """

    def __init__(
        self, settings: AgentSettings, load: Callable[[], SentenceRetriever] | None = None
    ) -> None:
        self._settings = settings
        self._load = load or partial(SentenceRetriever.load, settings.model)
        self._loading = threading.Lock()
        self._searching = threading.Lock()
        self._retriever: SentenceRetriever | None = None
        self._store: Store | None = None
        self._index: Index | None = None

    @property
    def loaded(self) -> bool:
        return self._retriever is not None

    def retriever(self) -> SentenceRetriever:
        with self._loading:
            if self._retriever is None:
                self._retriever = self._load()
            return self._retriever

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Yield the content of the index at its last commit, without loading a model, to one thread
        at a time.
        """
        with self._searching:
            yield self._newest()

    @contextmanager
    def index(self, notes: list[str], progress: Progress) -> Iterator[Index]:
        """Yield the index at its last commit, to one thread at a time; a project's index is first
        brought up to date.

        `notes` receives why it could not be, and the files that could not be read.
        """
        with self._searching:
            store = self._newest()
            if self._index is None:
                same = store.settings.model == self._settings.model
                embedder = (
                    Embedder(self.retriever().model)
                    if same
                    else Embedder.load(store.settings.model)
                )
                self._index = Index(store, embedder)
            if (project := self._settings.project) is not None:
                try:
                    with self._index as index:  # other processes may write afterwards
                        failed = project.update(index, keep_missing=True, progress=progress).failed
                    notes += [
                        left_out(name, reason) for name, reason in islice(failed.items(), _NAMED)
                    ]
                    if len(failed) > _NAMED:
                        notes.append(f"{len(failed) - _NAMED:,} more files were left out")
                except (StoreError, OSError) as error:
                    # another process writes, or the disk is full
                    notes.append(f"{describe(error)}; this is the index as it was before")
            yield self._index

    def _newest(self) -> Store:
        place = self._settings.index
        if place is None:
            raise InputError(
                "this server has no index; use find on a file, or run `runnel index` and start the"
                " server again"
            )
        if self._store is None:
            self._store = open_store(place)
        self._store.refresh()
        return self._store


INDEXED = "index:"  # a name of this form is a document of the index, as it was when it was indexed
_KEPT_BYTES = 128 << 20  # the bytes of documents that are kept for later calls

Remember = Callable[[DocumentText], SentenceVectors | None]


@dataclass(frozen=True)
class AgentSettings:
    """What agents may read, and how much of it they get at once."""

    # only files below these folders are read; paths of agents are relative to the first one
    roots: tuple[Path, ...]
    index: str | None = None  # folder or URI of the index to search
    model: str = "pocket"  # the model that finds sentences in files
    max_characters: int = 20_000  # the most characters of one answer, as it is sent
    # whose index it is, brought up to date before each search; None: it is never updated
    project: Project | None = None


class AgentDocuments:
    """Documents by name. Safe to use from several threads; `store` opens the content of the index
    when a name needs it.
    """

    def __init__(
        self, settings: AgentSettings, store: Callable[[], AbstractContextManager[Store]]
    ) -> None:
        self._store = store
        self._roots = tuple(root.resolve() for root in settings.roots)
        self._reader = DocumentReader()
        self._reading = threading.Lock()
        self._kept = Recent[FileDocument](lambda document: document.bytes, _KEPT_BYTES)
        # ids of documents of the index, and paths of files, by names that are shown otherwise
        self._shortened = Recent[str](len, _KEPT_BYTES)

    def read(
        self,
        name: str,
        notes: list[str],
        remember: Remember = lambda document: None,
        *,
        several: bool = False,
    ) -> Iterable[FileDocument]:
        """Return the document of a name in a list, or its rows of jsonl, csv and tsv as a stream;
        add warnings to `notes`.

        A document that is not rows is kept, with its sentence vectors if `remember` returns them.
        With `several`, a folder or a glob stands for its files, and one that cannot be read is a
        note.
        """
        if several and not name.startswith(INDEXED) and self.group(name) is not None:
            return self._read_files(name, notes, remember)
        documents = self._read(name, notes, remember)
        first = list(islice(documents, 1))
        has_rows = first and first[0].document.id is not None
        return chain(first, documents) if has_rows else [*first, *documents]

    def _read_files(
        self, name: str, notes: list[str], remember: Remember
    ) -> Iterator[FileDocument]:
        for file in self.files(name, notes):
            try:
                yield from self._read(file, notes, remember)
            except (InputError, MissingDependency, OSError) as error:
                notes.append(left_out(file, describe(error)))

    def files(self, name: str, notes: list[str]) -> list[str]:
        """Return the names of the files of a folder or of a glob, without files that git would
        ignore and what `read` would refuse; or of the file of this name.

        Raises:
            InputError: there are none.
        """
        root = self.root(name)
        if not root.path.is_dir():
            os.close(self._open(name)[1])  # an error, if there is no such file
        found = list(find_files([root], on_error=lambda error: notes.append(describe(error))))
        names = [self.name(file) for file in found if file.is_file() and self.shows(str(file))]
        if len(names) < len(found):
            notes.append(f"{len(found) - len(names):,} links out of the allowed folders, or pipes")
        if not names:
            raise self._refusal(name, "; ".join(["no file matches it", *notes]))
        return names

    def group(self, name: str) -> Root | None:
        """Return the folder or the glob that a name means, of files or, after "index:", of the
        index; None: it means one document.
        """
        if name.startswith(INDEXED) and self._row(name) is not None:
            return None
        with suppress(InputError):
            root = self.root(name.removeprefix(INDEXED) or ".")
            return root if root.pattern or root.path.is_dir() else None
        return None

    def root(self, name: str) -> Root:
        """Return the file, the folder or the glob of a name.

        Raises:
            InputError: it is outside of the allowed folders.
        """
        path = self._inside(name)
        start, pattern = fixed_part(name)
        if not pattern or os.path.lexists(path):
            return Root(path)
        return Root(self._inside(start or "."), pattern)

    def _read(self, name: str, notes: list[str], remember: Remember) -> Iterator[FileDocument]:
        if name.startswith(INDEXED):
            indexed = self._indexed(name)
            yield self._keep((name, indexed.document.sha256), indexed, remember)
            return
        path, file = self._open(name)
        try:
            key = str(path), *signature(file)
            kept = self._kept.get(key)
            for document in self._parse(path, file) if kept is None else [kept.document]:
                notes += [warning for warning in document.warnings if warning not in notes]
                source = FileDocument(self.name(path), document)
                yield self._keep(key, source, remember) if document.id is None else source
        finally:
            os.close(file)

    def _parse(self, path: Path, file: int) -> Iterator[DocumentText]:
        """Yield the documents of a file; only whole ones are parsed by the reader's process, for
        one thread at a time.
        """
        documents = self._reader.read(file, name=str(path))
        with self._reading:
            first = list(islice(documents, 1))
            if first and first[0].id is None:
                # to the end, where the reader checks that the file has not changed
                first += documents
        yield from first
        yield from documents

    def indexed_name(self, id: str) -> str:
        """Return the name of a document of the index, which `read` takes: relative to the first
        folder, and a short one for a long id.
        """
        path = Path(id)
        shown = str(path.relative_to(self._roots[0])) if path.is_relative_to(self._roots[0]) else id
        return self._short(INDEXED + shown, id)

    def shows(self, source: str) -> bool:
        """Return whether a document of the index may be shown: one of a file below the allowed
        folders, or of no file.
        """
        with suppress(OSError, RuntimeError, ValueError):
            return not source or self._root_of(Path(source).resolve()) is not None
        return False

    def _root_of(self, path: Path) -> Path | None:
        return next((root for root in self._roots if path.is_relative_to(root)), None)

    def _inside(self, name: str) -> Path:
        """Return the path of a name, without links; raise InputError if it is outside."""
        try:
            # follows links, so a link cannot lead out of the folders
            path = (self._roots[0] / (self._shortened.get(name) or name)).resolve()
            if self._root_of(path) is not None:
                return path
            why = "it is outside of the allowed folders"
        except (OSError, RuntimeError, ValueError) as error:
            # too long, a circle of links, a null character
            why = describe(error)
        raise self._refusal(name, why)

    def _open(self, name: str) -> tuple[Path, int]:
        """Open the file of a name; return its path and its descriptor."""
        path = self._inside(name)
        root = self._root_of(path)
        assert root is not None
        try:
            file = _open_below(root, path)
            mode = os.fstat(file).st_mode
            if stat.S_ISREG(mode):
                return path, file
            os.close(file)
            why = "it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file"
        except (OSError, ValueError) as error:
            why = describe(error)
            if isinstance(error, FileNotFoundError):
                why += near_names(path, self.name)
        raise self._refusal(name, why)

    def _refusal(self, name: str, why: str) -> InputError:
        folders = ", ".join(map(str, self._roots))
        return InputError(
            f"{short_name(name)!r} cannot be opened: {why}; name a file below {folders}"
        )

    def name(self, path: Path) -> str:
        """Return the name of a file: relative to the first folder if it is below it, and a short
        one for a long path.
        """
        first = self._roots[0]
        shown = path.relative_to(first) if path.is_relative_to(first) else path
        name = os.fsencode(shown.as_posix()).decode("utf-8", errors="replace")
        if name != shown.as_posix():  # bytes that are not UTF-8
            self._shortened.put(name, str(path))
        return self._short(name, str(path))

    def _short(self, name: str, place: str) -> str:
        """Return the short form of a name if it is long. This form, and the one in which text shows
        it, then lead to the place.
        """
        short = short_name(name)
        for form in {short, one_line(short)} - {name}:
            self._shortened.put(form, place)
        return short

    def _indexed(self, name: str) -> FileDocument:
        row = self._row(name)
        if row is None or not self.shows(row.source):
            shown = short_name(name.removeprefix(INDEXED))
            raise InputError(
                f"the index has no document {shown!r} of the allowed folders; use a name that"
                " search returned"
            )
        return FileDocument(self.indexed_name(row.id), replace(row.document(), id=None))

    def _row(self, name: str) -> DocumentRow | None:
        """Return the document of the index with a name: its id, which may be relative to the first
        folder or shortened.
        """
        given = name.removeprefix(INDEXED)
        ids = [self._shortened.get(name) or given, str(self._roots[0] / given)]
        with self._store() as store:
            rows = store.documents(ids)
        return next((rows[id] for id in ids if id in rows), None)

    def _keep(self, key: Hashable, read: FileDocument, remember: Remember) -> FileDocument:
        """Keep a document for later calls, and return it, or the same that is kept already."""
        source = self._kept.get(key) or read
        if source.vectors is None and source.document.text.strip():
            vectors = remember(source.document)
            source = source if vectors is None else replace(source, vectors=vectors)
        self._kept.put(key, source)
        return source


def one_line(text: str) -> str:
    """Return a text in one line, as JSON if it has line breaks or controls: names can have them."""
    return text if text.isprintable() else json.dumps(text)


def _open_below(root: Path, path: Path) -> int:
    """Open a path without links folder by folder, so that a link that has replaced one of its names
    meanwhile is an error.
    """
    if os.open not in os.supports_dir_fd:  # Windows, where links need a right of their own
        return os.open(path, os.O_RDONLY)
    opened = os.open(root, os.O_RDONLY | os.O_NOFOLLOW)
    for name in path.relative_to(root).parts:
        folder = opened
        try:
            # a pipe would block
            opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        finally:
            os.close(folder)
    return opened
