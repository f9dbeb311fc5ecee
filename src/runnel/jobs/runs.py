"""Write the results of many questions one by one, so that interrupted work resumes.

Both kinds of file keep a row for each finished question in a `Journal` and write OUT at the end.

A TREC run: the caller opens the Journal and calls `begin`, adds Row(query, lines_of(query, hits))
for each query, and calls `finish_run`.
A file of JSON lines: the caller calls `resumed_rows`, which does all of it.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple

from runnel.errors import InputError, counted
from runnel.files import replacing, write_jsonl
from runnel.jobs.progress import Item, notify, open_progress
from runnel.journal import Journal, Row
from runnel.text.lines import read_json


class WorkPlan(NamedTuple, Generic[Item]):
    """The questions to answer, and how."""

    questions: Iterable[Item]  # in the same order in every run
    row_of: Callable[[Item], Mapping[str, object]]  # answers a question with its row of JSON
    fingerprint: str | None  # of the model; None: no model reads the questions


def lines_of(query: str, hits: Iterable[tuple[str, float]], number_format: str = ".6f") -> str:
    """Return the lines of a TREC run for a query, one for each document. `hits`: ids of documents
    with their scores, best first. `number_format`: how a score is written.
    """
    lines = []
    for rank, (name, score) in enumerate(hits, start=1):
        for key in (query, name):
            if key.split() != [key]:
                raise InputError(
                    f"the id {key!r} is empty or has white space, so no TREC run can hold it;"
                    " rename it"
                )
        lines.append(f"{query} Q0 {name} {rank} {score:{number_format}} runnel\n")
    return "".join(lines)


def note_resumed(journal: Journal, noun: str) -> None:
    """Report how much of the work an earlier run has done."""
    if journal:
        notify(f"note: resuming after {counted(len(journal), noun)} of an earlier run")


def finish_run(journal: Journal, facts: Mapping[str, object]) -> dict[str, Any]:
    """Write OUT, a TREC run, from the journal's rows, whose values are the lines of each query;
    finish the journal, and return what OUT.json then holds: its settings and `facts`.
    """
    with replacing(journal.out) as new, new.open("w", encoding="utf-8", newline="") as file:
        file.writelines(row.value for row in journal.rows())
    return journal.finish(facts)


def resumed_rows(
    out: Path,
    settings: Mapping[str, object],
    load: Callable[[], WorkPlan[Item]],
    *,
    label: str = "reading",
) -> list[dict[str, Any]]:
    """Return a row of JSON for each question, in their order; OUT has them too, one a line. Rows of
    an earlier run with the same settings are not made again.

    Args:
        settings: what the rows depend on, without the fingerprint of the model, which is known once
            `load` has returned.
        load: loads the model and the questions.
        label: the verb before the progress bar.
    """
    # The journal compares the settings when it is opened: before `load`, which may take long.
    with Journal(out, settings) as journal:
        work = load()
        if journal.begin(fingerprint=work.fingerprint) is not None:
            notify(f"note: {out} is finished already")
        else:
            note_resumed(journal, "question")
            with open_progress(label, "questions") as progress:
                unanswered = itertools.islice(work.questions, len(journal), None)
                for question in progress.count(unanswered):
                    journal.add(Row(len(journal), work.row_of(question)))
            write_jsonl(out, (row.value for row in journal.rows()))
            journal.finish({"count": len(journal)})
    return [row for _, row in read_json(out)]
