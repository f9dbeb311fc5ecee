"""Files as documents of an index: which are new, changed or gone, and what is in them.

A document's id is the absolute path of its file; a row of jsonl, csv or tsv has "#" and the row's id behind it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runnel.errors import InputError, MissingDependency, ReadError
from runnel.records import Document
from runnel.search.records import Known
from runnel.text.documents.canonical import DocumentText
from runnel.text.documents.limits import Limits
from runnel.text.documents.reader import DocumentReader

log = logging.getLogger("runnel")
_MORE = "+"  # behind the file's hash in rows that are not its last: a file has been read once its last row is there


@dataclass(slots=True)
class Scan:
    """Files read so far.

    Attributes:
        unchanged: ids of documents whose file has not changed.
        failed: path -> why the file could not be read.
        gone: ids of documents whose file is not there any more; known when the scan is over.
    """

    unchanged: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)


def check_paths(paths: Iterable[str | Path]) -> None:
    """Raises InputError: a path does not exist."""
    for path in paths:
        if not Path(path).exists():
            raise InputError(f"there is no file or folder {path}; check the name")


def find_files(paths: Iterable[Path]) -> Iterator[Path]:
    """The files at `paths`, folders searched through in order of name; names that begin with a dot are left out there."""
    for path in paths:
        if not path.is_dir():
            yield path.resolve()
            continue
        for folder, names, files in os.walk(path.resolve()):
            names[:] = sorted(name for name in names if not name.startswith("."))
            found = (Path(folder) / name for name in sorted(files) if not name.startswith("."))
            yield from (file for file in found if file.is_file())  # no pipes, no dangling links


def read_files(
    paths: Iterable[str | Path], known: Mapping[str, Known], scan: Scan, limits: Limits | None = None
) -> Iterator[Document]:
    """Documents of files that are new or have changed; `scan` is filled with the rest while they are drawn.

    A file that cannot be read is logged, noted in `scan.failed`, and what is known of it is left as it is.

    Args:
        known: what is in the index.
    """
    roots = [Path(path).resolve() for path in paths]
    by_file: dict[str, list[str]] = {}
    for name, have in known.items():
        by_file.setdefault(have.source, []).append(name)
    seen: set[str] = set()
    with DocumentReader(limits) as reader:
        for file in find_files(roots):
            name = str(file)
            seen.add(name)
            try:
                digest = _hash(file)
                old = by_file.get(name, [])
                hashes = {known[one].source_hash for one in old}
                if digest in hashes and hashes <= {digest, digest + _MORE}:
                    scan.unchanged += old
                    continue
                fresh = []
                for read, last in _with_last(reader.read(file)):
                    document = to_document(name, digest if last else digest + _MORE, read)
                    fresh.append(document.id)
                    yield document
                scan.gone += sorted(set(old) - set(fresh))
            except (ReadError, MissingDependency, OSError) as error:
                scan.failed[name] = str(error)
                log.warning("%s", left_out(name, str(error)))
    for name, ids in by_file.items():
        if name not in seen and any(Path(name).is_relative_to(root) for root in roots):
            scan.gone += ids


def _with_last(documents: Iterator[DocumentText]) -> Iterator[tuple[DocumentText, bool]]:
    """Each with whether it is the last of its file: known once the file was read to its end without an error."""
    held = None
    try:
        for document in documents:
            if held is not None:
                yield held, False
            held = document
    except ReadError:
        if held is not None:
            yield held, False
        raise
    if held is not None:
        yield held, True


def left_out(name: str, reason: str) -> str:
    """What is told of a file or document that could not be read; most reasons begin with its name."""
    line = " ".join(reason.split())
    return f"left out: {line}" if name in line else f"left out: {name}: {line}"


def to_document(source: str, digest: str, read: DocumentText) -> Document:
    """What was read of the file `source`, or of a row of it, as a document of an index; its warnings are logged."""
    name = source if read.id is None else f"{source}#{read.id}"
    for warning in read.warnings:
        log.warning("%s: %s", name, warning)
    wire = read.to_wire()
    blocks = json.dumps({"rows": wire["blocks"], "paths": wire["paths"]})
    metadata: dict[str, object] = {"title": read.title or "", "source": source, "source_hash": digest, "kind": read.kind}
    return Document(name, read.text, metadata | {"blocks": blocks})


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
