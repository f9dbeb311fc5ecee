"""Sentence scores from vectors computed without the query, so that each document is read once for all questions.

The scores depend on the query's vector, the sentences' vectors and the words they share (`models/lexical.py`).

    S  sentences   D  width of the vectors
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.base import Backbone
from runnel.models.base import Model
from runnel.models.blocks import lay_out, markers
from runnel.models.heads import VectorRelevance, VectorScore
from runnel.models.lexical import FEATURES, WordTable, sentence_features, static_bm25, word_table
from runnel.models.sentence_vectors import SentenceSums, SentenceVectors
from runnel.request import Progress, Request, with_total
from runnel.text.sentences import SentenceTokens, read_sentences


@dataclass(frozen=True)
class VectorQuery:
    """A query that has been read: its ids, its vector (D,) for sentences, and the one for passages and whole documents."""

    ids: np.ndarray
    vector: Tensor
    text: Tensor


class VectorScorer:
    """A reader of documents into `SentenceVectors`, which it scores.

    Args:
        passages: also read what `relevance_features` needs.
    """

    def __init__(self, model: Model, *, passages: bool = False) -> None:
        head = model.head("sentences")
        assert isinstance(head, VectorScore) and model.features is not None
        self.model, self._head = model, head
        self._passages = passages
        self.template = model.templates["document"]
        self._words = word_table(model.tokenizer.vocabulary, model.features.idf.numpy())

    def read_query(self, query: str) -> VectorQuery:
        """Read a query; read a long one in passages, like a document.

        Raises:
            InputError: the query is empty or has no tokens.
        """
        return next(self.read_queries([query]))

    def read_queries(self, queries: Iterable[str]) -> Iterator[VectorQuery]:
        """Read queries, in order; raises as `read_query`."""
        for result in self.model.sentence_engine(texts=self._passages).map(map(self._query_request, queries)):
            done, width = result.get(), self.model.backbone.hidden_size
            vectors = torch.nn.functional.normalize(done.means[0].unflatten(0, (-1, width)), dim=-1)
            yield VectorQuery(done.tag, vectors[-1], vectors[0])

    def _query_request(self, query: str) -> Request:
        query = query.strip()
        ids = self.template.encode_query(self.model.tokenizer, query)
        tokens = read_sentences(query, [self.template.encode(self.model.tokenizer, "document", query)])
        row = lay_out(ids, tokens.bounds, self.model.backbone, self.model.tokenizer).ids
        return Request(row, ranges=np.array([[0, len(row)]]), tag=ids)

    def read(self, documents: Iterable[SentenceTokens], progress: Progress | None = None) -> Iterator[SentenceVectors]:
        """Read documents in order; an empty document has no sentences."""
        requests, report = with_total(map(self._request, documents), progress)
        for result in self.model.sentence_engine(texts=self._passages).map(requests, report):
            yield result.get().tag.result()

    def _request(self, tokens: SentenceTokens) -> Request:
        model, row = self.model, None
        if len(tokens.ids):
            row = lay_out(tokens.ids, tokens.bounds, model.backbone, model.tokenizer)
        both = self._passages and model.backbone.own_sentences
        sums = SentenceSums(tokens, row, markers(model.tokenizer), model.backbone.hidden_size, passages=both)
        return Request(tokens.ids if row is None else row.ids, (), take=sums.take, tag=sums)

    def scores(
        self, query: VectorQuery, documents: Iterable[SentenceTokens], progress: Progress | None = None
    ) -> Iterator[tuple[SentenceVectors, np.ndarray]]:
        """Yield each document and the scores (S,) of its sentences, as `Scanner.scores` does."""
        for document in self.read(documents, progress):
            yield document, self.score(query, document)

    def score(self, query: VectorQuery, document: SentenceVectors) -> np.ndarray:
        """Return scores (S,) float32; nan for sentences without a token."""
        scores = np.full(len(document), np.nan, dtype=np.float32)
        full, vectors, features = self.inputs(query, document)
        if full.any():
            with torch.inference_mode():
                scores[full] = self._head(query.vector, vectors, features).numpy()
        return scores

    def inputs(self, query: VectorQuery, document: SentenceVectors) -> tuple[np.ndarray, Tensor, Tensor]:
        """Return which sentences have a token (S,), their n unit vectors (n, D), and their features (n, F)."""
        full = np.diff(document.bounds) > 0
        if not full.any():
            return full, torch.zeros(0, document.vectors.shape[1]), torch.zeros(0, FEATURES)
        features = sentence_features(document.ids, document.bounds, query.ids, self._words)[full]
        vectors = torch.nn.functional.normalize(document.sums()[torch.from_numpy(full)], dim=-1)
        return full, vectors, torch.from_numpy(features)

    def relevance_features(self, query: VectorQuery, document: SentenceVectors) -> np.ndarray:
        """Return the inputs of a `VectorRelevance` head for a document; see the function of this name."""
        return relevance_features(query, document, self._words, self.model.backbone)


def relevance_features(query: VectorQuery, document: SentenceVectors, words: WordTable, backbone: Backbone) -> np.ndarray:
    """Return the features of `VectorRelevance`, (3,) float32; zeros for a document without a token."""
    if not len(document.ids):
        return np.zeros(VectorRelevance.FEATURES, dtype=np.float32)
    passages = document.passage_sums(backbone)
    vectors = torch.nn.functional.normalize(torch.cat([passages, passages.sum(0, keepdim=True)]), dim=-1)
    *cosines, whole = (vectors @ query.text).tolist()
    return np.array([max(cosines), whole, static_bm25(document.ids, query.ids, words)], dtype=np.float32)
