"""Open indexes for one command; the background process keeps them, and the models, for the next commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runnel.models.kept import Kept
    from runnel.search.index import Index
    from runnel.search.store import Store

_MOST = 8  # of each kind
_stores: Kept | None = None  # None: nothing is kept
_indexes: Kept | None = None


def keep_loaded() -> None:
    """Keep models and indexes from now on: this process runs many commands."""
    from runnel.models import base
    from runnel.models.kept import Kept

    global _stores, _indexes
    base.kept, _stores, _indexes = Kept(_MOST), Kept(_MOST), Kept(_MOST)


def release() -> None:
    """Release the locks of kept indexes, so that other processes can write."""
    if _stores is not None:
        for store in _stores.values():
            store.close()


def open_index(place: str, model: str | None = None) -> Index:
    """Return `Index.open(place, model)`, kept if `keep_loaded` has been called; it then sees the last commit.

    An index on a server is opened again each time, with a kept model.
    """
    from runnel.models.embedder import Embedder
    from runnel.models.kept import file_states
    from runnel.search.index import Index
    from runnel.search.stores import open_store

    if _stores is None or _indexes is None or "://" in place:
        return Index.open(place, model)
    key, folder = (place, os.path.abspath(place)), Path(place)
    # Every change of an index adds files to these.
    state = file_states(folder.glob("*.lance/_versions/*"))
    store: Store = _stores.get(key, state, lambda: open_store(place))
    embedder = Embedder.load(model or store.settings.model)
    return _indexes.get(key, (store, embedder.model), lambda: Index(store, embedder))
