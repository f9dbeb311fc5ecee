"""Evidence tasks: rank the sentences of each document, and measure where the evidence is among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.commands.display import say
from runnel.commands.runs import Rows, resumed_rows
from runnel.errors import InputError
from runnel.files import file_digest
from runnel.lab.evaluation import sentences
from runnel.lab.evaluation.metrics import parse_metrics
from runnel.lab.evaluation.retrieval import API, System, load_model
from runnel.lab.training.candidates import K1, B
from runnel.lab.training.data import Dropped, Evidence, read_evidence
from runnel.records import expect_count

if TYPE_CHECKING:
    pass


_FORMAT = 3  # of the ranks: from 2 on with the position of each evidence span, from 3 on of the units that rows have


ScorerOf = Callable[[System], tuple[sentences.Scorer, str | None]]
"""Returns what scores sentences, and the fingerprint of its model."""


def context_of(given: str | None) -> int | None:
    """Return the tokens of a piece from --context: "sentence" is 1, as a piece holds one sentence at least."""
    if given is None or given == "sentence":
        return None if given is None else 1
    expect_count(int(given) if given.isdecimal() else given, "--context, which may also be sentence,")
    return int(given)


def scorer_of(system: System, window: tuple[int, int] | None = None, *, keep: int = 1) -> tuple[sentences.Scorer, str | None]:
    """Return what scores sentences, with the last `keep` documents as it has read them, and the fingerprint of its model."""
    if system.how == "bm25":
        parameters: dict[str, float] = {"k1": K1, "b": B, **system.bm25}
        return sentences.by_bm25(**parameters, chunk_words=system.chunk_words), None
    if system.how == "sentences":
        retriever = load_model(system)
        return sentences.by_retriever(retriever, system.context, window, keep=keep), retriever.model.fingerprint()
    embedder, reading = load_model(system), system.reading
    scorer = sentences.by_embedder(
        embedder, reading.max_tokens, reading.max_query_tokens, chunk_words=system.chunk_words, keep=keep
    )
    return scorer, None if system.model.startswith(API) else embedder.model.fingerprint()


def measure(
    path: Path, system: System, metrics: Sequence[str] | None, folder: Path, scorer: ScorerOf = scorer_of
) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Return the result of an evidence task and the values of its questions."""
    parsed = parse_metrics(sentences.METRICS if metrics is None else metrics)
    judged = _judged(path, system, folder / f"{name_of(path)}.ranks.jsonl", scorer)
    values = sentences.values_of(judged, parsed)
    result = {"task": name_of(path), "kind": "sentences", "model": system.model, "as": system.how, "queries": len(values)}
    result |= {} if system.context is None else {"context": system.context}
    result |= {} if system.chunk_words is None else {"chunk_words": system.chunk_words}
    result |= {"unanswered": len(judged) - len(values), "sentences": sum(one.sentences for one in judged)}
    return result | sentences.summarize(judged, values), values


def name_of(path: Path) -> str:
    """Return the name of an evidence task."""
    return path.name.split(".")[0]


def _judged(path: Path, system: System, out: Path, scorer: ScorerOf) -> list[sentences.Judged]:
    """Return the ranks of each question, written to OUT unless they are there."""
    settings: dict[str, object] = {"model": system.model, "as": system.how, "evidence": file_digest(str(path))}
    settings |= {**system.bm25, "prompts": dict(system.prompts), **system.reading.settings()}
    settings |= {"context": system.context, "format": _FORMAT}
    settings |= {} if system.chunk_words is None else {"chunk_words": system.chunk_words}
    dropped = Dropped()

    def load() -> Rows[tuple[int, Evidence]]:
        score, fingerprint = scorer(system)

        def judged_row(numbered: tuple[int, Evidence]) -> dict[str, object]:
            number, example = numbered
            scored = score(example.query, example.document, example.units)
            found = sentences.judge(example, *scored, logits=system.how == "sentences")
            return asdict(found) | {"query": example.id or str(number)}

        return enumerate(read_evidence(path, dropped=dropped, unanswered=True), start=1), judged_row, fingerprint

    judged = [sentences.Judged(**row) for row in resumed_rows(out, settings, load)]
    if dropped.counts:
        say(f"note: {path}: {dropped}")
    repeated = next((name for name, count in Counter(one.query for one in judged).items() if count > 1), None)
    if repeated is not None or not any(one.spans for one in judged):
        what = "no question has evidence" if repeated is None else f"two questions have the id {repeated!r}"
        raise InputError(f"{path}: {what}; expected each id once, and spans of evidence in one question at least")
    return judged
