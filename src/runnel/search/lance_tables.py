"""Rows of an index as Arrow tables for LanceDB, and back."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pyarrow as pa

from runnel.search.records import DocumentRow, IndexSettings, PassageRow
from runnel.text.words import with_parts

FIELD_PREFIX = "field_"  # prefix of the columns of filterable metadata
DOCUMENT_COLUMNS = list(DocumentRow.__slots__)
# "words" is a passage's text, followed by the parts of its words, for BM25
PASSAGE_COLUMNS = ["words" if name == "text" else name for name in PassageRow.__slots__]
# memories shrink only by a seventh, and take three times as long to read
_NOT_COMPRESSED = {"lance-encoding:compression": "none"}


def schemas(settings: IndexSettings) -> dict[str, pa.Schema]:
    """Return the Arrow schemas of "documents" and "passages"."""
    kinds = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    fields = [(FIELD_PREFIX + name, kinds[kind]) for name, kind in settings.fields.items()]
    names = ("id", "text", "title", "source", "source_hash", "content_hash", "metadata", "blocks")
    documents = [
        *((name, pa.string()) for name in names),
        ("tokens", pa.int64()),
        ("saved", pa.large_binary()),
        pa.field("memory", pa.large_binary(), metadata=_NOT_COMPRESSED),
    ]
    passages = [
        ("document", pa.string()),
        ("number", pa.int32()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("words", pa.string()),
        ("page", pa.int32()),
        ("heading", pa.string()),
        ("vector", pa.list_(pa.float32(), settings.dimension)),
    ]
    return {
        "documents": pa.schema([*documents, *fields]),
        "passages": pa.schema([*passages, *fields]),
    }


def document_table(rows: Sequence[DocumentRow], settings: IndexSettings) -> pa.Table:
    """Return documents as an Arrow table."""
    columns = {name: [getattr(row, name) for row in rows] for name in DOCUMENT_COLUMNS}
    columns["metadata"] = [json.dumps(dict(row.metadata), ensure_ascii=False) for row in rows]
    return _table("documents", columns, [row.metadata for row in rows], settings)


def passage_table(
    rows: Sequence[PassageRow],
    metadata: Mapping[str, Mapping[str, object]],
    settings: IndexSettings,
) -> pa.Table:
    """Return passages as an Arrow table; `metadata`: of their documents, by id."""
    columns = {name: [getattr(row, name) for row in rows] for name in PassageRow.__slots__}
    columns["words"] = [with_parts(row.text) for row in rows]
    return _table("passages", columns, [metadata[row.document] for row in rows], settings)


def _table(
    name: str,
    columns: dict[str, list[object]],
    metadata: Sequence[Mapping[str, object]],
    settings: IndexSettings,
) -> pa.Table:
    """Return the table `name` with these columns and a column for each field, filled from
    each row's metadata.
    """
    for field in settings.fields:
        columns[FIELD_PREFIX + field] = [values.get(field) for values in metadata]
    schema = schemas(settings)[name]
    return pa.table({column: columns[column] for column in schema.names}, schema=schema)


def passage_rows(table: pa.Table) -> list[PassageRow]:
    """Return the passages of a table."""
    width = table.schema.field("vector").type.list_size
    vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(-1, width)
    rows = table.drop_columns(["vector"]).to_pylist()
    # "words" begins with the text
    texts = [row.pop("words")[: row["end"] - row["start"]] for row in rows]
    return [
        PassageRow(**row, text=text, vector=vector)
        for row, text, vector in zip(rows, texts, vectors, strict=True)
    ]


def commit_table(rows: list[dict[str, object]], settings: IndexSettings) -> pa.Table:
    """Return rows of "commits" as an Arrow table, whose metadata has the settings."""
    names = ("number", "documents_version", "passages_version", "documents", "passages")
    columns = [
        *((name, pa.int64()) for name in names),
        ("time", pa.float64()),
        ("writer", pa.string()),
    ]
    return pa.Table.from_pylist(
        rows, schema=pa.schema(columns, metadata={"runnel": json.dumps(asdict(settings))})
    )
