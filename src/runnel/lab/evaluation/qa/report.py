"""Results of examinations: the files of each set, and the notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.commands.display import say
from runnel.errors import counted
from runnel.files import write_json
from runnel.lab.evaluation.results import VERSION, save
from runnel.lab.replies import costs

if TYPE_CHECKING:
    from runnel.lab.evaluation.qa.answering import Exam
    from runnel.lab.evaluation.qa.inquiry import Inquiry
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


def say_notes(report: Mapping[str, Any], inquiry: Inquiry) -> None:
    """Report on stderr what differs in the data, its licenses, and what was unusual about replies."""
    for one in report["sets"]:
        for note in (*one["notes"], *([f"license {one['license']}"] if one["license"] else [])):
            say(f"note: {one['task']}: {note}")
    if unreadable := report["all"]["unreadable"]:
        say(f"note: {unreadable:,} questions have no verdict that can be read; they are in no share of right answers")
    for note, count in inquiry.notes.most_common():
        say(f"note: {count:,} {note}")
    if inquiry.replies.used.estimated:
        say(f"note: the endpoint did not count the tokens of {inquiry.replies.used.estimated:,} replies; they are estimated")
    if inquiry.failure is not None:
        say(f"note: the last failure of an endpoint: {inquiry.failure}")
    if inquiry.stopped is not None:
        say(f"note: stopped: {inquiry.stopped}")
    if missing := report["all"]["unanswered"]:
        say(f"note: without a reply yet, and in no score: {counted(missing, 'question')}; repeat the command to ask again")
