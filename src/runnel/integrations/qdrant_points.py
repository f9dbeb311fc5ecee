"""The points of an index in Qdrant, and filters on them."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

from runnel.errors import InputError, needing
from runnel.search.filters import Condition
from runnel.search.records import WHOLE, DocumentRow, PassageRow

with needing("this index needs qdrant-client", "qdrant"):
    from qdrant_client import models

BLOBS = ("saved", "memory")  # parts of a document that are no text
HASHES = ("source_hash", "content_hash")
WORDS_PER_TOKEN = 0.4  # in English passages without stop words: of their mean length, which a server does not count
_K1, _B = 1.5, 0.75  # as bm25s has them
_NAMES = uuid.UUID("6f1e0a52-5d2c-4f0e-9a53-0b6f2f3f7c11")  # of the ids of points


def document_point(row: DocumentRow, fields: dict[str, Any]) -> Any:
    """Return the point of a document: its text and metadata, its hashes blank; `fields` can be filtered by."""
    payload = {name: getattr(row, name) for name in row.__slots__ if name != "id"} | dict.fromkeys(HASHES, "")
    payload |= {name: base64.b64encode(payload[name]).decode() for name in BLOBS if payload[name] is not None}
    payload |= {"kind": "document", "document": row.id, "metadata": json.dumps(dict(row.metadata)), "fields": fields}
    return models.PointStruct(id=point_id("document", row.id), vector={}, payload=payload)


def passage_point(row: PassageRow, fields: dict[str, Any], words: list[str], average: float) -> Any:
    """Return the point of a passage or whole document; `average` is the mean number of words of a passage."""
    payload = {name: getattr(row, name) for name in row.__slots__ if name != "vector"}
    payload |= {"kind": "whole" if row.number == WHOLE else "passage", "fields": fields}
    vectors: dict[str, Any] = {"meaning": row.vector.tolist()}
    if words:
        counts = Counter(map(word_id, words))
        norm = _K1 * (1 - _B + _B * len(words) / average)
        weights = [n / (n + norm) for n in counts.values()]  # bm25s leaves the factor (k1 + 1) out, too
        vectors["words"] = models.SparseVector(indices=list(counts), values=weights)
    return models.PointStruct(id=point_id("passage", row.document, row.number), vector=vectors, payload=payload)


def point_id(*names: object) -> str:
    """Return the point id that belongs to these names."""
    return str(uuid.uuid5(_NAMES, json.dumps(names)))


def word_id(word: str) -> int:
    """Return the index of a word in sparse vectors."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "little")


# ---- filters ---------------------------------------------------------------------------------------------------------


def points_of(kind: str, documents: Sequence[str]) -> Any:
    """Return a filter for the points of documents: their texts ("document"), or all that have vectors ("passage")."""
    text = models.FieldCondition(key="kind", match=models.MatchValue(value="document"))
    own = models.FieldCondition(key="document", match=models.MatchAny(any=list(documents)))
    return models.Filter(must=[own, text]) if kind == "document" else models.Filter(must=[own], must_not=[text])


def points_like(kind: str) -> Any:
    """Return a filter for the points of a kind: "document", "passage" or "whole"."""
    return models.Filter(must=[models.FieldCondition(key="kind", match=models.MatchValue(value=kind))])


def to_qdrant(wanted: list[Condition]) -> Any:
    """Convert conditions to a filter of Qdrant. A document without a field fulfills no condition on it."""
    must: list[Any] = []
    for name, sign, value in wanted:
        key = f"fields.{name}"
        if sign == "in":
            must.append(models.Filter(should=[_equal(key, one) for one in value]) if value else models.HasIdCondition(has_id=[]))
        elif sign == "=":
            must.append(_equal(key, value))
        elif sign == "!=":
            absent = models.IsEmptyCondition(is_empty=models.PayloadField(key=key))  # null counts as empty
            must.append(models.Filter(must_not=[_equal(key, value), absent]))
        elif isinstance(value, str | bool):
            raise InputError(f"Qdrant cannot compare {name!r} with {sign} {value!r}; of texts and bools it knows =, != and lists")
        else:
            bounds = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
            must.append(models.FieldCondition(key=key, range=models.Range(**{bounds[sign]: value})))
    return models.Filter(must=must)


def _equal(key: str, value: Any) -> Any:
    if isinstance(value, float):
        return models.FieldCondition(key=key, range=models.Range(gte=value, lte=value))
    return models.FieldCondition(key=key, match=models.MatchValue(value=value))
