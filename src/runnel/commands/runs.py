"""TREC runs, and lines of JSON, that commands write query by query, so that interrupted work resumes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from runnel.commands.display import Meter, say
from runnel.commands.resume import Output, appending, whole_lines
from runnel.errors import InputError
from runnel.files import replacing

Item = TypeVar("Item")


def finished_queries(part: Path) -> set[str]:
    """Return the queries already ranked in the part file. The last one may be incomplete: it is removed and repeated."""
    if not part.exists():
        return set()
    done: dict[str, int] = {}  # query -> where it starts
    at = 0
    with part.open("rb") as file:
        for line in file:
            done.setdefault(line.split(b" ", 1)[0].decode(), at)
            at += len(line)
    if done:
        last = list(done)[-1]
        os.truncate(part, done.pop(last))
    if done:
        say(f"note: resuming after {len(done):,} queries of an earlier run")
    return set(done)


def lines_of(query: str, hits: Iterable[tuple[str, float]], number: str = ".6f") -> bytes:
    """Return the lines of a query: its documents with their scores, best first, as `number` formats them.

    Raises:
        InputError: an id is empty or has white space, which separates the fields of a run.
    """
    lines = []
    for rank, (name, score) in enumerate(hits, start=1):
        if odd := next((one for one in (query, name) if one.split() != [one]), None):
            raise InputError(f"the id {odd!r} is empty or has white space, so no TREC run can hold it; rename it")
        lines.append(f"{query} Q0 {name} {rank} {score:{number}} runnel\n")
    return "".join(lines).encode()


def finish_run(output: Output, facts: Mapping[str, object]) -> dict[str, object]:
    """Write OUT from its part, and end it with its facts."""
    (part,) = output.parts
    with part.open("rb") as ranked, replacing(output.path) as new, new.open("wb") as file:
        shutil.copyfileobj(ranked, file)
    return output.end(facts)


def append_lines(output: Output, items: Iterable[Item], row_of: Callable[[Item], Mapping[str, object]], *, label: str) -> None:
    """Append a line of JSON to the part for each question that has none yet; `items` are in the same order in every run."""
    (part,) = output.parts
    if done := whole_lines(part):
        say(f"note: resuming after {done:,} questions of an earlier run")
    with Meter(label, unit="questions") as meter, appending(part) as append:
        for item in itertools.islice(items, done, None):
            append(json.dumps(row_of(item), ensure_ascii=False).encode() + b"\n")
            meter.add(1)


def read_lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the objects that `append_lines` wrote."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
