"""TREC runs, and lines of JSON, that commands write query by query, so that interrupted work resumes."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from runnel.commands.display import Meter, say
from runnel.commands.resume import Output, appending, whole_lines
from runnel.errors import InputError, counted
from runnel.files import open_own, replacing

Item = TypeVar("Item")
Rows = tuple[Iterable[Item], Callable[[Item], Mapping[str, object]], str | None]
"""Questions, in the same order in every run; what makes a row of one; and the fingerprint of the model, if there is one."""


def finished_queries(part: Path) -> set[str]:
    """Return the queries already ranked in the part file. The last one may be incomplete: it is removed and repeated."""
    done: dict[str, int] = {}  # query -> where it starts
    at = 0
    with open_own(part) as file:
        file.seek(0)
        for line in file:
            done.setdefault(line.split(b" ", 1)[0].decode(), at)
            at += len(line)
        if done:
            file.truncate(done.popitem()[1])
    if done:
        say(f"note: resuming after {counted(len(done), 'query')} of an earlier run")
    return set(done)


def lines_of(query: str, hits: Iterable[tuple[str, float]], number: str = ".6f") -> bytes:
    """Return the lines of a query: its documents with their scores, best first, as `number` formats them."""
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


def resumed_rows(
    out: Path, settings: Mapping[str, object], load: Callable[[], Rows[Item]], *, label: str = "reading"
) -> list[dict[str, Any]]:
    """Return a row of JSON for each question, written to OUT one by one unless it is there; interrupted work resumes.

    `settings` lack the model's fingerprint, which is known once `load` has returned.
    """
    with Output(out) as output:
        output.check(settings)  # before the model is loaded
        items, row_of, fingerprint = load()
        if output.begin({**settings, "fingerprint": fingerprint}) is not None:
            say(f"note: {out} is finished already")
        else:
            finish_run(output, {"count": _append_lines(output, items, row_of, label)})
    return [json.loads(line) for line in out.read_text(encoding="utf-8").split("\n") if line]


def _append_lines(output: Output, items: Iterable[Item], row_of: Callable[[Item], Mapping[str, object]], label: str) -> int:
    """Append a line to the part for each question that has none yet; return the number of lines."""
    (part,) = output.parts
    if count := whole_lines(part):
        say(f"note: resuming after {counted(count, 'question')} of an earlier run")
    with Meter(label, unit="questions") as meter, appending(part) as append:
        for item in itertools.islice(items, count, None):
            append(json.dumps(row_of(item), ensure_ascii=False).encode() + b"\n")
            count += 1
            meter.add(1)
    return count
