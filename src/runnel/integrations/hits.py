"""Searches of an index, as the retrievers of other libraries return them: whole documents, or sentences of documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runnel.integrations.sentences import trimmed
from runnel.records import Hit
from runnel.search.filters import Filter
from runnel.search.index import Index


@dataclass(frozen=True)
class SearchResult:
    """A document of an index, or a sentence of one.

    Attributes:
        document: its id.
        start, end: characters of the document's text.
        score: of the document.
        metadata: the document's, with `source` (its file, else its id) and `title` if it has one; of a sentence also `start`,
            `end`, `sentence_score`, and `page` and `headings` if the document has some.
        whole: whether this is all of the document.
    """

    document: str
    text: str
    start: int
    end: int
    score: float
    metadata: dict[str, Any]
    whole: bool


def search_results(
    index: Index, query: str, top_k: int, sentences: int, where: Filter | None, options: Mapping[str, Any]
) -> list[SearchResult]:
    """Search an index.

    Args:
        sentences: how many of each document to return, in reading order; 0: the whole documents.
        where, options: a filter by metadata, and further arguments of `Index.search`, which also names the errors.
    """
    read = {"read": top_k} if sentences else {}  # by default an index reads fewer documents than it finds
    hits = index.search(query, top_k, where=where, sentences=sentences, **read | dict(options))
    return [result for hit in hits for result in (_sentences(hit) if sentences else [_whole(hit)])]


def _whole(hit: Hit) -> SearchResult:
    assert hit.text is not None
    metadata = {**hit.metadata, "source": hit.source or hit.id} | ({"title": hit.title} if hit.title else {})
    return SearchResult(hit.id, hit.text, 0, len(hit.text), hit.score, metadata, whole=True)


def _sentences(hit: Hit) -> Iterator[SearchResult]:
    document = _whole(hit).metadata
    for one in map(trimmed, hit.sentences):
        page, headings = hit.places.at(one.start)
        place: dict[str, Any] = {"start": one.start, "end": one.end, "sentence_score": one.score}
        place |= ({"page": page} if page is not None else {}) | ({"headings": list(headings)} if headings else {})
        yield SearchResult(hit.id, one.text, one.start, one.end, hit.score, document | place, whole=False)
