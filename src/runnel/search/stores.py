"""Choose the store of an index by its place (docs/search.md): a folder or object storage, or a
Qdrant collection.
"""

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from runnel.errors import InputError, StoreError
from runnel.redaction import redact
from runnel.search.records import IndexSettings

if TYPE_CHECKING:
    from runnel.search.lance import LanceStore
    from runnel.search.qdrant import QdrantStore

Store: TypeAlias = "LanceStore | QdrantStore"  # both have the methods that `LanceStore` documents
# the files that an interrupted creation may have left (a complete index has them too)
_PARTIAL = ("writer.lock", "documents.lance", "passages.lance", "commits.lance")


def create_store(place: str | Path, settings: IndexSettings) -> Store:
    """Create an empty store."""
    return _store_of(place).create(str(place), settings)


def open_store(place: str | Path) -> Store:
    """Open the store of an existing index."""
    return _store_of(place).open(str(place))


def holds_index(place: str | Path) -> bool:
    """Return whether a place has an index. If not, one can be created: a folder with other content
    is an error.
    """
    store = _store_of(place)
    folder = Path(place)
    if "://" in str(place):
        return store.holds_index(str(place))
    if folder.is_dir() and store.holds_index(str(place)):
        return True
    inside = folder.iterdir() if folder.is_dir() else [folder] if folder.exists() else []
    if any(path.name not in _PARTIAL and not path.name.startswith(".") for path in inside):
        raise StoreError(f"{place} has other content than an index; give a new or an empty folder")
    return False


def _store_of(place: str | Path) -> type[Store]:
    if not isinstance(place, str | Path) or not str(place):
        raise InputError(f"the index's place is {place!r}; expected a folder or a URI")
    # no store uses a password in the place, and names of places are shown and stored
    if (shown := redact(str(place))) != str(place):
        raise InputError(
            f"the index's place {shown} has a password or a key in it; set AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY, or QDRANT_API_KEY, instead"
        )
    if str(place).startswith("qdrant+"):
        from runnel.search.qdrant import QdrantStore

        return QdrantStore
    from runnel.search.lance import LanceStore

    return LanceStore
