"""A user's own questions about a folder of documents: the ranks of the sentences that match the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.commands.display import say
from runnel.commands.runs import Rows, resumed_rows
from runnel.errors import InputError, counted
from runnel.files import digest, file_digest
from runnel.lab.evaluation.evidence import retriever_of, scorer_of
from runnel.lab.evaluation.retrieval import System

if TYPE_CHECKING:
    from runnel.lab.evaluation.patterns import PatternQuestion, Ranking


def measure_patterns(path: Path, place: str, system: System, folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Return the result and the values of each question; `place` has the documents, and `folder` keeps the ranks."""
    from runnel.lab.evaluation.patterns import PLACES, Sentences, read_folder, read_patterns, summarize, values_of

    if system.how not in ("bm25", "embed", "sentences"):
        raise InputError(f"{path} ranks sentences; {system.model} cannot be evaluated on it as {system.how}; use --as embed")
    questions = read_patterns(path, Path(place))
    documents = read_folder(Path(place), questions, say)
    settings: dict[str, object] = {"model": system.model, "as": system.how, "questions": file_digest(str(path))}
    settings |= {"documents": digest(*(part for file, one in documents for part in (file, one.text)))}
    settings |= {**system.bm25, "prompts": dict(system.prompts), "format": 2}
    name = path.name.split(".")[0]

    def load() -> Rows[PatternQuestion]:
        rank, fingerprint = _ranking(system, len(documents))
        sentences = Sentences(Path(place), documents, rank, system.bm25)
        return questions, lambda one: {"id": one.id, "sentences": len(sentences.texts)} | sentences.ask(one), fingerprint

    rows = resumed_rows(folder / f"{name}.ranks.jsonl", settings, load, label="ranking")
    left_out = _report_unmatched(path, questions, rows)
    measured = [pair for pair in zip(questions, rows, strict=True) if pair[0].id not in left_out]
    kinds = [one.kind for one, _ in measured]
    if not any(one.patterns for one, _ in measured):
        raise InputError(f"{path}: no pattern matches a sentence; give the folder of these documents with --in")
    own = "BM25" if system.how == "bm25" else "model"
    rankings = [
        {
            "system": system.model if key == "model" else key,
            "place": where,
            **summarize(kinds, [row[key][where] for _, row in measured]),
        }
        for where in PLACES
        for key in dict.fromkeys((own, "BM25"))
    ]
    values = {
        one.id: values_of(row[own]["document"]["rank"])
        | {f"all documents {name}": value for name, value in values_of(row[own]["folder"]["rank"]).items()}
        for one, row in measured
        if one.patterns
    }
    result = {"task": name, "kind": "patterns", "model": system.model, "as": system.how, "queries": len(values)}
    result |= {"unanswerable": len(measured) - len(values), "left_out": left_out}
    result |= {"documents": len(documents), "sentences": rows[0]["sentences"], "rankings": rankings}
    return result | {"answers": [{"kind": one.kind, **row} for one, row in measured]}, values


def _ranking(system: System, keep: int) -> tuple[Ranking | None, str | None]:
    """Return what ranks the sentences of documents, `keep` of them as it has read them, and the fingerprint of its model."""
    from runnel.lab.evaluation.patterns import rank_each, rank_together

    if system.how == "bm25":
        return None, None
    if system.how == "sentences":
        retriever = retriever_of(system.model, system.dtype)
        return rank_together(retriever, keep), retriever.model.fingerprint()
    score, fingerprint = scorer_of(system, keep=keep)
    return rank_each(score), fingerprint


def _report_unmatched(path: Path, questions: Sequence[PatternQuestion], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Report patterns that match no sentence; return the ids of the questions that have no other."""
    left_out = []
    for one, row in zip(questions, rows, strict=True):
        for pattern in row["unmatched"]:
            say(f"note: {path}: {one.id}: no sentence of {one.file} matches {pattern!r}")
        if one.patterns and len(row["unmatched"]) == len(one.patterns):
            left_out.append(one.id)
    if left_out:
        say(f"note: {path}: {counted(len(left_out), 'question')} left out, no pattern matches: {', '.join(left_out)}")
    return left_out
