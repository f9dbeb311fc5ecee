"""Vectors for the sentences of a document, from one reading, which answer every later question, and their scores.

A sentence's vector is the normalized sum of its own hidden vectors. Sums are stored in 8 bits, and scores are computed from the
stored sums, so a remembered document scores as one that has just been read.

    T  tokens of a document   S  sentences   P  passages   D  width of the vectors
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from runnel.backbones.encoder.layout import Form, lay_out, passages_of
from runnel.config import Blocks
from runnel.errors import InputError
from runnel.models.base import Model
from runnel.models.heads import WITHOUT_TOKENS, VectorRelevance, VectorScore, normalize
from runnel.models.lexical import FEATURES, WordTable, sentence_features, static_bm25
from runnel.models.memory import Memory, Precision, Remembered
from runnel.models.second_look import FACTS, FirstLook, Judging, SecondLook, document_facts, first_look
from runnel.records import Sentence, expect_text, grouped, probability, top
from runnel.request import Array, Progress, RangeSums, Request, TokenCount
from runnel.text.documents.document import DocumentText
from runnel.text.kinds import TEXT, TITLES, text_of
from runnel.text.sentences import SentenceTokens, Unit, read_sentences
from runnel.text.templates import Template

_WIDEST = 127  # the largest 8-bit number
_ARRAYS = ("spans", "ids", "bounds", "vectors", "scales", "kinds")  # of `SentenceVectors`, ...
_PASSAGES = ("passages", "passage_scales")  # ... and those that it may have
_TOGETHER = 8  # the most documents tokenized in one call, on all cores, ...
_TOGETHER_CHARS = 1 << 18  # ... and about the most characters, so that several long documents are not in memory together
_PIECES_CHARS = 1 << 15  # longer documents are tokenized piece by piece
_AHEAD = 8  # sentences among which the first text below a heading is: headings that follow each other are few


def sentence_tokens(
    model: Model, template: Template, documents: Iterable[str | DocumentText], unit: Unit | None = None, language: str = "en"
) -> Iterator[SentenceTokens]:
    """Yield the tokens of each document, in units (default: the model's)."""
    for group in grouped(documents, lambda document: len(text_of(document)), _TOGETHER_CHARS, _TOGETHER):
        texts = [text_of(document) for document in group]
        short = iter(template.encode_batch(model.tokenizer, "document", [t for t in texts if len(t) <= _PIECES_CHARS]))
        for document, text in zip(group, texts, strict=True):
            whole = len(text) <= _PIECES_CHARS
            pieces = [next(short)] if whole else template.encode_pieces(model.tokenizer, "document", text)
            yield read_sentences(document, pieces, unit=unit or model.unit, language=language)


@dataclass(frozen=True, slots=True, eq=False)
class SentenceVectors(Remembered):
    """A remembered document."""

    text: str
    spans: np.ndarray  # (S, 2) int64 characters
    ids: np.ndarray  # (T,) int32 token ids of the text
    bounds: np.ndarray  # (S+1,) int64: sentence s has the tokens [bounds[s], bounds[s+1])
    vectors: np.ndarray  # (S, D) int8; zero for a sentence without a token
    scales: np.ndarray  # (S,) float32: vectors * scales are the sums of the hidden vectors of each sentence
    kinds: np.ndarray  # (S,) uint8: as `SentenceTokens.kinds`
    passages: tuple[np.ndarray, np.ndarray] | None = None  # (P, D) int8 and (P,) float32, the same of each passage

    def __len__(self) -> int:
        return len(self.spans)

    def sums(self) -> np.ndarray:
        """Return the sums of hidden vectors, (S, D) float32."""
        return _wide(self.vectors, self.scales)

    def passage_sums(self, backbone: Blocks, prompt: int = 0) -> np.ndarray:
        """Return the sums of the hidden vectors of each passage as a text, (P, D) float32. `prompt`: tokens of the prompt."""
        if self.passages is not None:
            return _wide(*self.passages)
        sums: np.ndarray = np.add.reduceat(self.sums(), passages_of(self.bounds, backbone, prompt=prompt)[:-1])
        return sums

    def arrays(self) -> Mapping[str, np.ndarray]:
        values = {name: getattr(self, name) for name in _ARRAYS}
        values["ids"] = self.ids.astype(np.uint16) if self.ids.max(initial=0) < 1 << 16 else self.ids
        for name in ("spans", "bounds"):
            if values[name].max(initial=0) < 1 << 32:
                values[name] = values[name].astype(np.uint32)
        return values | dict(zip(_PASSAGES, self.passages or (), strict=False))

    @classmethod
    def of(cls, text: str, arrays: Mapping[str, np.ndarray]) -> SentenceVectors:
        spans, ids, bounds, vectors, scales, kinds = (arrays[name] for name in _ARRAYS)
        passages = (arrays[_PASSAGES[0]], arrays[_PASSAGES[1]]) if _PASSAGES[0] in arrays else None
        wide = spans.astype(np.int64), ids.astype(np.int32), bounds.astype(np.int64)
        return cls(text, *wide, vectors, scales, kinds, passages)


class SentenceSums:
    """A collector of a document's vectors; each is rounded to 8 bits when its sentence or passage is complete.

    `passages`: sentences have layers of their own, and hidden vectors are (n, 2 D): first those of passages.
    """

    def __init__(self, model: Model, tokens: SentenceTokens, *, passages: bool) -> None:
        backbone, markers, full = model.backbone, model.tokenizer.markers(), np.flatnonzero(tokens.full)
        prompt = model.prompt_ids("document")
        self.layout = row = lay_out(tokens.ids, tokens.bounds, backbone, markers, prompt=prompt)
        inside = np.zeros(len(row.ids), np.float32)
        inside[row.places] = 1  # not the markers and prompts
        self._tokens = tokens
        sentences, blocks = np.stack([row.starts, row.ends], axis=1)[full], np.stack([row.edges[:-1], row.edges[1:]], axis=1)
        self._sentences = _Rounded(len(tokens.spans), backbone.hidden_size, sentences, inside, full)
        self._passages: _Rounded | None = None
        if passages:
            self._passages = _Rounded(len(blocks), backbone.hidden_size, blocks, inside, np.arange(len(blocks)))

    def take(self, start: int, hidden: Array) -> None:
        """Take the hidden vectors (n, D or 2 D) of tokens [start, start + n); see `Request.take`."""
        read = np.asarray(hidden)
        if self._passages is not None:
            whole, read = np.hsplit(read, 2)
            self._passages.add(start, whole)
        self._sentences.add(start, read)

    def result(self) -> SentenceVectors:
        """Return the document with its vectors; call it after the last token."""
        tokens, found = self._tokens, self._sentences
        passages = None if self._passages is None else (self._passages.vectors, self._passages.scales)
        rounded = (found.vectors, found.scales)
        return SentenceVectors(tokens.text, tokens.spans, tokens.ids, tokens.bounds, *rounded, tokens.kinds, passages)


class _Rounded:
    """Sums over ranges in 8 bits, (n, D), with scales (n,); zeros before they are known."""

    def __init__(self, count: int, width: int, ranges: np.ndarray, weights: np.ndarray, places: np.ndarray) -> None:
        """Begin to sum: `places` (k,) says which rows the ranges (k, 2) are."""
        self.vectors, self.scales = np.zeros((count, width), dtype=np.int8), np.zeros(count, dtype=np.float32)
        self._sums, self._weights, self._places = RangeSums(ranges), weights, places

    def add(self, start: int, hidden: np.ndarray) -> None:
        stop = start + len(hidden)
        self._sums.add(stop, self._sums.part(start, hidden, self._weights[start:stop]))
        first, complete = self._sums.take_complete()
        places, sums = self._places[first : first + len(complete)], complete[:, :-1].astype(np.float32)
        scale = np.abs(sums).max(axis=-1, keepdims=True, initial=0) / np.float32(_WIDEST)
        self.vectors[places] = np.rint(sums / np.maximum(scale, np.finfo(np.float32).tiny)).astype(np.int8)
        self.scales[places] = scale[:, 0]


def _wide(vectors: np.ndarray, scales: np.ndarray) -> np.ndarray:
    wide = vectors.astype(np.float32)
    wide *= scales[:, None]
    return wide


@dataclass(frozen=True, eq=False)
class Scored:
    """The sentences of a document with their scores: 20 bytes each until a `Sentence` is made."""

    text: str
    spans: np.ndarray  # (S, 2) int64 characters
    scores: np.ndarray  # (S,) float32; -inf for a sentence without a token, and for one that is no answer (a line of contents)
    kinds: np.ndarray | None = None  # (S,) uint8, as `SentenceTokens.kinds`; None: all are text
    first: FirstLook | None = None  # of a model that stores vectors
    second: SecondLook | None = None

    @property
    def answers(self) -> float | None:
        """The probability that the document answers the query at all; None if the model cannot say."""
        answers = None if self.second is None else self.second.answers
        return None if answers is None else probability(answers)

    def __len__(self) -> int:
        return len(self.spans)

    def below(self, index: int) -> int:
        """Return the position of the first text below a question or heading; `index` if it is neither, or no text follows."""
        if self.kinds is None or self.kinds[index] not in TITLES:
            return index
        ahead = np.flatnonzero(self.kinds[index : index + _AHEAD] == TEXT)
        return index + int(ahead[0]) if len(ahead) else index

    def sentence(self, index: int) -> Sentence:
        """Return one sentence by its position in the document."""
        start, end = self.spans[index].tolist()
        return Sentence(self.text[start:end], start, end, float(self.scores[index]), index)

    def sentences(self) -> list[Sentence]:
        """Return all sentences in document order."""
        return [self.sentence(index) for index in range(len(self))]

    def ranked(self) -> Iterator[Sentence]:
        """Yield the sentences with a token, best first, ties in document order."""
        order = top(self.scores, int(np.count_nonzero(self.scores > -np.inf)))
        return map(self.sentence, order.tolist())


@dataclass(frozen=True)
class VectorQuery:
    """A query that has been read: its ids, its vector (D,) for sentences, and the one for passages and whole documents."""

    ids: np.ndarray
    vector: np.ndarray
    text: np.ndarray


class VectorScorer:
    """A reader of documents into `SentenceVectors`, which it scores; `passages`: as for `SentenceSums`."""

    remembers = True
    kind = SentenceVectors
    reads_pairs = False

    def __init__(self, model: Model, *, passages: bool = False) -> None:
        head = model.head("sentences")  # an encoder has it `for_sentences`
        assert isinstance(head, VectorScore)
        self.model, self._head = model, head
        self._passages = passages
        self._forms: tuple[Form, ...] = ("texts", "sentences") if passages else ("sentences",)
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
        tokens = read_sentences(query, [self.template.encode(self.model.tokenizer, "document", query)])
        markers, prompt = self.model.tokenizer.markers(), self.prompts["query"]
        row = lay_out(ids, tokens.bounds, self.model.backbone, markers, prompt=prompt).ids
        return Request(row, ranges=np.array([[0, len(row)]]), tag=ids)

    def read(self, documents: Iterable[SentenceTokens], progress: Progress | None = None) -> Iterator[SentenceVectors]:
        """Read documents in order; an empty document has no sentences."""
        count = TokenCount(progress)
        requests = count.totaled(map(self._request, documents))
        for result in self.model.engine_for(*self._forms).map(requests, count.add):
            yield result.get().tag.result()

    def _request(self, tokens: SentenceTokens) -> Request:
        sums = SentenceSums(self.model, tokens, passages=self._passages)
        return Request(sums.layout.ids, (), take=sums.take, tag=sums)

    def window_scores(self, *_: Any) -> np.ndarray:
        raise InputError("windows need a recurrent model; this model reads passages: do not give window")

    def scan(self, query: VectorQuery, documents: Iterable[SentenceTokens], progress: Progress | None = None) -> Iterator[Scored]:
        """Read documents and score them, in order."""
        return (self.look(query, document) for document in self.read(documents, progress))

    def remember(
        self, documents: Iterable[str | DocumentText], precision: Precision = "int8", progress: Progress | None = None
    ) -> Iterator[SentenceVectors]:
        """Read documents to remember them; `precision` is of states, which there are none of."""
        return self.read(sentence_tokens(self.model, self.template, documents), progress)

    def score(self, query: str, memory: Memory, progress: Progress | None = None) -> np.ndarray:
        """Return the scores (n,) float32 of a memory's documents, as `Reranker.score` does."""
        if not len(memory):
            return np.zeros(0, dtype=np.float32)
        asked, prompt, features, empty = self.read_query(query), len(self.prompts["document"]), [], []
        for document in cast("Iterator[SentenceVectors]", map(memory.__getitem__, memory.documents)):
            if self._passages and document.passages is None:
                raise InputError("this document was remembered for its sentences alone; let a Reranker remember it")
            features.append(relevance_features(asked, document, self.model.words, self.model.backbone, prompt))
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
        """Return the parts of a sentence's score (`VectorScore.parts`); none for a sentence without a token."""
        full, vectors, features = self.inputs(query, document)
        if not full[index]:
            return {}
        return self._head.parts(query.vector, vectors, features, int(np.count_nonzero(full[:index])))

    def inputs(self, query: VectorQuery, document: SentenceVectors) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return which sentences have a token (S,), their n unit vectors (n, D), and their features (n, F)."""
        full = np.diff(document.bounds) > 0
        if not full.any():
            return full, np.zeros((0, document.vectors.shape[1]), np.float32), np.zeros((0, FEATURES), np.float32)
        features = sentence_features(document.ids, np.unique(document.bounds), query.ids, self.model.words)  # of the full ones
        return full, normalize(document.sums() if full.all() else document.sums()[full]), features


def no_vectors_error(model: Model) -> InputError:
    """Return the error for what only stored vectors of sentences can give."""
    return InputError(
        f"{model.source} reads the query and the document together, so it cannot remember documents and its scores have no "
        "parts; use a model that scores sentence vectors, as pocket does"
    )


def relevance_features(
    query: VectorQuery, document: SentenceVectors, words: WordTable, backbone: Blocks, prompt: int = 0
) -> np.ndarray:
    """Return the features of `VectorRelevance`, (3,) float32; zeros for a document without a token. `prompt`: its tokens."""
    if not len(document.ids):
        return np.zeros(VectorRelevance.FEATURES, dtype=np.float32)
    passages = document.passage_sums(backbone, prompt)
    vectors = normalize(np.concatenate([passages, passages.sum(0, keepdims=True)]))
    *cosines, whole = (vectors @ query.text).tolist()
    return np.array([max(cosines), whole, static_bm25(document.ids, query.ids, words)], dtype=np.float32)
