"""Search in stages (docs/search.md): rankings of documents by vectors and words, merged; reranking;
answering sentences. `Index.search` calls it.

Dense: by the cosine of vectors. Lexical: by words (BM25). A document's rank in each list is added
up with weights (`fuse`). Documents with the same text count once (`_Candidates`); the others are
copies, named with the hit.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from runnel.checks import expect_count
from runnel.errors import InputError, StateError
from runnel.files import digest
from runnel.models.embedder import Embedder
from runnel.models.memory import Remembered
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.models.scored import Scored
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.records import AnsweringSentence, Explanation, Hit, Place, RankPart, wording
from runnel.request import Progress, TokenCount
from runnel.search.damage import TOLERANCE, damaged
from runnel.search.encoding import reranker_of
from runnel.search.filters import IDS, Condition, Filter, conditions
from runnel.search.finding import FileDocument, answering, locate
from runnel.search.records import DocumentRow, ScoredPassage
from runnel.search.stores import Store
from runnel.search.timing import timed
from runnel.text.sentences import check_language

_DEPTH = 200  # passages per first-stage search
# reciprocal rank fusion: a document at rank r of a list gets weight / (60 + r); Cormack et al.,
# 2009
_RRF = 60
# Weights of the dense, the lexical and the reranker's ranks: with remembered sentences, measured
# with pocket (docs/pocket.md), and with recurrent models, measured with pocket-mamba2
# (docs/search.md).
_SENTENCE_WEIGHTS = (1.0, 1.0, 30.0)
_RECURRENT_WEIGHTS = (0.2, 1.0, 1.0)
# Factors of what is added to the reranker's score of a document with remembered sentences: the
# cosine of its best passage, and its BM25 as a share of the best document's, because the reranker
# does not know how rare a word is in this index. Measured with pocket (docs/pocket.md).
_COSINE, _WORDS = 16.0, 4.0
_RERANKED = 50  # documents, if they are remembered
_READ = 5  # documents whose sentences are shown, if each must be read whole
_DEEPER = 4  # times as many passages, if copies fill the first stage
_TOGETHER = 20  # documents whose remembered sentences are in memory together


@dataclass(frozen=True)
class Stages:
    """Settings of a search's stages; see `Index.search`."""

    dense_weight: float | None = None
    rerank: int | None = None
    read: int | None = None
    sentences: int = 3
    language: str | None = None

    def __post_init__(self) -> None:
        weight: object = self.dense_weight
        if not (weight is None or (isinstance(weight, Real) and float(weight) >= 0)):
            raise InputError(f"dense_weight must be a number of at least 0, got {weight!r}")
        for name in ("rerank", "read", "sentences"):
            if name == "sentences" or getattr(self, name) is not None:
                expect_count(getattr(self, name), name, 0)


class Pipeline:
    """The search stages of one store. See `Index.search`.

    The store may remember two kinds of things of a document: vectors of its sentences
    (`_remembers`), or the reranker's memory, if its settings say `remember`.
    """

    def __init__(self, store: Store, embedder: Embedder) -> None:
        self._store = store
        self._embedder = embedder
        self._reranker = reranker_of(embedder)
        self._retriever = (
            SentenceRetriever(embedder.model) if embedder.model.finds_sentences else None
        )
        self._remembers = self._retriever is not None and self._retriever.remembers  # sentences
        # the class of what the store remembers of a document
        self._kind: type[Remembered] | None = SentenceVectors if self._remembers else None
        if not self._remembers and self._reranker is not None:
            self._kind = self._reranker.scorer.kind
        self._weights = _SENTENCE_WEIGHTS if self._remembers else _RECURRENT_WEIGHTS

    def search(
        self,
        query: str,
        top_k: int,
        where: Filter,
        among: Collection[str] | None,
        of_file: Callable[[str], bool],
        stages: Stages,
        timings: dict[str, float],
        count: TokenCount,
    ) -> list[Hit]:
        # 1. The arguments: an empty query, for example, is an error.
        model = self._embedder.model
        # only for its errors
        model.templates["document"].encode_query(model.tokenizer, query)
        expect_count(top_k, "top_k")
        if stages.language is not None:
            check_language(stages.language)
            if self._remembers:
                raise InputError(
                    "this index stores its sentences as they were split when it was made; give the"
                    " language to a new index"
                )
        where_conditions = conditions(where, self._store.settings.fields)
        if among is not None:
            ids = [among] if isinstance(among, str) else list(among)
            where_conditions.append((IDS, "in", ids))
        rerank = self._documents_to_rerank(stages.rerank)
        weights = self._weights
        if stages.dense_weight is not None:
            weights = (stages.dense_weight, *weights[1:])
            if math.isinf(stages.dense_weight):
                weights = (1.0, 0.0, weights[2])
        if max(top_k, rerank) > _DEPTH:  # stores limit the number of results
            documents_stored = self._store.last_commit().documents
            top_k = min(top_k, documents_stored)
            rerank = min(rerank, documents_stored)
        # 2. Two rankings of documents, by vectors and by words, deeper if copies or documents of
        #    other files fill them.
        depth = max(_DEPTH, 4 * top_k, 4 * rerank)
        passages = self._store.last_commit().passages
        while True:
            lists = self._first_stage(query, where_conditions, depth, weights, timings, count)
            names = [name for name, _ in fuse(lists, weights)]
            candidates = _Candidates(self._store, names, of_file)
            with timed(timings, "fetch"):
                candidates.fetch(max(top_k, rerank))
            kept = len(candidates.rows)
            enough = kept >= max(top_k, rerank) or kept == candidates.fetched
            if enough or depth >= passages:
                break
            depth *= _DEEPER
        # 3. The best of both, reranked.
        relevance: dict[str, float] = {}
        if rerank:
            with timed(timings, "rerank"):
                relevance = self._rerank(query, list(candidates.rows.values())[:rerank], count)
                if self._remembers:
                    relevance = _with_first_stage(relevance, *lists)
                relevance = dict(sorted(relevance.items(), key=lambda item: -item[1]))
        # 4. All rankings merged, and the sentences of the best documents, which order them: of more
        #    documents, if several say the same.
        ranks = [
            {name: rank for rank, name in enumerate(names, start=1)}
            for names in (*lists, relevance)
        ]
        wanted = top_k
        while True:
            with timed(timings, "fetch"):
                candidates.fetch(wanted)
            merged = fuse([*lists, relevance], weights)
            ranked = [(name, score) for name, score in merged if name in candidates.rows][:wanted]
            with timed(timings, "sentences"):
                hits = self._hits(query, ranked, candidates, stages, count)
            if len(hits) >= top_k or len(hits) == len(ranked) or len(ranked) < wanted:
                break
            wanted *= 2
        return [
            replace(
                hit,
                rank=rank,
                explanation=_explanation(
                    [by_name.get(hit.id) for by_name in ranks], weights, relevance.get(hit.id)
                ),
            )
            for rank, hit in enumerate(_by_sentences(hits[:top_k]), start=1)
        ]

    def _hits(
        self,
        query: str,
        ranked: Sequence[tuple[str, float]],
        candidates: "_Candidates",
        stages: Stages,
        count: TokenCount,
    ) -> list[Hit]:
        """Return documents with their sentences, in order, without rank and explanation;
        documents that say the same as one before are in its `also`.
        """
        rows = [candidates.rows[name] for name, _ in ranked]
        read = stages.read
        if read is None:
            read = len(rows) if self._remembers else _READ
        scored_documents = self._scored(
            query, rows[: read if stages.sentences else 0], count, stages.language
        )
        hits: list[Hit] = []
        said: dict[tuple[str, str, str], int] = {}  # the hit that has a sentence and its neighbors
        for row, (name, score) in zip(rows, ranked, strict=True):
            source = FileDocument(row.file, row.document())
            (place,) = locate(source.file, source.document, [(0, len(row.text))])
            best: list[AnsweringSentence] = []
            answers = None
            if name in scored_documents:
                assert self._retriever is not None
                scored = scored_documents[name]
                answers = scored.answers
                calibrated = self._retriever.calibrated_for(scored)
                listed = answering(source, scored, stages.sentences, calibrated=calibrated)
                best = [sentence for sentence, _ in listed]
            shown = best[0] if best else _first_line(source)
            also = [_place_in(copy, shown) for copy in candidates.copies.get(name, ())]
            if best:
                around = _around(scored, best[0].index)
                if around in said:
                    earlier = hits[said[around]]
                    also = [_place_in(row, shown), *also]
                    hits[said[around]] = replace(earlier, also=(*earlier.also, *also))
                    continue
                said[around] = len(hits)
            hits.append(
                Hit(
                    name,
                    score,
                    0,
                    row.text,
                    tuple(best),
                    row.title,
                    row.source,
                    row.metadata,
                    place,
                    None,
                    answers,
                    tuple(also),
                )
            )
        return hits

    def score(self, query: str, document: DocumentRow, progress: Progress | None) -> Scored:
        if self._retriever is None:
            raise InputError(
                "this index's model has no sentence head; use another model to score sentences"
            )
        language = self._store.settings.language
        return next(
            self._retriever.scan(
                query, self._contents([document]), language=language, progress=progress
            )
        )

    def _documents_to_rerank(self, rerank: int | None) -> int:
        if rerank is None:
            return _RERANKED if self._store.settings.remember and self._reranker is not None else 0
        if rerank > 0 and self._reranker is None:
            raise InputError("this index's model has no rerank head; search without rerank")
        return rerank

    def _rerank(
        self, query: str, rows: Sequence[DocumentRow], count: TokenCount
    ) -> dict[str, float]:
        """Return the reranker's scores of documents; documents that are not remembered are read
        whole.
        """
        assert self._reranker is not None
        scores = self._reranker.score(
            query, list(self._contents(rows, sentences=False)), progress=count.part()
        )
        return dict(zip((row.id for row in rows), scores.tolist(), strict=True))

    def _first_stage(
        self,
        query: str,
        where: list[Condition],
        depth: int,
        weights: tuple[float, float, float],
        timings: dict[str, float],
        count: TokenCount,
    ) -> list[dict[str, float]]:
        """Return the cosines and the BM25 scores of documents, best first: of each document the
        score of its best passage.

        A list without weight stays empty, so that its documents are not found.
        """
        dense: list[ScoredPassage] = []
        lexical: list[ScoredPassage] = []
        if weights[0]:
            with timed(timings, "query"):
                vector = self._embedder.encode_query([query], progress=count.part())[0]
            with timed(timings, "dense"):
                dense = self._store.nearest(vector, depth, where)
            for row in dense:
                if not abs(row.score) <= 1 + TOLERANCE:
                    raise damaged(
                        self._store.uri,
                        f"a vector of document {row.document!r} has the cosine {row.score:.3g}",
                    )
        if weights[1]:
            with timed(timings, "lexical"):
                lexical = self._store.lexical(query, depth, where)
        return [document_scores(dense), document_scores(lexical)]

    def _scored(
        self,
        query: str,
        documents: Sequence[DocumentRow],
        count: TokenCount,
        language: str | None = None,
    ) -> dict[str, Scored]:
        """Return the scored sentences of documents, which are ranked together, by the documents'
        ids.
        """
        if not documents or self._retriever is None:
            return {}
        scored = self._retriever.rank(
            query,
            self._contents(documents),
            language=language or self._store.settings.language,
            progress=count.part(),
        )
        return dict(zip((document.id for document in documents), scored, strict=True))

    def _contents(
        self, documents: Sequence[DocumentRow], *, sentences: bool = True
    ) -> Iterator[Any]:
        """Yield what is remembered of each document, or its text. `sentences`: to score sentences,
        for which only their vectors serve; else to rerank.
        """
        for start in range(0, len(documents), _TOGETHER):
            group = documents[start : start + _TOGETHER]
            stored = self._remembers if sentences else self._store.settings.remember
            pieces = self._store.memories([document.id for document in group]) if stored else {}
            for document in group:
                yield self._content(document, pieces.get(document.id))

    def _content(self, document: DocumentRow, piece: bytes | None) -> Any:
        if piece is None:
            return document.document()
        try:
            assert self._kind is not None
            return self._kind.from_bytes(piece, document.text, "what is remembered of it")
        except StateError as error:
            now = self._store.documents([document.id])
            # replaced meanwhile (Qdrant's reads are live)
            if document.id not in now or now[document.id].text != document.text:
                return self._content(document, None)
            raise damaged(self._store.uri, f"document {document.id!r}: {error}") from error


class _Candidates:
    """The documents of a ranking whose file is wanted (`of_file`), fetched as far as they are
    needed: of equal texts the first.
    """

    def __init__(self, store: Store, names: Sequence[str], of_file: Callable[[str], bool]) -> None:
        self._store = store
        self._names = names
        self._of_file = of_file
        self.fetched = 0
        self._first: dict[str, str] = {}  # SHA-256 of a text -> the name of its first document
        self.rows: dict[str, DocumentRow] = {}  # by id, documents with different texts
        # by id of a document in `rows`, documents with the same text; without the text
        self.copies: dict[str, list[DocumentRow]] = {}

    def fetch(self, count: int) -> None:
        """Fetch documents until `count` have different texts, or there are no more."""
        while len(self.rows) < count and self.fetched < len(self._names):
            names = self._names[self.fetched : self.fetched + count - len(self.rows)]
            self.fetched += len(names)
            documents = self._store.documents(names)
            for name in names:
                # Qdrant reads live: the document may have been removed since
                if name not in documents or not self._of_file(documents[name].source):
                    continue
                first = self._first.setdefault(digest(documents[name].text), name)
                if first == name:
                    self.rows[name] = documents[name]
                else:
                    self.copies.setdefault(first, []).append(documents[name])


def _first_line(source: FileDocument) -> Place:
    """Return the place of a document's first line with text."""
    text = source.document.text
    start = len(text) - len(text.lstrip())
    end = text.find("\n", start)
    return locate(source.file, source.document, [(start, end if end >= 0 else len(text))])[0]


def _place_in(copy: DocumentRow, place: Place) -> Place:
    """Return the place of the same characters in a copy of a document, or in the document."""
    return locate(copy.file, copy.document(), [(place.start, place.end)])[0]


def _around(scored: Scored, index: int) -> tuple[str, str, str]:
    """Return the wording of a sentence and its neighbors, in any case."""
    spans = scored.spans[max(0, index - 1) : index + 2].tolist()
    texts = [wording(scored.text[start:end]).casefold() for start, end in spans]
    before = [""] if index == 0 else []
    first, sentence, *after = [*before, *texts]
    return (first, sentence, after[0] if after else "")


def _by_sentences(hits: Sequence[Hit]) -> Sequence[Hit]:
    """Return the hits by the scores of their best sentences, whose probabilities are shown, if all
    have one.
    """
    if not all(hit.answers is not None and hit.sentences for hit in hits):
        return hits
    return sorted(hits, key=lambda hit: -hit.sentences[0].score)


def _explanation(
    ranks: Sequence[int | None], weights: Sequence[float], relevance: float | None
) -> Explanation:
    """Return what a document's rank in each list (None: not in it) adds to its score."""
    meaning, words, reranked = (
        RankPart(rank, 0.0 if rank is None else weight / (_RRF + rank))
        for rank, weight in zip(ranks, weights, strict=True)
    )
    return Explanation(meaning, words, reranked, relevance)


def document_scores(passages: Sequence[ScoredPassage]) -> dict[str, float]:
    """Return the score of the best passage of each document, from passages that are in order, best
    first.
    """
    scores: dict[str, float] = {}
    for passage in passages:
        scores.setdefault(passage.document, passage.score)
    return scores


def _with_first_stage(
    relevance: Mapping[str, float], dense: Mapping[str, float], lexical: Mapping[str, float]
) -> dict[str, float]:
    """Add the first stage's cosine (lowest of the list for a document not in it) and BM25 score to
    the relevance of documents.
    """
    lowest = min(dense.values(), default=0.0)
    highest = max(lexical.values(), default=0.0) or 1.0
    return {
        name: score + _COSINE * dense.get(name, lowest) + _WORDS * lexical.get(name, 0.0) / highest
        for name, score in relevance.items()
    }


def fuse(rankings: Sequence[Iterable[str]], weights: Sequence[float]) -> list[tuple[str, float]]:
    """Merge up to three weighted lists by reciprocal rank fusion: (id, score), best first, ties by
    id.
    """
    scores: dict[str, float] = {}
    for ranking, weight in zip(rankings, weights, strict=False):
        for rank, name in enumerate(ranking, start=1):
            scores[name] = scores.get(name, 0.0) + weight / (_RRF + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
