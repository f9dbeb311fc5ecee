"""`runnel lab adapt`: adapt sentence retrieval to documents, without a language model, and measure what it gains."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runnel.commands.display import print_json, print_text, say
from runnel.commands.options import Json, Model, TestSets
from runnel.errors import InputError, counted
from runnel.files import create_folder, digest, write_jsonl
from runnel.journal import Journal

if TYPE_CHECKING:
    from runnel.lab.evaluation.metrics import Comparison

_LEAST = 30  # questions to train on
_HELD_BACK = 10  # one question in 10, in whole documents
_METRIC = "Recall@10"
_TRAINING = (
    "model.layers=true",
    "train.batch=1",
    "train.epochs=3",
    "train.learning_rate=3e-5",
    "train.warmup=0.1",
    "train.weight_decay=0.01",
)


def adapt(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE", help="Files, folders, indexes, or jsonl of documents.")],
    to: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the model and the work.")],
    dev: Annotated[Path | None, typer.Option(metavar="EVIDENCE", help="Your own questions, to measure the gain on.")] = None,
    exclude: TestSets = None,
    limit: Annotated[int, typer.Option(min=1, help="The most questions, to train on and held back.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="For the choice of questions and the training.")] = 0,
    model: Model = "pocket",
    as_json: Json = False,
) -> int:
    """Adapt a model's sentence retrieval to the documents of SOURCEs, and measure the gain.

    Headings, questions, definitions, lists and references of the documents are the questions to train on; one in ten, in whole
    documents, is held back. DIR/model is written only if recall@10 has risen: on --dev if given, else on the held-back
    questions. The exit code is 1 if it has not. Interrupted work resumes when you repeat the command.
    """
    from runnel.lab.commands.train import prepare_libraries

    prepare_libraries()
    if dev is not None:
        _check_evidence(dev)
    create_folder(to)
    train_file, held_file = _write_questions(sources, exclude or [], limit, seed, to)
    adapted = _train(model, train_file, seed, to)
    measured = {path.name: _compare(path, model, adapted, to) for path in (held_file, dev) if path is not None}
    decisive = list(measured.values())[-1]
    better = decisive.difference > 0
    if better and not (to / "model").exists():
        shutil.rmtree(to / "model.part", ignore_errors=True)  # of a killed run; a link stays, and is an error
        shutil.copytree(adapted, to / "model.part")
        os.replace(to / "model.part", to / "model")
    result = str(to / "model") if better else None
    if as_json:
        print_json({"model": result, "measured": {name: asdict(one) for name, one in measured.items()}})
    else:
        _show(measured, result)
    if not better:
        say(f"note: {adapted} is not better than {model}, so {to / 'model'} was not written; keep {model}, or add documents")
    return 0 if better else 1


def _check_evidence(path: Path) -> None:
    """Raise if no question of a file has evidence; a missing or malformed file is reported by its reader, before the training."""
    from runnel.lab.training.data import Dropped, read_evidence

    if next(read_evidence(path, dropped=Dropped()), None) is None:
        raise InputError(f"{path} has no question with evidence; expected spans in one at least")


def _write_questions(sources: list[str], exclude: list[str], limit: int, seed: int, to: Path) -> tuple[Path, Path]:
    """Write the questions to train on and those held back; return the two files."""
    from runnel.lab.commands.synthesize import open_guard, report_left_out, structure_facts
    from runnel.lab.synthesis.sources import Sources
    from runnel.lab.synthesis.structure_rows import StructureRows

    found, documents = StructureRows(open_guard(exclude), seed=seed), Sources(sources, seed, say)
    rows = list(found.rows(documents, limit))
    report_left_out(structure_facts(found, documents))
    held = _held_back(rows)
    parts = {
        "train.jsonl": [r for r in rows if r["source"] not in held],
        "held-back.jsonl": [r for r in rows if r["source"] in held],
    }
    if len(parts["train.jsonl"]) < _LEAST or not parts["held-back.jsonl"]:
        raise InputError(
            f"the structure of {counted(documents.documents, 'document')} asks {len(rows):,} questions; "
            f"expected at least {_LEAST} to train on, and some about other documents: add documents with headings or lists, "
            "or train on evidence (docs/training.md)"
        )
    train_file, held_file = (to / name for name in parts)
    settings = {"seed": seed, "questions": digest(json.dumps(rows))}
    with Journal(train_file, settings, also=[held_file]) as journal:
        if journal.begin() is None:
            for name, part in parts.items():
                write_jsonl(to / name, part)
            journal.finish({name: len(part) for name, part in parts.items()})
    return train_file, held_file


def _held_back(rows: list[dict[str, Any]]) -> set[str]:
    """Return the documents held back: about one question in ten, by an order that has nothing to do with the documents."""
    held: set[str] = set()
    count = 0
    for source in sorted({row["source"] for row in rows}, key=lambda name: hashlib.blake2b(name.encode()).digest()):
        if count * _HELD_BACK >= len(rows):
            break
        held.add(source)
        count += sum(row["source"] == source for row in rows)
    return held


def _train(model: str, data: Path, seed: int, to: Path) -> Path:
    from runnel.lab.training import recipes, run
    from runnel.ops.backend import has_native_bf16

    precision = "bf16" if has_native_bf16() else "fp32"
    changes = (f"model.name={model}", f"train.seed={seed}", f"train.precision={precision}", *_TRAINING)
    recipe = recipes.read("evidence-vectors", changes=changes)
    return Path(run.train(recipe, to / "run", data=data).model)


def _compare(evidence: Path, model: str, adapted: Path, to: Path) -> Comparison:
    from runnel.lab.evaluation.evidence import measure
    from runnel.lab.evaluation.metrics import compare
    from runnel.lab.evaluation.retrieval import System

    def recalls(name: str, folder: Path) -> list[float]:
        folder.mkdir(exist_ok=True)
        _, values = measure(evidence, System(name, "sentences"), [_METRIC], folder)
        return [one[_METRIC] for one in values.values()]

    return compare(recalls(model, to / "before"), recalls(str(adapted), to / "after"))


def _show(measured: dict[str, Comparison], model: str | None) -> None:
    for name, one in measured.items():
        print_text(
            f"{name}: recall@10 {one.a:.4f} before, {one.b:.4f} after, difference {one.difference:+.4f} "
            f"(95 % interval {one.low:+.4f} to {one.high:+.4f}; {counted(one.queries, 'question')})"
        )
    if model is not None:
        print_text(f"{model}: use it with runnel find -m {model}")
