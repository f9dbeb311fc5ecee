"""The library rerankers: a ranker with its interface.

from runnel.integrations.rerankers import RunnelRanker

RunnelRanker("pocket").rank(query, texts).top_k(3)
"""

from __future__ import annotations

from pathlib import Path

from runnel.errors import InputError, needing
from runnel.integrations.models import loaded
from runnel.models.reranker import Reranker

with needing("this needs rerankers", "rerankers"):
    from rerankers.documents import Document
    from rerankers.models.ranker import BaseRanker
    from rerankers.results import RankedResults, Result
    from rerankers.utils import prep_docs


class RunnelRanker(BaseRanker):
    """A reranker. Scores are logits; documents are read whole, all in one call. `rank_async` runs in a thread.

    Args:
        model_name_or_path: a reranker, or what `Reranker.load` takes.
        verbose: has no effect; nothing is printed.
        max_tokens: cut longer documents, with a warning (`Reranker.score`); default: nothing is cut.

    Raises:
        CheckpointError: the model is missing or has no rerank head.
    """

    def __init__(
        self, model_name_or_path: Reranker | str | Path = "pocket", verbose: int = 0, *, max_tokens: int | None = None
    ) -> None:
        self.model, self.max_tokens = loaded(Reranker, model_name_or_path), max_tokens

    def score(self, query: str, doc: str) -> float:
        """Return the score of a document."""
        return float(self.model.score(query, [doc], max_tokens=self.max_tokens)[0])

    def rank(
        self,
        query: str,
        docs: str | list[str] | Document | list[Document],
        doc_ids: list[str] | list[int] | None = None,
        metadata: list[dict[str, object]] | None = None,
    ) -> RankedResults:
        """Rank documents, best first; without ids, texts are numbered from 0.

        Raises:
            InputError: the query is empty, or a document is an image.
        """
        documents = prep_docs(docs, doc_ids, metadata) if docs else []
        if any(document.text is None for document in documents):
            raise InputError("a document is an image; this ranker reads text")
        hits = self.model.rank(query, [document.text for document in documents], max_tokens=self.max_tokens)
        results = [Result(documents[int(hit.id)], hit.score, hit.rank) for hit in hits]
        return RankedResults(results, query, has_scores=True)
