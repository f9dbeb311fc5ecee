"""Chroma: an embedding function, registered as "runnel", so that a collection finds it again by its name.

    import chromadb
    from runnel.integrations.chroma import RunnelEmbeddingFunction

    client = chromadb.PersistentClient("chroma")
    collection = client.create_collection("notes", embedding_function=RunnelEmbeddingFunction("pocket"))

Import this module before a collection that was created with it is opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from runnel.errors import needing
from runnel.integrations.models import loaded, name_of
from runnel.models.embedder import Embedder

with needing("this needs chromadb", "chroma"):
    from chromadb.api.types import Documents, EmbeddingFunction
    from chromadb.utils.embedding_functions import register_embedding_function


@register_embedding_function
class RunnelEmbeddingFunction(EmbeddingFunction[Documents]):
    """An embedder, with its own prompts for queries and documents if it has some. Vectors have unit length.

    Args:
        model: an embedder, or what `Embedder.load` takes; collections store its name.
        max_tokens: cut longer texts, with a warning (`Embedder.encode`); default: nothing is cut.

    Raises:
        CheckpointError: the model is missing or cannot embed.
        InputError (when embedding): a text is empty.
    """

    def __init__(self, model: Embedder | str | Path = "pocket", *, max_tokens: int | None = None) -> None:
        self._name, self._embedder, self.max_tokens = name_of(Embedder, model), loaded(Embedder, model), max_tokens

    def __call__(self, input: Documents) -> list[np.ndarray]:
        """Return the vectors of documents, float32 (d,) each."""
        return list(self._embedder.encode_document(input, max_tokens=self.max_tokens))

    def embed_query(self, input: Documents) -> list[np.ndarray]:
        """Return the vectors of queries, float32 (d,) each."""
        return list(self._embedder.encode_query(input, max_tokens=self.max_tokens))

    @staticmethod
    def name() -> str:
        """Return the name that collections store."""
        return "runnel"

    def default_space(self) -> str:
        """Return the distance for collections that choose none."""
        return "cosine"

    def get_config(self) -> dict[str, Any]:
        """Return what `build_from_config` takes."""
        return {"model": self._name, "max_tokens": self.max_tokens}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> RunnelEmbeddingFunction:
        """Return the function that `get_config` describes."""
        return RunnelEmbeddingFunction(config["model"], max_tokens=config["max_tokens"])

    def validate_config_update(self, old_config: dict[str, Any], new_config: dict[str, Any]) -> None:
        """Raise ValueError if a collection's model would change: its stored vectors are of the old one."""
        if new_config.get("model", old_config["model"]) != old_config["model"]:
            raise ValueError(f"the collection has vectors of {old_config['model']}; create another one for {new_config['model']}")
