"""Open indexes for one command; the background process keeps them, and the models, for the next commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runnel.models.kept import Kept
    from runnel.search.index import Index

_MOST = 8  # of each kind
_indexes: Kept | None = None  # None: nothing is kept


def keep_loaded() -> None:
    """Keep models and indexes from now on: this process runs many commands."""
    from runnel.models import base
    from runnel.models.kept import Kept

    global _indexes
    base.kept, _indexes = Kept(_MOST), Kept(_MOST)


def release() -> None:
    """Release the locks of kept indexes, so that other processes can write."""
    for index in _indexes.values() if _indexes is not None else ():
        index.close()


def open_index(place: str, model: str | None = None) -> Index:
    """Return `Index.open(place, model)`, kept if `keep_loaded` has been called; it then sees the last commit.

    An index on a server is opened again each time, with a kept model.
    """
    from runnel.models.embedder import Embedder
    from runnel.models.kept import file_states
    from runnel.search.index import Index

    if _indexes is None or "://" in place:
        return Index.open(place, model)
    state = file_states(Path(place).glob("*.lance/_versions/*"))  # every change of an index adds files to these
    index = _indexes.get((place, os.path.abspath(place)), state, lambda: Index.open(place, model))
    embedder = Embedder.load(model or index.store.settings.model)
    return index if embedder.model is index.embedder.model else Index(index.store, embedder)
