"""Examine a model on question answering sets: `examine` is what `runnel lab qa` does.

For each set OUT has SET.found.jsonl (what is read), SET.answers.jsonl, the scores in SET.json and SET.queries.jsonl, and of model
"copied" SET.evidence.jsonl for `runnel lab evaluate`; for all of them qa.json, and replies.sqlite: none is paid for twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runnel.commands.display import Meter
from runnel.errors import InputError
from runnel.files import write_jsonl
from runnel.generation.endpoint import LanguageModelClient
from runnel.lab.evaluation.qa.answering import Exam
from runnel.lab.evaluation.qa.inquiry import Inquiry
from runnel.lab.evaluation.qa.judging import read_labels
from runnel.lab.evaluation.qa.loading import read_qa_sets
from runnel.lab.evaluation.qa.reading import Setup, draw, find, setup_of
from runnel.lab.evaluation.qa.records import QaSet
from runnel.lab.evaluation.qa.report import SetResult, save_all, say_notes
from runnel.lab.evaluation.qa.scores import Outcome
from runnel.lab.replies import stored_replies


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
    if limit is None and seed:
        raise InputError(f"--seed {seed} draws questions, and all are asked; give --limit too")
    labeled = {} if labels is None else read_labels(labels)
    judge = judge or endpoint
    with stored_replies(Path(out), endpoint, judge) as replies:
        exam = Exam(Inquiry(replies, threads), judge, answer_tokens)
        data = (draw(data, limit, seed) for path in paths for data in read_qa_sets(path, only))
        results = _examine_all(exam, data, setup, Path(out), "" if limit is None else f".{limit}-seed-{seed}")
        report = save_all(results, exam, setup.settings, Path(out), labeled)
    say_notes(report, exam.inquiry)
    return report


def _examine_all(exam: Exam, sets: Iterable[QaSet], setup: Setup, out: Path, part: str) -> list[SetResult]:
    """Return the outcomes of all sets, or of a part of each that is named."""
    results: dict[str, SetResult] = {}
    for data in sets:
        if data.name in results:
            raise InputError(f"two sets are called {data.name!r}; their results would be in one file: give one of them")
        outcomes = _examine(exam, data, setup, out, part)
        results[data.name] = SetResult(data.name, data.suite, data.license, data.notes, outcomes)
    return list(results.values())


def _examine(exam: Exam, data: QaSet, setup: Setup, out: Path, part: str) -> list[Outcome]:
    """Return the outcome of each question of a set; they are also written to OUT."""
    found = find(data, setup, out / f"{data.name}{part}.found.jsonl")
    with Meter("answering", unit="questions") as meter:
        outcomes = list(meter.count(exam.outcomes(data, found), len(found)))
    rows = (
        {"set": data.name, "text": one.question, "answers": one.answers, **asdict(outcome)}
        for one, outcome in zip(data.questions, outcomes, strict=True)
    )
    write_jsonl(out / f"{data.name}.answers.jsonl", rows)
    if setup.way == "copied":
        write_jsonl(out / f"{data.name}.evidence.jsonl", _evidence(data, outcomes))
    return outcomes


def _evidence(data: QaSet, outcomes: list[Outcome]) -> Iterator[dict[str, object]]:
    """Yield rows of the questions whose right answer follows from sentences of their document, with these sentences."""
    for one, outcome in zip(data.questions, outcomes, strict=True):
        if outcome.correct and outcome.evidence:
            row = {"id": one.id, "question": one.question, "document": data.documents[one.document].text}
            yield {**row, "answers": one.answers, "evidence": outcome.evidence}
