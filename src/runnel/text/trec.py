"""Judgements and runs, as TREC, MS MARCO and BEIR write them; plain, .gz or .zst."""

from __future__ import annotations

import sys
from array import array
from pathlib import Path

from runnel.errors import InputError
from runnel.text.lines import read_lines

_HEADER = ["query-id", "corpus-id", "score"]


def read_qrels(path: str | Path) -> dict[str, dict[str, int]]:
    """Query id -> document id -> grade: TREC and MS MARCO (query, iteration, document, grade) or BEIR (query, document, grade).

    Raises:
        InputError: a line is not so, or a document is judged twice with different grades.
    """
    qrels: dict[str, dict[str, int]] = {}
    first = True
    for where, line in read_lines(path):
        fields = line.split()
        if first and [f.lower().replace("_", "-") for f in fields] == _HEADER:
            first = False
            continue
        first = False
        try:
            query, *iteration, name, grade = fields
            if len(iteration) > 1:
                raise ValueError
            judged = int(grade)
        except ValueError:
            raise InputError(
                f"{where}: expected query, document, grade (BEIR) or query, 0, document, grade (TREC, MS MARCO), the grade a "
                f"whole number; got {line[:80]!r}"
            ) from None
        if qrels.setdefault(query, {}).setdefault(sys.intern(name), judged) != judged:
            raise InputError(
                f"{where}: document {name!r} is judged {judged} for query {query!r}, and {qrels[query][name]} further up; "
                "keep one of the two"
            )
    return qrels


def read_run(path: str | Path, depth: int | None = None) -> dict[str, list[str]]:
    """Query id -> document ids, best first, `depth` of them at most.

    Args:
        path: a TREC run (query Q0 document rank score tag), ordered by score, ties by id;
            or MS MARCO's tab-separated query, document, rank; or its top-1000 file of query, document, query text, document
            text, which is not ranked: its order is kept.

    Raises:
        InputError: a line is none of these.
    """
    scores: dict[str, array[float]] = {}
    names: dict[str, list[str]] = {}
    for where, line in read_lines(path):
        tabs, fields = line.split("\t"), line.split()
        try:
            if len(tabs) == 4:
                query, name, key = tabs[0], tabs[1], float(len(names.get(tabs[0], ())))
            elif len(fields) == 3:
                query, name, key = fields[0], fields[1], float(fields[2])
            else:
                query, _, name, _, score, _ = fields
                key = -float(score)
        except ValueError:
            raise InputError(
                f"{where}: expected a line of a TREC run (query Q0 document rank score tag), or query, document, rank, or query, "
                f"document and both texts between tabs; got {line[:80]!r}"
            ) from None
        scores.setdefault(query, array("d")).append(key)
        names.setdefault(query, []).append(sys.intern(name))
    ranked = {}
    for query, keys in scores.items():
        found = names.pop(query)
        ranked[query] = [found[i] for i in sorted(range(len(found)), key=lambda i: (keys[i], found[i]))[:depth]]
    return ranked
