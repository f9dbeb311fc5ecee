"""TREC runs, and lines of JSON, written query by query, so that interrupted work resumes."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from runnel.errors import InputError, counted
from runnel.files import replacing, write_jsonl
from runnel.jobs.progress import Item, notify, open_progress
from runnel.journal import Journal, Row
from runnel.text.lines import read_json

Rows = tuple[Iterable[Item], Callable[[Item], Mapping[str, object]], str | None]
"""Questions, in the same order in every run; what makes a row of one; and the fingerprint of the
model, if there is one.
"""


def lines_of(query: str, hits: Iterable[tuple[str, float]], number: str = ".6f") -> str:
    """Return the lines of a query: its documents with their scores, best first, as `number` formats
    them.
    """
    lines = []
    for rank, (name, score) in enumerate(hits, start=1):
        for key in (query, name):
            if key.split() != [key]:
                raise InputError(
                    f"the id {key!r} is empty or has white space, so no TREC run can hold it;"
                    " rename it"
                )
        lines.append(f"{query} Q0 {name} {rank} {score:{number}} runnel\n")
    return "".join(lines)


def note_resumed(journal: Journal, noun: str) -> None:
    """Report how much of the work an earlier run has done."""
    if journal:
        notify(f"note: resuming after {counted(len(journal), noun)} of an earlier run")


def finish_run(journal: Journal, facts: Mapping[str, object]) -> dict[str, Any]:
    """Write OUT from rows that hold lines, and end the work with its facts."""
    with replacing(journal.out) as new, new.open("w", encoding="utf-8", newline="") as file:
        file.writelines(row.value for row in journal.rows())
    return journal.finish(facts)


def resumed_rows(
    out: Path,
    settings: Mapping[str, object],
    load: Callable[[], Rows[Item]],
    *,
    label: str = "reading",
) -> list[dict[str, Any]]:
    """Return a row of JSON for each question, also written to OUT; finished work is read from
    there, interrupted work resumes.

    `settings` lack the model's fingerprint, which is known once `load` has returned.
    """
    with Journal(out, settings) as journal:  # it compares the settings before the model is loaded
        items, row_of, fingerprint = load()
        if journal.begin(fingerprint=fingerprint) is not None:
            notify(f"note: {out} is finished already")
        else:
            note_resumed(journal, "question")
            with open_progress(label, "questions") as progress:
                for item in progress.count(itertools.islice(items, len(journal), None)):
                    journal.add(Row(len(journal), row_of(item)))
            write_jsonl(out, (row.value for row in journal.rows()))
            journal.finish({"count": len(journal)})
    return [row for _, row in read_json(out)]
