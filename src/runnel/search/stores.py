"""Choose the store of an index by its place.

library, /data/library             a folder: LanceDB, or plain files if created so
s3://bucket/library, gs://, az://  LanceDB on object storage
qdrant+http://host:6333/library    a collection of a Qdrant server, or qdrant+https://
qdrant+file:///folder/library      the same in Qdrant's local mode without a server, for tests
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from runnel.errors import InputError, StoreError
from runnel.search.records import IndexSettings
from runnel.search.store import Store

_STORES = {
    "lance": ("runnel.search.lance", "LanceStore"),
    "local": ("runnel.search.local", "LocalStore"),
    "qdrant": ("runnel.integrations.qdrant", "QdrantStore"),
}
_PARTIAL = ("writer.lock", "documents.lance", "passages.lance", "commits.lance")  # files of an interrupted creation


def create_store(place: str | Path, settings: IndexSettings, kind: str = "lance") -> Store:
    """Create an empty store. `kind`, for a folder: "lance" or "local".

    Raises:
        StoreError: the place already has an index.
        InputError: an unknown kind, "local" for a URI, or a place that is no path.
    """
    if kind not in ("lance", "local"):
        raise InputError(f'store must be "lance" or "local", got {kind!r}')
    if kind == "local" and "://" in str(place):
        raise InputError(f'store="local" keeps plain files in a folder, got {place}; omit store=')
    made: Store = _class("qdrant" if _is_qdrant(place) else kind).create(_checked(place), settings)
    return made


def open_store(place: str | Path) -> Store:
    """Open the store of an existing index.

    Raises:
        StoreError: no index, or a newer format.
        InputError: a place that is no path.
    """
    kind = "qdrant" if _is_qdrant(place) else "local" if _is_local(_checked(place)) else "lance"
    there: Store = _class(kind).open(str(place))
    return there


def holds_index(place: str | Path) -> bool:
    """Return whether a place has an index. If not, one can be created: a folder with other content is an error.

    Raises:
        StoreError: the place cannot be reached, or is a file or a folder with other content.
        InputError: a place that is no path.
    """
    if "://" not in _checked(place):
        if _is_local(place):
            return True
        if not Path(place).is_dir():
            if Path(place).exists():
                raise StoreError(f"{place} is a file; give a new or an empty folder")
            return False
    there: bool = _module("qdrant" if _is_qdrant(place) else "lance").holds_index(str(place))
    if not there and "://" not in str(place):
        others = (path.name for path in Path(place).iterdir() if path.name not in _PARTIAL and not path.name.startswith("."))
        if next(others, None) is not None:
            raise StoreError(f"{place} is not empty and holds no index; give a new or an empty folder")
    return there


def _checked(place: object) -> str:
    if not isinstance(place, str | Path) or not str(place):
        raise InputError(f"the index's place is {place!r}; expected a folder or a URI")
    return str(place)


def _is_local(place: str | Path) -> bool:
    return "://" not in str(place) and (Path(place) / "HEAD").exists()


def _is_qdrant(place: str | Path) -> bool:
    return str(place).startswith("qdrant+")


def _module(kind: str) -> Any:
    return importlib.import_module(_STORES[kind][0])


def _class(kind: str) -> Any:
    return getattr(_module(kind), _STORES[kind][1])
