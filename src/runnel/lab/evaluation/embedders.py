"""Embedders behind an API like OpenAI's, for comparisons: api:NAME (docs/evaluation.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from runnel.generation.endpoint import Endpoint

API = "api:"
EMBEDDERS = (API, "st:", "st-code:")  # names that say that a model is an embedder
_TEXTS = 128  # in one request


class ApiEmbedder:
    """A model behind POST URL/embeddings, at $OPENAI_BASE_URL or OpenAI's."""

    def __init__(self, name: str, *, prompts: Mapping[str, str] | None = None) -> None:
        self.name, self.prompts = name, dict(prompts or {})
        self._endpoint = Endpoint(model=name)

    def is_empty(self, text: str) -> bool:
        return not text.strip()

    def encode_query(self, texts: Sequence[str], max_tokens: int | None = None) -> np.ndarray:
        """Return unit vectors of queries, float32 (n, d)."""
        return self._encode(texts, "query")

    def encode_document(self, texts: Sequence[str], max_tokens: int | None = None) -> np.ndarray:
        """Return unit vectors of documents, float32 (n, d)."""
        return self._encode(texts, "document")

    def _encode(self, texts: Sequence[str], kind: str) -> np.ndarray:
        whole = [self.prompts.get(kind, "") + text for text in texts]
        groups = [whole[start : start + _TEXTS] for start in range(0, len(whole), _TEXTS)]
        vectors = np.asarray([vector for group in groups for vector in self._endpoint.embed(group)], np.float32)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
