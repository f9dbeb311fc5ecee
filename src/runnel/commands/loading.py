"""Load models and open indexes for one command; the background process keeps them for the next commands.

Kept objects are used again only if their files are unchanged. Messages that were logged when an object was made are logged
again whenever it is used, so that a command prints the same in either process.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from runnel.search.index import Index
    from runnel.search.store import Store

T = TypeVar("T")
_MOST = 8  # kept objects: models of four kinds, or a few indexes with their model
log = logging.getLogger("runnel")


@dataclass(frozen=True)
class _Kept:
    value: object
    state: object  # of the files that it was made from
    messages: list[logging.LogRecord]


_kept: OrderedDict[Hashable, _Kept] | None = None  # the least recently used first; None: nothing is kept


def keep_loaded() -> None:
    """Keep models and indexes from now on: this process runs many commands."""
    global _kept
    _kept = OrderedDict()


def release() -> None:
    """Release the locks of kept indexes, so that other processes can write."""
    for key, kept in (_kept or {}).items():
        if isinstance(key, tuple) and key[0] == "store":
            cast("Store", kept.value).close()


def load(make: Callable[..., T], name: str, **options: str | int | None) -> T:
    """Return `make(name, **options)`, kept if `keep_loaded` has been called.

    Args:
        make: Embedder.load, Reranker.load or SentenceRetriever.load.
    """
    if _kept is None:
        return make(name, **options)
    place, state = _model_files(name)
    key = (make.__qualname__, name, place, *sorted(options.items()))
    return _keep(key, state, lambda: make(name, **options))


def open_index(place: str, model: str | None = None) -> Index:
    """Return `Index.open(place, model)`, kept if `keep_loaded` has been called; it then sees the last commit.

    An index on a server is opened again each time, with a kept model.
    """
    from runnel.models.embedder import Embedder
    from runnel.search.index import Index
    from runnel.search.stores import open_store

    if _kept is None:
        return Index.open(place, model)
    if "://" in place:
        store = open_store(place)
        return Index(store, load(Embedder.load, model or store.settings.model))
    key = (place, os.path.abspath(place))
    store = _keep(("store", *key), _index_files(Path(place)), lambda: open_store(place))
    embedder = load(Embedder.load, model or store.settings.model)
    return _keep(("index", *key), (store, embedder), lambda: Index(store, embedder))


def _keep(key: Hashable, state: object, make: Callable[[], T]) -> T:
    """Return the kept object if it was made from files in this state; else make and keep one."""
    assert _kept is not None
    kept = _kept.pop(key, None)
    if kept is None or kept.state != state:
        del kept  # before another one is loaded
        messages: list[logging.LogRecord] = []
        with _recording(messages):
            kept = _Kept(make(), state, messages)
    else:
        _repeat(kept.messages)
    _kept[key] = kept
    while len(_kept) > _MOST:
        _kept.popitem(last=False)
    return cast(T, kept.value)


@contextmanager
def _recording(messages: list[logging.LogRecord]) -> Iterator[None]:
    """Record what is logged, also below the current level, because a later command may be verbose; then log it."""
    recorder = logging.Handler()
    recorder.emit = messages.append  # type: ignore[assignment,method-assign]
    level, propagate = log.level, log.propagate
    log.addHandler(recorder)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(recorder)
        log.setLevel(level)
        log.propagate = propagate
        _repeat(messages)


def _repeat(messages: list[logging.LogRecord]) -> None:
    for record in messages:
        if log.isEnabledFor(record.levelno):
            log.handle(record)


def _model_files(name: str) -> tuple[Path, object]:
    """Return the place of a model and the state of its files: those in its folder and one level below."""
    from runnel.backbones.checkpoint.files import find_checkpoint
    from runnel.models.base import BUILT_IN

    found = (BUILT_IN.get(name) or find_checkpoint(name)).absolute()
    folder = found if found.is_dir() else found.parent
    return found, _states([*folder.glob("*"), *folder.glob("*/*")])


def _index_files(folder: Path) -> object:
    """Return the state of the files that every change of an index replaces or adds to."""
    return _states([folder / "HEAD", folder / "index.json", *folder.glob("*.lance/_versions/*")])


def _states(paths: list[Path]) -> object:
    states = []
    for path in sorted(paths):
        try:
            facts = path.stat()
        except FileNotFoundError:  # a part that this kind of index lacks, or a file that a writer has just replaced
            continue
        if not path.is_dir():
            states.append((str(path), facts.st_ino, facts.st_size, facts.st_mtime_ns))
    return states
