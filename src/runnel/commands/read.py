"""`runnel read`: the exact text of a document, or a part of it."""

import re
from typing import Annotated

import typer

from runnel.commands import display, parameters
from runnel.errors import InputError
from runnel.search.finding import locate
from runnel.text.documents.document import Limits
from runnel.text.documents.ocr import Ocr
from runnel.text.documents.ranges import By, choose_row, span_of
from runnel.text.documents.reader import DocumentReader

_RANGE = re.compile(r"(\d{0,12})(:?)(\d{0,12})", re.ASCII)


def read(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="A file of a kind that `runnel find` reads; - is standard input."
        ),
    ],
    lines: Annotated[
        str | None, typer.Option(metavar="FIRST:LAST", help="Lines, from 1, as 10:40, 10 or 10:.")
    ] = None,
    pages: Annotated[str | None, typer.Option(metavar="FIRST:LAST", help="Pages, from 1.")] = None,
    characters: Annotated[
        str | None,
        typer.Option(
            metavar="START:END", help="Characters [START, END), from 0, as other commands show."
        ),
    ] = None,
    row: Annotated[
        str | None, typer.Option(metavar="ID", help="The row of a jsonl, csv or tsv file.")
    ] = None,
    ocr: parameters.OcrOption = None,
    parse_seconds: parameters.ParseSeconds = parameters.PARSE_SECONDS,
    encoding: parameters.Encoding = None,
    as_json: parameters.Json = False,
) -> int:
    """Show FILE, or its lines, pages or characters, as all commands of runnel see it.

    Prints the text; with --json also its place.
    Example: runnel read report.pdf --pages 3:4
    """
    options: tuple[tuple[By, str | None], ...] = (
        ("line", lines),
        ("page", pages),
        ("character", characters),
    )
    given = {by: value for by, value in options if value is not None}
    parameters.refuse({"--lines, --pages and --characters exclude each other": len(given) > 1})
    by, value = next(iter(given.items()), ("line", "1:"))
    start, end = _range(value, by)
    with DocumentReader(
        Limits(seconds=parse_seconds), encoding=encoding, ocr=None if ocr is None else Ocr(ocr)
    ) as reader:
        document = choose_row(reader.read(file), file, row)
    for warning in document.warnings:
        display.say(f"note: {file}: {warning}")
    first, stop = span_of(document, file, by, start, end)
    if not as_json:
        display.print_text(document.text[first:stop].removesuffix("\n"))
        return 0
    (place,) = locate(file, document, [(first, stop)])
    # of the first character, even if it is a line break
    line = document.text.count("\n", 0, first) + 1
    display.print_json(
        place.as_json() | {"line": line, "characters": len(document.text), "pages": document.pages}
    )
    return 0


def _range(value: str, by: By) -> tuple[int | None, int | None]:
    """Return both ends of FIRST:LAST; a single number is both, except for characters."""
    match = _RANGE.fullmatch(value)
    if match is None or value in ("", ":") or (not match[2] and by == "character"):
        expected = "START:END" if by == "character" else "FIRST:LAST or one number"
        raise InputError(f"--{by}s is {value!r}; expected {expected}")
    first, last = (int(number) if number else None for number in (match[1], match[3]))
    return (first, last) if match[2] else (first, first)
