"""`runnel verify`: whether files have a quote word for word, and where."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from runnel.commands import display, find, parameters
from runnel.errors import InputError, counted
from runnel.records import normalize
from runnel.search.finding import read_documents
from runnel.text.documents.reader import Skipped

if TYPE_CHECKING:
    from runnel.search.verifying import Verified

_WORD_FOR_WORD, _NOT, _UNREADABLE = 0, 1, 2  # exit codes, as of grep


def verify(
    quote: Annotated[
        str,
        typer.Argument(
            metavar="QUOTE", help="The words to look for; - reads them from standard input."
        ),
    ],
    files: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Files, folders and globs, as of `runnel find`."),
    ],
    reading: find.FileOptions = find.FileOptions(),
    as_json: parameters.Json = False,
) -> int:
    """Tell whether the files at PATH have QUOTE word for word.

    Prints its places, or else the nearest stretch and the words that differ.
    Example: runnel verify "the museum opens at nine" notes/

    Whitespace, quotation marks, dashes, hyphenation at line ends and case may differ. Exit code: 0
    word for word, 1 not, 2 an error, such as a file that cannot be read: what is shown is only
    about the others.
    """
    from runnel.search.verifying import verify  # numpy takes a while to import

    if quote == "-":
        if "-" in files:
            raise InputError("standard input can be the quote or a file, not both")
        quote = sys.stdin.buffer.read().decode("utf-8", errors="replace")
    skipped: list[Skipped] = []  # filled while `verify` takes the documents
    with reading.reader() as reader, display.Meter("reading") as meter:
        documents = read_documents(
            files,
            reader,
            skipped,
            selection=reading.selection(),
            report=display.say,
            through=meter.files,
        )
        verified = verify(quote, documents)
    unread = sum(bool(file.error) for file in skipped)
    if as_json:
        display.print_json(
            {"quote": quote} | verified.as_json() | {"skipped": [asdict(file) for file in skipped]}
        )
    elif verified.match is None:
        display.say("error: no file was read, so nothing is known about the quote")
    else:
        _show(verified, unread)
    if unread or verified.match is None:
        return _UNREADABLE
    return _WORD_FOR_WORD if verified.word_for_word else _NOT


def _show(verified: "Verified", unread: int) -> None:
    assert verified.match is not None
    share = f"{100 * verified.similarity:.0f} % of its words"
    places = "one place" if len(verified.places) == 1 else f"{len(verified.places):,} places"
    verdict = {
        "exact": f"word for word at {places}",
        "normalized": f"word for word at {places}, apart from typography",
        "changed": f"not word for word; the nearest stretch has {share}",
        "absent": f"not found; the nearest stretch has {share}",
    }[verified.match]
    display.print_text(verdict + (f"; {counted(unread, 'file')} not read" if unread else ""))
    for rank, place in enumerate(verified.places, start=1):
        note = ""
        if place.match == "normalized":
            note = "  differs in case" if place.case_differs else "  typography differs"
        display.print_text(
            display.one_line(f"{rank:>2}. {place}  characters {place.start}-{place.end}{note}")
        )
        display.print_text(f"    {normalize(place.text)}")
        for change in place.changes:
            quote = normalize(change.quote) or "(nothing)"
            display.print_text(
                f"    quote: {quote}  document: {normalize(change.text) or '(nothing)'}"
            )
