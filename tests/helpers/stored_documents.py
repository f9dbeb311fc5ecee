"""Documents with made-up vectors, for tests of the stores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runnel.search.lance import LanceStore
from runnel.search.records import WHOLE, Commit, DocumentRow, IndexSettings, PassageRow

SETTINGS = IndexSettings(
    "pocket", [[1.0, 0.0, 0.0, 0.0]], 4, fields={"year": "int", "language": "str", "draft": "bool"}
)


@dataclass(frozen=True)
class Place:
    """Where tests keep an index: `kind` is "lance", "s3" or "qdrant"."""

    kind: str
    uri: str

    @property
    def store(self) -> Any:
        if self.kind == "qdrant":
            from runnel.search.qdrant import QdrantStore

            return QdrantStore
        return LanceStore

    def create(self, settings: IndexSettings = SETTINGS) -> Any:
        return self.store.create(self.uri, settings)

    def open(self) -> Any:
        return self.store.open(self.uri)


def passages_of(store: Any) -> dict[tuple[str, int], PassageRow]:
    return {(row.document, row.number): row for rows in store.scan() for row in rows}


def add(
    store: Any, *documents: tuple[DocumentRow, list[PassageRow]], delete: Sequence[str] = ()
) -> Commit:
    return store.commit(
        [row for row, _ in documents], [one for _, some in documents for one in some], delete
    )


def seen(store: Any, words: str) -> tuple[Any, ...]:
    """Return what a reader gets: the documents, texts of the passages near a vector, what `words`
    find, and the last count.
    """
    passages = passages_of(store)
    near = store.nearest(unit(1, 1, 1, 1), 9999, [])
    lexical = store.lexical(words, 9999, [])
    texts = {(one.document, one.number): passages[one.document, one.number].text for one in near}
    return (
        store.documents(list(store.content_hashes())),
        texts,
        {(one.document, one.number) for one in lexical},
        store.last_commit().documents,
    )


def unit(*values: float) -> np.ndarray:
    vector = np.array(values, dtype=np.float32)
    return vector / np.linalg.norm(vector)


def document(
    name: str,
    texts: list[str],
    vectors: list[np.ndarray],
    saved: bytes | None = None,
    **metadata: Any,
) -> tuple[DocumentRow, list[PassageRow]]:
    text = "".join(texts)
    row = DocumentRow(
        name,
        text,
        f"Title of {name}",
        f"/{name}.txt",
        "s" + name,
        "t" + name,
        10,
        metadata,
        "[]",
        saved,
    )
    ends = np.cumsum([len(t) for t in texts]).tolist()
    rows = [
        PassageRow(name, i, end - len(t), end, t, vector, page=i + 1, heading="A > B")
        for i, (t, end, vector) in enumerate(zip(texts, ends, vectors, strict=True))
    ]
    return row, [*rows, PassageRow(name, WHOLE, 0, len(text), "", unit(*np.mean(vectors, axis=0)))]
