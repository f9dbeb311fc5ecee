"""Sentence retriever: the sentences of a document that answer a query, from one pass over the whole document.

The query is read first; its state is forked over every document. Each sentence is scored at its last visible token,
so it is judged knowing the query and everything before it (paper E, which restarts every 120k tokens; here the state is
carried to the end).

    T  tokens of a document   S  sentences
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.state import State
from runnel.engine import AtPositions, Marks, Request
from runnel.errors import InputError
from runnel.models.base import Model, load_model
from runnel.models.heads import MARK_DOCUMENT, MARK_MATCH, MARKS, MatchScore
from runnel.models.readers import SentenceScores, WeightedMean, lexical_features
from runnel.records import Sentence, expect_count, expect_text
from runnel.text.encoded import Encoded
from runnel.text.sentence_tokens import SentenceTokens, Unit, read_sentences, read_spans, whole_spans

_TOGETHER = 8  # documents tokenized in one call, on all cores, at most ...
_TOGETHER_CHARS = 1 << 18  # ... and this many characters, so that long documents are not held together
_PIECES_CHARS = 1 << 15  # longer documents are tokenized piece by piece


@dataclass(frozen=True)
class _Query:
    """What is known once the query has been read."""

    ids: np.ndarray  # of the query alone
    state: State
    mean: Tensor  # (D,), for `MatchScore`


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A document ready to be read. `wanted` (S,) bool: the tokens' spans that are returned; None: all."""

    text: str
    tokens: SentenceTokens
    wanted: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Scored:
    """The sentences of a document with their scores: 20 bytes each until one is asked for.

    Attributes:
        text: the document.
        spans: (S, 2) int64 characters.
        scores: (S,) float32.
    """

    text: str
    spans: np.ndarray
    scores: np.ndarray

    def __len__(self) -> int:
        return len(self.spans)

    def sentence(self, index: int) -> Sentence:
        """Return one sentence by its position in the document."""
        start, end = self.spans[index].tolist()
        return Sentence(self.text[start:end], start, end, float(self.scores[index]), index)

    def sentences(self) -> list[Sentence]:
        """Return all sentences in document order."""
        return [self.sentence(index) for index in range(len(self))]

    def ranked(self) -> Iterator[Sentence]:
        """Yield all sentences, best first, ties in document order."""
        return map(self.sentence, np.argsort(-self.scores, kind="stable").tolist())


class _DocumentMarks:
    """Marks (T, K) of a document's tokens, made for the segment that is read; see `engine.Marks`."""

    def __init__(self, ids: np.ndarray, query_ids: np.ndarray, idf: np.ndarray) -> None:
        self._ids, self._match = ids, np.zeros_like(idf)
        self._match[query_ids] = idf[query_ids]
        self.shape = (len(ids), MARKS)

    def __getitem__(self, tokens: slice, /) -> np.ndarray:
        ids = self._ids[tokens]
        marks = np.zeros((len(ids), MARKS), dtype=np.float32)
        marks[:, MARK_DOCUMENT] = 1
        marks[:, MARK_MATCH] = self._match[ids]
        return marks


class SentenceRetriever:
    """Finds the sentences of a document that answer a query. Make one with `SentenceRetriever.load`.

    Scores are logits, comparable for one query across documents. They are not calibrated: docs/search.md has how often pocket's
    best sentence is an answer.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._head = model.head("sentences")
        template = model.templates["sentences"]
        if template.fields[0] != "query":
            raise InputError(f"the sentence template must put the query first, got {template}")
        self._prefix, self._rest = template.before("document"), template.starting_at("document")
        if self._rest.parts[-1].kind != "field":
            raise InputError(f"nothing may follow the document in a sentence template, got {template}")

    @classmethod
    def load(cls, name: str | Path, dtype: str | torch.dtype = "auto", device: str = "auto") -> SentenceRetriever:
        """Load "pocket", a model folder with a sentence head, a single-pass scanner checkpoint, or a hub id.

        Raises:
            CheckpointError: the model is not there or has no sentence head.
        """
        return cls(load_model(name, dtype, device))

    def save(self, folder: str | Path, *, weights: str = "as_is") -> None:
        """Write a model folder (see `Model.save`)."""
        self.model.save(folder, weights=weights)

    def score(
        self,
        query: str,
        document: str,
        *,
        unit: Unit | None = None,
        spans: np.ndarray | Sequence[tuple[int, int]] | None = None,
        language: str = "en",
        window: int | None = None,
        stride: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Sentence]:
        """Score every sentence of the document, in document order; sentences tile the text exactly.

        An empty document gives an empty list. A sentence without a token (only control characters, say) gets the lowest
        score of the others.

        Args:
            unit: what is scored: "sentence", "clauses" (groups of clauses of 20 tokens or more, the unit of the published
                single-pass scanners) or "paragraph"; default: the unit that the model was trained on.
            spans: (S, 2) instead of a unit: these spans of characters are scored and returned as they are, with whatever is
                between them read too. In-document word statistics count the text between two spans as a sentence.
            language: of the document, for sentence boundaries (ISO 639-1).
            window, stride: read windows of that many tokens that start `stride` tokens apart, each from the query alone, and
                average the scores of sentences seen more than once, as paper E does (120000 and 60000); for comparison only.
                A sentence that fits into no window gets the lowest score.
            progress: called after each step with (tokens done, tokens in all).

        Raises:
            InputError: the query is empty or has no tokens; an unknown unit; spans that are not pairs of whole numbers, that are
                empty, unsorted, overlapping or outside the document, or given together with a unit; or a window without a stride.
        """
        if unit is not None and spans is not None:
            raise InputError("unit and spans both say what is scored; give one of them")
        read = self._read_query(query)
        item = next(self._prepare_all([document], unit, language)) if spans is None else self._prepare_spans(document, spans)
        if window is not None:
            return self._score_windows(read, item, window, stride or 0, progress).sentences()
        return next(self._score_all(read, [item], progress)).sentences()

    def retrieve(
        self,
        query: str,
        document: str,
        top_k: int = 50,
        *,
        unit: Unit | None = None,
        spans: np.ndarray | Sequence[tuple[int, int]] | None = None,
        language: str = "en",
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Sentence]:
        """Return the `top_k` best sentences, best first, ties in document order. Arguments and errors as for `score`.

        Raises:
            InputError: also if `top_k` is not a whole number from 1.
        """
        expect_count(top_k, "top_k")
        sentences = self.score(query, document, unit=unit, spans=spans, language=language, progress=progress)
        return sorted(sentences, key=lambda s: (-s.score, s.index))[:top_k]

    def score_many(
        self,
        query: str,
        documents: Iterable[str],
        *,
        unit: Unit | None = None,
        language: str = "en",
        progress: Callable[[int, int], None] | None = None,
    ) -> Iterator[list[Sentence]]:
        """`score` for each of many documents, in order; the query is read once and its state forked over them."""
        for scored in self.scan(query, documents, unit=unit, language=language, progress=progress):
            yield scored.sentences()

    def scan(
        self,
        query: str,
        documents: Iterable[str],
        *,
        unit: Unit | None = None,
        language: str = "en",
        progress: Callable[[int, int], None] | None = None,
    ) -> Iterator[Scored]:
        """Like `score_many`, without an object for each sentence: for long documents of which only the best are wanted."""
        yield from self._score_all(self._read_query(query), self._prepare_all(documents, unit, language), progress)

    # ---- one document ------------------------------------------------------------------------------------------------

    def prefix(self, query: str) -> tuple[np.ndarray, np.ndarray, slice]:
        """Ids of the query alone, ids of all that is read before a document, and where the query is in these, to the end.

        Whitespace around the query is left out, as the published scanners were trained.

        Raises:
            InputError: the query is empty or has no tokens.
        """
        expect_text(query, "the query")
        ids = self._prefix.encode_query(self.model.tokenizer, query.strip())
        rendered = self._prefix.render(self.model.tokenizer, query=ids)
        return ids, rendered.ids, slice(rendered.slices["query"].start, len(rendered.ids))

    def encode(self, document: str) -> Encoded:
        """The tokens of a document as they are read behind a query."""
        return self._rest.encode(self.model.tokenizer, "document", document)

    def marks(self, document_ids: np.ndarray, query_ids: np.ndarray) -> Marks | None:
        """Marks (T, K) of a document's tokens; None where the head uses none."""
        if not isinstance(self._head, MatchScore) or self.model.features is None:
            return None
        return _DocumentMarks(document_ids, query_ids, self.model.features.idf.cpu().numpy())

    def _read_query(self, query: str) -> _Query:
        query_ids, ids, place = self.prefix(query)
        reader = WeightedMean(ids, self.model.weight, [place])
        result = next(iter(self.model.engine.map([Request(ids, reader=reader, keep_state=True)])))
        mean = result.get().mean(0)
        assert result.state is not None
        return _Query(query_ids, result.state, mean)

    def _prepare_all(self, documents: Iterable[str], unit: Unit | None, language: str) -> Iterator[_Prepared]:
        tokenizer, unit = self.model.tokenizer, unit or self.model.unit
        for texts in _together(documents):
            short = iter(self._rest.encode_batch(tokenizer, "document", [t for t in texts if len(t) <= _PIECES_CHARS]))
            for text in texts:
                whole = len(text) <= _PIECES_CHARS
                pieces = [next(short)] if whole else self._rest.encode_pieces(tokenizer, "document", text)
                yield _Prepared(text, read_sentences(text, pieces, unit=unit, language=language))

    def _prepare_spans(self, document: str, spans: np.ndarray | Sequence[tuple[int, int]]) -> _Prepared:
        """Find the tokens of the spans and of the text between them."""
        expect_text(document, "a document")
        given = whole_spans(spans)
        bad = np.flatnonzero(
            (given[:, 0] >= given[:, 1]) | (given[:, 0] < np.append(0, given[:-1, 1])) | (given[:, 1] > len(document))
        )
        if len(bad):
            raise InputError(
                f"span {bad[0]} is {given[bad[0]].tolist()}; expected [start, end) with start < end, inside the document of "
                f"{len(document)} characters and after the span before"
            )
        edges = np.unique([0, *given.ravel().tolist(), len(document)])
        tiles = np.stack([edges[:-1], edges[1:]], axis=1)
        pieces = self._rest.encode_pieces(self.model.tokenizer, "document", document)
        return _Prepared(document, read_spans(document, pieces, tiles), np.isin(tiles[:, 0], given[:, 0]))

    def _score_all(
        self, read: _Query, documents: Iterable[_Prepared], progress: Callable[[int, int], None] | None
    ) -> Iterator[Scored]:
        prepared: dict[int, _Prepared] = {}
        order: list[int] = []
        total = done = finished = 0

        def requests() -> Iterator[Request]:
            nonlocal total
            for index, item in enumerate(documents):
                prepared[index] = item
                total += len(item.tokens.ids)
                if len(item.tokens.ids):
                    order.append(index)
                    yield self._request(read, item)

        def report(tokens: int) -> None:
            nonlocal done
            done += tokens
            if progress is not None:
                progress(done, total)

        for result in self.model.engine.map(requests(), report):
            index = order[result.index]
            while finished < index:  # documents without tokens have no request
                yield self._scored(prepared.pop(finished), None, read)
                finished += 1
            yield self._scored(prepared.pop(index), result.get(), read)
            finished += 1
        for index in sorted(prepared):
            yield self._scored(prepared.pop(index), None, read)

    def _request(self, query: _Query, item: _Prepared) -> Request:
        tokens = item.tokens
        marks = self.marks(tokens.ids, query.ids)
        if marks is None or not isinstance(self._head, MatchScore):
            return Request(tokens.ids, state=query.state, reader=AtPositions(tokens.ends[np.diff(tokens.bounds) > 0]))
        reader = SentenceScores(tokens.ids, self.model.weight, tokens.bounds, tokens.ends, query.mean, self._head)
        return Request(tokens.ids, state=query.state, marks=marks, reader=reader)

    def _scores(self, item: _Prepared, value: np.ndarray | Tensor | None, query: _Query) -> np.ndarray:
        """(S,) float32; nan for sentences without a token."""
        tokens = item.tokens
        scores = np.full(len(tokens.spans), np.nan, dtype=np.float32)
        if value is None:
            return scores
        if isinstance(value, Tensor):
            with torch.inference_mode():
                scores[np.diff(tokens.bounds) > 0] = self._head(value).numpy()
            return scores
        assert self.model.features is not None and isinstance(self._head, MatchScore)
        lexical = lexical_features(tokens.ids, tokens.bounds, query.ids, self.model.features.idf.numpy())
        return value + lexical @ self._head.lexical_weight.detach().numpy()

    def _scored(self, item: _Prepared, value: np.ndarray | Tensor | None, query: _Query) -> Scored:
        return _finished(item, self._scores(item, value, query))

    def _score_windows(
        self, read: _Query, item: _Prepared, window: int, stride: int, progress: Callable[[int, int], None] | None
    ) -> Scored:
        if not 0 < stride <= window:
            raise InputError(f"windows of {window} tokens need a stride from 1 to {window}, got {stride}")
        tokens = item.tokens
        total = len(tokens.ids)
        sums = np.zeros(len(tokens.spans))
        seen = np.zeros(len(tokens.spans))
        for start in range(0, max(total - window, 0) + stride, stride):
            # The sentences that lie whole in the window, and the last window takes what is left.
            first = int(np.searchsorted(tokens.bounds[:-1], start))
            last = int(np.searchsorted(tokens.bounds[1:], start + window, side="right"))
            if first >= last:
                continue
            part = _Prepared(item.text, tokens.part(first, last))
            value = self.model.engine.run([self._request(read, part)])[0]
            scores = self._scores(part, value, read)
            sums[first:last] += np.nan_to_num(scores)
            seen[first:last] += ~np.isnan(scores)
            if progress is not None:
                progress(min(start + window, total), total)
        scores = np.divide(sums, seen, out=np.full(len(sums), np.nan), where=seen > 0)
        return _finished(item, scores.astype(np.float32))


def _together(documents: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of documents to be tokenized in one call."""
    if isinstance(documents, str):
        raise InputError(f"documents are {reprlib.repr(documents)}; expected several: a list of texts")
    texts: list[str] = []
    for text in documents:
        expect_text(text, "a document")
        texts.append(text)
        if len(texts) == _TOGETHER or sum(map(len, texts)) >= _TOGETHER_CHARS:
            yield texts
            texts = []
    yield texts


def _finished(item: _Prepared, scores: np.ndarray) -> Scored:
    """Return the wanted sentences; those without a score get the lowest one."""
    spans = item.tokens.spans
    if item.wanted is not None:
        spans, scores = spans[item.wanted], scores[item.wanted]
    lowest = np.nanmin(scores) if np.isfinite(scores).any() else 0.0
    return Scored(item.text, spans, np.where(np.isnan(scores), np.float32(lowest), scores))
