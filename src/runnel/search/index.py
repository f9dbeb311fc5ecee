"""Index documents of any length, read once, and search them by vectors and words.

`Index` joins a store (`stores.py`) and an embedder: `add` and `add_files` encode documents
(`encoding.py`) and commit them; `search` runs the stages of `pipeline.py`.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from runnel.checks import expect_series
from runnel.errors import InputError, StoreError
from runnel.models.embedder import Embedder
from runnel.models.scored import Scored
from runnel.records import Document, Hit
from runnel.request import Progress, TokenCount
from runnel.search.check import check_store
from runnel.search.damage import Damage
from runnel.search.encoding import DocumentEncoder, EncodedDocuments, batches, new_settings
from runnel.search.file_hashes import FileHashes
from runnel.search.files import Scan, by_file, check_paths, read_found
from runnel.search.filters import Filter
from runnel.search.pipeline import Pipeline, Stages
from runnel.search.records import DocumentRow, FieldType, OnCommit
from runnel.search.stores import Store, create_store, holds_index, open_store
from runnel.text.documents.document import Limits
from runnel.text.documents.ocr import Ocr
from runnel.text.folders import (
    EVERYTHING,
    Root,
    Selection,
    Through,
    find_files,
)


@dataclass(slots=True)
class Changes:
    """The changes of a call to the index, as document ids."""

    added: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)  # paths of files without text
    # id, path or "path, line N" -> why; the others were added
    failed: dict[str, str] = field(default_factory=dict)
    tokens: int = 0  # the tokens of all new and changed documents
    tokens_read: int = 0  # tokens that the model read: fewer if text was appended

    def count(self, new: EncodedDocuments, stored: Container[str]) -> None:
        """Count documents that were read; `stored`: the ids of documents before the call."""
        for row in new.documents:
            (self.updated if row.id in stored else self.added).append(row.id)
        self.failed |= new.failed
        self.tokens += new.tokens
        self.tokens_read += new.tokens_read

    def __bool__(self) -> bool:
        return bool(self.added or self.updated or self.deleted)


class Index:
    """A collection of documents on disk. Use `create` or `open`, and a context manager or `close`
    after writing.

    Every change is safe on disk when the call returns; large calls commit in parts and call
    `on_commit` for each. Only one process can write at a time; any number of processes can search.
    """

    def __init__(self, store: Store, embedder: Embedder) -> None:
        self.store = store
        self.encoder = DocumentEncoder(embedder, store.settings, "the index")
        self.embedder = self.encoder.embedder
        self._pipeline = Pipeline(store, self.embedder)

    @classmethod
    def create(
        cls,
        path: str | Path,
        embedder: Embedder | str | Path = "pocket",
        *,
        fields: Mapping[str, FieldType] | None = None,
        passage_tokens: int | None = None,
        remember: bool = False,
        language: str = "auto",
    ) -> Self:
        """Create an empty index.

        Args:
            path: a folder; s3://bucket/index or another object storage;
                qdrant+http://host:6333/collection.
            embedder: the model that reads the documents, or its name.
            fields: metadata to filter by, {name: "str" | "int" | "float" | "bool"}. Other metadata
                is also stored.
            passage_tokens: the most tokens of a passage of several sentences (default: 256). A
                model that reads passages has its own number, and accepts no other.
            remember: also store the reranker's memory of every document, so that reranking costs
                only the query's tokens (docs/search.md). A model that scores sentence vectors, such
                as pocket, always stores these.
            language: of all documents, for sentence boundaries (ISO 639-1); "auto": of each
                document what its first 2,000 letters tell.

        Raises:
            StoreError: the place already has an index.
            InputError: an unknown type of field, a model without vectors for passages, one that
                cannot remember documents, or one that reads passages of another length.
        """
        if not isinstance(embedder, Embedder):
            embedder = Embedder.load(embedder)
        settings = new_settings(embedder, fields, passage_tokens, remember, language)
        return cls(create_store(path, settings), embedder)

    @classmethod
    def open(cls, path: str | Path, embedder: Embedder | str | Path | None = None) -> Self:
        """Open an existing index.

        Args:
            embedder: the model that the index was created with (default: loaded by its stored
                name).

        Raises:
            StoreError: no index, or one of another format or model.
        """
        store = open_store(path)
        if not isinstance(embedder, Embedder):
            embedder = Embedder.load(store.settings.model if embedder is None else embedder)
        return cls(store, embedder)

    @classmethod
    def open_or_create(
        cls, path: str | Path, embedder: Embedder | str | Path | None = None, **settings: Any
    ) -> Self:
        """Open the index at a place, or create it there with the `settings` of `create`; "pocket"
        is the default model of a new one. If another process creates it meanwhile, that one is
        opened. Raises as `open` and `create`.
        """
        if not holds_index(path):
            try:
                return cls.create(path, embedder or "pocket", **settings)
            except StoreError:
                if not holds_index(path):
                    raise
        return cls.open(path, embedder)

    def close(self) -> None:
        """Release the lock for other writers."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of documents."""
        return self.store.last_commit().documents

    def add(
        self,
        documents: Iterable[Document],
        *,
        progress: Progress | None = None,
        on_commit: OnCommit | None = None,
    ) -> Changes:
        """Add documents. A document with an existing id replaces it, unless it is unchanged.

        A text appended to a long earlier version (16,384 tokens or more) costs only the new tokens.

        Args:
            documents: any iterable. A "title" in the metadata is shown with search results if the
                document has none of its own.
            progress: called after each step, and while a text is split, with the tokens done and
                the total. This is of the documents that were taken so far; None before the first
                step and for a recurrent model.
            on_commit: called when a part of the documents is safe on disk, in the thread that
                writes while the next part is read.

        Returns:
            The changes. A document that cannot be read or stored, whose metadata does not fit the
            index's fields, or whose id an earlier document of this call has, is in `failed` with
            the reason, and logged; the others are added.

        Raises:
            InputError: an item is not a Document, or `documents` is not an iterable.
            StoreError: another process is writing.
        """
        expect_series(documents, "documents", "a list of runnel.Document objects")
        return self._add(documents, progress, on_commit)

    def _add(
        self,
        documents: Iterable[Document | DocumentRow],
        progress: Progress | None,
        on_commit: OnCommit | None,
    ) -> Changes:
        changes = Changes()
        count = TokenCount(progress)
        stored = self.store.content_hashes()
        # The writer has one thread, which commits a batch while this one reads the next. `commit`
        # is the one that was begun last, at first one of nothing.
        with ThreadPoolExecutor(1) as writer:
            commit: Future[None] = writer.submit(lambda: None)
            rows = self.encoder.new_rows(documents, stored, changes.failed, changes.unchanged)
            for batch in batches(rows, self.encoder.batch_documents):
                replaced = [row.id for row in batch if row.id in stored]
                if replaced:
                    commit.result()  # waits for it, so that the earlier versions are read from it
                earlier = self.store.documents(replaced, saved=True)
                # the states of the model from which reading goes on in longer texts
                states = [earlier[row.id].saved if row.id in earlier else None for row in batch]
                new = self.encoder.encode(batch, states, count.part(totals=True))
                changes.count(new, stored)
                commit.result()
                commit = writer.submit(self._write, new, on_commit)
            commit.result()
        return changes

    def _write(self, new: EncodedDocuments, on_commit: OnCommit | None) -> None:
        if new.documents:
            commit = self.store.commit(new.documents, new.passages, [])
            if on_commit is not None:
                on_commit(commit)

    def add_files(
        self,
        paths: Iterable[str | Path | Root],
        *,
        selection: Selection = EVERYTHING,
        hashes: FileHashes | None = None,
        prune: bool = True,
        limits: Limits | None = None,
        ocr: Ocr | None = None,
        progress: Progress | None = None,
        through: Through = iter,
        on_commit: OnCommit | None = None,
    ) -> Changes:
        """Update the documents of files, folders and globs: read new and changed files, delete
        documents of removed files.

        See `search/files.py` for ids and docs/documents.md for file kinds. Files that cannot be
        read are in `failed`, and their stored content is kept; rows that cannot be stored, or whose
        id an earlier row has, are in `failed` as "path, line N".

        Args:
            selection: which files of folders to read (default: all that git does not ignore); the
                others count as removed.
            hashes: of earlier calls: files with the same size and times, and failed ones, are not
                read (default: compute all).
            prune: whether to delete documents of removed files below `paths`.
            limits, ocr: as for `DocumentReader`.
            through: yields the files of a list, for example to show which one is read (default:
                `iter`, which only yields them).

        Raises:
            InputError: a path does not exist.
            StoreError: another process is writing.
        """
        roots = [root.resolve() for root in check_paths(paths)]
        scan = Scan()
        stored = by_file(self.store.content_hashes())
        files = list(find_files(roots, selection, scan.fail_folder))
        named = {root.path for root in roots}
        rows = read_found(through(files), stored, scan, named, hashes, limits, ocr)
        changes = self._add(rows, progress, on_commit)
        scan.finish(roots, stored, set(map(str, files)))
        self.finish_files(changes, scan, prune=prune)
        # Files whose text the encoder refused are not read again while they stay as they are.
        if hashes is not None:
            hashes.failures |= {
                name: hashes.current[name] for name in changes.failed.keys() & hashes.current.keys()
            }
        return changes

    def finish_files(self, changes: Changes, scan: Scan, *, prune: bool) -> None:
        """Add what the reading of files has found to the changes; delete documents of removed files
        with `prune`.
        """
        changes.unchanged += scan.unchanged
        changes.empty = scan.empty
        changes.failed |= scan.failed
        if prune and scan.gone:
            changes.deleted = self.delete(scan.gone).deleted

    def delete(self, ids: Iterable[str]) -> Changes:
        """Delete documents; unknown ids are in `failed`. A single str is one id."""
        stored = self.store.content_hashes()
        names = list(dict.fromkeys([ids] if isinstance(ids, str) else ids))
        changes = Changes(
            deleted=[name for name in names if name in stored],
            failed={name: "there is no such document" for name in names if name not in stored},
        )
        if changes.deleted:
            self.store.commit([], [], changes.deleted)
        return changes

    def check(self) -> list[Damage]:
        """Read everything that the index stores; return all damage. See `search/check.py`."""
        return check_store(self.store)

    def optimize(self) -> None:
        """Merge small pieces and update search structures; useful after many changes."""
        self.store.optimize()

    def search(
        self,
        query: str,
        top_k: int = 10,
        *,
        where: Filter | None = None,
        among: Collection[str] | None = None,
        of_file: Callable[[str], bool] = lambda source: True,
        dense_weight: float | None = None,
        rerank: int | None = None,
        read: int | None = None,
        sentences: int = 3,
        language: str | None = None,
        timings: dict[str, float] | None = None,
        progress: Progress | None = None,
    ) -> list[Hit]:
        """Return the best documents for a query, each with the sentences that answer it.

        If every document has sentences with probabilities, documents are ordered by their best
        sentence, else by `Hit.score`.

        Args:
            where: a filter on the index's fields (`search/filters.py`), e.g. {"year": {">=":
                2020}}.
            among: ids of the documents to search (default: all); unknown ids are ignored, and a
                text is one id.
            of_file: whether the documents of a file (`Hit.source`) may be results, or be named as
                copies of a result; default: of every file.
            dense_weight: of dense ranks, relative to 1 for lexical ranks (default: 1 for a model
                that scores sentence vectors, such as pocket, and 0.2 for others; docs/search.md).
                0: words alone; math.inf: meaning alone.
            rerank: how many documents of the first stage to rerank (default: 50 if documents are
                remembered (`create`), else none, because other documents are read whole for it).
            read: of how many of the best documents to return sentences (default: all if their
                sentences are remembered, else 5, because each is read whole).
            sentences: how many sentences to return of each, best first, equal ones once; 0:
                none, and no document is read.
            language: of the documents whose sentences are read (default: the index's).
            timings: filled with the seconds of each stage.
            progress: called after each step of the model with (tokens done, None).

        Raises:
            InputError: the query is empty, top_k is below 1, another number is negative or not
                finite, the filter does not fit the index's fields, the model has no reranker, or a
                language is given to an index that remembers sentences.
            StoreError: the index is damaged.
        """
        stages = Stages(dense_weight, rerank, read, sentences, language)
        timings = {} if timings is None else timings
        count = TokenCount(progress)
        arguments = (query, top_k, where or {}, among, of_file, stages, timings, count)
        try:
            return self._pipeline.search(*arguments)
        except StoreError:
            # otherwise a writer may have removed the files of the open commit
            if not self.refresh():
                raise
            return self._pipeline.search(*arguments)

    def score(self, query: str, id: str, *, progress: Progress | None = None) -> Scored:
        """Score all sentences of a document; it is read again if the index does not remember its
        sentences.

        Args:
            progress: called after each step with (tokens done, total tokens).

        Raises:
            InputError: there is no such document, the query is empty, or the model has no sentence
                head.
        """
        documents = self.store.documents([id])
        if id not in documents:
            raise InputError(f"there is no document {id!r}; search for the ids of documents")
        return self._pipeline.score(query, documents[id], progress)

    def refresh(self) -> bool:
        """Move to the newest commit; return whether there was a newer one. Searches see the last
        one of that moment.
        """
        return self.store.refresh()
