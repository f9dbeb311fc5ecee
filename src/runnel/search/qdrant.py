"""A store on a Qdrant server, as one collection (docs/search.md): a point for each document and
passage, and one for settings.

Qdrant has no commits over several requests. So the hashes of a document are written last: a
document that a crash left incomplete has none, counts as changed, and the next `add` writes it
again.

`QdrantStore` has the methods that `LanceStore` documents, in the order open, read, search, change.
The functions below it make points and filters. A point has an id that is computed from what it is
(`point_id`), a payload (the columns of a row), and for passages and whole documents two vectors:
"meaning", and "words" (sparse, for BM25).
"""

import base64
import hashlib
import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from runnel.batching import grouped
from runnel.errors import InputError, StoreError, needing
from runnel.redaction import redact
from runnel.search.filters import IDS, Condition
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
from runnel.search.storage_errors import MAKING_INDEX, no_index_error, plain_errors, plainly
from runnel.text.words import words_of

with needing("this index needs qdrant-client", "qdrant"):
    from qdrant_client import QdrantClient, models

BLOBS = ("saved", "memory")  # parts of a document that are no text
HASHES = ("source_hash", "content_hash")
# Words per token of English passages, without stop words. It gives BM25 the mean length of
# passages, which a server does not count.
WORDS_PER_TOKEN = 0.4
_K1, _B = 1.5, 0.75  # parameters of BM25, the defaults of bm25s
_NAMES = uuid.UUID("6f1e0a52-5d2c-4f0e-9a53-0b6f2f3f7c11")  # the namespace of the ids of points
_BATCH_BYTES, _BATCH_POINTS = 8_000_000, 500  # the most of a request; the server takes 32 MB
_PAGE = 5000  # points that are read together
_TIMEOUT_S = 60
_CREATION_S = 10.0  # no creation takes so long: an empty collection is of an interrupted one
_WITH_VECTORS = ("passage", "whole")  # kinds of points
_NO_SETTINGS = IndexSettings("", [], 0)  # of a store whose settings are not read yet
_T = TypeVar("_T")


def _explained(uri: str, error: Exception) -> str:
    """Return what went wrong at the server, and what to do: the client lets errors of httpx, grpc
    and pydantic through.
    """
    text = redact(" ".join(str(error).split()))[:300]
    if type(error).__name__ == "ResponseHandlingException":
        return (
            f"{uri} cannot be reached; is the server running? Check the address, and repeat the"
            f" call [{text}]"
        )
    if getattr(error, "status_code", None) in (401, 403):
        return f"no access to {uri}; set QDRANT_API_KEY [{text}]"
    if "already exists" in text:
        return f"{MAKING_INDEX.format(uri=uri)} [{text}]"
    return f"{uri} refused the request: {text}; the next add() writes incomplete documents again"


class QdrantStore:
    """An index in a Qdrant collection (see `Store`); use `create` or `open`."""

    explained = staticmethod(_explained)

    def __init__(self, uri: str, settings: IndexSettings) -> None:
        self.uri = uri
        self.settings = settings
        self._client, self._name = _connect(uri)

    @classmethod
    def create(cls, uri: str, settings: IndexSettings) -> Self:
        store = cls(uri, settings)
        store._create()
        return store

    @classmethod
    def open(cls, uri: str) -> Self:
        store = cls(uri, _NO_SETTINGS)
        state = store.state()
        if state is None:
            raise no_index_error(uri)
        store.settings = IndexSettings.stored(json.loads(state["settings"]), uri)
        return store

    @classmethod
    def holds_index(cls, uri: str) -> bool:
        return cls(uri, _NO_SETTINGS).state() is not None

    @plainly
    def _create(self) -> None:
        if self._client.collection_exists(self._name):
            # Its settings come last: another process is about to write them, or was interrupted.
            ends = time.monotonic() + _CREATION_S
            while not self._client.count(self._name).count and time.monotonic() < ends:
                time.sleep(0.1)
            if self._client.count(self._name).count:
                raise StoreError(
                    f"{self.uri} already holds an index, or a collection of another program; choose"
                    " another name"
                )
            self._client.delete_collection(self._name)
        self._client.create_collection(
            self._name,
            vectors_config={
                "meaning": models.VectorParams(
                    size=self.settings.dimension, distance=models.Distance.DOT
                )
            },
            sparse_vectors_config={
                "words": models.SparseVectorParams(modifier=models.Modifier.IDF)
            },
        )
        kinds = {"str": "keyword", "int": "integer", "float": "float", "bool": "bool"}
        fields = {f"fields.{name}": kinds[kind] for name, kind in self.settings.fields.items()}
        for path, kind in ({"document": "keyword", "kind": "keyword"} | fields).items():
            self._client.create_payload_index(
                self._name, path, field_schema=models.PayloadSchemaType(kind)
            )
        self._write_state(0)

    def close(self) -> None:
        """Do nothing: no file or lock is held."""

    def refresh(self) -> bool:
        """Do nothing: every search sees the present state of the server."""
        return False

    @plainly
    def last_commit(self) -> Commit:
        state = self.state()
        assert state is not None
        documents = self._client.count(self._name, points_like(["document"])).count
        passages = self._client.count(self._name, points_like(["passage"])).count
        return Commit(state["number"], documents, passages, state["time"])

    @plainly
    def content_hashes(self) -> dict[str, ContentHashes]:
        names = ContentHashes._fields
        pages = self._pages(points_like(["document"]), ["document", *names], vectors=False)
        rows = (point.payload for points in pages for point in points)
        return {row["document"]: ContentHashes(*(row[name] for name in names)) for row in rows}

    @plainly
    def documents(
        self, ids: Sequence[str] | None, *, saved: bool = False
    ) -> dict[str, DocumentRow]:
        left_out = {"id", "memory"} if saved else {"id", *BLOBS}
        columns = [name for name in DocumentRow.__slots__ if name not in left_out]
        if ids is None:
            ids = list(self.content_hashes())
        documents = {}
        for point in self._retrieve(
            [point_id("document", name) for name in ids], ["document", *columns]
        ):
            values = point.payload | {"metadata": json.loads(point.payload["metadata"])}
            if values.get("saved") is not None:
                values["saved"] = base64.b64decode(values["saved"])
            name = values.pop("document")
            documents[name] = DocumentRow(id=name, **values)
        return documents

    @plainly
    def memories(self, ids: Sequence[str]) -> dict[str, bytes]:
        if not self.settings.remember:
            return {}
        points = self._retrieve(
            [point_id("document", name) for name in ids], ["document", "memory"]
        )
        return {
            point.payload["document"]: base64.b64decode(point.payload["memory"])
            for point in points
            if point.payload.get("memory")
        }

    def scan(self) -> Iterator[list[PassageRow]]:
        columns = [name for name in PassageRow.__slots__ if name != "vector"]
        for points in self._pages(points_like(_WITH_VECTORS), columns, vectors=["meaning"]):
            yield [
                PassageRow(**point.payload, vector=np.array(point.vector["meaning"], np.float32))
                for point in points
            ]

    def _pages(
        self, points_filter: models.Filter, columns: list[str], vectors: list[str] | bool
    ) -> Iterator[list[Any]]:
        offset = None
        while True:
            with plain_errors(self.uri, _explained):
                points, offset = self._client.scroll(
                    self._name,
                    points_filter,
                    limit=_PAGE,
                    offset=offset,
                    with_payload=columns,
                    with_vectors=vectors,
                )
            yield points
            if offset is None:
                return

    @plainly
    def nearest(
        self, vector: NDArray[np.float32], count: int, where: list[Condition]
    ) -> list[ScoredPassage]:
        return self._query([float(x) for x in vector], "meaning", count, where)

    @plainly
    def lexical(self, query: str, count: int, where: list[Condition]) -> list[ScoredPassage]:
        counts = Counter(map(word_id, words_of([query])[0]))
        if not counts:
            return []
        sparse = models.SparseVector(
            indices=list(counts), values=[float(n) for n in counts.values()]
        )
        return self._query(sparse, "words", count, where)

    def _query(
        self,
        query: list[float] | models.SparseVector,
        using: str,
        count: int,
        where: list[Condition],
    ) -> list[ScoredPassage]:
        answer = self._client.query_points(
            self._name,
            query=query,
            using=using,
            limit=count,
            query_filter=to_qdrant(where) if where else None,
            with_payload=["document", "number"],
        )
        return best_first(
            ScoredPassage(point.payload["document"], point.payload["number"], point.score)
            for point in answer.points
        )

    @plainly
    def state(self) -> dict[str, Any] | None:
        """Return the settings, and number and time of the last commit; None if
        there is no index.
        """
        if not self._client.collection_exists(self._name):
            return None
        points = self._retrieve([point_id("settings")], ["settings", "number", "time"])
        return points[0].payload if points else None

    def _retrieve(self, ids: Sequence[str], columns: list[str]) -> list[Any]:
        return [
            row
            for group in _groups(ids)
            for row in self._client.retrieve(self._name, group, with_payload=columns)
        ]

    @plainly
    def commit(
        self,
        documents: Sequence[DocumentRow],
        passages: Sequence[PassageRow],
        delete: Sequence[str],
    ) -> Commit:
        """See `Store`. Writes are ordered: a document with hashes is complete, and every passage
        has its document.
        """
        state = self.state()
        assert state is not None
        fields = {
            row.id: {name: row.metadata.get(name) for name in self.settings.fields}
            for row in documents
        }
        for names in _groups([*fields, *(name for name in delete if name not in fields)]):
            self._client.set_payload(
                self._name, dict.fromkeys(HASHES, ""), points_like(["document"], names)
            )
            self._client.delete(self._name, points_like(_WITH_VECTORS, names))
        for names in _groups([name for name in delete if name not in fields]):
            self._client.delete(self._name, points_like(["document"], names))
        self._upsert(document_point(row, fields[row.id]) for row in documents)
        average = self.settings.passage_tokens * WORDS_PER_TOKEN
        for group in _groups(passages):
            words = words_of([row.text for row in group])
            self._upsert(
                passage_point(row, fields[row.document], row_words, average)
                for row, row_words in zip(group, words, strict=True)
            )
        for rows in _groups(documents):
            updates = [
                models.SetPayload(
                    payload={name: getattr(row, name) for name in HASHES},
                    points=[point_id("document", row.id)],
                )
                for row in rows
            ]
            self._client.batch_update_points(
                self._name, [models.SetPayloadOperation(set_payload=update) for update in updates]
            )
        self._write_state(state["number"] + 1)
        return self.last_commit()

    def optimize(self) -> None:
        """Do nothing: Qdrant optimizes by itself."""

    def _upsert(self, points: Iterable[models.PointStruct]) -> None:
        vector = 25 * self.settings.dimension  # bytes
        for batch in grouped(
            points,
            lambda point: len(json.dumps(point.payload)) + vector,
            _BATCH_BYTES,
            _BATCH_POINTS,
        ):
            self._client.upsert(self._name, batch)

    def _write_state(self, number: int) -> None:
        payload = {
            "settings": json.dumps(asdict(self.settings)),
            "number": number,
            "time": time.time(),
        }
        self._client.upsert(
            self._name, [models.PointStruct(id=point_id("settings"), vector={}, payload=payload)]
        )


def document_point(row: DocumentRow, fields: dict[str, object]) -> models.PointStruct:
    """Return the point of a document: its text and metadata, its hashes blank; `fields` can be
    filtered by.
    """
    payload = {name: getattr(row, name) for name in row.__slots__ if name != "id"}
    for name in BLOBS:
        if payload[name] is not None:
            payload[name] = base64.b64encode(payload[name]).decode()
    payload |= dict.fromkeys(HASHES, "") | {
        "kind": "document",
        "document": row.id,
        "metadata": json.dumps(dict(row.metadata)),
        "fields": fields,
    }
    return models.PointStruct(id=point_id("document", row.id), vector={}, payload=payload)


def passage_point(
    row: PassageRow, fields: dict[str, object], words: list[str], average: float
) -> models.PointStruct:
    """Return the point of a passage or whole document; `average` is the mean number of words of a
    passage.
    """
    payload = {name: getattr(row, name) for name in row.__slots__ if name != "vector"}
    payload |= {"kind": "whole" if row.number == WHOLE else "passage", "fields": fields}
    vectors: dict[str, Any] = {"meaning": row.vector.tolist()}
    if words:
        counts = Counter(map(word_id, words))
        norm = _K1 * (1 - _B + _B * len(words) / average)
        # bm25s leaves the factor (k1 + 1) out, too
        weights = [n / (n + norm) for n in counts.values()]
        vectors["words"] = models.SparseVector(indices=list(counts), values=weights)
    return models.PointStruct(
        id=point_id("passage", row.document, row.number), vector=vectors, payload=payload
    )


def point_id(*names: object) -> str:
    """Return the point id that belongs to these names."""
    return str(uuid.uuid5(_NAMES, json.dumps(names)))


def word_id(word: str) -> int:
    """Return the index of a word in sparse vectors."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "little")


def points_like(kinds: Sequence[str], documents: Sequence[str] | None = None) -> models.Filter:
    """Return a filter for the points of kinds, "document", "passage" or "whole": of some documents,
    or of all (None).
    """
    given = {"kind": kinds} if documents is None else {"kind": kinds, "document": documents}
    return models.Filter(
        must=[
            models.FieldCondition(key=key, match=models.MatchAny(any=list(values)))
            for key, values in given.items()
        ]
    )


def to_qdrant(where: list[Condition]) -> models.Filter:
    """Convert conditions to a filter of Qdrant. A document without a field fulfills no condition on
    it.
    """
    must: list[models.Condition] = []
    for name, sign, value in where:
        key = "document" if name == IDS else f"fields.{name}"
        if sign == "in":
            equal = models.Filter(should=[_equal(key, item) for item in value])
            # an empty list matches nothing
            must.append(equal if value else models.HasIdCondition(has_id=[]))
        elif sign == "=":
            must.append(_equal(key, value))
        elif sign == "!=":
            # null counts as empty
            absent = models.IsEmptyCondition(is_empty=models.PayloadField(key=key))
            must.append(models.Filter(must_not=[_equal(key, value), absent]))
        elif isinstance(value, str | bool):
            raise InputError(
                f"Qdrant cannot compare {name!r} with {sign} {value!r}; of texts and bools it knows"
                " =, != and lists"
            )
        else:
            bounds = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
            must.append(models.FieldCondition(key=key, range=models.Range(**{bounds[sign]: value})))
    return models.Filter(must=must)


def _equal(key: str, value: str | bool | float) -> models.FieldCondition:
    if isinstance(value, float):
        return models.FieldCondition(key=key, range=models.Range(gte=value, lte=value))
    return models.FieldCondition(key=key, match=models.MatchValue(value=value))


def _groups(rows: Iterable[_T]) -> Iterator[list[_T]]:
    return grouped(rows, lambda row: 1, _BATCH_POINTS)


def _connect(uri: str) -> tuple[Any, str]:
    """Return a client, and the name of the collection."""
    address = urlsplit(uri.removeprefix("qdrant+"))
    place, _, name = address.path.rpartition("/")
    if address.scheme not in ("http", "https") or not address.netloc or not name:
        raise InputError(
            f"{uri} is not a Qdrant collection; give one such as"
            " qdrant+http://localhost:6333/collection"
        )
    client = QdrantClient(
        f"{address.scheme}://{address.hostname}",
        port=address.port or 6333,
        prefix=place or None,
        api_key=os.environ.get("QDRANT_API_KEY"),
        timeout=_TIMEOUT_S,
        # it only warns if the server cannot be reached; the first request raises
        check_compatibility=False,
    )
    return client, name
