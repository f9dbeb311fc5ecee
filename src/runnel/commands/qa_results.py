"""Results of `runnel qa`: the files of each set, the table, and the notes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.commands.display import print_table, print_text, say
from runnel.commands.evaluate_results import VERSION, save
from runnel.files import write

if TYPE_CHECKING:
    from runnel.evaluation.qa.answering import Exam
    from runnel.evaluation.qa.scores import Outcome


@dataclass(frozen=True)
class Result:
    """The outcomes of a set's questions, and what is known of the set; see `QaSet`."""

    name: str
    suite: str
    license: str
    notes: tuple[str, ...]
    outcomes: Sequence[Outcome]


def save_all(results: Sequence[Result], exam: Exam, settings: Mapping[str, object], folder: Path) -> dict[str, Any]:
    """Write the scores of each set, and the report about all of them, which is returned."""
    from runnel.evaluation.qa.scores import by_category, by_length, group, mean_of_sets, summarize

    facts = {**settings, "llm_model": exam.replies.endpoint.model, "judge": exam.judge.model}
    sets = []
    for one in results:
        about = {"task": one.name, "kind": "qa", "suite": one.suite, "license": one.license, "notes": list(one.notes)}
        values = {outcome.question: outcome.values() for outcome in one.outcomes}
        sets.append(save({**about, **facts, **summarize(one.outcomes)}, values, folder))
    points = [outcome for one in results for outcome in one.outcomes]
    report = {
        "version": VERSION,
        **facts,
        "all": group("all", points),
        "mean_of_sets": mean_of_sets({one.name: one.outcomes for one in results}),
        "by_category": by_category(points),
        "by_length": by_length(points),
        "sets": sets,
        "notes": dict(exam.notes.most_common()),
        "stopped": exam.stopped and str(exam.stopped),
        "cost": _cost(exam),
    }
    write(folder / "qa.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return report


def _cost(exam: Exam) -> dict[str, Any]:
    """Return the tokens and the price of answers and judgments, and of all replies that the folder has."""
    from runnel.evaluation.qa.prompts import ANSWERS, JUDGMENTS
    from runnel.generation.replies import Usage

    replies = exam.replies
    used = {"answers": replies.used_by.get(ANSWERS, Usage()), "judgments": replies.used_by.get(JUDGMENTS, Usage())}
    return {name: asdict(one) | {"money": replies.budget.cost(one)} for name, one in (used | {"spent": replies.spent}).items()}


def show(report: Mapping[str, Any]) -> None:
    """Print the scores: of sets, of all questions, of categories and of lengths; and what they cost."""
    print_text(f"{report['model']} as {report['as']}: answers by {report['llm_model']}, judged by {report['judge']}")
    rows = [_row(one["task"], one) for one in report["sets"]]
    if len(report["sets"]) > 1:
        rows.append(_row("all questions", report["all"]))
        rows.append(_row("mean of sets", report["mean_of_sets"]))
    for groups in (report["by_category"], report["by_length"]):
        rows += [_row(one["name"], one) for one in groups]
    print_table(["questions", "number", "right", "95 % interval", "token F1", "no verdict", "no reply"], rows)
    for name in ("answers", "judgments"):
        used = report["cost"][name]
        cost = f", cost {used['money']:,.2f}" if used["money"] else ""
        print_text(
            f"{name}: {used['requests']:,} requests, {used['prompt_tokens']:,} tokens read, "
            f"{used['completion_tokens']:,} written{cost}"
        )


def _row(name: str, one: Mapping[str, Any]) -> list[str]:
    interval = "" if one["low"] is None else f"{one['low']:.1%} to {one['high']:.1%}"
    counts = [f"{one[key]:,}" if key in one else "" for key in ("questions", "unreadable", "unanswered")]
    return [name, counts[0], _share(one["accuracy"]), interval, "" if one["F1"] is None else f"{one['F1']:.3f}", *counts[1:]]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def say_notes(exam: Exam, report: Mapping[str, Any]) -> None:
    """Report on stderr what was unusual, and what is missing."""
    for one in report["sets"]:
        for note in one["notes"]:
            say(f"note: {one['task']}: {note}")
        if one["license"]:
            say(f"note: {one['task']}: license {one['license']}")
    for note, count in report["notes"].items():
        say(f"note: {count:,} {note}")
    every = report["all"]
    if every["unreadable"]:
        say(f"note: {every['unreadable']:,} questions have no verdict that can be read; they are in no accuracy")
    estimated = sum(report["cost"][name]["estimated"] for name in ("answers", "judgments"))
    if estimated:
        say(f"note: the endpoint did not count the tokens of {estimated:,} replies; they are estimated")
    if exam.failure is not None:
        say(f"note: the last failure of an endpoint: {exam.failure}")
    if exam.stopped is not None:
        say(f"note: stopped: {exam.stopped}")
    if every["unanswered"]:
        say(f"note: {every['unanswered']:,} questions have no reply yet and are in no score; repeat the command to ask again")
