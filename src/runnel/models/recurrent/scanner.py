"""Sentence scores from one pass of a recurrent model over the query and then the whole document.

Each sentence is scored at its last token with a visible character. Paper E (docs/papers.md) does
the same, but begins again every 120k tokens; here the state is carried to the end.

    read_query    reads the query once; its state begins every document
    scan          reads each document from that state, and scores its sentences as they end

Marks (`models/items.py`) tell the model of each token which kind of text it belongs to, and whether
it occurs in the query; a head with the inputs "matches" needs them, and lexical features.

    S  sentences of a document      T  tokens of a row      K  kinds of mark
    n  sentences with a token       F  lexical features     D  width of hidden vectors
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.state import State
from runnel.checks import expect_text
from runnel.errors import InputError
from runnel.models.head import MARK_DOCUMENT, MARKS
from runnel.models.items import Item, mark
from runnel.models.model import Model
from runnel.models.pocket.lexical import piece_features
from runnel.models.recurrent.units import UnitScores
from runnel.models.scored import Scored
from runnel.request import Array, OpenRequest, Progress, Request, TokenCount
from runnel.text.joined import as_read
from runnel.text.sentences import (
    SentenceTokens,
    TokenUnits,
    read_sentences,
    read_spans,
    split_sentences,
)


@dataclass(frozen=True)
class ScannedQuery:
    """A query that has been read."""

    ids: np.ndarray  # the ids of the query, without the template
    state: State
    mean: Tensor  # (D,), for `MatchScore`


class ItemMaker:
    """Makes the rows that a scanner reads. It has the model's tokenizer, but not its weights, so
    that other processes can make rows too.
    """

    def __init__(self, model: Model) -> None:
        inputs = model.head("sentences").inputs
        template = None if inputs == "vectors" else model.templates["sentences"]
        if template is None or template.fields[0] != "query" or template.parts[-1].kind != "field":
            raise InputError(
                f"{model.source} does not read documents after a query, with nothing behind them:"
                f" its template for sentences is {template}; use a recurrent model"
            )
        self.tokenizer = model.tokenizer
        self.template = template.starting_at("document")
        self._prefix = template.before("document")
        self._unit = model.unit
        self._matches = inputs == "matches"
        self._idf = model.idf

    def encode_query(self, query: str) -> np.ndarray:
        """Return the ids of a query, without whitespace around it, as in the training of the
        published scanners.
        """
        expect_text(query, "the query")
        return self._prefix.encode_query(self.tokenizer, query.strip()).ids

    def prefix(self, query_ids: np.ndarray) -> tuple[np.ndarray, slice]:
        """Return the ids that are read before a document, and the slice of them that begins with
        the query.
        """
        rendered = self._prefix.render(self.tokenizer, query=query_ids)
        return rendered.ids, slice(rendered.slices["query"].start, len(rendered.ids))

    def read(self, document: str, spans: np.ndarray | None = None) -> SentenceTokens:
        """Return the tokens of a document as they are read after a query.

        `spans` (S, 2) tile the document, which is then read as it is; default: the model's units.
        """
        if spans is None and self._unit == "sentence":
            # Only spans: the kinds of sentences, such as headings, are not needed.
            spans = split_sentences(document)
        # a model of "clauses" reads a changed text; `kept` are the characters that it has of it
        text, kept = (document, None) if spans is not None else as_read(document, self._unit)
        encoded = [self.template.encode(self.tokenizer, "document", text)]
        if spans is None:
            return read_sentences(document, encoded, unit=self._unit, kept=kept)
        return read_spans(document, encoded, np.asarray(spans, np.int64).reshape(-1, 2))

    def item(
        self,
        query_ids: np.ndarray,
        tokens: TokenUnits,
        labels: np.ndarray | None = None,
    ) -> Item:
        """Return a query and a document as one row."""
        before, place = self.prefix(query_ids)
        ids = np.concatenate([before, tokens.ids])
        start = len(before)  # of the document
        ends, ranges, marks, lexical = self.units(query_ids, tokens)
        if not self._matches:
            return Item(Request(ids, ends + start), sentences=tokens, labels=labels)
        ranges = np.concatenate([[[place.start, place.stop]], ranges + start])
        marks = np.pad(marks, ((start, 0), (0, 0)))
        return Item(
            Request(ids, ends + start, ranges, marks=marks, tag=lexical),
            sentences=tokens,
            labels=labels,
        )

    def units(
        self, query_ids: np.ndarray, tokens: TokenUnits
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the ends (n,), ranges (n, 2), marks (T, K) and lexical features (n, F) of the
        sentences with a token.
        """
        edges = np.unique(tokens.bounds)  # of the sentences with a token: others have equal bounds
        marks = np.zeros((len(tokens.ids), MARKS), np.float32)
        lexical = np.zeros((len(edges) - 1, 0), np.float32)  # a head of other inputs has none
        if self._matches:
            marks = mark(tokens.ids, np.unique(query_ids), self._idf, MARK_DOCUMENT)
            lexical = piece_features(tokens.ids, edges, query_ids, self._idf)
        return tokens.ends[tokens.full], np.stack([edges[:-1], edges[1:]], axis=1), marks, lexical


class Scanner:
    """A scorer of sentences with a recurrent model that reads the query first."""

    remembers = calibrated = False

    def __init__(self, model: Model) -> None:
        self.model = model
        self._maker = ItemMaker(model)
        self._head = model.head("sentences")
        self.template = self._maker.template

    def read_query(self, query: str) -> ScannedQuery:
        query_ids = self._maker.encode_query(query)
        ids, place = self._maker.prefix(query_ids)
        (result,) = self.model.engine.run(
            [Request(ids, ranges=np.array([[place.start, place.stop]]), keep_state=True)]
        )
        assert result.state is not None
        return ScannedQuery(query_ids, result.state, result.means[0])

    def scan(
        self,
        query: ScannedQuery,
        documents: Iterable[SentenceTokens],
        progress: Progress | None = None,
    ) -> Iterator[Scored]:
        """Score documents in order; sentences without a token get -inf."""
        count = TokenCount(progress)
        requests = (self._request(query, tokens) for tokens in documents)
        for result in self.model.engine.map(
            count.totaled(requests, lambda request: len(request.ids)), count.add
        ):
            tokens, parts = result.get().tag
            scores = np.full(len(tokens.spans), -np.inf, dtype=np.float32)
            if parts:
                scores[tokens.full] = torch.cat(parts).numpy()
            yield Scored(tokens.text, tokens.spans, scores, tokens.kinds)

    def window_scores(
        self,
        query: ScannedQuery,
        tokens: SentenceTokens,
        window: int,
        stride: int,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Return scores (S,) as in paper E: the mean over windows that each start from the query
        alone.
        """
        if not 0 < stride <= window:
            raise InputError(
                f"stride must be from 1 to the window of {window} tokens, got {stride}"
            )
        total = len(tokens.ids)
        sums = np.zeros(len(tokens.spans))
        seen = np.zeros(len(tokens.spans))
        # windows of which the last reaches the end of the document
        for start in range(0, max(total - window, 0) + stride, stride):
            # The sentences that are whole in the window.
            first = int(np.searchsorted(tokens.bounds[:-1], start))
            last = int(np.searchsorted(tokens.bounds[1:], start + window, side="right"))
            if first >= last:
                continue
            scores = next(self.scan(query, [tokens.part(first, last)])).scores
            full = tokens.full[first:last]
            sums[first:last][full] += scores[full]
            seen[first:last] += full
            if progress is not None:
                progress(min(start + window, total), total)
        return np.divide(sums, seen, out=np.full(len(sums), -np.inf), where=seen > 0).astype(
            np.float32
        )

    def _request(self, query: ScannedQuery, tokens: SentenceTokens) -> Request:
        # Two requests: the engine reads the one that is returned, and hands over all hidden vectors
        # as they come (`take`); `reading` picks what the head needs of them, so that scores are
        # computed sentence by sentence.
        ends, ranges, marks, lexical = self._maker.units(query.ids, tokens)
        reading = OpenRequest(
            Request(tokens.ids, ends, ranges if self._head.inputs == "matches" else None),
            tokens.ids,
        )
        units = UnitScores(self._head, reading, lexical, query.mean[None])
        scores: list[Tensor] = []

        def take(start: int, hidden: Array) -> None:
            weights = self.model.weight[
                torch.from_numpy(tokens.ids[start : start + len(hidden)].astype(np.int64))
            ]
            reading.add(len(hidden), *reading.part(start, hidden, weights))
            scores.append(units.take_complete())

        return Request(
            tokens.ids, (), take=take, state=query.state, marks=marks, tag=(tokens, scores)
        )
