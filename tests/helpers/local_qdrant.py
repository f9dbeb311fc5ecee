"""Qdrant's local mode in place of a server, for tests of the Qdrant store."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from qdrant_client import QdrantClient

URI = "qdrant+http://localhost:6333/index"


class LocalQdrant(QdrantClient):
    """A client whose collections are in memory."""

    def create_payload_index(self, *arguments: Any, **options: Any) -> Any:
        """Do nothing: the local mode has no such indexes, and would warn."""


@contextmanager
def local_qdrant() -> Iterator[LocalQdrant]:
    """Give all stores that are created or opened meanwhile the same local client."""
    client = LocalQdrant(":memory:")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runnel.search.qdrant.QdrantClient", lambda *where, **options: client)
        yield client
