"""What the modules of this package share: models by name, ranked texts, the sentences that answer,
and searches of an index.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from runnel.checks import expect_count
from runnel.errors import InputError
from runnel.models.embedder import Embedder
from runnel.models.head import WITHOUT_TOKENS
from runnel.models.reranker import Reranker
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.records import Hit, Place, Sentence, group_repeats, normalize, trimmed
from runnel.search.filters import Filter
from runnel.search.index import Index

Loadable = TypeVar("Loadable", Embedder, Reranker, SentenceRetriever)


def loaded(kind: type[Loadable], model: object) -> Loadable:
    """Return a model of a kind: `model` itself, or the result of `kind.load(model)`."""
    return model if isinstance(model, kind) else kind.load(name_of(kind, model))


def name_of(kind: type[Loadable], model: object) -> str:
    """Return what a model is loaded from, to store it by name."""
    if isinstance(model, kind):
        return model.model.source
    if not isinstance(model, str | Path):
        raise InputError(
            f"the model is of type {type(model).__name__}; expected {kind.__name__}, or a name,"
            " folder or hub id"
        )
    return str(model)


def ranked(
    reranker: Reranker, query: str, texts: Sequence[str], top_k: int | None, max_tokens: int | None
) -> list[tuple[int, float]]:
    """Return the position and the score of the best texts, best first, without texts that have no
    token.
    """
    hits = reranker.rank(query, texts, top_k, max_tokens=max_tokens)
    return [(int(hit.id), hit.score) for hit in hits if hit.score > WITHOUT_TOKENS]


def best_sentences(
    retriever: SentenceRetriever,
    query: str,
    texts: Iterable[str],
    top_k: int,
    min_score: float | None = None,
) -> list[tuple[int, Sentence]]:
    """Return the best sentences of all texts together, each with the position of its text, best
    first, ties in reading order.

    Sentences that differ only in whitespace are returned once, at their best place, and without
    whitespace at their ends.
    """
    expect_count(top_k, "top_k")
    best: dict[str, tuple[int, Sentence]] = {}
    for position, scored in enumerate(retriever.rank(query, texts)):
        for sentence, *_ in group_repeats(scored.ranked(), top_k):
            key = normalize(sentence.text)
            if key and (key not in best or sentence.score > best[key][1].score):
                best[key] = position, sentence
    ranking = sorted(best.values(), key=lambda pair: (-pair[1].score, pair[0], pair[1].start))
    return [
        (position, trimmed(sentence))
        for position, sentence in ranking[:top_k]
        if min_score is None or sentence.score >= min_score
    ]


def search_results(
    index: Index,
    query: str,
    top_k: int,
    sentences: int,
    where: Filter | None,
    options: Mapping[str, Any],
) -> Iterator[tuple[Hit, Place, dict[str, object]]]:
    """Search an index, for whole documents, or with `sentences` for so many sentences of each, best
    first.

    Each result is its document, its place there, and its metadata: the document's, with `source`
    (its file, else its id) and `title`; a sentence's also its place.
    """
    # by default an index reads fewer documents than it finds
    read = {"read": top_k} if sentences else {}
    for hit in index.search(query, top_k, where=where, sentences=sentences, **read | dict(options)):
        document = {**hit.metadata, "source": hit.source or hit.id}
        if hit.title:
            document["title"] = hit.title
        if not sentences:
            assert hit.place is not None
            yield hit, hit.place, document
        for sentence in map(trimmed, hit.sentences):
            metadata = document | {
                "start": sentence.start,
                "end": sentence.end,
                "sentence_score": sentence.score,
            }
            if sentence.page is not None:
                metadata["page"] = sentence.page
            if sentence.headings:
                metadata["headings"] = list(sentence.headings)
            yield hit, sentence, metadata
