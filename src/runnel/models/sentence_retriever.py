"""Sentence retriever: the sentences of a document that answer a query, from one pass over the whole document.

The query is read first; its state is forked over every document. Each sentence is scored where its last token goes by,
so it is judged knowing the query and everything before it (paper E, which restarts every 120k tokens; here the state is
carried to the end).

    T  tokens of a document   S  sentences
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.state import State
from runnel.engine import AtPositions, Request
from runnel.errors import InputError
from runnel.models.base import Model, load_model
from runnel.models.heads import MARK_DOCUMENT, MARK_MATCH, MARKS, MatchScore
from runnel.models.readers import SentenceScores, WeightedMean, lexical_features
from runnel.records import Sentence
from runnel.text.encoded import Encoded
from runnel.text.sentences import sentence_of_tokens, split_sentences

_TOGETHER = 8  # documents tokenised in one call, on all cores


@dataclass(frozen=True)
class _Query:
    """What is known once the query has been read."""

    ids: np.ndarray  # of the query alone
    state: State
    mean: Tensor  # (D,), for `MatchScore`


@dataclass(frozen=True)
class _Prepared:
    """A document made ready: spans (S, 2) in characters, bounds (S+1,) in tokens."""

    text: str
    spans: np.ndarray
    bounds: np.ndarray
    encoded: Encoded


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
        language: str = "en",
        window: int | None = None,
        stride: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Sentence]:
        """Every sentence of the document with its score, in document order; they tile the text exactly.

        An empty document gives an empty list. A sentence without a token (only control characters, say) gets the lowest
        score of the others.

        Args:
            language: of the document, for sentence boundaries (ISO 639-1).
            window, stride: read windows of that many tokens that start `stride` tokens apart, each from the query alone, and
                average the scores of sentences seen more than once, as paper E does (120000 and 60000); for comparison only.
                A sentence that fits into no window gets the lowest score.
            progress: called after each step with (tokens done, tokens in all).

        Raises:
            InputError: the query is empty; or a window without a stride.
        """
        if window is not None:
            return self._score_windows(query, document, language, window, stride or 0, progress)
        return next(self.score_many(query, [document], language=language, progress=progress))

    def retrieve(
        self,
        query: str,
        document: str,
        top_k: int = 50,
        *,
        language: str = "en",
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Sentence]:
        """The `top_k` best sentences, best first, ties in document order.

        Raises:
            InputError: the query is empty, or top_k is below 1.
        """
        if top_k < 1:
            raise InputError(f"top_k must be at least 1, got {top_k}")
        sentences = self.score(query, document, language=language, progress=progress)
        return sorted(sentences, key=lambda s: (-s.score, s.index))[:top_k]

    def score_many(
        self,
        query: str,
        documents: Iterable[str],
        *,
        language: str = "en",
        progress: Callable[[int, int], None] | None = None,
    ) -> Iterator[list[Sentence]]:
        """`score` for each of many documents, in order; the query is read once and its state forked over them."""
        read = self._read_query(query)
        prepared: dict[int, _Prepared] = {}
        total = 0

        def requests() -> Iterator[Request]:
            nonlocal total
            for index, item in enumerate(self._prepare_all(documents, language)):
                prepared[index] = item
                total += len(item.encoded.ids)
                if len(item.encoded.ids):
                    order.append(index)
                    yield self._request(read, item)

        order: list[int] = []
        done, finished = 0, 0

        def report(tokens: int) -> None:
            nonlocal done
            done += tokens
            if progress is not None:
                progress(done, total)

        for result in self.model.engine.map(requests(), report):
            index = order[result.index]
            while finished < index:  # documents without tokens have no request
                yield self._sentences(prepared.pop(finished), None, read)
                finished += 1
            yield self._sentences(prepared.pop(index), result.get(), read)
            finished += 1
        for index in sorted(prepared):
            yield self._sentences(prepared.pop(index), None, read)

    # ---- one document ------------------------------------------------------------------------------------------------

    def prefix(self, query: str) -> tuple[np.ndarray, np.ndarray, slice]:
        """Ids of the query alone, ids of all that is read before a document, and where the query is in these, to the end.

        Raises:
            InputError: the query is empty.
        """
        if not query.strip():
            raise InputError("the query is empty; give the words to look for")
        ids = self._prefix.encode(self.model.tokenizer, "query", query).ids
        rendered = self._prefix.render(self.model.tokenizer, query=ids)
        return ids, rendered.ids, slice(rendered.slices["query"].start, len(rendered.ids))

    def encode(self, document: str) -> Encoded:
        """The tokens of a document as they are read behind a query."""
        return self._rest.encode(self.model.tokenizer, "document", document)

    def marks(self, document_ids: np.ndarray, query_ids: np.ndarray) -> np.ndarray | None:
        """Marks (T, K) float32 of a document's tokens; None where the head uses none."""
        if not isinstance(self._head, MatchScore) or self.model.features is None:
            return None
        marks = np.zeros((len(document_ids), MARKS), dtype=np.float32)
        marks[:, MARK_DOCUMENT] = 1
        marks[:, MARK_MATCH] = self.model.features.idf.cpu().numpy()[document_ids] * np.isin(document_ids, query_ids)
        return marks

    def _read_query(self, query: str) -> _Query:
        query_ids, ids, place = self.prefix(query)
        reader = WeightedMean(ids, self.model.weight, [place])
        result = next(iter(self.model.engine.map([Request(ids, reader=reader, keep_state=True)])))
        mean = result.get().mean(0)
        assert result.state is not None
        return _Query(query_ids, result.state, mean)

    def _prepare_all(self, documents: Iterable[str], language: str) -> Iterator[_Prepared]:
        source = iter(documents)
        while some := list(itertools.islice(source, _TOGETHER)):
            for text, encoded in zip(some, self._rest.encode_batch(self.model.tokenizer, "document", some), strict=True):
                spans = split_sentences(text, language)
                yield _Prepared(text, spans, sentence_of_tokens(spans, encoded), encoded)

    def _request(self, query: _Query, item: _Prepared) -> Request:
        ids = item.encoded.ids
        marks = self.marks(ids, query.ids)
        if marks is None or not isinstance(self._head, MatchScore):
            return Request(ids, state=query.state, reader=AtPositions(self._last_tokens(item)))
        reader = SentenceScores(ids, self.model.weight, item.bounds, query.mean, self._head)
        return Request(ids, state=query.state, marks=marks, reader=reader)

    @staticmethod
    def _last_tokens(item: _Prepared) -> np.ndarray:
        """Position of the last token of each sentence that has one."""
        return (item.bounds[1:] - 1)[np.diff(item.bounds) > 0]

    def _scores(self, item: _Prepared, value: np.ndarray | Tensor | None, query: _Query) -> np.ndarray:
        """(S,) float32; nan for sentences without a token."""
        scores = np.full(len(item.spans), np.nan, dtype=np.float32)
        if value is None:
            return scores
        if isinstance(value, Tensor):
            with torch.inference_mode():
                scores[np.diff(item.bounds) > 0] = self._head(value).numpy()
            return scores
        assert self.model.features is not None and isinstance(self._head, MatchScore)
        lexical = lexical_features(item.encoded.ids, item.bounds, query.ids, self.model.features.idf.numpy())
        return value + lexical @ self._head.lexical_weight.detach().numpy()

    def _sentences(self, item: _Prepared, value: np.ndarray | Tensor | None, query: _Query) -> list[Sentence]:
        return _as_sentences(item, self._scores(item, value, query))

    def _score_windows(
        self, query: str, document: str, language: str, window: int, stride: int, progress: Callable[[int, int], None] | None
    ) -> list[Sentence]:
        if not 0 < stride <= window:
            raise InputError(f"windows of {window} tokens need a stride from 1 to {window}, got {stride}")
        read, item = self._read_query(query), next(self._prepare_all([document], language))
        total = len(item.encoded.ids)
        sums = np.zeros(len(item.spans))
        seen = np.zeros(len(item.spans))
        for start in range(0, max(total - window, 0) + stride, stride):
            # The sentences that lie whole in the window, and the last window takes what is left.
            first = int(np.searchsorted(item.bounds[:-1], start))
            last = int(np.searchsorted(item.bounds[1:], start + window, side="right"))
            if first >= last:
                continue
            a, b = int(item.bounds[first]), int(item.bounds[last])
            encoded = item.encoded.slice(a, b)
            part = _Prepared(document, item.spans[first:last], item.bounds[first : last + 1] - a, encoded)
            value = self.model.engine.run([self._request(read, part)])[0]
            scores = self._scores(part, value, read)
            sums[first:last] += np.nan_to_num(scores)
            seen[first:last] += ~np.isnan(scores)
            if progress is not None:
                progress(min(start + window, total), total)
        scores = np.divide(sums, seen, out=np.full(len(sums), np.nan), where=seen > 0)
        return _as_sentences(item, scores.astype(np.float32))


def _as_sentences(item: _Prepared, scores: np.ndarray) -> list[Sentence]:
    lowest = float(np.nanmin(scores)) if np.isfinite(scores).any() else 0.0
    return [
        Sentence(item.text[a:b], int(a), int(b), lowest if np.isnan(score) else float(score), index)
        for index, ((a, b), score) in enumerate(zip(item.spans.tolist(), scores.tolist(), strict=True))
    ]
