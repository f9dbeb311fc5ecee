"""Read the data of a run.

In: a recipe, and the model that is trained. Out: `RunData`, the examples for the Trainer, from
files in the run folder that one process writes and all read.

    job                      read by          examples, `Examples`
    embed, rerank            _triple_data     `DatasetDict`: rows of texts, which the Trainer
                                              tokenizes batch by batch
    sentences                _document_data   `SentenceData`: query and document in tokens
    generate                 _document_data   `CompletionData`: prompt and reply in tokens
    sentences, by a head     _stored_data     `VectorData`: questions about documents that an
    over stored vectors                       encoder reads here, once; or `LayerData`, if the
                                              encoder's layers are trained (model.layers)

A head over stored vectors scores the vectors of sentences and queries that were read separately
before, such as pocket's (`vectors`); other heads score a query and a document that are read
together.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from datasets import Dataset, DatasetDict

from runnel.errors import InputError
from runnel.files import digest, file_digest
from runnel.jobs.progress import notify
from runnel.lab.training import tables
from runnel.lab.training.decontaminate import Decontaminator
from runnel.lab.training.evidence import read_evidence
from runnel.lab.training.generator import CompletionData, read_exchanges
from runnel.lab.training.recipes import Recipe
from runnel.lab.training.vectors import LayerData, VectorData, read_vector_data
from runnel.models.folder import load_model
from runnel.models.model import Model
from runnel.models.pocket.scorer import VectorScorer

Examples: TypeAlias = DatasetDict | tables.SentenceData | CompletionData | VectorData | LayerData


@dataclass(frozen=True)
class RunData:
    """The training data, the held-out data if any, and `aside`: the documents on which
    `VectorTrainer.calibrate` makes the scores of a trained head probabilities, after training.
    """

    train: Examples
    held_out: Examples | None
    aside: VectorData | None = None


@dataclass(frozen=True)
class DataFiles:
    """Where the data of a run are, and how much of them is trained on."""

    folder: Path
    write: bool  # whether this process writes the files, not only reads them
    share: int = 1  # 1/share of the examples
    fingerprint: str = ""  # the digest of everything that the files depend on


def locate_data(recipe: Recipe, data: str | Path | None, home: str | Path | None) -> Recipe:
    """Return the recipe with the absolute paths of its data.

    `data` replaces the path of the recipe, or is the folder of several; other paths are relative to
    `home`.
    """
    exclude = [str((Path(home or ".") / name).resolve()) for name in recipe.data.exclude]
    paths = [Path(data or home or "") / table.path for table in recipe.data.sets]
    if data is not None and len(paths) == 1 and not paths[0].exists():
        paths = [Path(data)]
    nowhere = data is None and home is None
    missing = [path for path in paths if not path.exists() or (nowhere and not path.is_absolute())]
    if missing or not paths:
        what = f"{missing[0]} is missing" if missing else "the recipe has no [[data.sets]]"
        raise InputError(
            f"{what}; --data names the file or folder of the examples (the recipe's first lines say"
            " what it needs)"
        )
    sets = tuple(
        replace(table, path=str(path.resolve()))
        for table, path in zip(recipe.data.sets, paths, strict=True)
    )
    return replace(recipe, data=replace(recipe.data, sets=sets, exclude=tuple(exclude)))


def read_run_data(recipe: Recipe, model: Model, files: DataFiles) -> RunData:
    """Read the examples of a recipe in the form that the Trainer of its job takes."""
    # whether the head scores stored vectors
    stored = recipe.job == "sentences" and model.head("sentences").inputs == "vectors"
    # Only the process that writes needs the fingerprint, and the guard against texts of benchmarks.
    # The examples for heads over stored vectors are in no file: every process reads and filters
    # them, and the file of each document's vectors is named by the digest of its text.
    if files.write and not stored:
        files = replace(files, fingerprint=_fingerprint(recipe, model))
    guard = Decontaminator(recipe.data.exclude if files.write or stored else ())
    try:
        if recipe.job in ("embed", "rerank"):
            return _triple_data(recipe, model, files, guard)
        examples = itertools.chain.from_iterable(
            itertools.islice(_read_set(data.path, recipe, guard), recipe.data.rows)
            for data in recipe.data.sets
        )
        if stored:
            return _stored_data(examples, recipe, model, files)
        return _document_data(examples, recipe, model, files)
    finally:
        if files.write and guard.counts:
            notify(f"left out: {guard}")


def _read_set(path: str, recipe: Recipe, guard: Decontaminator) -> Iterator[Any]:
    if recipe.job == "generate":
        return read_exchanges(path, recipe.data.target, guard)
    return guard.clean_documents(read_evidence(path, within=recipe.data.within))


def _triple_data(recipe: Recipe, model: Model, files: DataFiles, guard: Decontaminator) -> RunData:
    """Return rows of triples, by data set; an embedder's also by their number of negatives."""
    table = recipe.data
    seed = recipe.train.seed
    rows: dict[str, Dataset] = {}
    for number, data in enumerate(table.sets):
        path = files.folder / f"{number}.arrow"
        if files.write and not tables.is_written(path, files.fingerprint):
            tables.write_triple_table(path, data, recipe, guard, model.prompts, files.fingerprint)
        stem = Path(data.path).stem
        rows[stem if stem not in rows else f"{stem} {len(rows)}"] = Dataset.from_file(str(path))
    make_sets = DatasetDict
    if recipe.job == "embed":
        tables.require_negatives(rows, table, recipe.train.batch)
        make_sets = tables.by_negatives
    train = rows
    held_out = None
    if table.held_out:
        for name, part in rows.items():
            tables.expect_left(len(part) > table.held_out, name, table.held_out)
        split = {name: rows[name].train_test_split(table.held_out, seed=seed) for name in rows}
        train = {name: part["train"] for name, part in split.items()}
        held_out = make_sets({name: part["test"] for name, part in split.items()})
    drawn = make_sets(train)
    if files.share > 1:
        drawn = DatasetDict(
            {
                name: part.shuffle(seed).select(range(max(1, len(part) // files.share)))
                for name, part in drawn.items()
            }
        )
    return RunData(drawn, held_out)


def _stored_data(
    examples: Iterator[Any], recipe: Recipe, model: Model, files: DataFiles
) -> RunData:
    """Return questions about documents that are read once, as inference reads them: by the model as
    it is loaded for inference, because `model`, which is trained, has its weights in fp32.
    """
    reader = load_model(recipe.model.name)
    reader.unit = model.unit
    train, held_out, aside = read_vector_data(
        VectorScorer(reader),
        itertools.islice(examples, 0, None, files.share),
        files.folder / "documents",
        recipe.data.held_out,
        write=files.write,
    )
    if not recipe.model.layers:
        return RunData(train, held_out, aside)
    # To train layers, their Trainer needs texts, not only vectors. The head stays and with it its
    # calibration, so the documents aside are trained on, too.
    measured = None if held_out is None else LayerData([held_out], model)
    return RunData(LayerData([train, aside], model), measured)


def _document_data(
    examples: Iterator[Any], recipe: Recipe, model: Model, files: DataFiles
) -> RunData:
    """Return held-out data of the first examples, and training data of every `share`-th of the
    others.
    """
    table = recipe.data

    def write(path: Path, part: Iterator[Any]) -> None:
        if recipe.job == "generate":
            CompletionData.write(path, model, part, files.fingerprint)
            return
        tables.SentenceData.write(
            path,
            model,
            part,
            tokens=table.lengths or None,
            seed=recipe.train.seed,
            fingerprint=files.fingerprint,
        )

    paths = [files.folder / f"{name}-{files.share}.arrow" for name in ("held_out", "train")]
    # the training data are written last
    if files.write and not tables.is_written(paths[1], files.fingerprint):
        if table.held_out:
            write(paths[0], itertools.islice(examples, table.held_out))
        # `examples` is an iterator, from which the held-out ones are taken now
        first = list(itertools.islice(examples, 1))
        tables.expect_left(first, ", ".join(data.path for data in table.sets), table.held_out)
        write(paths[1], itertools.islice(itertools.chain(first, examples), 0, None, files.share))
    read = CompletionData if recipe.job == "generate" else partial(tables.SentenceData, model)
    return RunData(read(paths[1]), read(paths[0]) if table.held_out else None)


def _fingerprint(recipe: Recipe, model: Model) -> str:
    """Return what the rows of a run depend on: settings, the content of the files, and how the
    model reads.
    """
    names = [*(data.path for data in recipe.data.sets), *recipe.data.exclude]
    files = [
        file
        for path in map(Path, names)
        for file in (sorted(path.rglob("*")) if path.is_dir() else [path])
        if file.is_file()
    ]
    with TemporaryDirectory() as folder:
        model.tokenizer.save(Path(folder))
        reads = [file_digest(file) for file in sorted(Path(folder).iterdir())]
    templates = {name: str(template) for name, template in sorted(model.templates.items())}
    return digest(
        repr((recipe.job, recipe.data, recipe.train.seed)),
        repr((reads, templates, model.prompts, model.unit)),
        *map(file_digest, files),
    )
