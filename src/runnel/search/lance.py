"""The default store: three LanceDB tables in a folder or on object storage.

documents  one row per document, including its text
passages  one row per passage, and one per whole document
commits    one row per commit: the matching versions of the other two tables

A change first writes a new version of both tables and then adds a commit row that names them.
Searches read the versions of the last commit row, so changes are atomic; the next writer removes
the remains of a crash. docs/search.md: writers on object storage.
"""

from __future__ import annotations

import functools
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from runnel.batching import top
from runnel.errors import RunnelError, StoreError, needing
from runnel.files import WriterLock
from runnel.redaction import redact, showable
from runnel.search.filters import Condition, literal, to_sql
from runnel.search.records import (
    FIELD_TYPES,
    WHOLE,
    Commit,
    ContentHashes,
    DocumentRow,
    IndexSettings,
    PassageRow,
    ScoredPassage,
)
from runnel.text.words import letters, separated, unspaced_words

# ---- connections, and errors in plain words ------------------------------------------------------

# Give up on an unreachable server after half a minute instead of two. A shorter "timeout" of
# requests would also end large uploads on slow connections.
_PATIENCE = {"client_retry_timeout": "5"}
_P = ParamSpec("_P")
_T = TypeVar("_T")

_SOURCES = re.compile(r",? \(?\S+\.rs:\d+(:\d+)?\)?")  # places in LanceDB's source code


def connect(uri: str, *, create: bool) -> Any:
    """Open a LanceDB connection; without `create` the folder must exist."""
    os.environ.setdefault("LANCEDB_LOG", "error")  # otherwise it warns on every query
    # Arrow's other allocators grow with each of LanceDB's threads
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    with needing("an index needs lancedb", "search"):
        import lancedb
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


def no_index_error(uri: str) -> StoreError:
    """Return the error for a place that has no index to open."""
    return StoreError(
        f"there is no index at {uri}; make one, in a place of its own, with `runnel index` or"
        " Index.create"
    )


def explained(uri: str, error: Exception) -> str:
    """Return what an error of LanceDB means, and what to do; "" for an error of another kind."""
    if (
        not isinstance(error, OSError | RuntimeError | ValueError)
        and type(error).__name__ != "RustPanic"
    ):
        return ""
    text = redact(_SOURCES.sub("", " ".join(str(error).split())))  # before it is cut
    for pattern, message in _CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            return message.format(uri=uri) + f" [{text[:300]}]"
    return (
        f"cannot read or write the index at {uri}: {text[:600]}; committed documents are safe. "
        "Remove the cause (is the disk full?) and repeat the call"
    )


@contextmanager
def plain_errors(uri: str, explain: Callable[[str, Exception], str] = explained) -> Iterator[None]:
    """Convert errors of the storage to a StoreError that says what to do, as `explain` does."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RunnelError) or not (message := explain(uri, error)):
            raise
        raise StoreError(message) from showable(error)


def plainly(method: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Any, _P], _T]:
    """Decorate a store's method with `plain_errors`."""

    @functools.wraps(method)
    def call(self: Any, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        with plain_errors(self.uri, self.explained):
            return method(self, *arguments, **options)

    return call


_CAUSES = (
    (
        (
            "incompatible transaction|commit conflict|preempted by concurrent|too many concurrent"
            " writers"
        ),
        "another writer has changed {uri} in the meantime; nothing was written, repeat the call",
    ),
    (
        "nosuchbucket|containernotfound",
        "the bucket of {uri} does not exist; create it first, or check the name",
    ),
    (
        "credentials|tokenrequest|access ?denied|invalidaccesskey|signaturedoesnotmatch",
        (
            "no access to {uri}; check the credentials (for s3://: AWS_ACCESS_KEY_ID,"
            " AWS_SECRET_ACCESS_KEY, AWS_REGION)"
        ),
    ),
    ("40[13] (forbidden|unauthorized)|status: 40[13]", "no access to {uri}; check the credentials"),
    (
        (
            "error sending request|connection refused|connecterror|timed out|timeout|dns"
            " error|kind: connect"
        ),
        (
            "{uri} cannot be reached; committed documents are safe. Check the network and the"
            " address, and repeat the call"
        ),
    ),
    (
        (
            "not found:|no longer exists|invalid range|invalid magic|file size is too small|no"
            " field named|panicked"
        ),
        (
            "{uri} has lost files: they are damaged, or were removed after the index was opened."
            " Open it again; if that does not help, restore it from a copy or index the documents"
            " again"
        ),
    ),
    (
        "no object store provider",
        "{uri} is not a place for an index; give a folder or a URI of s3://, gs:// or az://",
    ),
)


# ---- the tables' content -------------------------------------------------------------------------

FIELD_PREFIX = "field_"  # prefix of the columns of filterable metadata
DOCUMENT_COLUMNS = list(DocumentRow.__slots__)
PASSAGE_COLUMNS = list(PassageRow.__slots__)
# memories shrink only by a seventh, and take three times as long to read
_AS_IT_IS = {"lance-encoding:compression": "none"}


def schemas(settings: IndexSettings) -> dict[str, Any]:
    """Return the Arrow schemas of "documents" and "passages"."""
    import pyarrow as pa

    kinds = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    assert set(kinds) == set(FIELD_TYPES)
    fields = [(FIELD_PREFIX + name, kinds[kind]) for name, kind in settings.fields.items()]
    names = ("id", "text", "title", "source", "source_hash", "content_hash", "metadata", "blocks")
    documents = [*((name, pa.string()) for name in names), ("tokens", pa.int64())]
    documents += [
        ("saved", pa.large_binary()),
        pa.field("memory", pa.large_binary(), metadata=_AS_IT_IS),
    ]
    passages = [
        ("document", pa.string()),
        ("number", pa.int32()),
        ("start", pa.int64()),
        ("end", pa.int64()),
    ]
    passages += [
        ("text", pa.string()),
        ("page", pa.int32()),
        ("heading", pa.string()),
        ("unspaced", pa.string()),
    ]
    passages += [("vector", pa.list_(pa.float32(), settings.dimension))]
    return {
        "documents": pa.schema([*documents, *fields]),
        "passages": pa.schema([*passages, *fields]),
    }


def document_table(rows: Sequence[DocumentRow], settings: IndexSettings) -> Any:
    """Return documents as an Arrow table."""
    import pyarrow as pa

    schema = schemas(settings)["documents"]
    columns: dict[str, list[Any]] = {
        name: [getattr(row, name) for row in rows] for name in DOCUMENT_COLUMNS
    }
    columns["metadata"] = [json.dumps(dict(row.metadata), ensure_ascii=False) for row in rows]
    columns |= {
        FIELD_PREFIX + name: [row.metadata.get(name) for row in rows] for name in settings.fields
    }
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def passage_table(
    rows: Sequence[PassageRow], metadata: Mapping[str, Mapping[str, Any]], settings: IndexSettings
) -> Any:
    """Return passages as an Arrow table; `metadata`: of their documents, by id."""
    import pyarrow as pa

    schema = schemas(settings)["passages"]
    columns: dict[str, Any] = {
        name: [getattr(row, name) for row in rows] for name in PASSAGE_COLUMNS if name != "vector"
    }
    columns |= {
        FIELD_PREFIX + name: [metadata[row.document].get(name) for row in rows]
        for name in settings.fields
    }
    columns["unspaced"] = [unspaced_words(row.text) or None for row in rows]
    vectors = np.concatenate([row.vector for row in rows]) if rows else np.zeros(0, np.float32)
    columns["vector"] = pa.FixedSizeListArray.from_arrays(
        pa.array(vectors, pa.float32()), settings.dimension
    )
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def passage_rows(table: Any) -> list[PassageRow]:
    """Return the passages of a table."""
    names = [name for name in PASSAGE_COLUMNS if name != "vector"]
    width = table.schema.field("vector").type.list_size
    vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(-1, width)
    rows = table.select(names).to_pylist()
    return [PassageRow(**row, vector=vector) for row, vector in zip(rows, vectors, strict=True)]


# ---- checks --------------------------------------------------------------------------------------

TOLERANCE = 1e-3  # of the length of a unit vector
_CHECKED = 10_000  # vectors whose lengths are computed together


def odd_lengths(vectors: np.ndarray) -> Iterator[tuple[int, float]]:
    """Yield the rows of (n, d) vectors that are not finite or not of unit length, each with its
    length.
    """
    for start in range(0, len(vectors), _CHECKED):
        part = vectors[start : start + _CHECKED].astype(np.float64)
        lengths = np.sqrt((part * part).sum(axis=1))
        for i in np.flatnonzero(~(np.abs(lengths - 1) <= TOLERANCE)):
            yield start + int(i), float(lengths[i])


def damaged(place: str, what: str) -> StoreError:
    """Return the error for an index with invalid content."""
    return StoreError(
        f"{place} is damaged: {what}; run `runnel index --check --to {place}` to see all that is"
    )


# ---- the store -----------------------------------------------------------------------------------

# more passages are searched by the table's IVF_RQ index, with exact re-scoring
EXACT_ROWS = 200_000
_SCANNED = 20_000  # passages per list of `scan`
_KEPT_COMMITS = 20  # commits whose files stay for processes that search them
_SESSION_COMMITS = 20  # commits that are read through one connection
_CONTENT = ("documents", "passages")
# the most by which writers' clocks may differ without one removing versions that another needs
_SKEW = timedelta(days=1)
_NOT_WHOLE = f"number != {WHOLE}"


class LanceStore:
    """A crash-safe place for documents and passages, in LanceDB. Use `create` or `open`."""

    explained = staticmethod(explained)

    def __init__(self, uri: str, database: Any, settings: IndexSettings) -> None:
        self.settings = settings
        self.uri = uri
        self._lock = None if "://" in uri else WriterLock(Path(uri) / "writer.lock", Path(uri))
        self._passages: tuple[list[str], np.ndarray, np.ndarray, np.ndarray] | None = None
        # whether a passage has words of scripts without spaces; None: not known yet
        self._unspaced: bool | None = None
        self._use(database)
        self._head = self._read_commits()[-1]
        self._show()

    @classmethod
    def create(cls, uri: str, settings: IndexSettings) -> LanceStore:
        with plain_errors(uri):
            database = connect(uri, create=True)
            there = _whole_tables(database)
            held = f"{uri} already holds an index; open it, or choose another place"
            with plain_errors(uri, lambda *_: held if "commits" in _whole_tables(database) else ""):
                for name, schema in schemas(settings).items() if "commits" not in there else ():
                    if name in there and there[name].count_rows():
                        raise _lost_error(uri, "list of commits")
                    # An existing table is from an interrupted or a running creation, which needs
                    # its versions.
                    database.create_table(
                        name, schema=schema, mode="overwrite" if name in there else "create"
                    )
                versions = {name: database.open_table(name).version for name in _CONTENT}
                database.create_table(
                    "commits", _commit_table([_commit_row(0, versions, (0, 0), "create")], settings)
                )
            return cls(uri, database, settings)

    @classmethod
    def open(cls, uri: str) -> LanceStore:
        with plain_errors(uri):
            database = connect(uri, create=False)
            tables = _whole_tables(database)
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
            return "commits" in _whole_tables(connect(uri, create=False))

    def close(self) -> None:
        """Release the lock for other writers."""
        if self._lock is not None:
            self._lock.release()

    @plainly
    def refresh(self) -> bool:
        """Move to the newest commit; return whether there was a newer one."""
        head = self._read_commits()[-1]
        if head["number"] == self._head["number"]:
            return False
        self._head = head
        self._show()
        return True

    def last_commit(self) -> Commit:
        """Return the commit that searches see."""
        return _as_commit(self._head)

    @plainly
    def content_hashes(self) -> dict[str, ContentHashes]:
        """Return content hashes by document id."""
        rows = self._select("documents", ["id", *ContentHashes._fields])
        return {row.pop("id"): ContentHashes(**row) for row in rows}

    @plainly
    def documents(self, ids: Sequence[str], *, saved: bool = False) -> dict[str, DocumentRow]:
        """Return known documents by id, without their `memory`. `saved`: also read the point where
        reading continues.
        """
        if not ids:
            return {}
        columns = [
            name for name in DOCUMENT_COLUMNS if name != "memory" and (saved or name != "saved")
        ]
        rows = self._select("documents", columns, _is_in("id", ids))
        return {
            row["id"]: DocumentRow(**row | {"metadata": json.loads(row["metadata"])})
            for row in rows
        }

    @plainly
    def memories(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return the `memory` of documents by id, if they have one."""
        if not ids or not self.settings.remember:
            return {}
        rows = self._select("documents", ["id", "memory"], _is_in("id", ids))
        return {row["id"]: row["memory"] for row in rows if row["memory"] is not None}

    def scan(self) -> Iterator[list[PassageRow]]:
        """Yield all passages with their vectors, in lists that fit in memory."""
        import pyarrow as pa

        with plain_errors(self.uri):
            for batch in (
                self._tables["passages"].search().select(PASSAGE_COLUMNS).to_batches(_SCANNED)
            ):
                yield passage_rows(pa.Table.from_batches([batch]))

    @plainly
    def nearest(
        self, vector: np.ndarray, count: int, where: list[Condition]
    ) -> list[ScoredPassage]:
        """Return the passages (including whole documents) with the highest cosine, best first."""
        table = self._tables["passages"]
        if table.count_rows() <= EXACT_ROWS:
            return self._nearest_in_memory(vector, count, where)
        search = table.search(vector).distance_type("cosine").nprobes(64).refine_factor(10)
        if where:
            search = search.where(to_sql(where, FIELD_PREFIX), prefilter=True)
        rows = (
            search.select(["document", "number", "_distance"]).limit(count).to_arrow().to_pylist()
        )
        return [ScoredPassage(row["document"], row["number"], 1 - row["_distance"]) for row in rows]

    @plainly
    def lexical(self, query: str, count: int, where: list[Condition]) -> list[ScoredPassage]:
        """Return the passages with the highest BM25 score, best first."""
        from lancedb.query import BooleanQuery, MatchQuery, Occur

        if self._head["passages"] == 0 or not query.strip():
            return []
        words: Any = MatchQuery(query, "text")  # type: ignore[call-arg]
        if self._unspaced is None:
            rows = (
                self._tables["passages"]
                .search()
                .where("unspaced IS NOT NULL")
                .select(["number"])
                .limit(1)
            )
            self._unspaced = rows.to_arrow().num_rows > 0
        if self._unspaced:  # without them the same scores, in a fifth of the time
            unspaced: Any = MatchQuery(" ".join(letters(separated(query))), "unspaced")  # type: ignore[call-arg]
            words = BooleanQuery([(Occur.SHOULD, words), (Occur.SHOULD, unspaced)])
        # rows of whole documents have no text
        search = self._tables["passages"].search(words, query_type="fts")
        if where:
            search = search.where(to_sql(where, FIELD_PREFIX), prefilter=True)
        best = search.select(["document", "number", "_score"]).limit(count).to_arrow().to_pylist()
        found = [ScoredPassage(row["document"], row["number"], row["_score"]) for row in best]
        return sorted(found, key=lambda one: (-one.score, one.document, one.number))

    def _nearest_in_memory(
        self, vector: np.ndarray, count: int, where: list[Condition]
    ) -> list[ScoredPassage]:
        """Return the passages with the highest inner product, best first, ties in stored order: one
        product with all of them.
        """
        ids, owners, numbers, vectors = self._passages or self._read_passages()
        rows = np.arange(len(owners))
        if where:
            among = {
                row["id"] for row in self._select("documents", ["id"], to_sql(where, FIELD_PREFIX))
            }
            rows = np.flatnonzero(np.array([name in among for name in ids], dtype=bool)[owners])
            vectors = vectors[rows]
        scores = vectors @ vector
        best = top(scores, count)
        found = zip(owners[rows[best]], numbers[rows[best]], scores[best], strict=True)
        return [
            ScoredPassage(ids[owner], int(number), float(score)) for owner, number, score in found
        ]

    def _read_passages(self) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
        """Read and keep the ids of documents and, of all passages, the (n,) places of theirs,
        numbers, and (n, d) vectors.
        """
        table = (
            self._tables["passages"].search().select(["document", "number", "vector"]).to_arrow()
        )
        vectors = (
            table["vector"]
            .combine_chunks()
            .flatten()
            .to_numpy()
            .reshape(-1, self.settings.dimension)
        )
        names, ids = (
            table["document"].to_pylist(),
            [row["id"] for row in self._select("documents", ["id"])],
        )
        order = {name: i for i, name in enumerate(ids)}
        odd = "a vector of document {!r} has the length {:.3g} instead of 1"
        damage = [odd.format(names[i], length) for i, length in odd_lengths(vectors)]
        damage += [
            f"document {name!r} has passages, but no text" for name in names if name not in order
        ]
        if damage:
            raise damaged(self.uri, damage[0])
        owners = np.array([order[name] for name in names], dtype=np.int64)
        self._passages = ids, owners, table["number"].to_numpy(), vectors
        return self._passages

    def _select(self, name: str, columns: list[str], where: str = "") -> list[dict[str, Any]]:
        search = self._tables[name].search().select(columns)
        return (search.where(where) if where else search).to_arrow().to_pylist()

    @plainly
    def commit(
        self,
        documents: Sequence[DocumentRow],
        passages: Sequence[PassageRow],
        delete: Sequence[str],
    ) -> Commit:
        """Add documents, replacing documents of the same id, and delete others."""
        self._begin()
        gone = [*(row.id for row in documents), *delete]
        fields = {row.id: row.metadata for row in documents}
        new = {
            "documents": document_table(documents, self.settings),
            "passages": passage_table(passages, fields, self.settings),
        }
        # Merging reads all ids of the table each time, so new rows are appended.
        fresh = not delete and not self._drafts["documents"].count_rows(_is_in("id", gone))
        for name, key in (("documents", ["id"]), ("passages", ["document", "number"])):
            if fresh:
                self._drafts[name].add(new[name])
                continue
            insert = (
                self._drafts[name]
                .merge_insert(key)
                .when_matched_update_all()
                .when_not_matched_insert_all()
            )
            insert.when_not_matched_by_source_delete(_is_in(key[0], gone)).execute(new[name])
        self._index_text()
        return self._finish("commit")

    @plainly
    def optimize(self) -> None:
        """Merge small pieces and update the search structures, without visible changes."""
        from lancedb.index import IvfRq

        self._begin()
        table = self._drafts["passages"]
        if table.count_rows() > EXACT_ROWS and not _has_index(table, "vector"):
            table.create_index("vector", config=IvfRq(distance_type="cosine"))
        commits = self._read_commits()[-_KEPT_COMMITS:]
        for name in _CONTENT:
            table = self._drafts[name]
            needed = {row[name + "_version"] for row in commits}
            table.optimize()  # first, because the age of removed versions counts from its end
            # without a time zone
            made = min(
                one["timestamp"] for one in table.list_versions() if one["version"] in needed
            )
            age = time.time() - made.timestamp()
            if age >= 0:  # otherwise the clock was set back; a later call removes old versions
                slack = timedelta(seconds=1) if self._lock else _SKEW
                table.optimize(cleanup_older_than=timedelta(seconds=age) + slack)
        self._finish("optimize")

    def _index_text(self) -> None:
        """Build BM25's index at the first passage; later passages are searched row by row until
        `optimize`.
        """
        from lancedb.index import FTS

        table = self._drafts["passages"]
        if not _has_index(table, "text") and table.count_rows(_NOT_WHOLE):
            table.create_index("text", config=FTS())
            table.create_index("unspaced", config=FTS(base_tokenizer="whitespace"))

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
        documents, passages = self._drafts["documents"], self._drafts["passages"]
        versions = {"documents": documents.version, "passages": passages.version}
        counts = (documents.count_rows(), passages.count_rows(_NOT_WHOLE))
        row = _commit_row(self._head["number"] + 1, versions, counts, f"{reason} {uuid.uuid4()}")
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
        insert.when_not_matched_insert_all().execute(
            _commit_table([self._head, row], self.settings)
        )
        self._head = next(one for one in self._read_commits() if one["number"] == row["number"])
        self._show()
        if self._head["writer"] != row["writer"]:
            raise StoreError(
                f"another writer has changed {self.uri} in the meantime; nothing was written,"
                " repeat the call"
            )
        return _as_commit(row)

    def _read_commits(self) -> list[dict[str, Any]]:
        self._commits.checkout_latest()
        return sorted(self._commits.to_arrow().to_pylist(), key=lambda row: row["number"])

    def _use(self, database: Any) -> None:
        self._database, self._shown = database, 0
        self._commits = database.open_table("commits")
        # the same tables for writing, so that a failed change is not visible
        self._drafts: dict[str, Any] = {}

    def _show(self) -> None:
        # a connection keeps the metadata of all versions that it has read, up to 1 GB
        if self._shown == _SESSION_COMMITS:
            self._use(connect(self.uri, create=False))
        versions = {name: self._head[name + "_version"] for name in _CONTENT}
        self._tables = {
            name: self._database.open_table(name, version=version)
            for name, version in versions.items()
        }
        self._passages = self._unspaced = None
        self._shown += 1


# ---- tables --------------------------------------------------------------------------------------


def _lost_error(uri: str, what: str) -> StoreError:
    return StoreError(
        f"{uri} has lost its {what}; restore it from a copy, or remove {uri} and index the"
        " documents again"
    )


def _has_index(table: Any, column: str) -> bool:
    return any(index.columns == [column] for index in table.list_indices())


def _whole_tables(database: Any) -> dict[str, Any]:
    """Return tables by name, without tables whose creation was interrupted,
    which are also listed.
    """
    tables = {}
    for name in database.list_tables().tables:
        try:
            tables[name] = database.open_table(name)
        except ValueError as error:
            if "was not found" not in str(error):
                raise
    return tables


def _commit_row(
    number: int, versions: dict[str, int], counts: tuple[int, int], writer: str
) -> dict[str, Any]:
    row = {
        "number": number,
        "documents": counts[0],
        "passages": counts[1],
        "time": time.time(),
        "writer": writer,
    }
    return row | {f"{name}_version": version for name, version in versions.items()}


def _commit_table(rows: list[dict[str, Any]], settings: IndexSettings) -> Any:
    import pyarrow as pa

    names = ("number", "documents_version", "passages_version", "documents", "passages")
    columns = [
        *((name, pa.int64()) for name in names),
        ("time", pa.float64()),
        ("writer", pa.string()),
    ]
    return pa.Table.from_pylist(
        rows, schema=pa.schema(columns, metadata={"runnel": json.dumps(asdict(settings))})
    )


def _as_commit(row: dict[str, Any]) -> Commit:
    return Commit(row["number"], row["documents"], row["passages"], row["time"])


def _is_in(column: str, values: Sequence[str]) -> str:
    return f"{column} IN ({', '.join(map(literal, dict.fromkeys(values)))})" if values else "false"
