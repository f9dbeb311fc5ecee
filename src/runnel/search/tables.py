"""Documents and passages as Arrow tables, for the store of an index."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runnel.search.records import FIELD_TYPES, DocumentRow, IndexSettings, PassageRow
from runnel.text.words import unspaced_words

FIELD_PREFIX = "field_"  # prefix of the columns of filterable metadata
DOCUMENT_COLUMNS = list(DocumentRow.__slots__)
PASSAGE_COLUMNS = list(PassageRow.__slots__)
_AS_IT_IS = {"lance-encoding:compression": "none"}  # memories shrink only by a seventh, and take three times as long to read


def schemas(settings: IndexSettings) -> dict[str, Any]:
    """Return the Arrow schemas of "documents" and "passages"."""
    import pyarrow as pa

    kinds = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    assert set(kinds) == set(FIELD_TYPES)
    fields = [(FIELD_PREFIX + name, kinds[kind]) for name, kind in settings.fields.items()]
    names = ("id", "text", "title", "source", "source_hash", "content_hash", "metadata", "blocks")
    documents = [*((name, pa.string()) for name in names), ("tokens", pa.int64())]
    documents += [("saved", pa.large_binary()), pa.field("memory", pa.large_binary(), metadata=_AS_IT_IS)]
    passages = [("document", pa.string()), ("number", pa.int32()), ("start", pa.int64()), ("end", pa.int64())]
    passages += [("text", pa.string()), ("page", pa.int32()), ("heading", pa.string()), ("unspaced", pa.string())]
    passages += [("vector", pa.list_(pa.float32(), settings.dimension))]
    return {"documents": pa.schema([*documents, *fields]), "passages": pa.schema([*passages, *fields])}


def document_table(rows: Sequence[DocumentRow], settings: IndexSettings) -> Any:
    """Return documents as an Arrow table."""
    import pyarrow as pa

    schema = schemas(settings)["documents"]
    columns: dict[str, list[Any]] = {name: [getattr(row, name) for row in rows] for name in DOCUMENT_COLUMNS}
    columns["metadata"] = [json.dumps(dict(row.metadata), ensure_ascii=False) for row in rows]
    columns |= {FIELD_PREFIX + name: [row.metadata.get(name) for row in rows] for name in settings.fields}
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def passage_table(rows: Sequence[PassageRow], metadata: Mapping[str, Mapping[str, Any]], settings: IndexSettings) -> Any:
    """Return passages as an Arrow table; `metadata`: of their documents, by id."""
    import pyarrow as pa

    schema = schemas(settings)["passages"]
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in PASSAGE_COLUMNS if name != "vector"}
    columns |= {FIELD_PREFIX + name: [metadata[row.document].get(name) for row in rows] for name in settings.fields}
    columns["unspaced"] = [unspaced_words(row.text) or None for row in rows]
    vectors = np.concatenate([row.vector for row in rows]) if rows else np.zeros(0, np.float32)
    columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors, pa.float32()), settings.dimension)
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def passage_rows(table: Any) -> list[PassageRow]:
    """Return the passages of a table."""
    names = [name for name in PASSAGE_COLUMNS if name != "vector"]
    width = table.schema.field("vector").type.list_size
    vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(-1, width)
    rows = table.select(names).to_pylist()
    return [PassageRow(**row, vector=vector) for row, vector in zip(rows, vectors, strict=True)]
