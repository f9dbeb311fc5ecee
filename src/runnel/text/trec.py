"""Read judgments and runs in the formats of TREC, MS MARCO and BEIR; plain, .gz or .zst."""

import math
import sys
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from runnel.errors import InputError
from runnel.text.lines import read_lines

_HEADER = ["query-id", "corpus-id", "score"]
# trec_eval counts grades in 32 bits, and has a counter for each up to the highest
MOST_GRADE = 1_000_000


def read_qrels(path: str | Path) -> dict[str, dict[str, int]]:
    """Read query id -> document id -> grade, in TREC's and MS MARCO's (query, 0, document, grade)
    or BEIR's format.
    """
    qrels: dict[str, dict[str, int]] = {}
    for number, (where, line) in enumerate(read_lines(path)):
        fields = line.split()
        if number == 0 and [f.lower().replace("_", "-") for f in fields] == _HEADER:
            continue
        try:
            # TREC's second field is of no use
            query, name, grade = fields if len(fields) != 4 else (fields[0], *fields[2:])
            judged = as_grade(grade)
        except ValueError:
            raise InputError(
                f"{where}: expected query, document, grade (BEIR) or query, 0, document, grade"
                f" (TREC), a whole number up to {MOST_GRADE:,}; got {line[:80]!r}"
            ) from None
        if qrels.setdefault(query, {}).setdefault(sys.intern(name), judged) != judged:
            raise InputError(
                f"{where}: document {name!r} is judged {judged} for query {query!r}, but"
                f" {qrels[query][name]} on an earlier line; keep one of the two"
            )
    return qrels


def as_grade(value: str | float) -> int:
    """Return a grade as a number; raise ValueError if it is not one, or is beyond `MOST_GRADE`."""
    grade = int(value)
    if abs(grade) > MOST_GRADE:
        raise ValueError(f"{grade} is beyond {MOST_GRADE:,}")
    return grade


def read_run(path: str | Path, depth: int | None = None) -> dict[str, list[str]]:
    """Read query id -> document ids, best first, ties by id, at most `depth`; files as in
    `read_scores`.
    """
    keys: dict[str, array[float]] = {}  # negative scores; arrays, because runs have millions
    names: dict[str, list[str]] = {}
    for _, query, name, score in _read_run(path):
        keys.setdefault(query, array("d")).append(-score)
        names.setdefault(query, []).append(name)
    ranked = {}
    for query, key in keys.items():
        ids = names.pop(query)
        ranked[query] = [
            ids[i] for i in sorted(range(len(ids)), key=lambda i: (key[i], ids[i]))[:depth]
        ]
    return ranked


def read_scores(path: str | Path) -> dict[str, dict[str, float]]:
    """Return query id -> document id -> score, of a run.

    It is a TREC run (query Q0 document rank score tag); MS MARCO's tab-separated query, document,
    rank, of which the score is the negative rank; or its top-1000 file of query, document, query
    text, document text, whose order is kept.
    """
    run: dict[str, dict[str, float]] = {}
    for where, query, name, score in _read_run(path):
        scores = run.setdefault(query, {})
        if name in scores:
            raise InputError(
                f"{where}: document {name!r} is listed twice for query {query!r}; expected each"
                " document once"
            )
        scores[name] = score
    return run


def _read_run(path: str | Path) -> Iterator[tuple[str, str, str, float]]:
    """Yield (place, query id, document id, score) for each line of a run."""
    seen: Counter[str] = Counter()
    for where, line in read_lines(path):
        query = name = ""
        score = math.nan
        with suppress(ValueError):
            if line.count("\t") == 3:  # query, document and both texts, best first
                query, name, _, _ = line.split("\t")
                score = -float(seen[query])
                seen[query] += 1
            elif len(fields := line.split()) == 3:  # MS MARCO
                query, name, rank = fields
                score = -float(rank)
            else:  # TREC
                query, _, name, _, number, _ = fields
                score = float(number)
        if not math.isfinite(score):
            raise InputError(
                f"{where}: expected query Q0 document rank score tag; query, document, rank; or"
                f" query, document and both texts between tabs; got {line[:80]!r}"
            )
        yield where, query, sys.intern(name), score
