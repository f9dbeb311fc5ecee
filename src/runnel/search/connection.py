"""LanceDB at a folder or a URI of an object storage, and its errors in plain words."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from runnel.errors import MissingDependency, RunnelError, StoreError

# A server that cannot be reached is given up after half a minute, instead of two. A shorter "timeout" of a request would also end
# large uploads on slow lines.
_PATIENCE = {"client_retry_timeout": "5"}
_P = ParamSpec("_P")
_T = TypeVar("_T")

_SOURCES = re.compile(r",? \(?\S+\.rs:\d+(:\d+)?\)?")  # places in the source of LanceDB, on the machine that built it


class _HasUri(Protocol):
    @property
    def uri(self) -> str: ...


_S = TypeVar("_S", bound=_HasUri)


def connect(uri: str, *, create: bool) -> Any:
    """A LanceDB connection.

    Raises:
        MissingDependency: lancedb is not installed.
        StoreError: the place cannot be reached, or there is no such folder and `create` is false.
    """
    os.environ.setdefault("LANCEDB_LOG", "error")  # one warning for each query otherwise
    try:
        import lancedb
    except ImportError as error:
        raise MissingDependency("an index needs lancedb; install it with: pip install 'runnel[search]'") from error
    if "://" in uri:
        return lancedb.connect(uri, storage_options=_PATIENCE)
    if create:
        Path(uri).mkdir(parents=True, exist_ok=True)
    elif not Path(uri).is_dir():
        raise StoreError(f"there is no index at {uri}; make one with `runnel index` or Index.create")
    return lancedb.connect(uri)


@contextmanager
def plain_errors(uri: str) -> Iterator[None]:
    """Errors of the storage become a StoreError that says what to do."""
    try:
        yield
    except RunnelError:
        raise
    except Exception as error:
        if isinstance(error, OSError | RuntimeError | ValueError) or type(error).__name__ == "RustPanic":  # LanceDB's are such
            raise _explained(uri, error) from error
        raise


def plainly(method: Callable[Concatenate[_S, _P], _T]) -> Callable[Concatenate[_S, _P], _T]:
    """A method of a store with `plain_errors`."""

    @functools.wraps(method)
    def call(self: _S, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        with plain_errors(self.uri):
            return method(self, *arguments, **options)

    return call


def _explained(uri: str, error: Exception) -> StoreError:
    text = _SOURCES.sub("", " ".join(str(error).split()))
    for words, message in _CAUSES:
        if any(word in text.lower() for word in words):
            return StoreError(message.format(uri=uri) + f" [{text[:300]}]")
    return StoreError(
        f"could not write to the index, or read it, at {uri}: {text[:600]}; what was committed before is safe. "
        "Remove the cause (is the disk full?) and repeat the call"
    )


_CAUSES = (
    (
        ("incompatible transaction", "commit conflict", "preempted by concurrent", "too many concurrent writers"),
        "another writer has changed {uri} in the meantime; nothing was written, repeat the call",
    ),
    (("nosuchbucket", "containernotfound"), "the bucket of {uri} does not exist; make it first, or check the name"),
    (
        ("credentials", "tokenrequest", "accessdenied", "access denied", "invalidaccesskey", "signaturedoesnotmatch"),
        "no access to {uri}; check the credentials (for s3://: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION)",
    ),
    (("403 forbidden", "401 unauthorized", "status: 403", "status: 401"), "no access to {uri}; check the credentials"),
    (
        ("error sending request", "connection refused", "connecterror", "timed out", "timeout", "dns error", "kind: connect"),
        "{uri} cannot be reached; what was committed before is safe. Check the network and the address, and repeat the call",
    ),
    (
        (
            "not found:",
            "no longer exists",
            "invalid range",
            "invalid magic",
            "file size is too small",
            "no field named",
            "panicked",
        ),
        "{uri} has lost files: they are damaged, or were tidied away since the index was opened. Open it again; if that does not "
        "help, restore it from a copy or index the documents anew",
    ),
    (("no object store provider",), "{uri} is no place for an index; give a folder or a URI of s3://, gs:// or az://"),
)
