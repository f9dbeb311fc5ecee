"""The store for daily use: three tables of LanceDB in one folder, or under a URI of an object storage.

documents  one row a document, its text among it        passages  one row a passage, and one for each whole document
commits    one row a commit: which versions of the other two belong together

A change first makes a new version of both tables and then adds the row that names them. Searches read the versions of the
last such row, so a change is seen whole or not at all; what a crash has left behind is undone by the next writer. In a
local folder a lock keeps a second writer out; elsewhere the row's number is taken by whoever comes first.

Up to `EXACT_ROWS` passages the vectors are held in memory and searched exactly; beyond, by the table's IVF_RQ index with
exact re-scoring.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from runnel.errors import InputError, MissingDependency, StoreError
from runnel.search.filters import Condition, literal, to_sql
from runnel.search.lock import WriterLock
from runnel.search.matrix import Matrix
from runnel.search.records import FIELD_TYPES, WHOLE, Commit, DocumentRow, Found, Known, PassageRow, Settings

EXACT_ROWS = 200_000
_FORMAT = 1
_PREFIX = "field_"  # of the columns that hold filterable metadata
_KEPT_COMMITS = 20  # can be gone back to
_NOT_WHOLE = f"number != {WHOLE}"


class LanceStore:
    """See `Store`. Make one with `create` or `open`."""

    def __init__(self, uri: str, database: Any, settings: Settings) -> None:
        self.settings = settings
        self._uri, self._database = uri, database
        self._lock = None if "://" in uri else WriterLock(Path(uri))
        self._tables = {name: database.open_table(name) for name in ("documents", "passages", "commits")}
        self._matrix: Matrix | None = None
        self._head = self._read_commits()[-1]
        self._show()

    # ---- opening -----------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, uri: str, settings: Settings) -> LanceStore:
        """A new, empty index.

        Raises:
            StoreError: there is one already.
        """
        database = _connect(uri, create=True)
        if "commits" in _names(database):
            raise StoreError(f"{uri} already holds an index; open it, or choose another place")
        for name, schema in _schemas(settings).items():
            if name != "commits" and name in _names(database):
                database.drop_table(name)  # of a creation that did not get as far as its first commit
            if name != "commits":
                database.create_table(name, schema=schema)
        versions = {name: database.open_table(name).version for name in ("documents", "passages")}
        first = _commit_table(_schemas(settings)["commits"], 0, versions, (0, 0), "create")
        database.create_table("commits", first)
        return cls(uri, database, settings)

    @classmethod
    def open(cls, uri: str) -> LanceStore:
        """An index that is there.

        Raises:
            StoreError: there is none, or one of a newer format.
        """
        database = _connect(uri, create=False)
        if "commits" not in _names(database):
            raise StoreError(f"{uri} holds no index; make one with `runnel index` or Index.create")
        metadata = database.open_table("commits").schema.metadata or {}
        if b"runnel" not in metadata:
            raise StoreError(f"{uri} holds a LanceDB database that runnel did not write; choose another place")
        settings = json.loads(metadata[b"runnel"])
        if settings["format"] != _FORMAT:
            raise StoreError(f"{uri} has index format {settings['format']}, this runnel reads {_FORMAT}; upgrade runnel")
        return cls(uri, database, Settings(**settings))

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()

    # ---- reading -----------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        head = self._read_commits()[-1]
        if head["number"] != self._head["number"]:
            self._head = head
            self._show()

    def commits(self) -> list[Commit]:
        return [_as_commit(row) for row in self._read_commits()[-_KEPT_COMMITS:]]

    def known(self) -> dict[str, Known]:
        rows = self._select("documents", ["id", *Known._fields])
        return {row.pop("id"): Known(**row) for row in rows}

    def documents(self, ids: Sequence[str], *, saved: bool = False) -> dict[str, DocumentRow]:
        if not ids:
            return {}
        columns = [name for name in _DOCUMENT_COLUMNS if name != "memory" and (saved or name != "saved")]
        rows = self._select("documents", columns, _is_in("id", ids))
        return {row["id"]: DocumentRow(**row | {"metadata": json.loads(row["metadata"])}) for row in rows}

    def memories(self, ids: Sequence[str]) -> dict[str, bytes]:
        if not ids or not self.settings.remember:
            return {}
        rows = self._select("documents", ["id", "memory"], _is_in("id", ids))
        return {row["id"]: row["memory"] for row in rows if row["memory"] is not None}

    def passages(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], PassageRow]:
        if not keys:
            return {}
        numbers = ", ".join(str(n) for n in sorted({number for _, number in keys}))
        where = f"{_is_in('document', [name for name, _ in keys])} AND number IN ({numbers})"
        wanted = set(keys)
        rows = self._select("passages", _PASSAGE_COLUMNS, where)
        found = (PassageRow(**row | {"vector": np.array(row["vector"], dtype=np.float32)}) for row in rows)
        return {(row.document, row.number): row for row in found if (row.document, row.number) in wanted}

    def nearest(self, vector: np.ndarray, count: int, where: list[Condition]) -> list[Found]:
        table = self._tables["passages"]
        if table.count_rows() <= EXACT_ROWS:
            return self._in_memory().nearest(vector, count, where)
        search = table.search(vector).distance_type("cosine").nprobes(64).refine_factor(10)
        if where:
            search = search.where(to_sql(where, _PREFIX), prefilter=True)
        rows = search.select(["document", "number", "_distance"]).limit(count).to_arrow().to_pylist()
        return [Found(row["document"], row["number"], 1 - row["_distance"]) for row in rows]

    def lexical(self, query: str, count: int, where: list[Condition]) -> list[Found]:
        from lancedb.query import MatchQuery

        if self._head["passages"] == 0 or not query.strip():
            return []
        words: Any = MatchQuery(query, "text")  # type: ignore[call-arg]
        search = self._tables["passages"].search(words, query_type="fts")  # whole documents have no text here
        if where:
            search = search.where(to_sql(where, _PREFIX), prefilter=True)
        rows = search.select(["document", "number", "_score"]).limit(count).to_arrow().to_pylist()
        found = [Found(row["document"], row["number"], row["_score"]) for row in rows]
        return sorted(found, key=lambda one: (-one.score, one.document, one.number))

    def _in_memory(self) -> Matrix:
        if self._matrix is None:
            table = self._tables["passages"].search().select(["document", "number", "vector"]).to_arrow()
            vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(-1, self.settings.dimension)
            fields = [_PREFIX + name for name in self.settings.fields]
            rows = self._select("documents", ["id", *fields])
            metadata = {row.pop("id"): {name[len(_PREFIX) :]: value for name, value in row.items()} for row in rows}
            self._matrix = Matrix(table["document"].to_pylist(), table["number"].to_numpy(), vectors, metadata)
        return self._matrix

    def _select(self, name: str, columns: list[str], where: str = "") -> list[dict[str, Any]]:
        search = self._tables[name].search().select(columns)
        rows: list[dict[str, Any]] = (search.where(where) if where else search).to_arrow().to_pylist()
        return rows

    # ---- writing -----------------------------------------------------------------------------------------------------

    def commit(self, documents: Sequence[DocumentRow], passages: Sequence[PassageRow], delete: Sequence[str]) -> Commit:
        self._begin()
        gone = [*(row.id for row in documents), *delete]
        fields = {row.id: row.metadata for row in documents}
        schemas = _schemas(self.settings)
        new = {
            "documents": _document_table(documents, schemas["documents"], self.settings),
            "passages": _passage_table(passages, fields, schemas["passages"], self.settings),
        }
        for name, key in (("documents", ["id"]), ("passages", ["document", "number"])):
            insert = self._tables[name].merge_insert(key).when_matched_update_all().when_not_matched_insert_all()
            insert.when_not_matched_by_source_delete(_is_in(key[0], gone)).execute(new[name])
        self._index_text()
        return self._finish("commit")

    def rollback(self, number: int) -> Commit:
        self._begin()
        wanted = next((row for row in self._read_commits()[-_KEPT_COMMITS:] if row["number"] == number), None)
        if wanted is None:
            raise InputError(f"commit {number} is not among those that can be gone back to: {[c.number for c in self.commits()]}")
        for name in ("documents", "passages"):
            self._tables[name].checkout(wanted[name + "_version"])
            self._tables[name].restore()
        return self._finish("rollback")

    def optimize(self) -> None:
        from lancedb.index import IvfRq

        self._begin()
        table = self._tables["passages"]
        if table.count_rows() > EXACT_ROWS and not _has_index(table, "vector"):
            table.create_index("vector", config=IvfRq(distance_type="cosine"))
        commits = self._read_commits()[-_KEPT_COMMITS:]
        for name in ("documents", "passages"):
            table = self._tables[name]
            needed = {row[name + "_version"] for row in commits}
            made = min(one["timestamp"] for one in table.list_versions() if one["version"] in needed)
            table.optimize(cleanup_older_than=datetime.now() - made + timedelta(seconds=1))
        self._finish("optimize")

    def _index_text(self) -> None:
        """BM25 needs its index from the first passage on; later ones are searched row by row until `optimize`."""
        from lancedb.index import FTS

        table = self._tables["passages"]
        if table.count_rows(_NOT_WHOLE) and not _has_index(table, "text"):
            table.create_index("text", config=FTS())

    def _begin(self) -> None:
        """Take the lock, and undo what a writer that did not finish has left."""
        if self._lock is not None:
            self._lock.acquire()
        self.refresh()
        for name in ("documents", "passages"):
            table = self._tables[name]
            table.checkout_latest()
            if table.version != self._head[name + "_version"]:
                table.checkout(self._head[name + "_version"])
                table.restore()

    def _finish(self, reason: str) -> Commit:
        """Make the present versions of the tables the newest commit."""
        documents, passages = self._tables["documents"], self._tables["passages"]
        versions = {"documents": documents.version, "passages": passages.version}
        number, writer = self._head["number"] + 1, f"{reason} {uuid.uuid4()}"
        counts = (documents.count_rows(), passages.count_rows(_NOT_WHOLE))
        row = _commit_table(_schemas(self.settings)["commits"], number, versions, counts, writer)
        commits = self._tables["commits"]
        commits.checkout_latest()
        commits.merge_insert("number").when_not_matched_insert_all().execute(row)
        self._head = self._read_commits()[-1]
        if self._head["writer"] != writer:
            self._show()
            raise StoreError(f"another writer has changed {self._uri} in the meantime; nothing was written, try again")
        self._show()
        return _as_commit(self._head)

    # ---- versions ----------------------------------------------------------------------------------------------------

    def _read_commits(self) -> list[dict[str, Any]]:
        self._tables["commits"].checkout_latest()
        return sorted(self._tables["commits"].to_arrow().to_pylist(), key=lambda row: row["number"])

    def _show(self) -> None:
        for name in ("documents", "passages"):
            self._tables[name].checkout(self._head[name + "_version"])
        self._matrix = None


# ---- tables ----------------------------------------------------------------------------------------------------------

_DOCUMENT_COLUMNS = list(DocumentRow.__slots__)
_PASSAGE_COLUMNS = list(PassageRow.__slots__)


def _connect(uri: str, *, create: bool) -> Any:
    os.environ.setdefault("LANCE_LOG", "error")  # one warning for each query otherwise
    try:
        import lancedb
    except ImportError as error:
        raise MissingDependency("an index needs lancedb; install it with: pip install 'runnel[search]'") from error
    if "://" not in uri:
        if create:
            Path(uri).mkdir(parents=True, exist_ok=True)
        elif not Path(uri).is_dir():
            raise StoreError(f"there is no index at {uri}; make one with `runnel index` or Index.create")
    return lancedb.connect(uri)


def holds_index(uri: str) -> bool:
    """Whether there is an index at a URI."""
    return "commits" in _names(_connect(uri, create=True))


def _has_index(table: Any, column: str) -> bool:
    return any(index.columns == [column] for index in table.list_indices())


def _names(database: Any) -> list[str]:
    return list(database.list_tables().tables)


def _schemas(settings: Settings) -> dict[str, Any]:
    import pyarrow as pa

    kinds = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    assert set(kinds) == set(FIELD_TYPES)
    fields = [pa.field(_PREFIX + name, kinds[kind]) for name, kind in settings.fields.items()]
    names = ("id", "text", "title", "source", "source_hash", "content_hash", "metadata", "blocks")
    documents = [*((name, pa.string()) for name in names), ("tokens", pa.int64())]
    documents += [("saved", pa.large_binary()), ("memory", pa.large_binary())]
    passages = [("document", pa.string()), ("number", pa.int32()), ("start", pa.int64()), ("end", pa.int64())]
    passages += [("text", pa.string()), ("page", pa.int32()), ("heading", pa.string())]
    vector = ("vector", pa.list_(pa.float32(), settings.dimension))
    counts = ("number", "documents_version", "passages_version", "documents", "passages")
    commits = [*((name, pa.int64()) for name in counts), ("time", pa.float64()), ("writer", pa.string())]
    return {
        "documents": pa.schema([*map(_field, documents), *fields]),
        "passages": pa.schema([*map(_field, passages), _field(vector), *fields]),
        "commits": pa.schema([*map(_field, commits)], metadata={"runnel": json.dumps(asdict(settings))}),
    }


def _field(pair: tuple[str, Any]) -> Any:
    import pyarrow as pa

    return pa.field(*pair)


def _document_table(rows: Sequence[DocumentRow], schema: Any, settings: Settings) -> Any:
    import pyarrow as pa

    columns: dict[str, list[Any]] = {name: [getattr(row, name) for row in rows] for name in _DOCUMENT_COLUMNS}
    columns["metadata"] = [json.dumps(dict(row.metadata), ensure_ascii=False) for row in rows]
    columns |= {_PREFIX + name: [row.metadata.get(name) for row in rows] for name in settings.fields}
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def _passage_table(rows: Sequence[PassageRow], metadata: dict[str, Any], schema: Any, settings: Settings) -> Any:
    import pyarrow as pa

    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in _PASSAGE_COLUMNS if name != "vector"}
    columns |= {_PREFIX + name: [metadata[row.document].get(name) for row in rows] for name in settings.fields}
    vectors = np.concatenate([row.vector for row in rows]) if rows else np.zeros(0, np.float32)
    columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors, pa.float32()), settings.dimension)
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def _commit_table(schema: Any, number: int, versions: dict[str, int], counts: tuple[int, int], writer: str) -> Any:
    import pyarrow as pa

    row = {"number": number, "documents": counts[0], "passages": counts[1], "time": time.time(), "writer": writer}
    row |= {f"{name}_version": version for name, version in versions.items()}
    return pa.Table.from_pylist([row], schema=schema)


def _as_commit(row: dict[str, Any]) -> Commit:
    return Commit(row["number"], row["documents"], row["passages"], row["time"])


def _is_in(column: str, values: Sequence[str]) -> str:
    return f"{column} IN ({', '.join(map(literal, dict.fromkeys(values)))})" if values else "false"
