"""Sentence retriever: the sentences of a document that answer a query, from one pass over the whole
document.

Recurrent models read the query first and then the document (`models/scanner.py`). A model with a
`VectorScore` head reads the document alone, only once for all queries (`VectorScorer`;
`models/sentence_vectors.py` has what is kept, and how it is scored).

    S  sentences of a document   D  width of the vectors   F  lexical features
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from runnel.batching import grouped
from runnel.checks import expect_count, expect_loaded, expect_series, expect_text
from runnel.config import Blocks, Form
from runnel.errors import InputError
from runnel.models.base import Model, load_model
from runnel.models.heads import WITHOUT_TOKENS, VectorRelevance, VectorScore, normalize
from runnel.models.lexical import FEATURES, WordTable, sentence_features, static_bm25
from runnel.models.memory import Memory, Precision
from runnel.models.readers import spans_in
from runnel.models.sentence_vectors import (
    FACTS,
    Judging,
    Scored,
    SentenceSums,
    SentenceVectors,
    document_facts,
    first_look,
    no_vectors_error,
)
from runnel.records import Sentence
from runnel.request import Progress, Request, TokenCount
from runnel.text.documents.document import DocumentText
from runnel.text.kinds import text_of
from runnel.text.sentences import SentenceTokens, Unit, lay_out, read_sentences, read_spans
from runnel.text.templates import Template

if TYPE_CHECKING:
    import torch

    from runnel.models.scanner import Scanner

# texts, those with their headings, those from `remember`
Documents = Iterable[str | DocumentText | SentenceVectors]
_TOGETHER = 8  # the most documents tokenized in one call, on all cores, ...
# ... and about the most characters, so that several long documents are not in memory together
_TOGETHER_CHARS = 1 << 18
_PIECES_CHARS = 1 << 15  # longer documents are tokenized piece by piece


class SentenceRetriever:
    """A model that finds the sentences of a document that answer a query. Make one with
    `SentenceRetriever.load`.

    Scores are logits, comparable for one query across documents. The scores of pocket are
    calibrated (docs/pocket.md), the scores of pocket-mamba2 are not (its card says how often its
    best sentence is an answer).
    """

    def __init__(self, model: Model) -> None:
        expect_loaded(model, "SentenceRetriever")
        self.model = model
        self.scorer = sentence_scorer(model)
        # whether documents can be remembered; see `remember`
        self.remembers = self.scorer.remembers

    @property
    def calibrated(self) -> bool:
        """Whether a score's sigmoid is the probability that the sentence answers, as in the
        calibration data.
        """
        return self.scorer.calibrated

    @classmethod
    def load(
        cls, name: str | Path, dtype: str | torch.dtype = "auto", device: str = "auto"
    ) -> SentenceRetriever:
        """Load a built-in model ("pocket", "pocket-mamba2"), a folder with a sentence head, a
        single-pass scanner, or a hub id.

        Raises:
            CheckpointError: the model is missing or has no sentence head.
        """
        return cls(load_model(name, dtype, device, arrays=True))

    def save(self, folder: str | Path, *, weights: str = "as_is") -> None:
        """Write a model folder (see `Model.save`)."""
        self.scorer.model.save(folder, weights=weights)

    def score(
        self,
        query: str,
        document: str | DocumentText | SentenceVectors,
        *,
        unit: Unit | None = None,
        spans: np.ndarray | Sequence[tuple[int, int]] | None = None,
        language: str = "en",
        window: int | None = None,
        stride: int | None = None,
        progress: Progress | None = None,
    ) -> list[Sentence]:
        """Score every sentence of the document, in document order; sentences tile the text exactly.

        An empty document gives an empty list. A sentence without a token (for example only U+200B
        or control characters) has the score -inf, does not change the scores of the others, and is
        never an answer: `retrieve` leaves it out.

        Args:
            document: a text, one with its headings from `read_document`, or a document from
                `remember`.
            unit: the unit to score: "sentence", "clauses" (groups of clauses of 20 tokens or more,
                the unit of the published single-pass scanners) or "paragraph"; default: the unit
                that the model was trained on.
            spans: (S, 2) character spans to score instead of units; the text between them is read
                too. In-document word statistics count the text between two spans as a sentence.
            language: language of the document, for sentence boundaries (ISO 639-1).
            window, stride: read windows of `window` tokens that start `stride` tokens apart, each
                from the query alone, and average the scores of sentences in several windows, as in
                paper E (120000 and 60000); for comparison only. A sentence that fits into no window
                gets the score -inf. For recurrent models.
            progress: called after each step with (tokens done, total tokens).

        Raises:
            InputError: the query is empty or has no tokens; the unit is unknown; spans are not
                pairs of whole numbers, are empty, unsorted, overlapping or outside the document, or
                given together with a unit; or a window has no stride.
        """
        if window is None and spans is None:
            return next(
                self.scan(query, [document], unit=unit, language=language, progress=progress)
            ).sentences()
        _check_units(document, unit, spans, window)
        assert not isinstance(document, SentenceVectors)
        if spans is None:
            (tokens,) = sentence_tokens(
                self.model, self.scorer.template, [document], unit, language
            )
            wanted = np.ones(len(tokens.spans), dtype=bool)
        else:
            tokens, wanted = self._spans(text_of(document), spans)
        read: Any = self.scorer.read_query(query)
        if window is None:
            (scored,) = self.second_look(list(self.scorer.scan(read, [tokens], progress)))
            scores = scored.scores
        else:
            scores = self.scorer.window_scores(read, tokens, window, stride or 0, progress)
        return Scored(tokens.text, tokens.spans[wanted], scores[wanted]).sentences()

    def retrieve(
        self,
        query: str,
        document: str | DocumentText | SentenceVectors,
        top_k: int = 50,
        *,
        unit: Unit | None = None,
        spans: np.ndarray | Sequence[tuple[int, int]] | None = None,
        language: str = "en",
        progress: Progress | None = None,
    ) -> list[Sentence]:
        """Return the `top_k` best with a token, best first, ties in document order. Arguments and
        errors as for `score`.

        Raises:
            InputError: also if `top_k` is not a whole number of at least 1.
        """
        expect_count(top_k, "top_k")
        sentences = self.score(
            query, document, unit=unit, spans=spans, language=language, progress=progress
        )
        return sorted(
            (s for s in sentences if s.score > -math.inf), key=lambda s: (-s.score, s.index)
        )[:top_k]

    def score_many(
        self,
        query: str,
        documents: Documents,
        *,
        unit: Unit | None = None,
        language: str = "en",
        progress: Progress | None = None,
    ) -> Iterator[list[Sentence]]:
        """Score each of many documents, in order, as `score` does; the query is read once and its
        state forked over them.
        """
        for scored in self.scan(query, documents, unit=unit, language=language, progress=progress):
            yield scored.sentences()

    def scan(
        self,
        query: str,
        documents: Documents,
        *,
        unit: Unit | None = None,
        language: str = "en",
        progress: Progress | None = None,
    ) -> Iterator[Scored]:
        """Score documents as `score_many` does, without an object per sentence: for long documents
        with few sentences used.
        """
        for scored in self.first_look(
            query, documents, unit=unit, language=language, progress=progress
        ):
            yield from self.second_look([scored])

    def rank(
        self,
        query: str,
        documents: Documents,
        *,
        unit: Unit | None = None,
        progress: Progress | None = None,
    ) -> list[Scored]:
        """Score documents whose sentences are ranked together: as `scan`, but the second look is at
        the best of all of them.
        """
        return self.second_look(
            list(self.first_look(query, documents, unit=unit, progress=progress))
        )

    def second_look(self, scored: Sequence[Scored]) -> list[Scored]:
        """Look again at the best sentences of documents from `first_look`, which are ranked
        together.

        Without a second look (a recurrent model, one without a "judge" head, or a script that it
        does not know) they are returned as they are.
        """
        looks, judging = [one.first for one in scored if one.first is not None], self.scorer.judging
        if judging is None or not looks or not judging.knows(looks[0].query):
            return list(scored)
        again = judging.look(looks)
        return [
            replace(one, scores=look.scores, second=look)
            for one, look in zip(scored, again, strict=True)
        ]

    def nearness(self, scored: Scored) -> float:
        """Return what the first look's scores of a document lack to be compared with those of other
        documents.
        """
        judging = self.scorer.judging
        return 0.0 if judging is None or scored.first is None else judging.nearness(scored.first)

    def first_look(
        self,
        query: str,
        documents: Documents,
        *,
        unit: Unit | None = None,
        language: str = "en",
        progress: Progress | None = None,
    ) -> Iterator[Scored]:
        """Score documents in order; for `second_look`, which then reads the
        best sentences again.
        """
        expect_series(documents, "documents", "a list of texts or remembered documents")
        read: Any = self.scorer.read_query(query)
        for remembered, group in itertools.groupby(
            documents, lambda document: isinstance(document, SentenceVectors)
        ):
            if not remembered:
                unread = cast("Iterator[str | DocumentText]", group)
                tokens = sentence_tokens(self.model, self.scorer.template, unread, unit, language)
                yield from self.scorer.scan(read, tokens, progress)
                continue
            for document in cast("Iterator[SentenceVectors]", group):
                _check_units(document, unit)
                yield self.scorer.look(read, document)

    def remember(
        self,
        documents: Iterable[str | DocumentText],
        *,
        unit: Unit | None = None,
        language: str = "en",
        progress: Progress | None = None,
    ) -> Iterator[SentenceVectors]:
        """Read documents once; `score`, `retrieve` and `scan` take the results in place of texts,
        without reading again.

        Scores are bit-equal to the scores of a text that is read in the same steps.

        Args:
            unit, language: as for `score`; they cannot be changed later.

        Raises:
            InputError: the model reads the query first, so nothing can be remembered; or an
                argument is invalid, as for `score`.
        """
        expect_series(documents, "documents", "a list of texts")
        tokens = sentence_tokens(self.model, self.scorer.template, documents, unit, language)
        yield from self.scorer.read(tokens, progress)

    def explain(
        self, query: str, document: SentenceVectors | Scored, index: int
    ) -> dict[str, float]:
        """Return the parts of a sentence's score by name; their sum is the score. A sentence with
        the score -inf has none.

        The first is the score of an average sentence; the others are what meaning, words, words
        shared with the best sentences, neighbors and length add to it (Shapley values). A model
        with a second look adds what that says, what a question or heading above the sentence passes
        on, and what the whole document changes: whether it answers at all.

        Args:
            document: from `remember`, or as it was scored by this model for this query.
            index: of the sentence, from 0.

        Raises:
            InputError: the query is empty, or the model reads the query and the document together.
        """
        scored = document if isinstance(document, Scored) else next(self.scan(query, [document]))
        if scored.first is None:
            raise no_vectors_error(self.model)
        summands: dict[str, float] = {}
        first, second = scored.first, scored.second
        if scored.scores[index] > -np.inf:
            read: Any = self.scorer.read_query(query)
            summands = self.scorer.parts(read, first.document, index)
        if summands and second is not None:
            summands["second look"] = float(second.judged[index])
            summands["question or heading above"] = float(
                first.scores[index] - first.plain[index] + second.led[index]
            )
            summands["document"] = float(scored.scores[index] - first.plain[index]) - sum(
                list(summands.values())[-2:]
            )
        return summands

    def _spans(
        self, text: str, spans: np.ndarray | Sequence[tuple[int, int]]
    ) -> tuple[SentenceTokens, np.ndarray]:
        """Return the tokens of the spans and of the text between them, and (S,) bool, True for the
        spans.
        """
        given = spans_in(text, spans, apart=True)
        edges = np.unique([0, *given.ravel().tolist(), len(text)])
        tiles = np.stack([edges[:-1], edges[1:]], axis=1)
        pieces = self.scorer.template.encode_pieces(self.model.tokenizer, "document", text)
        return read_spans(text, pieces, tiles), np.isin(tiles[:, 0], given[:, 0])


def _check_units(
    document: object, unit: object, spans: object = None, window: object = None
) -> None:
    """Raise InputError for choices of what to score that contradict each other, or the units of a
    remembered document.
    """
    kept = "unit of remember()" if isinstance(document, SentenceVectors) else None
    choices = {
        "remembered document": kept,
        "unit": unit,
        "spans": spans,
        "window": window if kept else None,
    }
    chosen = [name for name, value in choices.items() if value is not None]
    if len(chosen) > 1:
        raise InputError(
            f"{' and '.join(chosen)} both say what to score; give only one of them, with the text"
            " of the document"
        )


def sentence_scorer(model: Model) -> Scanner | VectorScorer:
    """Return what scores the sentences of documents; an encoder without a head for them gets fresh
    heads.
    """
    able = model.for_sentences
    if able.stores_vectors("sentences"):
        return VectorScorer(able)
    from runnel.models.scanner import Scanner

    return Scanner(able)


def sentence_tokens(
    model: Model,
    template: Template,
    documents: Iterable[str | DocumentText],
    unit: Unit | None = None,
    language: str = "en",
) -> Iterator[SentenceTokens]:
    """Yield the tokens of each document, in units (default: the model's)."""
    for group in grouped(
        documents, lambda document: len(text_of(document)), _TOGETHER_CHARS, _TOGETHER
    ):
        texts = [text_of(document) for document in group]
        short = iter(
            template.encode_batch(
                model.tokenizer, "document", [t for t in texts if len(t) <= _PIECES_CHARS]
            )
        )
        for document, text in zip(group, texts, strict=True):
            whole = len(text) <= _PIECES_CHARS
            pieces = (
                [next(short)]
                if whole
                else template.encode_pieces(model.tokenizer, "document", text)
            )
            yield read_sentences(document, pieces, unit=unit or model.unit, language=language)


@dataclass(frozen=True)
class VectorQuery:
    """A query that has been read: its ids, its vector (D,) for sentences, and the one for passages
    and whole documents.
    """

    ids: np.ndarray
    vector: np.ndarray
    text: np.ndarray


class VectorScorer:
    """A reader of documents into `SentenceVectors`, which it scores; `passages`: also of passages,
    as texts.

    Where sentences have no layers of their own, the vectors of passages are sums of theirs, and
    nothing more is stored.
    """

    remembers = True
    kind = SentenceVectors
    reads_pairs = False

    def __init__(self, model: Model, *, passages: bool = False) -> None:
        head = model.head("sentences")  # an encoder has it `for_sentences`
        assert isinstance(head, VectorScore)
        self.model, self._head = model, head
        self._passages = passages and model.backbone.own_sentences
        self._forms: tuple[Form, ...] = ("texts", "sentences") if self._passages else ("sentences",)
        self.template = model.templates["document"]
        self.prompts = {name: model.prompt_ids(name) for name in ("query", "document")}
        self.judging = Judging(model) if "judge" in model.heads else None

    @property
    def calibrated(self) -> bool:
        """Whether a score's sigmoid is a probability."""
        return self._head.calibrated if self.judging is None else self.judging.calibrated

    def read_query(self, query: str) -> VectorQuery:
        """Read a query, a long one in passages, like a document."""
        return next(self.read_queries([query]))

    def read_queries(self, queries: Iterable[str]) -> Iterator[VectorQuery]:
        """Read queries, in order."""
        for result in self.model.engine_for(*self._forms).map(map(self._query_request, queries)):
            done, width = result.get(), self.model.backbone.hidden_size
            vectors = normalize(np.asarray(done.means[0]).reshape(-1, width))
            yield VectorQuery(done.tag, vectors[-1], vectors[0])

    def _query_request(self, query: str) -> Request:
        expect_text(query, "the query")
        query = query.strip()
        if len(self.prompts["query"]) and not self.model.tokenizer.adds_space:
            query = " " + query
        ids = self.template.encode_query(self.model.tokenizer, query)
        tokens = read_sentences(
            query, [self.template.encode(self.model.tokenizer, "document", query)]
        )
        markers, prompt = self.model.tokenizer.markers(), self.prompts["query"]
        row = lay_out(ids, tokens.bounds, self.model.backbone, markers, prompt=prompt).ids
        return Request(row, ranges=np.array([[0, len(row)]]), tag=ids)

    def read(
        self, documents: Iterable[SentenceTokens], progress: Progress | None = None
    ) -> Iterator[SentenceVectors]:
        """Read documents in order; an empty document has no sentences."""
        count = TokenCount(progress)
        requests = count.totaled(map(self._request, documents))
        for result in self.model.engine_for(*self._forms).map(requests, count.add):
            yield result.get().tag.result()

    def _request(self, tokens: SentenceTokens) -> Request:
        sums = SentenceSums(self.model, tokens, passages=self._passages)
        return Request(sums.layout.ids, (), take=sums.take, tag=sums)

    def window_scores(self, *_: Any) -> np.ndarray:
        raise InputError(
            "windows need a recurrent model; this model reads passages: do not give window"
        )

    def scan(
        self,
        query: VectorQuery,
        documents: Iterable[SentenceTokens],
        progress: Progress | None = None,
    ) -> Iterator[Scored]:
        """Read documents and score them, in order."""
        return (self.look(query, document) for document in self.read(documents, progress))

    def remember(
        self,
        documents: Iterable[str | DocumentText],
        precision: Precision = "int8",
        progress: Progress | None = None,
    ) -> Iterator[SentenceVectors]:
        """Read documents to remember them; `precision` is of states, which there are none of."""
        return self.read(sentence_tokens(self.model, self.template, documents), progress)

    def score(self, query: str, memory: Memory, progress: Progress | None = None) -> np.ndarray:
        """Return the scores (n,) float32 of a memory's documents, as `Reranker.score` does."""
        if not len(memory):
            return np.zeros(0, dtype=np.float32)
        asked, prompt, features, empty = (
            self.read_query(query),
            len(self.prompts["document"]),
            [],
            [],
        )
        for document in cast(
            "Iterator[SentenceVectors]", map(memory.__getitem__, memory.documents)
        ):
            if self._passages and document.passages is None:
                raise InputError(
                    "this document was remembered for its sentences alone; let a Reranker"
                    " remember it"
                )
            features.append(
                relevance_features(asked, document, self.model.words, self.model.backbone, prompt)
            )
            empty.append(not len(document.ids))
        scores: np.ndarray = self.model.head("rerank")(np.stack(features))
        return np.where(empty, np.float32(WITHOUT_TOKENS), scores)

    def look(self, query: VectorQuery, document: SentenceVectors) -> Scored:
        """Score a document that has been read."""
        plain = np.full(len(document), -np.inf, dtype=np.float32)
        full, vectors, features = self.inputs(query, document)
        evidence = np.zeros(FACTS)
        if full.any():
            plain[full] = self._head(query.vector, vectors, features)
            evidence = document_facts(plain[full], vectors @ query.vector, features)
        look = first_look(query.ids, document, plain, evidence, lead=self.judging is not None)
        return Scored(document.text, document.spans, look.scores, document.kinds, look)

    def parts(self, query: VectorQuery, document: SentenceVectors, index: int) -> dict[str, float]:
        """Return the parts of a sentence's score (`VectorScore.parts`); none for a sentence without
        a token.
        """
        full, vectors, features = self.inputs(query, document)
        if not full[index]:
            return {}
        return self._head.parts(
            query.vector, vectors, features, int(np.count_nonzero(full[:index]))
        )

    def inputs(
        self, query: VectorQuery, document: SentenceVectors
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return which sentences have a token (S,), their n unit vectors (n, D), and their features
        (n, F).
        """
        full = np.diff(document.bounds) > 0
        if not full.any():
            return (
                full,
                np.zeros((0, document.vectors.shape[1]), np.float32),
                np.zeros((0, FEATURES), np.float32),
            )
        # of the full ones
        features = sentence_features(
            document.ids, np.unique(document.bounds), query.ids, self.model.words
        )
        return full, normalize(document.sums() if full.all() else document.sums()[full]), features


def relevance_features(
    query: VectorQuery,
    document: SentenceVectors,
    words: WordTable,
    backbone: Blocks,
    prompt: int = 0,
) -> np.ndarray:
    """Return the features of `VectorRelevance`, (3,) float32; zeros for a document without a token.
    `prompt`: its tokens.
    """
    if not len(document.ids):
        return np.zeros(VectorRelevance.FEATURES, dtype=np.float32)
    passages = document.passage_sums(backbone, prompt)
    vectors = normalize(np.concatenate([passages, passages.sum(0, keepdims=True)]))
    *cosines, whole = (vectors @ query.text).tolist()
    return np.array(
        [max(cosines), whole, static_bm25(document.ids, query.ids, words)], dtype=np.float32
    )
