"""Rows of jsonl, tsv and txt files: an id and a text each, read as a stream."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from runnel.errors import InputError, ReadError
from runnel.records import Document

_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".tsv": "tsv", ".txt": "txt"}


def read_rows(name: str) -> Iterator[Document]:
    """The rows of a file, or of standard input for "-".

    A jsonl row has "id" (or "_id") and "text", and may have a "title", which is put before the text. A tsv row is the
    id, a tab, the text. A row of a txt file is a text, its id the line number from 1. Standard input is jsonl if it
    starts with "{", txt otherwise. Lines with white space alone are left out.

    Raises:
        InputError: a row is not what it should be; the message has the line number.
        ReadError: the file is not UTF-8 text.
        OSError: the file cannot be opened.
    """
    with _open(name) as file:
        number = 0
        try:
            parse: Callable[[str, str], Document] | None = None
            for number, line in enumerate(file, start=1):
                line = line.rstrip("\n")
                if line.isspace() or not line:
                    continue
                parse = parse or _PARSERS[_kind(name, line)]
                yield parse(line, f"{name}, line {number}")
        except UnicodeDecodeError as error:
            raise ReadError(
                f"{name}: the text after line {number} is not UTF-8 ({error.reason}); convert the file to UTF-8"
            ) from error


def _kind(name: str, first_line: str) -> str:
    if name == "-":
        return "jsonl" if first_line.startswith("{") else "txt"
    suffix = Path(name).suffix.lower()
    if suffix not in _SUFFIXES:
        raise InputError(
            f"{name}: cannot tell the format from {suffix or 'a name without an ending'!r}; name it .jsonl, .tsv or .txt"
        )
    return _SUFFIXES[suffix]


@contextmanager
def _open(name: str) -> Iterator[TextIO]:
    if name == "-":
        yield io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig")
    else:
        with open(name, encoding="utf-8-sig") as file:
            yield file


def _parse_json(line: str, where: str) -> Document:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where}: not valid JSON ({error}); expected one object a line") from error
    if not isinstance(row, dict):
        raise InputError(f'{where}: expected an object with "id" and "text", got {type(row).__name__}')
    key, text = row.get("id", row.get("_id")), row.get("text")
    if not isinstance(key, str | int) or not isinstance(text, str):
        raise InputError(
            f'{where}: expected "id" (or "_id") and "text", got the keys {", ".join(map(repr, row)) or "of an empty object"}'
        )
    title = row.get("title")
    return Document(_id(str(key), where), f"{title}\n{text}" if isinstance(title, str) and title else text)


def _parse_tab(line: str, where: str) -> Document:
    key, tab, text = line.partition("\t")
    if not tab:
        raise InputError(f"{where}: expected an id, a tab and a text, got no tab in {line[:40]!r}")
    return Document(_id(key, where), text)


def _parse_text(line: str, where: str) -> Document:
    return Document(where.rpartition(" ")[2], line)


def _id(key: str, where: str) -> str:
    if not key or any(c.isspace() for c in key):
        raise InputError(
            f"{where}: an id must not be empty or hold white space, as it could not be told apart in a run file; got {key!r}"
        )
    return key


_PARSERS: dict[str, Callable[[str, str], Document]] = {"jsonl": _parse_json, "tsv": _parse_tab, "txt": _parse_text}
