"""The examples of a run: their paths, and the data sets for the Trainers, in files of the run folder."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict

from runnel.errors import InputError
from runnel.lab.training.data import Evidence, read_evidence
from runnel.lab.training.decontaminate import Decontaminator
from runnel.lab.training.generator import CompletionData, Exchange, read_exchanges
from runnel.lab.training.rows import expect_left
from runnel.lab.training.sentence_layers import LayerData
from runnel.lab.training.sentence_table import SentenceData
from runnel.lab.training.settings import DataTable, Recipe
from runnel.lab.training.triple_table import by_negatives, require_negatives, write_triple_table
from runnel.lab.training.vector_data import read_vector_data
from runnel.models.base import Model, load_model
from runnel.models.readers import stores_vectors
from runnel.models.sentence_vectors import VectorScorer

log = logging.getLogger("runnel")


@dataclass(frozen=True)
class RunData:
    """The training data, the held-out data if any, and the data that calibrates the scores if any."""

    train: Any
    held_out: Any
    aside: Any = None


def locate_data(recipe: Recipe, data: str | Path | None, home: str | Path | None) -> Recipe:
    """Resolve the paths of a recipe's data."""
    one_set = len(recipe.data.sets) == 1
    exclude = [str((Path(home or ".") / name).resolve()) for name in recipe.data.exclude]
    paths = [Path(data or home or "") / table.path for table in recipe.data.sets]
    if data is not None and one_set and not paths[0].exists():
        paths = [Path(data)]
    nowhere = data is None and home is None
    missing = [path for path in paths if not path.exists() or (nowhere and not path.is_absolute())]
    if missing or not paths:
        what = f"{missing[0]} is missing" if missing else "the recipe has no [[data.sets]]"
        raise InputError(f"{what}; --data names the file or folder of the examples (the recipe's first lines say what it needs)")
    sets = tuple(replace(table, path=str(path.resolve())) for table, path in zip(recipe.data.sets, paths, strict=True))
    return replace(recipe, data=replace(recipe.data, sets=sets, exclude=tuple(exclude)))


def read_run_data(recipe: Recipe, model: Model, folder: Path, *, write: bool, share: int = 1) -> RunData:
    """Read 1/`share` of the examples for the Trainers from files in `folder`, which the first process writes."""
    stored = recipe.job == "sentences" and stores_vectors(model, "sentences")
    # The examples for heads over stored vectors are in no file, so every process reads and filters them.
    guard = Decontaminator(recipe.data.exclude if write or stored else ())
    try:
        if recipe.job == "generate":
            return _completions(recipe, model, folder, guard, write=write, share=share)
        if recipe.job == "sentences":
            return _evidence(recipe, model, folder, guard, stored=stored, write=write, share=share)
        return _triples(recipe, model, folder, guard, write=write, share=share)
    finally:
        if write and guard.counts:
            log.warning("left out: %s", guard)


def _triples(recipe: Recipe, model: Model, folder: Path, guard: Decontaminator, *, write: bool, share: int) -> RunData:
    table, seed = recipe.data, recipe.train.seed
    rows: dict[str, Dataset] = {}
    for number, one in enumerate(table.sets):
        path = folder / f"{number}.arrow"
        rows[_name(one.path, rows)] = (
            write_triple_table(path, Path(one.path), one, table, recipe.job, seed, guard, model.prompts)
            if write
            else Dataset.from_file(str(path))
        )
    if recipe.job == "embed":
        require_negatives(rows, table, recipe.train.batch)
    made: Any = by_negatives if recipe.job == "embed" else DatasetDict

    def drawn(parts: dict[str, Dataset]) -> Any:
        if share == 1:
            return made(parts)
        few = {name: part.shuffle(seed).select(range(max(1, len(part) // share))) for name, part in made(parts).items()}
        return DatasetDict(few)

    if not table.held_out:
        return RunData(drawn(rows), None)
    for name, part in rows.items():
        expect_left(len(part) > table.held_out, name, table.held_out)
    split = {name: part.train_test_split(table.held_out, seed=seed) for name, part in rows.items()}
    return RunData(drawn({n: s["train"] for n, s in split.items()}), made({n: s["test"] for n, s in split.items()}))


def _evidence(
    recipe: Recipe, model: Model, folder: Path, guard: Decontaminator, *, stored: bool, write: bool, share: int
) -> RunData:
    table = recipe.data
    clean = (guard.clean(read_evidence(one.path, within=table.within)) for one in table.sets)
    examples = itertools.chain.from_iterable(itertools.islice(part, table.rows) for part in clean)
    if stored:  # documents are read as inference reads them; `model` has its weights in fp32
        reader = load_model(recipe.model.name)
        reader.unit = model.unit
        part = itertools.islice(examples, 0, None, share)
        data = RunData(*read_vector_data(VectorScorer(reader), part, folder / "documents", table.held_out, write=write))
        if not recipe.model.layers:
            return data
        measured = None if data.held_out is None else LayerData([data.held_out], model)
        return RunData(LayerData([data.train, data.aside], model), measured)  # the head stays, and with it its calibration

    def made(name: str, part: Iterator[Evidence]) -> SentenceData:
        path = folder / f"{name}.arrow"
        if not write:
            return SentenceData(model, path)
        return SentenceData.write(path, model, part, tokens=table.lengths or None, seed=recipe.train.seed)

    return _split(examples, table, share, made)


def _completions(recipe: Recipe, model: Model, folder: Path, guard: Decontaminator, *, write: bool, share: int) -> RunData:
    table = recipe.data
    exchanges = (itertools.islice(read_exchanges(one.path, table.target, guard), table.rows) for one in table.sets)

    def made(name: str, part: Iterator[Exchange]) -> CompletionData:
        path = folder / f"{name}.arrow"
        return CompletionData.write(path, model, part) if write else CompletionData(path)

    return _split(itertools.chain.from_iterable(exchanges), table, share, made)


def _split(items: Iterator[Any], table: DataTable, share: int, make: Callable[[str, Iterator[Any]], Any]) -> RunData:
    """Make held-out data of the first items, and training data of every `share`-th of the others."""
    held = make("held_out", itertools.islice(items, table.held_out)) if table.held_out else None
    first = list(itertools.islice(items, 1))
    expect_left(first, ", ".join(data.path for data in table.sets), table.held_out)
    return RunData(make("train", itertools.islice(itertools.chain(first, items), 0, None, share)), held)


def _name(path: str, taken: Any) -> str:
    stem = Path(path).stem
    return stem if stem not in taken else f"{stem} {len(taken)}"
