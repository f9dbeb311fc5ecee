"""A user's own questions: what search finds, what went wrong, and the settings to use."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runnel.commands.display import note_compiling
from runnel.commands.runs import resumed_rows
from runnel.errors import InputError, counted
from runnel.files import file_digest
from runnel.lab.evaluation import questions as own
from runnel.lab.evaluation.patterns import has_patterns, measure_patterns
from runnel.lab.evaluation.questions import AnsweredQuestion, Problem, Question, Setting
from runnel.lab.evaluation.results import results_folder, save
from runnel.lab.evaluation.retrieval import How, System, kind_of, state_of
from runnel.search.index import Index

_SURE = 0.05  # a better setting is called better if chance is less likely than this, over all that were tried
_VISIBLE = 0.0005  # a smaller difference is not shown


def ask_questions(
    path: str | Path,
    place: str,
    model: str | None = None,
    how: How | None = None,
    *,
    out: str | Path | None = None,
    top_k: int | None = None,
    sweep: bool = False,
    weight: float | None = None,
    rerank: int | None = None,
) -> dict[str, Any]:
    """Measure how well questions are answered: what `runnel lab questions` does. Returns the result, also written to a folder.

    Args:
        path: questions about an index, or with patterns about a folder of documents.
        place: the index, or the folder.
        model: what answers; default: the index's own model, or for a folder pocket.
        how: of questions with patterns, what the model does; default: sentences.
        out: folder of the results; None: they are not kept.
        top_k, sweep, weight, rerank: of an index: documents that a reader would look at (10), whether to try settings of the
            search, and two of these settings.

    Raises:
        InputError: an option has no effect on these questions, or the file cannot be used.
    """
    options = {name: value for name, value in (("dense_weight", weight), ("rerank", rerank)) if value is not None}
    path = Path(path)
    ranked, of_index = has_patterns(path), bool(options or sweep or top_k is not None)
    if (of_index and ranked) or (how is not None and not ranked):
        has, unused = ("has patterns", "--top-k, --sweep, --weight and --rerank") if ranked else ("has no patterns", "--as")
        searched = "sentences are ranked" if ranked else "an index is searched"
        raise InputError(f"{path} {has}, so {searched}; leave {unused} out")
    with results_folder(out) as folder:
        if not ranked:
            return save(*_measure(path, place, model, top_k or 10, options, folder, sweep=sweep), folder)
        system = System(model or "pocket", kind_of(model or "pocket", how) or "sentences")
        return save(*measure_patterns(path, place, system, folder), folder)


def _measure(
    path: Path, place: str, model: str | None, top_k: int, options: Mapping[str, float], folder: Path, *, sweep: bool
) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Return the result and the values of each question; `folder` keeps the answers, and the ranks of a sweep."""
    note_compiling()
    questions = own.read_questions(path)
    settings: dict[str, object] = {"questions": file_digest(str(path)), **state_of(place), "model": model}
    name = path.name.split(".")[0]
    index = Index.open(place, model)
    targets = own.locate(questions, index)

    def row_of(question: Question) -> Mapping[str, object]:
        answer = asdict(own.ask(question, targets[question.id], index, top_k, options))
        del answer["question"]
        return answer | {"id": question.id}

    asked, out = settings | {"options": dict(options), "top_k": top_k}, folder / f"{name}.answers.jsonl"
    answered = resumed_rows(out, asked, lambda: (questions, row_of, None), label="searching")
    answers = [_answer(question, row) for question, row in zip(questions, answered, strict=True)]
    result = {"task": name, "kind": "questions", "index": place, "options": dict(options), "top_k": top_k}
    result |= {"queries": len(questions), "places": sum(question.has_place for question in questions), "documents": len(index)}
    result |= {"metrics": own.summarize(answers), "answers": [_as_json(answer) for answer in answers]}
    if sweep:

        def rank(tried: tuple[str, Mapping[str, float], Question]) -> dict[str, object]:
            setting, options, question = tried
            return {"setting": setting, "id": question.id, "rank": own.rank_with(question, targets[question.id], index, options)}

        ranks: dict[str, list[int | None]] = {}
        out, tries = folder / f"{name}.sweep.jsonl", own.tries(questions, index)
        for row in resumed_rows(out, settings, lambda: (tries, rank, None), label="searching"):
            ranks.setdefault(row["setting"], []).append(row["rank"])
        weighed = own.weigh(own.settings_of(index), ranks)
        result["settings"] = [
            {"name": one.name, "arguments": one.arguments, "metrics": dict(one.metrics)}
            | {name: getattr(one.comparison, name) for name in ("difference", "low", "high", "p")}
            for one in weighed
        ]
        result["advice"] = advice(weighed, place, model)
    return result, {answer.question.id: answer.values() for answer in answers}


def _answer(question: Question, row: Mapping[str, Any]) -> AnsweredQuestion:
    problem = row["problem"] and Problem(**row["problem"])
    return AnsweredQuestion(question, row["rank"], row["place"], row["sentence"], tuple(row["found"]), problem)


def advice(settings: Sequence[Setting], place: str, model: str | None) -> str:
    """Return the conclusion of a sweep, with the command to use; `settings` has the default first, then the best."""
    default, best = settings[0], settings[1]
    count, tried = best.comparison.queries, len(settings) - 1
    options = ["--in", place, *(["--model", model] if model else []), *best.arguments.split()]
    command = f'runnel search "..." {shlex.join(options)}'
    if best.comparison.difference < _VISIBLE:
        return f"No setting has a higher MRR than the default: keep it ({counted(count, 'question')})."
    gain = f"MRR {best.metrics['MRR']:.3f} instead of {default.metrics['MRR']:.3f}, p = {best.comparison.p:.3f}"
    if best.comparison.p * tried < _SURE:
        return f"Better than the default: {best.name} ({gain}). Use: {command}"
    return (
        f"Highest MRR: {best.name} ({gain}), but with {count:,} questions and {tried} settings tried this may be chance. "
        f"Keep the default, or ask more questions. To try it: {command}"
    )


def _as_json(answer: AnsweredQuestion) -> dict[str, Any]:
    question = {"id": answer.question.id, "question": answer.question.query, "expected": answer.question.expected}
    ranks = {"rank": answer.rank, "place_rank": answer.place, "sentence_rank": answer.sentence}
    return question | ranks | {"problem": answer.problem and asdict(answer.problem), "found": list(answer.found)}
