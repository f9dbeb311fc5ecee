"""Judged documents in an existing index, whose ids may be longer than those of the judgments."""

from __future__ import annotations

from collections.abc import Iterable

from runnel.errors import InputError
from runnel.lab.evaluation.tasks import Task


def names_of(ids: Iterable[str], task: Task) -> tuple[dict[str, str], list[str]]:
    """Return index id -> id in the judgments, of the judged documents whose ids differ, and the relevant ones that are missing.

    `runnel index` gives a file the id /path/file and a row the id /path/file#id. Judgments may name them by any end of it that
    begins after "/" or "#".
    """
    judged = {name for grades in task.qrels.values() for name in grades}
    matches: dict[str, list[str]] = {}  # judged id -> index ids
    for name in ids:
        if match := next((end for end in _ends(name) if end in judged), None):
            matches.setdefault(match, []).append(name)
    names_in_index: dict[str, str] = {}
    for match, names in matches.items():
        if len(names) > 1 and match not in names:
            raise InputError(
                f"{task.source.qrels} judges {match!r}, which could be {names[0]!r} or {names[1]!r} of the index; "
                "give longer ids, or an index of one corpus"
            )
        names_in_index[match] = match if match in names else names[0]
    relevant = dict.fromkeys(name for grades in task.qrels.values() for name, grade in grades.items() if grade > 0)
    missing = [name for name in relevant if name not in names_in_index]
    if len(missing) == len(relevant):
        raise InputError(
            f"{task.source.qrels}: none of the {len(relevant):,} relevant documents is in the index, the first is "
            f"{missing[0]!r}; give the index of their corpus"
        )
    return {name: match for match, name in names_in_index.items() if match != name}, missing


def _ends(name: str) -> Iterable[str]:
    """Return an id and its ends after "/" or "#", longest first."""
    yield name
    for at, character in enumerate(name):
        if character in "/#":
            yield name[at + 1 :]
