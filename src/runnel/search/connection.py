"""Connect to LanceDB in a folder or on object storage, and translate its errors."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from runnel.errors import RunnelError, StoreError, needing

# Give up on an unreachable server after half a minute instead of two. A shorter "timeout" of requests would also end
# large uploads on slow connections.
_PATIENCE = {"client_retry_timeout": "5"}
_P = ParamSpec("_P")
_T = TypeVar("_T")

_SOURCES = re.compile(r",? \(?\S+\.rs:\d+(:\d+)?\)?")  # places in LanceDB's source code


def connect(uri: str, *, create: bool) -> Any:
    """Open a LanceDB connection; without `create` the folder must exist."""
    os.environ.setdefault("LANCEDB_LOG", "error")  # otherwise it warns on every query
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # Arrow's other allocators grow with each of LanceDB's threads
    with needing("an index needs lancedb", "search"):
        import lancedb
    if "://" in uri:
        return lancedb.connect(uri, storage_options=_PATIENCE)
    if create:
        Path(uri).mkdir(mode=0o700, parents=True, exist_ok=True)  # it will hold texts
    elif not Path(uri).is_dir():
        raise no_index_error(uri)
    return lancedb.connect(uri)


def no_index_error(uri: str) -> StoreError:
    """Return the error for a place that has no index to open."""
    return StoreError(f"there is no index at {uri}; make one, in a place of its own, with `runnel index` or Index.create")


def explained(uri: str, error: Exception) -> str:
    """Return what an error of LanceDB means, and what to do; "" for an error of another kind."""
    if not isinstance(error, OSError | RuntimeError | ValueError) and type(error).__name__ != "RustPanic":
        return ""
    text = _SOURCES.sub("", " ".join(str(error).split()))
    for pattern, message in _CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            return message.format(uri=uri) + f" [{text[:300]}]"
    return (
        f"cannot read or write the index at {uri}: {text[:600]}; committed documents are safe. "
        "Remove the cause (is the disk full?) and repeat the call"
    )


@contextmanager
def plain_errors(uri: str, explain: Callable[[str, Exception], str] = explained) -> Iterator[None]:
    """Convert errors of the storage to a StoreError that says what to do, as `explain` does."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RunnelError) or not (message := explain(uri, error)):
            raise
        raise StoreError(message) from error


def plainly(method: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Any, _P], _T]:
    """Decorate a store's method with `plain_errors`."""

    @functools.wraps(method)
    def call(self: Any, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        with plain_errors(self.uri, self.explained):
            return method(self, *arguments, **options)

    return call


_CAUSES = (
    (
        "incompatible transaction|commit conflict|preempted by concurrent|too many concurrent writers",
        "another writer has changed {uri} in the meantime; nothing was written, repeat the call",
    ),
    ("nosuchbucket|containernotfound", "the bucket of {uri} does not exist; create it first, or check the name"),
    (
        "credentials|tokenrequest|access ?denied|invalidaccesskey|signaturedoesnotmatch",
        "no access to {uri}; check the credentials (for s3://: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION)",
    ),
    ("40[13] (forbidden|unauthorized)|status: 40[13]", "no access to {uri}; check the credentials"),
    (
        "error sending request|connection refused|connecterror|timed out|timeout|dns error|kind: connect",
        "{uri} cannot be reached; committed documents are safe. Check the network and the address, and repeat the call",
    ),
    (
        "not found:|no longer exists|invalid range|invalid magic|file size is too small|no field named|panicked",
        "{uri} has lost files: they are damaged, or were removed after the index was opened. Open it again; if that does not "
        "help, restore it from a copy or index the documents again",
    ),
    ("no object store provider", "{uri} is not a place for an index; give a folder or a URI of s3://, gs:// or az://"),
)
