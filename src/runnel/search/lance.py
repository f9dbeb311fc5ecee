"""The default store: three LanceDB tables in a folder or on object storage.

documents  one row per document, including its text
passages   one row per passage, and one per whole document
commits    one row per commit: the matching versions of the other two tables

A change first writes a new version of both tables and then adds a commit row that names them.
Searches read the versions of the last commit row, so changes are atomic; the next writer removes
the remains of a crash. For writers on object storage see docs/search.md.
"""

import json
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from runnel.batching import top
from runnel.errors import StoreError, needing
from runnel.files import WriterLock
from runnel.search.damage import damaged, odd_lengths
from runnel.search.filters import Condition, literal, to_sql
from runnel.search.records import (
    WHOLE,
    Commit,
    ContentHashes,
    DocumentRow,
    IndexSettings,
    PassageRow,
    ScoredPassage,
    best_first,
)
from runnel.search.storage_errors import explained, no_index_error, plain_errors, plainly
from runnel.text.words import with_parts

os.environ.setdefault("LANCEDB_LOG", "error")  # otherwise it warns on every query
# Arrow's other allocators grow with each of LanceDB's threads
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
with needing("an index needs lancedb", "search"):
    import lancedb
    import pyarrow as pa
    from lancedb.index import FTS, IvfRq
    from lancedb.query import LanceQueryBuilder, LanceVectorQueryBuilder, MatchQuery
    from lancedb.table import Table

    from runnel.search.lance_tables import (
        DOCUMENT_COLUMNS,
        FIELD_PREFIX,
        PASSAGE_COLUMNS,
        commit_table,
        document_table,
        passage_rows,
        passage_table,
        schemas,
    )

# Give up on an unreachable server after half a minute instead of two. A shorter "timeout" of
# requests would also end large uploads on slow connections.
_PATIENCE = {"client_retry_timeout": "5"}
# more passages are searched by the table's IVF_RQ index, with exact re-scoring
EXACT_ROWS = 200_000
_SCANNED = 20_000  # passages per list of `scan`
_KEPT_COMMITS = 20  # commits whose files stay for processes that search them
_SESSION_COMMITS = 20  # commits that are read through one connection
_CONTENT = ("documents", "passages")
# the most by which writers' clocks may differ without one removing versions that another needs
_SKEW = timedelta(days=1)
_NOT_WHOLE = f"number != {WHOLE}"


class _Passages(NamedTuple):
    """All passages in memory: the ids of documents, and of each passage its document's position in
    them, its number and its vector.
    """

    ids: list[str]
    owners: NDArray[np.int64]  # (n,)
    numbers: NDArray[np.int32]  # (n,)
    vectors: NDArray[np.float32]  # (n, d)


class _Shown(NamedTuple):
    """What searches read: the tables at the versions of a commit, and one item with all passages
    once they are needed.
    """

    tables: dict[str, Table]
    passages: list[_Passages]


class LanceStore:
    """A crash-safe place for documents and passages, in LanceDB. Use `create` or `open`.

    `_head` is the row of the last commit seen; `_shown` are the tables at its versions, for
    searches, and `_drafts` are the same tables for writing. `DocumentRow` explains a document's
    `memory` and `saved`, which are large and read only where they are asked for.

    Several threads may use one store: they change it one after another, and each read in the
    meantime is of one commit.
    """

    explained = staticmethod(explained)

    def __init__(self, uri: str, database: lancedb.DBConnection, settings: IndexSettings) -> None:
        self.settings = settings
        self.uri = uri
        self._lock = _lock_of(uri)
        self._changing = threading.RLock()  # guards all but `_shown`, which is replaced whole
        self._use(database)
        self._head = self._read_commits()[-1]
        self._show()

    @classmethod
    def create(cls, uri: str, settings: IndexSettings) -> Self:
        with plain_errors(uri):
            database = connect(uri, create=True)
            taken = f"{uri} already holds an index; open it, or choose another place"
            if "commits" in _complete_tables(database):
                raise StoreError(taken)

            def explain(uri: str, error: Exception) -> str:
                """Say so if another process has made the index meanwhile."""
                return taken if "commits" in _complete_tables(database) else ""

            # In a folder one process at a time makes the index. On object storage only the last
            # step, which makes the table of commits, fails for all but one.
            lock = _lock_of(uri)
            creating = nullcontext() if lock is None else lock.held(wait=True)
            with creating, plain_errors(uri, explain):
                tables = _complete_tables(database)
                missing = {} if "commits" in tables else schemas(settings)
                for name, schema in missing.items():
                    if name in tables and tables[name].count_rows():
                        raise _lost_error(uri, "list of commits")
                    # An existing table is from an interrupted or a running creation, which needs
                    # its versions.
                    mode = "overwrite" if name in tables else "create"
                    database.create_table(name, schema=schema, mode=mode)
                content = {name: database.open_table(name) for name in _CONTENT}
                rows = [_commit_row(0, content, "create")]
                database.create_table("commits", commit_table(rows, settings))
            return cls(uri, database, settings)

    @classmethod
    def open(cls, uri: str) -> Self:
        with plain_errors(uri):
            database = connect(uri, create=False)
            tables = _complete_tables(database)
            metadata = (tables["commits"].schema.metadata if "commits" in tables else None) or {}
            if b"runnel" not in metadata:
                raise no_index_error(uri)
            settings = IndexSettings.stored(json.loads(metadata[b"runnel"]), uri)
            if lost := [name for name in _CONTENT if name not in tables]:
                raise _lost_error(uri, " and ".join(lost))
            return cls(uri, database, settings)

    @staticmethod
    def holds_index(uri: str) -> bool:
        """Return whether a URI has an index."""
        with plain_errors(uri):
            return "commits" in _complete_tables(connect(uri, create=False))

    def close(self) -> None:
        """Release the lock for other writers, once no thread writes any more."""
        if self._lock is not None:
            with self._changing:
                self._lock.release()

    @plainly
    def refresh(self) -> bool:
        """Move to the newest commit; return whether there was a newer one."""
        with self._changing:
            commits = self._read_commits()
            if self._head not in commits:
                raise StoreError(
                    f"{self.uri} no longer has the commit that was read from it: it was replaced"
                    " by another index, or is damaged; open it again"
                )
            if commits[-1] == self._head:
                return False
            self._head = commits[-1]
            self._show()
            return True

    def last_commit(self) -> Commit:
        """Return the commit that searches see."""
        head = self._head
        return Commit(head["number"], head["documents"], head["passages"], head["time"])

    @plainly
    def content_hashes(self) -> dict[str, ContentHashes]:
        """Return content hashes by document id."""
        rows = _rows(self._shown.tables["documents"], ["id", *ContentHashes._fields])
        return {row.pop("id"): ContentHashes(**row) for row in rows}

    @plainly
    def documents(
        self, ids: Sequence[str] | None, *, saved: bool = False
    ) -> dict[str, DocumentRow]:
        """Return known documents by id (None: all), without their `memory`. `saved`: also read the
        point where reading continues.
        """
        if ids is not None and not ids:
            return {}
        columns = [
            name for name in DOCUMENT_COLUMNS if name != "memory" and (saved or name != "saved")
        ]
        rows = _rows(
            self._shown.tables["documents"], columns, "" if ids is None else _is_in("id", ids)
        )
        return {
            row["id"]: DocumentRow(**row | {"metadata": json.loads(row["metadata"])})
            for row in rows
        }

    @plainly
    def memories(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return the `memory` of documents by id, if they have one."""
        if not ids or not self.settings.remember:
            return {}
        rows = _rows(self._shown.tables["documents"], ["id", "memory"], _is_in("id", ids))
        return {row["id"]: row["memory"] for row in rows if row["memory"] is not None}

    def scan(self) -> Iterator[list[PassageRow]]:
        """Yield all passages with their vectors, in lists that fit in memory."""
        with plain_errors(self.uri):
            passages = self._shown.tables["passages"].search().select(PASSAGE_COLUMNS)
            for batch in passages.to_batches(_SCANNED):
                yield passage_rows(pa.Table.from_batches([batch]))

    @plainly
    def nearest(
        self, vector: NDArray[np.float32], count: int, where: list[Condition]
    ) -> list[ScoredPassage]:
        """Return the passages (including whole documents) with the highest cosine, best first."""
        table = self._shown.tables["passages"]
        if table.count_rows() <= EXACT_ROWS:
            return self._nearest_in_memory(vector, count, where)
        search = cast(LanceVectorQueryBuilder, table.search(vector))
        search = search.distance_type("cosine").nprobes(64).refine_factor(10)
        return [
            ScoredPassage(row["document"], row["number"], 1 - row["_distance"])
            for row in _first_rows(search, "_distance", count, where)
        ]

    @plainly
    def lexical(self, query: str, count: int, where: list[Condition]) -> list[ScoredPassage]:
        """Return the passages with the highest BM25 score, best first."""
        if self._head["passages"] == 0 or not query.strip():
            return []
        table = self._shown.tables["passages"]
        words: Any = MatchQuery(with_parts(query), "words")  # type: ignore[call-arg]
        # rows of whole documents have no text
        search = table.search(words, query_type="fts")
        return best_first(
            ScoredPassage(row["document"], row["number"], row["_score"])
            for row in _first_rows(search, "_score", count, where)
        )

    def _nearest_in_memory(
        self, vector: NDArray[np.float32], count: int, where: list[Condition]
    ) -> list[ScoredPassage]:
        """Return the passages with the highest inner product, best first, ties in stored order: one
        product with all of them.
        """
        tables, passages = self._shown
        if not passages:
            passages.append(self._read_passages(tables))
        ids, owners, numbers, vectors = passages[0]
        rows = np.arange(len(owners))
        if where:
            selected = _rows(tables["documents"], ["id"], to_sql(where, FIELD_PREFIX, "id"))
            names = {row["id"] for row in selected}
            rows = np.flatnonzero(np.array([name in names for name in ids], dtype=bool)[owners])
            vectors = vectors[rows]
        scores = vectors @ vector
        best = top(scores, count)
        return [
            ScoredPassage(ids[owner], int(number), float(score))
            for owner, number, score in zip(
                owners[rows[best]], numbers[rows[best]], scores[best], strict=True
            )
        ]

    def _read_passages(self, tables: Mapping[str, Table]) -> _Passages:
        """Read what is kept of all passages to search them in memory."""
        columns = ["document", "number", "vector"]
        table = tables["passages"].search().select(columns).to_arrow()
        vectors = table["vector"].combine_chunks().flatten().to_numpy()
        vectors = vectors.reshape(-1, self.settings.dimension)
        names = table["document"].to_pylist()
        ids = [row["id"] for row in _rows(tables["documents"], ["id"])]
        order = {name: i for i, name in enumerate(ids)}
        for i, length in odd_lengths(vectors):
            raise damaged(
                self.uri,
                f"a vector of document {names[i]!r} has the length {length:.3g} instead of 1",
            )
        if lost := [name for name in names if name not in order]:
            raise damaged(self.uri, f"document {lost[0]!r} has passages, but no text")
        owners = np.array([order[name] for name in names], dtype=np.int64)
        return _Passages(ids, owners, table["number"].to_numpy(), vectors)

    @plainly
    def commit(
        self,
        documents: Sequence[DocumentRow],
        passages: Sequence[PassageRow],
        delete: Sequence[str],
    ) -> Commit:
        """Add documents, replacing documents of the same id, and delete others."""
        with self._changing:
            self._begin()
            replaced = [*(row.id for row in documents), *delete]
            metadata = {row.id: row.metadata for row in documents}
            new_rows = {
                "documents": document_table(documents, self.settings),
                "passages": passage_table(passages, metadata, self.settings),
            }
            # Merging reads all ids of the table each time, so new rows are appended.
            stored = delete or self._drafts["documents"].count_rows(_is_in("id", replaced))
            for name, key in (("documents", ["id"]), ("passages", ["document", "number"])):
                if not stored:
                    self._drafts[name].add(new_rows[name])
                    continue
                merge = self._drafts[name].merge_insert(key).when_matched_update_all()
                merge = merge.when_not_matched_insert_all()
                # old passages of replaced documents without a new row of their number, and deleted
                # ones
                merge = merge.when_not_matched_by_source_delete(_is_in(key[0], replaced))
                merge.execute(new_rows[name])
            # The first passage builds BM25's index; later passages are searched row by row until
            # `optimize`.
            table = self._drafts["passages"]
            if not _has_index(table, "words") and table.count_rows(_NOT_WHOLE):
                table.create_index("words", config=FTS())
            return self._finish("commit")

    @plainly
    def optimize(self) -> None:
        """Merge small pieces and update the search structures, without visible changes."""
        with self._changing:
            self._begin()
            table = self._drafts["passages"]
            if table.count_rows() > EXACT_ROWS and not _has_index(table, "vector"):
                table.create_index("vector", config=IvfRq(distance_type="cosine"))
            # Remove the versions of tables that are older than the last commits.
            commits = self._read_commits()[-_KEPT_COMMITS:]
            for name in _CONTENT:
                table = self._drafts[name]
                needed = {row[name + "_version"] for row in commits}
                table.optimize()  # first, because the age of removed versions counts from its end
                # the times have no time zone
                versions = table.list_versions()
                times = [
                    version["timestamp"] for version in versions if version["version"] in needed
                ]
                age = time.time() - min(times).timestamp()
                if age >= 0:  # otherwise the clock was set back; a later call removes old versions
                    slack = timedelta(seconds=1) if self._lock else _SKEW
                    table.optimize(cleanup_older_than=timedelta(seconds=age) + slack)
            self._finish("optimize")

    def _begin(self) -> None:
        """Lock out other writers, and undo the changes of an unfinished one.

        Without a lock the tables are restored even if they match the last commit: LanceDB refuses
        writes that began before a restore, so another writer's change fails, or its commit row
        comes first and ours is refused.
        """
        if self._lock is not None:
            self._lock.acquire()
        self.refresh()
        for name in _CONTENT:
            table = self._drafts[name] = self._drafts.get(name) or self._database.open_table(name)
            table.checkout_latest()
            if self._lock is None or table.version != self._head[name + "_version"]:
                table.checkout(self._head[name + "_version"])
                table.restore()

    def _finish(self, reason: str) -> Commit:
        """Make the current versions of the tables the newest commit."""
        row = _commit_row(self._head["number"] + 1, self._drafts, f"{reason} {uuid.uuid4()}")
        commits = self._commits
        commits.checkout_latest()
        if row["number"] % _KEPT_COMMITS == 0:
            # it grows by a small file per commit, and is read whole
            commits.optimize(cleanup_older_than=_SKEW)
        # Two inserts of one new number would both succeed. So the previous row is also rewritten
        # unchanged: then the two conflict, and the second is retried on the result of the first,
        # where the number is taken.
        insert = commits.merge_insert("number").when_matched_update_all(
            where=f"target.number = {self._head['number']}"
        )
        insert = insert.when_not_matched_insert_all()
        insert.execute(commit_table([self._head, row], self.settings))
        newest = self._read_commits()
        self._head = next(commit for commit in newest if commit["number"] == row["number"])
        self._show()
        if self._head["writer"] != row["writer"]:
            raise StoreError(
                f"another writer has changed {self.uri} in the meantime; nothing was written,"
                " repeat the call"
            )
        return self.last_commit()

    def _read_commits(self) -> list[dict[str, Any]]:
        self._commits.checkout_latest()
        return sorted(self._commits.to_arrow().to_pylist(), key=lambda row: row["number"])

    def _use(self, database: lancedb.DBConnection) -> None:
        """Take a connection, and open the tables for writing."""
        self._database = database
        self._commits_shown = 0
        self._commits = database.open_table("commits")
        # the same tables for writing, so that a failed change is not visible
        self._drafts: dict[str, Table] = {}

    def _show(self) -> None:
        """Open the tables at the versions of the last commit seen, which searches read."""
        # a connection keeps the metadata of all versions that it has read, up to 1 GB
        if self._commits_shown == _SESSION_COMMITS:
            self._use(connect(self.uri, create=False))
        tables = {
            name: self._database.open_table(name, version=self._head[name + "_version"])
            for name in _CONTENT
        }
        self._shown = _Shown(tables, [])
        self._commits_shown += 1


def connect(uri: str, *, create: bool) -> lancedb.DBConnection:
    """Open a LanceDB connection; without `create` the folder must exist."""
    if "://" in uri:
        return lancedb.connect(uri, storage_options=_PATIENCE)
    if create:
        Path(uri).mkdir(mode=0o700, parents=True, exist_ok=True)  # it will hold texts
        # A folder that exists may let others in, and the modes of LanceDB's files follow the umask.
        for name in (*_CONTENT, "commits"):
            (Path(uri) / f"{name}.lance").mkdir(mode=0o700, exist_ok=True)
    elif not Path(uri).is_dir():
        raise no_index_error(uri)
    return lancedb.connect(uri)


def _lock_of(uri: str) -> WriterLock | None:
    """Return the lock of an index's writers; object storage has none."""
    return None if "://" in uri else WriterLock(Path(uri) / "writer.lock", Path(uri))


def _lost_error(uri: str, what: str) -> StoreError:
    return StoreError(
        f"{uri} has lost its {what}; restore it from a copy, or remove {uri} and index the"
        " documents again"
    )


def _rows(table: Table, columns: list[str], where: str = "") -> list[dict[str, Any]]:
    search = table.search().select(columns)
    return (search.where(where) if where else search).to_arrow().to_pylist()


def _has_index(table: Table, column: str) -> bool:
    return any(index.columns == [column] for index in table.list_indices())


def _first_rows(
    search: LanceQueryBuilder, score: str, count: int, where: list[Condition]
) -> list[dict[str, Any]]:
    """Run a search of passages: return the names of the best and the column `score`."""
    if where:
        search = search.where(to_sql(where, FIELD_PREFIX, "document"), prefilter=True)
    return search.select(["document", "number", score]).limit(count).to_arrow().to_pylist()


def _complete_tables(database: lancedb.DBConnection) -> dict[str, Table]:
    """Return tables by name, without tables whose creation was interrupted, which are also
    listed.
    """
    tables = {}
    for name in database.list_tables().tables:
        try:
            tables[name] = database.open_table(name)
        except ValueError as error:
            if "was not found" not in str(error):
                raise
    return tables


def _commit_row(number: int, tables: Mapping[str, Table], writer: str) -> dict[str, Any]:
    """Return the row of "commits" that makes the current versions of the tables visible."""
    documents = tables["documents"]
    passages = tables["passages"]
    return {
        "number": number,
        "documents": documents.count_rows(),
        "passages": passages.count_rows(_NOT_WHOLE),
        "documents_version": documents.version,
        "passages_version": passages.version,
        "time": time.time(),
        "writer": writer,
    }


def _is_in(column: str, values: Sequence[str]) -> str:
    return f"{column} IN ({', '.join(map(literal, dict.fromkeys(values)))})" if values else "false"
