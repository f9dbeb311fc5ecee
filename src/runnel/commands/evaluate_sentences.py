"""Evidence tasks of `runnel evaluate`: rank the sentences of each document, and say where the evidence is among them.

The ranks are written question by question to FOLDER/TASK.ranks.jsonl; interrupted work resumes.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.commands.display import Meter, note_compiling, print_table, print_text, say
from runnel.commands.evaluate_retrieval import System, load_model
from runnel.commands.options import DTYPES
from runnel.commands.resume import Output, appending, file_digest, whole_lines
from runnel.errors import InputError
from runnel.files import replacing

if TYPE_CHECKING:
    from runnel.evaluation.sentences import Judged, Scorer
    from runnel.models.sentence_retriever import SentenceRetriever


def measure(
    path: Path, system: System, metrics: Sequence[str] | None, folder: Path
) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Return the result of an evidence task and the values of its questions.

    Raises:
        InputError: no question has evidence, or two have one id; or as `read_evidence`.
    """
    from runnel.evaluation.metrics import parse_metrics
    from runnel.evaluation.sentences import METRICS, summarize, values_of

    parsed = parse_metrics(METRICS if metrics is None else metrics)
    judged = _judged(path, system, folder / f"{name_of(path)}.ranks.jsonl")
    if not any(one.spans for one in judged):
        raise InputError(f"{path} has no question with evidence; expected spans in one at least")
    values = values_of(judged, parsed)
    result = {"task": name_of(path), "kind": "sentences", "model": system.model, "as": system.how, "queries": len(values)}
    result |= {"unanswered": len(judged) - len(values), "sentences": sum(one.sentences for one in judged)}
    return result | summarize(judged, values), values


def name_of(path: Path) -> str:
    """Return the name of an evidence task."""
    return path.name.split(".")[0]


def _judged(path: Path, system: System, out: Path) -> list[Judged]:
    """Return the ranks of each question, written to OUT unless they are there."""
    from runnel.evaluation.sentences import Judged, judge
    from runnel.training.data import Dropped, read_evidence

    settings: dict[str, object] = {"model": system.model, "as": system.how, "evidence": file_digest(str(path))}
    settings |= {**system.bm25, "prompts": dict(system.prompts)}
    with Output(out) as output:
        output.check(settings)  # before the model is loaded, which alone knows its fingerprint
        score, fingerprint = _scorer(system)
        if output.begin(settings | {"fingerprint": fingerprint}) is not None:
            say(f"note: {out} is finished already")
        else:
            (part,), dropped = output.parts, Dropped()
            done = whole_lines(part)
            if done:
                say(f"note: resuming after {done:,} questions of an earlier run")
            examples = enumerate(read_evidence(path, dropped=dropped, unanswered=True), start=1)
            with Meter("reading", unit="questions") as meter, appending(part) as append:
                for number, example in itertools.islice(examples, done, None):
                    found = judge(example, *score(example.query, example.document), logits=system.how == "sentences")
                    append(json.dumps(asdict(found) | {"query": example.id or str(number)}, ensure_ascii=False).encode() + b"\n")
                    meter.add(1)
            with part.open("rb") as ranks, replacing(out) as new, new.open("wb") as file:
                shutil.copyfileobj(ranks, file)
            if dropped.counts:
                say(f"note: {path}: {dropped}")
            output.end({"count": dropped.kept})
    judged = [Judged(**json.loads(line)) for line in out.read_text(encoding="utf-8").split("\n") if line]
    names = [one.query for one in judged]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path}: two questions have the id {repeated!r}; expected each id once")
    return judged


def _scorer(system: System) -> tuple[Scorer, str | None]:
    """Return what scores sentences, and the fingerprint of its model."""
    from runnel.evaluation.sentences import by_bm25, by_embedder, by_retriever
    from runnel.training.candidates import K1, B

    if system.how == "bm25":
        return by_bm25(**{"k1": K1, "b": B, **system.bm25}), None
    if system.how == "sentences":
        retriever = _retriever(system.model, system.dtype)
        return by_retriever(retriever), retriever.model.backbone.fingerprint()
    embedder = load_model(system)
    return by_embedder(embedder), embedder.model.backbone.fingerprint()


@cache
def _retriever(model: str, dtype: str) -> SentenceRetriever:
    note_compiling()
    from runnel.models.sentence_retriever import SentenceRetriever

    return SentenceRetriever.load(model, dtype=DTYPES[dtype])


def show(result: Mapping[str, Any]) -> None:
    """Print the metrics by length and position, and what scores say."""
    metrics = list(result["metrics"])

    def row(name: str, of: Mapping[str, Any]) -> list[str]:
        return [name, f"{of['queries']:,}", *(f"{of['metrics'][metric]:.4f}" for metric in metrics)]

    print_text(f"{result['model']} as {result['as']}: {result['task']}, {result['sentences']:,} sentences ranked")
    rows = [row("all", result)]
    for title, groups in (("", result["by_length"]), ("evidence at ", result["by_position"])):
        rows += [row(title + group["name"], group) for group in groups]
    print_table(["questions", "number", *metrics], rows)
    if result["calibration"]:
        print_table(
            ["score", "sentences", "answers", "share", "sigmoid", "share from here up", "answers from here up"],
            [
                [f"{r['score']} to {r['score'] + 1}", f"{r['sentences']:,}", f"{r['answers']:,}", f"{r['share']:.3f}",
                 f"{r['sigmoid']:.3f}", f"{r['share_above']:.3f}", f"{r['found_above']:.3f}"]
                for r in result["calibration"]
            ],
        )  # fmt: skip
