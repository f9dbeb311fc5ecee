"""Ranking of documents by their stored sentence vectors and words, so that each document is read once for all queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from runnel.errors import InputError
from runnel.models.base import Model
from runnel.models.heads import WITHOUT_TOKENS
from runnel.models.memory import Memory
from runnel.models.sentence_vectors import SentenceMemory, VectorScorer, relevance_features, sentence_tokens
from runnel.ops.backend import inference
from runnel.request import total_progress


class VectorRanker:
    """The part of `Reranker` for `VectorRelevance` heads."""

    def __init__(self, model: Model) -> None:
        self._model, self._head, self._scorer = model, model.head("rerank"), VectorScorer(model, passages=True)

    def remember(self, documents: Sequence[tuple[str, str]], progress: Callable[[int], None] | None) -> SentenceMemory:
        """Read (id, text) pairs."""
        tokens = sentence_tokens(self._model, self._scorer.template, (text for _, text in documents))
        read = self._scorer.read(tokens, total_progress(progress))
        return SentenceMemory({name: one for (name, _), one in zip(documents, read, strict=True)})

    @inference()
    def score(
        self,
        query: str,
        documents: Sequence[str] | Memory | SentenceMemory,
        progress: Callable[[int], None] | None,
        max_tokens: int | None,
    ) -> np.ndarray:
        """See `Reranker.score`. Equal texts are read once."""
        if max_tokens is not None:
            source = self._model.source
            raise InputError(f"{source} reads documents of any length, in passages; do not give max_tokens (--max-tokens)")
        if isinstance(documents, Memory):
            raise InputError("this memory was made by another model; remember the documents again with this one")
        if isinstance(documents, SentenceMemory):
            memory, names = documents, list(documents.documents)
        else:
            names = list(documents)
            memory = self.remember([(text, text) for text in dict.fromkeys(names)], progress)
        if not names:
            return np.zeros(0, dtype=np.float32)
        read, words, backbone = self._scorer.read_query(query), self._model.words, self._model.backbone
        table = {name: relevance_features(read, one, words, backbone) for name, one in memory.documents.items()}
        scores: np.ndarray = self._head(torch.from_numpy(np.stack([table[name] for name in names]))).numpy()
        empty = [not len(memory.documents[name].ids) for name in names]
        return np.where(empty, np.float32(WITHOUT_TOKENS), scores)
