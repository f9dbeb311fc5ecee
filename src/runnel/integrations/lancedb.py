"""LanceDB: an embedding function, registered as "runnel", and a reranker of search results.

    import runnel.integrations.lancedb
    from lancedb.embeddings import get_registry

    pocket = get_registry().get("runnel").create(name="pocket")

    class Row(LanceModel):
        text: str = pocket.SourceField()
        vector: Vector(pocket.ndims()) = pocket.VectorField()

A table stores the name of the model. LanceDB creates the function again for each query, so models stay loaded in this process.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from runnel.errors import needing
from runnel.integrations.models import loaded
from runnel.models.embedder import Embedder
from runnel.models.reranker import Reranker as Model

with needing("this needs lancedb", "search"):
    import pyarrow
    from lancedb.embeddings import TextEmbeddingFunction, register
    from lancedb.rerankers import Reranker

_load = lru_cache(maxsize=4)(Embedder.load)


@register("runnel")
class RunnelEmbeddings(TextEmbeddingFunction):
    """An embedder, with its own prompts for queries and documents if it has some. Vectors have unit length.

    Rows without text get no vector; LanceDB's `on_bad_vectors` says what happens to them (by default, an error).

    Attributes:
        name: what `Embedder.load` takes.
        max_tokens: cut longer texts, with a warning (`Embedder.encode`); None: nothing is cut.

    Raises (when embedding):
        CheckpointError: the model is missing or cannot embed.
        InputError: a query is empty.
    """

    name: str = "pocket"
    max_tokens: int | None = None

    def ndims(self) -> int:
        """Return the width of the vectors."""
        return _load(self.name).dimension

    def generate_embeddings(self, texts: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the vectors of documents, float32 (d,) each, or None where there is no text."""
        full = [text for text in texts if text is not None and text.strip()]
        vectors = iter(_load(self.name).encode_document(full, max_tokens=self.max_tokens))
        return [next(vectors) if text is not None and text.strip() else None for text in texts]

    def compute_query_embeddings(self, query: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the vector of a query, in a list."""
        return list(_load(self.name).encode_query([query], max_tokens=self.max_tokens))

    def compute_query_embeddings_with_retry(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return `compute_query_embeddings` without trying again: a local model fails in the same way each time."""
        return self.compute_query_embeddings(*args, **kwargs)

    def compute_source_embeddings_with_retry(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return `compute_source_embeddings` without trying again."""
        return self.compute_source_embeddings(*args, **kwargs)


class RunnelReranker(Reranker):
    """A reranker for `search(...).rerank(...)`: `_relevance_score` is its score (a logit).

    Args:
        model: a reranker, or what `Reranker.load` takes.
        column: the column with the text.
        return_score: "relevance", or "all" to keep the scores of the searches too.
        max_tokens: cut longer documents, with a warning (`Reranker.score`); default: nothing is cut.

    Raises:
        CheckpointError: the model is missing or has no rerank head.
    """

    def __init__(
        self,
        model: Model | str | Path = "pocket",
        column: str = "text",
        return_score: str = "relevance",
        *,
        max_tokens: int | None = None,
    ) -> None:
        super().__init__(return_score)
        self.model, self.column, self.max_tokens = loaded(Model, model), column, max_tokens

    def rerank_vector(self, query: str, vector_results: pyarrow.Table) -> pyarrow.Table:
        """Rank the results of a vector search."""
        return self._rank(query, vector_results)

    def rerank_fts(self, query: str, fts_results: pyarrow.Table) -> pyarrow.Table:
        """Rank the results of a full-text search."""
        return self._rank(query, fts_results)

    def rerank_hybrid(self, query: str, vector_results: pyarrow.Table, fts_results: pyarrow.Table) -> pyarrow.Table:
        """Rank the results of both searches together, each row once."""
        merge = self._merge_and_keep_scores if self.score == "all" else self.merge_results
        return self._rank(query, merge(vector_results, fts_results))

    def _rank(self, query: str, results: pyarrow.Table) -> pyarrow.Table:
        scores = self.model.score(query, results[self.column].to_pylist(), max_tokens=self.max_tokens)
        column = pyarrow.array(scores, pyarrow.float32())
        ranked = results.append_column("_relevance_score", column).sort_by([("_relevance_score", "descending")])
        return self._keep_relevance_score(ranked)
