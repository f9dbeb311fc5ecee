"""Adapt sentence retrieval to documents, and measure what it gains: `adapt` is what `runnel lab
adapt` does.
"""

import hashlib
import json
import os
import shutil
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
from runnel.lab.training import recipes, run
from runnel.lab.training.data import Dropped, read_evidence
from runnel.lab.training.decontaminate import Decontaminator
from runnel.ops.backend import has_native_bf16

_LEAST = 30  # questions to train on
_HELD_BACK = 10  # one question in 10, in whole documents
_METRIC = "Recall@10"
_TRAINING = (
    "model.layers=true train.batch=1 train.epochs=3 train.learning_rate=3e-5 train.warmup=0.1"
    " train.weight_decay=0.01"
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
    create_folder(to)
    train_file, held_file = _write_questions(sources, exclude, limit, seed, to)
    adapted = _train(model, train_file, seed, to)
    measured = {
        path.name: _compare(path, model, adapted, to)
        for path in (held_file, dev)
        if path is not None
    }
    better = list(measured.values())[-1].difference > 0
    if better and not (to / "model").exists():
        # of a killed run; a link stays, and is an error
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
        "measured": {name: asdict(one) for name, one in measured.items()},
    }


def _write_questions(
    sources: Sequence[str], exclude: Sequence[str], limit: int, seed: int, to: Path
) -> tuple[Path, Path]:
    made, documents = (
        StructureRows(Decontaminator(exclude), seed=seed),
        Sources(sources, seed, notify),
    )
    rows = list(made.rows(documents, limit))
    structure_facts(made, documents)
    held = _held_back(rows)
    halves = (
        [row for row in rows if row["source"] not in held],
        [row for row in rows if row["source"] in held],
    )
    if len(halves[0]) < _LEAST or not halves[1]:
        raise InputError(
            f"the structure of {counted(documents.documents, 'document')} asks {len(rows):,}"
            f" questions; expected at least {_LEAST} to train on, and some about other documents:"
            " add documents with headings or lists, or train on evidence (docs/training.md)"
        )
    files = to / "train.jsonl", to / "held-back.jsonl"
    with Journal(
        files[0], {"seed": seed, "questions": digest(json.dumps(rows))}, also=files[1:]
    ) as journal:
        if journal.begin() is None:
            for path, part in zip(files, halves, strict=True):
                write_jsonl(path, part)
            journal.finish({path.name: len(part) for path, part in zip(files, halves, strict=True)})
    return files


def _held_back(rows: list[dict[str, Any]]) -> set[str]:
    """Return the documents held back: about one question in ten, by an order that has nothing to do
    with the documents.
    """
    held: set[str] = set()
    count = 0
    for source in sorted(
        {row["source"] for row in rows}, key=lambda name: hashlib.blake2b(name.encode()).digest()
    ):
        if count * _HELD_BACK >= len(rows):
            break
        held.add(source)
        count += sum(row["source"] == source for row in rows)
    return held


def _train(model: str, data: Path, seed: int, to: Path) -> Path:
    precision = "bf16" if has_native_bf16() else "fp32"
    changes = (
        f"model.name={model}",
        f"train.seed={seed}",
        f"train.precision={precision}",
        *_TRAINING.split(),
    )
    return Path(
        run.train(recipes.read("evidence-vectors", changes=changes), to / "run", data=data).model
    )


def _compare(evidence: Path, model: str, adapted: Path, to: Path) -> Comparison:
    def recalls(name: str, folder: Path) -> list[float]:
        folder.mkdir(exist_ok=True)
        _, values = measure(evidence, System(name, "sentences"), [_METRIC], folder)
        return [one[_METRIC] for one in values.values()]

    return compare(recalls(model, to / "before"), recalls(str(adapted), to / "after"))
