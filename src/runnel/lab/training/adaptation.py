"""Adapt a sentence retriever to documents, and measure the gain: `adapt` is what `runnel lab adapt`
does.

It makes questions of the documents' headings, lists and definitions (`synthesis/structure.py`),
trains on them the layers that an encoder reads sentences with, and keeps the result only if it
finds the answers of other questions better.
"""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runnel.errors import InputError, counted
from runnel.files import create_folder, digest, write_jsonl
from runnel.jobs.progress import notify
from runnel.journal import Journal
from runnel.lab.evaluation.evidence import measure
from runnel.lab.evaluation.metrics import Comparison, compare
from runnel.lab.evaluation.retrieval import System
from runnel.lab.synthesis.examples import structure_facts
from runnel.lab.synthesis.sources import Sources
from runnel.lab.synthesis.structure import StructureRows
from runnel.lab.training import recipes
from runnel.lab.training.data import Dropped
from runnel.lab.training.decontaminate import Decontaminator
from runnel.lab.training.evidence import read_evidence
from runnel.lab.training.run import run_recipe
from runnel.lab.training.vectors import count_held_back
from runnel.ops.backend import has_native_bf16

_LEAST_QUESTIONS = 30  # to train on
_HELD_BACK = 10  # one question in this many is held back, in whole documents
_METRIC = "Recall@10"
# changes of the recipe evidence-vectors; "layers": see `ModelTable.layers`
_TRAINING = (
    "model.layers=true",
    "train.batch=1",
    "train.epochs=3",
    "train.learning_rate=3e-5",
    "train.warmup=0.1",
    "train.weight_decay=0.01",
)


def adapt(
    sources: Sequence[str],
    to: Path,
    *,
    model: str = "pocket",
    dev: Path | None = None,
    exclude: Sequence[str] = (),
    limit: int = 2000,
    seed: int = 0,
) -> dict[str, Any]:
    """Adapt a model to documents: return the path of the better model, or None, and what was
    measured, by file.

    The arguments are those of `runnel lab adapt`: `to` is the folder for the work, and for the
    model, which is TO/model; `dev` is evidence to measure the gain on, by default the questions
    held back. Raises InputError if the documents ask too few questions.
    """
    if dev is not None and next(read_evidence(dev, dropped=Dropped()), None) is None:
        raise InputError(f"{dev} has no question with evidence; expected spans in one at least")
    # 1. Make questions from the documents, and hold some back.
    create_folder(to)
    train_file, held_file = _write_questions(sources, exclude, limit, seed, to)
    # 2. Train on the others.
    precision = "bf16" if has_native_bf16() else "fp32"
    changes = (f"model.name={model}", f"train.seed={seed}", f"train.precision={precision}")
    recipe = recipes.read("evidence-vectors", changes=changes + _TRAINING)
    adapted = Path(run_recipe(recipe, to / "run", data=train_file).model)
    # 3. Measure the gain.
    measured = {
        path.name: _measure_gain(path, model, adapted, to)
        for path in (held_file, dev)
        if path is not None
    }
    # 4. Keep the better model: by `dev` if it is given, else by the questions held back.
    better = list(measured.values())[-1].difference > 0
    if better and not (to / "model").exists():
        # A killed run may have left a folder. (What is no folder but a link stays, and the copy
        # fails.)
        shutil.rmtree(to / "model.part", ignore_errors=True)
        shutil.copytree(adapted, to / "model.part")
        os.replace(to / "model.part", to / "model")
    if not better:
        notify(
            f"note: {adapted} is not better than {model}, so {to / 'model'} was not written; keep"
            f" {model}, or add documents"
        )
    return {
        "model": str(to / "model") if better else None,
        "measured": {name: asdict(comparison) for name, comparison in measured.items()},
    }


def _write_questions(
    sources: Sequence[str], exclude: Sequence[str], limit: int, seed: int, to: Path
) -> tuple[Path, Path]:
    structure = StructureRows(Decontaminator(exclude), seed=seed)
    documents = Sources(sources, seed)
    rows = list(structure.rows(documents, limit))
    structure_facts(structure, documents)
    held = _held_back(rows)
    train = [row for row in rows if row["source"] not in held]
    held_back = [row for row in rows if row["source"] in held]
    if len(train) < _LEAST_QUESTIONS or not held_back:
        raise InputError(
            f"the structure of {counted(documents.documents, 'document')} asks {len(rows):,}"
            f" questions; expected at least {_LEAST_QUESTIONS} to train on, and some about other"
            " documents: add documents with headings or lists, or train on evidence"
            " (docs/training.md)"
        )
    files = {to / "train.jsonl": train, to / "held-back.jsonl": held_back}
    train_file, held_file = files
    settings = {"seed": seed, "questions": digest(json.dumps(rows))}
    with Journal(train_file, settings, also=[held_file]) as journal:
        if journal.begin() is None:  # not written before
            for path, part in files.items():
                write_jsonl(path, part)
            journal.finish({path.name: len(part) for path, part in files.items()})
    return train_file, held_file


def _held_back(rows: list[dict[str, Any]]) -> set[str]:
    """Return the documents held back: about one question in ten, by an order that has nothing to do
    with the documents.
    """
    count = Counter(row["source"] for row in rows)
    order = sorted(count, key=lambda name: hashlib.blake2b(name.encode()).digest())
    return set(order[: count_held_back(order, count, len(rows) / _HELD_BACK)])


def _measure_gain(evidence: Path, model: str, adapted: Path, to: Path) -> Comparison:
    def recalls(name: str, folder: Path) -> list[float]:
        folder.mkdir(exist_ok=True)
        _, values = measure(evidence, System(name, "sentences"), [_METRIC], folder)
        return [metrics[_METRIC] for metrics in values.values()]

    return compare(recalls(model, to / "before"), recalls(str(adapted), to / "after"))
