"""Sentence scores from one pass of a recurrent model over the query and then the whole document.

The query is read first; its state is forked over every document. Each sentence is scored at its last visible token, so the
score depends on the query and on everything before the sentence (paper E, which restarts every 120k tokens; here the state is
carried to the end).

    T  tokens of a document   S  sentences   D  width of hidden vectors   K  kinds of mark
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.state import State
from runnel.engine import AtPositions, Marks, Request
from runnel.errors import InputError
from runnel.models.base import Model
from runnel.models.heads import MARK_DOCUMENT, MARK_MATCH, MARKS, MatchScore, VectorScore
from runnel.models.readers import SentenceScores, WeightedMean, lexical_features
from runnel.records import expect_text
from runnel.text.encoded import Encoded
from runnel.text.sentence_tokens import SentenceTokens

Progress = Callable[[int, int], None]  # (tokens done, tokens in all)


@dataclass(frozen=True)
class ScannedQuery:
    """What is known once the query has been read."""

    ids: np.ndarray  # of the query alone
    state: State
    mean: Tensor  # (D,), for `MatchScore`


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


class Scanner:
    """Scores the sentences of documents with a recurrent model that reads the query first.

    Raises:
        InputError: the model's template for sentences does not begin with the query, something follows the document, or its head
            scores sentence vectors.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._head = model.head("sentences")
        if isinstance(self._head, VectorScore):
            raise InputError(
                f"{model.source} scores sentence vectors, it does not read documents behind a query; use a recurrent model"
            )
        template = model.templates["sentences"]
        if template.fields[0] != "query":
            raise InputError(f"the sentence template must put the query first, got {template}")
        self._prefix, self.template = template.before("document"), template.starting_at("document")
        if self.template.parts[-1].kind != "field":
            raise InputError(f"nothing may follow the document in a sentence template, got {template}")

    def read_query(self, query: str) -> ScannedQuery:
        """Read a query.

        Raises:
            InputError: the query is empty or has no tokens.
        """
        query_ids, ids, place = self.prefix(query)
        reader = WeightedMean(ids, self.model.weight, [place])
        result = next(iter(self.model.engine.map([Request(ids, reader=reader, keep_state=True)])))
        mean = result.get().mean(0)
        assert result.state is not None
        return ScannedQuery(query_ids, result.state, mean)

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
        """The tokens of a document as they are read after a query."""
        return self.template.encode(self.model.tokenizer, "document", document)

    def marks(self, document_ids: np.ndarray, query_ids: np.ndarray) -> Marks | None:
        """Marks (T, K) of a document's tokens; None where the head uses none."""
        if not isinstance(self._head, MatchScore) or self.model.features is None:
            return None
        return _DocumentMarks(document_ids, query_ids, self.model.features.idf.cpu().numpy())

    def scores(
        self, query: ScannedQuery, documents: Iterable[SentenceTokens], progress: Progress | None = None
    ) -> Iterator[np.ndarray]:
        """Yield the scores of each document's sentences, (S,) float32, in order; nan for sentences without a token."""
        read: dict[int, SentenceTokens] = {}
        order: list[int] = []
        total = done = finished = 0

        def requests() -> Iterator[Request]:
            nonlocal total
            for index, tokens in enumerate(documents):
                read[index] = tokens
                total += len(tokens.ids)
                if len(tokens.ids):
                    order.append(index)
                    yield self._request(query, tokens)

        def report(tokens: int) -> None:
            nonlocal done
            done += tokens
            if progress is not None:
                progress(done, total)

        for result in self.model.engine.map(requests(), report):
            index = order[result.index]
            while finished < index:  # documents without tokens have no request
                yield self._scores(query, read.pop(finished), None)
                finished += 1
            yield self._scores(query, read.pop(index), result.get())
            finished += 1
        for index in sorted(read):
            yield self._scores(query, read.pop(index), None)

    def window_scores(
        self, query: ScannedQuery, tokens: SentenceTokens, window: int, stride: int, progress: Progress | None = None
    ) -> np.ndarray:
        """Scores (S,) as paper E computes them: the mean over windows that each start from the query alone.

        See `SentenceRetriever.score`.
        """
        if not 0 < stride <= window:
            raise InputError(f"windows of {window} tokens need a stride from 1 to {window}, got {stride}")
        total = len(tokens.ids)
        sums, seen = np.zeros(len(tokens.spans)), np.zeros(len(tokens.spans))
        for start in range(0, max(total - window, 0) + stride, stride):
            # The sentences that lie whole in the window, and the last window takes what is left.
            first = int(np.searchsorted(tokens.bounds[:-1], start))
            last = int(np.searchsorted(tokens.bounds[1:], start + window, side="right"))
            if first >= last:
                continue
            part = tokens.part(first, last)
            scores = self._scores(query, part, self.model.engine.run([self._request(query, part)])[0])
            sums[first:last] += np.nan_to_num(scores)
            seen[first:last] += ~np.isnan(scores)
            if progress is not None:
                progress(min(start + window, total), total)
        return np.divide(sums, seen, out=np.full(len(sums), np.nan), where=seen > 0).astype(np.float32)

    def _request(self, query: ScannedQuery, tokens: SentenceTokens) -> Request:
        marks = self.marks(tokens.ids, query.ids)
        if marks is None or not isinstance(self._head, MatchScore):
            return Request(tokens.ids, state=query.state, reader=AtPositions(tokens.ends[np.diff(tokens.bounds) > 0]))
        reader = SentenceScores(tokens.ids, self.model.weight, tokens.bounds, tokens.ends, query.mean, self._head)
        return Request(tokens.ids, state=query.state, marks=marks, reader=reader)

    def _scores(self, query: ScannedQuery, tokens: SentenceTokens, value: np.ndarray | Tensor | None) -> np.ndarray:
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
