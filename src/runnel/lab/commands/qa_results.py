"""Results of `runnel qa`: the files of each set, the table, and the notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.commands.display import print_table, print_text, say
from runnel.errors import counted
from runnel.files import write_json
from runnel.lab.commands.evaluate_results import VERSION, save
from runnel.lab.commands.inquiries import costs, show_costs

if TYPE_CHECKING:
    from runnel.lab.evaluation.qa.answering import Exam
    from runnel.lab.evaluation.qa.judging import Answer
    from runnel.lab.evaluation.qa.scores import Outcome


@dataclass(frozen=True)
class SetResult:
    """The outcomes of a set's questions, and what is known of the set; see `QaSet`."""

    name: str
    suite: str
    license: str
    notes: tuple[str, ...]
    outcomes: Sequence[Outcome]


def save_all(
    results: Sequence[SetResult], exam: Exam, settings: Mapping[str, object], folder: Path, labels: Mapping[Answer, bool]
) -> dict[str, Any]:
    """Write the scores of each set, and the report about all of them, which is returned; `labels` are people's judgments."""
    from runnel.lab.evaluation.qa.prompts import ANSWERS, COPIES, JUDGMENTS
    from runnel.lab.evaluation.qa.scores import by_category, by_length, group, mean_of_sets, summarize

    facts = {**settings, "llm_model": exam.inquiry.replies.endpoint.model, "judge": exam.judge.model}
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
        "agreement": _agreement(results, labels),
        "notes": dict(exam.inquiry.notes.most_common()),
        "cost": costs(exam.inquiry.replies, copies=COPIES, answers=ANSWERS, judgments=JUDGMENTS),
    }
    write_json(folder / "qa.json", report)
    return report


def _agreement(results: Sequence[SetResult], labels: Mapping[Answer, bool]) -> dict[str, Any] | None:
    """Return how the judge agrees with labels; None: none is of an answer here."""
    from runnel.lab.evaluation.qa.judging import agreement

    judged = {(one.name, outcome.question, outcome.answer): outcome.correct for one in results for outcome in one.outcomes}
    pairs = [(right, judged[answer]) for answer, right in labels.items() if answer in judged]
    if len(pairs) < len(labels):
        say(f"note: {len(labels) - len(pairs):,} of {len(labels):,} labels are of other answers")
    return agreement(*zip(*pairs, strict=True)) if pairs else None


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
    if (found := report["agreement"]) is not None:
        each = ", ".join(f"{name} {value:.3f}" for name, value in found["f1"].items() if value is not None)
        equal = f"{found['accuracy']:.1%} of verdicts equal"
        print_text(f"agreement with {counted(found['labeled'], 'label')}: macro F1 {found['macro_f1']:.3f} ({each}), {equal}")
    show_costs(report["cost"])


def say_about_sets(report: Mapping[str, Any]) -> None:
    """Report on stderr what differs in the data, its licenses, and how many verdicts cannot be read."""
    for one in report["sets"]:
        for note in (*one["notes"], *([f"license {one['license']}"] if one["license"] else [])):
            say(f"note: {one['task']}: {note}")
    if unreadable := report["all"]["unreadable"]:
        say(f"note: {unreadable:,} questions have no verdict that can be read; they are in no share of right answers")


def _row(name: str, one: Mapping[str, Any]) -> list[str]:
    interval = "" if one["low"] is None else f"{one['low']:.1%} to {one['high']:.1%}"
    counts = [f"{one[key]:,}" if key in one else "" for key in ("questions", "unreadable", "unanswered")]
    return [name, counts[0], _share(one["accuracy"]), interval, "" if one["F1"] is None else f"{one['F1']:.3f}", *counts[1:]]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
