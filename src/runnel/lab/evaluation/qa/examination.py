"""Examine a model on question answering sets: `examine` is what `runnel lab qa` does.

For each set OUT has SET.found.jsonl (what is read), SET.answers.jsonl, the scores in SET.json and SET.queries.jsonl, and of model
"copied" SET.evidence.jsonl for `runnel lab evaluate`; for all of them qa.json, and replies.sqlite: none is paid for twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runnel.commands.display import Meter, say
from runnel.errors import counted
from runnel.files import write_json, write_jsonl
from runnel.generation.endpoint import LanguageModelClient
from runnel.lab.evaluation.qa.answering import Exam
from runnel.lab.evaluation.qa.judging import ANSWERS, COPIES, JUDGMENTS, Answer, agreement, read_labels
from runnel.lab.evaluation.qa.loading import read_qa_sets
from runnel.lab.evaluation.qa.records import QaSet
from runnel.lab.evaluation.qa.retrieving import Setup, draw, find, setup_of
from runnel.lab.evaluation.qa.scores import Outcome, by_category, by_length, group, mean_of_sets, summarize
from runnel.lab.evaluation.results import VERSION, expect_new, save
from runnel.lab.evaluation.retrieval import refuse_unused
from runnel.lab.replies import Inquiry, costs, stored_replies

_SetResult = tuple[Mapping[str, object], Sequence[Outcome]]
"""What is known of a set, and the outcomes of its questions."""


def examine(
    model: str,
    paths: Sequence[str],
    out: str | Path,
    endpoint: LanguageModelClient,
    judge: LanguageModelClient | None = None,
    *,
    only: Sequence[str] = (),
    limit: int | None = None,
    seed: int = 0,
    labels: Path | None = None,
    answer_tokens: int = 2000,
    threads: int = 8,
    **reading: Any,
) -> dict[str, Any]:
    """Let a language model answer the questions of sets from what a model retrieves; return the report.

    Args:
        model: what retrieves: a model, "bm25", "copied" (the language model), or "whole": nothing does.
        paths: files or folders of questions, documents and answers.
        out: folder of the results and of all replies.
        endpoint, judge: the language model that answers, and the one that judges; None: the same.
        only: names of the sets to read; default: all.
        limit, seed: questions of each set, drawn at random; None: all.
        labels: rows of SET.answers.jsonl with a person's "right", to measure the judge.
        answer_tokens, threads: tokens of a reply at most, and requests at a time.
        reading: arguments of `setup_of`.

    Raises:
        InputError: an option or a set cannot be used.
    """
    setup = setup_of(model, **reading)
    refuse_unused(["seed"] if seed and limit is None else [], (), "all questions: --limit draws some")
    labeled = {} if labels is None else read_labels(labels)
    judge = judge or endpoint
    with stored_replies(Path(out), endpoint, judge) as replies:
        exam = Exam(Inquiry(replies, threads), judge, answer_tokens)
        data = (draw(data, limit, seed) for path in paths for data in read_qa_sets(path, only))
        results = _examine(exam, data, setup, Path(out), "" if limit is None else f".{limit}-seed-{seed}")
        report = _save_all(results, exam, setup.settings, Path(out), labeled)
    _say_notes(report, exam.inquiry)
    return report


def _examine(exam: Exam, sets: Iterable[QaSet], setup: Setup, out: Path, part: str) -> dict[str, _SetResult]:
    """Return the outcomes of all sets by their names, or of a part of each that is named; they are also written to OUT."""
    results: dict[str, _SetResult] = {}
    for data in sets:
        expect_new(data.name, results)
        found = find(data, setup, out / f"{data.name}{part}.found.jsonl")
        with Meter("answering", unit="questions") as meter:
            outcomes = list(meter.count(exam.outcomes(data, found), len(found)))
        pairs = zip(data.questions, outcomes, strict=True)
        rows = ({"set": data.name, "text": q.question, "answers": q.answers, **asdict(outcome)} for q, outcome in pairs)
        write_jsonl(out / f"{data.name}.answers.jsonl", rows)
        if setup.way == "copied":
            write_jsonl(out / f"{data.name}.evidence.jsonl", _evidence(data, outcomes))
        results[data.name] = {"suite": data.suite, "license": data.license, "notes": list(data.notes)}, outcomes
    return results


def _evidence(data: QaSet, outcomes: list[Outcome]) -> Iterator[dict[str, object]]:
    """Yield rows of the questions whose right answer follows from sentences of their document, with these sentences."""
    for one, outcome in zip(data.questions, outcomes, strict=True):
        if outcome.correct and outcome.evidence:
            row = {"id": one.id, "question": one.question, "document": data.documents[one.document].text}
            yield {**row, "answers": one.answers, "evidence": outcome.evidence}


def _save_all(
    results: Mapping[str, _SetResult], exam: Exam, settings: Mapping[str, object], folder: Path, labels: Mapping[Answer, bool]
) -> dict[str, Any]:
    """Write the scores of each set, and the report about all of them, which is returned; `labels` are people's judgments."""
    facts = {**settings, "llm_model": exam.inquiry.replies.endpoint.model, "judge": exam.judge.model}
    sets = []
    for name, (about, outcomes) in results.items():
        values = {outcome.question: outcome.values() for outcome in outcomes}
        sets.append(save({"task": name, "kind": "qa", **about, **facts, **summarize(outcomes)}, values, folder))
    points = [outcome for _, outcomes in results.values() for outcome in outcomes]
    report = {"version": VERSION, **facts, "all": group("all", points)}
    report |= {"mean_of_sets": mean_of_sets({name: outcomes for name, (_, outcomes) in results.items()})}
    report |= {"by_category": by_category(points), "by_length": by_length(points), "sets": sets}
    report |= {"agreement": _agreement(results, labels), "notes": dict(exam.inquiry.notes.most_common())}
    report["cost"] = costs(exam.inquiry.replies, copies=COPIES, answers=ANSWERS, judgments=JUDGMENTS)
    write_json(folder / "qa.json", report)
    return report


def _agreement(results: Mapping[str, _SetResult], labels: Mapping[Answer, bool]) -> dict[str, Any] | None:
    """Return how the judge agrees with labels; None: none is of an answer here."""
    judged = {(name, one.question, one.answer): one.correct for name, (_, outcomes) in results.items() for one in outcomes}
    pairs = [(right, judged[answer]) for answer, right in labels.items() if answer in judged]
    if len(pairs) < len(labels):
        say(f"note: {len(labels) - len(pairs):,} of {len(labels):,} labels are of other answers")
    return agreement(*zip(*pairs, strict=True)) if pairs else None


def _say_notes(report: Mapping[str, Any], inquiry: Inquiry) -> None:
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
