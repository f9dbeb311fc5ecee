"""Running of a recipe: load model and examples, train with the library's Trainer for the job, store
everything in the run folder.

docs/training.md lists what is in the folder. In addition, while the run is at work: data/, search/
with the run of the learning rate that is being tried, and lock, which the main process holds. Each
of several processes has a part of every batch.
"""

import errno
import itertools
import json
import logging
import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from datasets import Dataset, DatasetDict
from safetensors import SafetensorError
from transformers import Trainer

from runnel.backbones.library import Library
from runnel.checks import expect_choice
from runnel.commands.display import Meter
from runnel.errors import CheckpointError, InputError, NumericalError, needing
from runnel.files import WriterLock, create_folder, write_json, write_jsonl
from runnel.lab.training import recipes, tables
from runnel.lab.training.data import read_evidence
from runnel.lab.training.decontaminate import Decontaminator
from runnel.lab.training.document_trainer import AveragedTrainer
from runnel.lab.training.forward import finished
from runnel.lab.training.generator import CompletionData, read_exchanges
from runnel.lab.training.progress import Recorder, find_whole_checkpoint, logged_steps
from runnel.lab.training.recipes import LongTable, Recipe
from runnel.lab.training.tables import SentenceData
from runnel.lab.training.trainers import EmbedderBatches, long, make_trainer, tensorboard
from runnel.lab.training.vectors import LayerData, read_vector_data
from runnel.models.adapters import add_lora, merge, save_adapter
from runnel.models.base import Model, load_model
from runnel.models.graph import check_segments
from runnel.models.heads import VectorScore
from runnel.models.language_model import load_generator
from runnel.models.sentence_retriever import VectorScorer
from runnel.models.torch_heads import EndScore
from runnel.models.transformers import Scores

log = logging.getLogger("runnel")


@dataclass(frozen=True)
class RunData:
    """The training data, the held-out data if any, and the data that calibrates
    the scores if any.
    """

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
        raise InputError(
            f"{what}; --data names the file or folder of the examples (the recipe's first lines say"
            " what it needs)"
        )
    sets = tuple(
        replace(table, path=str(path.resolve()))
        for table, path in zip(recipe.data.sets, paths, strict=True)
    )
    return replace(recipe, data=replace(recipe.data, sets=sets, exclude=tuple(exclude)))


def read_run_data(
    recipe: Recipe, model: Model, folder: Path, *, write: bool, share: int = 1
) -> RunData:
    """Read 1/`share` of the examples for the Trainers from files in `folder`, which the first
    process writes.
    """
    stored = recipe.job == "sentences" and model.stores_vectors("sentences")
    # The examples for heads over stored vectors are in no file, so every process reads and filters
    # them.
    guard = Decontaminator(recipe.data.exclude if write or stored else ())
    try:
        if recipe.job == "generate":
            sets = (read_exchanges(one.path, recipe.data.target, guard) for one in recipe.data.sets)
            exchanges = itertools.chain.from_iterable(
                itertools.islice(part, recipe.data.rows) for part in sets
            )
            return _split(
                CompletionData, exchanges, recipe, model, folder, write=write, share=share
            )
        if recipe.job == "sentences":
            return _evidence(recipe, model, folder, guard, stored=stored, write=write, share=share)
        return _triples(recipe, model, folder, guard, write=write, share=share)
    finally:
        if write and guard.counts:
            log.warning("left out: %s", guard)


def _triples(
    recipe: Recipe, model: Model, folder: Path, guard: Decontaminator, *, write: bool, share: int
) -> RunData:
    table, seed = recipe.data, recipe.train.seed
    rows: dict[str, Dataset] = {}
    for number, data in enumerate(table.sets):
        path, stem = folder / f"{number}.arrow", Path(data.path).stem
        name = stem if stem not in rows else f"{stem} {len(rows)}"
        if write:
            tables.write_triple_table(path, data, recipe, guard, model.prompts)
        rows[name] = Dataset.from_file(str(path))
    if recipe.job == "embed":
        tables.require_negatives(rows, table, recipe.train.batch)
    made: Any = tables.by_negatives if recipe.job == "embed" else DatasetDict

    def drawn(parts: dict[str, Dataset]) -> Any:
        if share == 1:
            return made(parts)
        few = {
            name: part.shuffle(seed).select(range(max(1, len(part) // share)))
            for name, part in made(parts).items()
        }
        return DatasetDict(few)

    if not table.held_out:
        return RunData(drawn(rows), None)
    for name, part in rows.items():
        tables.expect_left(len(part) > table.held_out, name, table.held_out)
    split = {name: part.train_test_split(table.held_out, seed=seed) for name, part in rows.items()}
    return RunData(
        drawn({n: s["train"] for n, s in split.items()}),
        made({n: s["test"] for n, s in split.items()}),
    )


def _evidence(
    recipe: Recipe,
    model: Model,
    folder: Path,
    guard: Decontaminator,
    *,
    stored: bool,
    write: bool,
    share: int,
) -> RunData:
    table = recipe.data
    clean = (guard.clean(read_evidence(one.path, within=table.within)) for one in table.sets)
    examples = itertools.chain.from_iterable(itertools.islice(part, table.rows) for part in clean)
    if stored:  # documents are read as inference reads them; `model` has its weights in fp32
        reader = load_model(recipe.model.name)
        reader.unit = model.unit
        part = itertools.islice(examples, 0, None, share)
        data = RunData(
            *read_vector_data(
                VectorScorer(reader), part, folder / "documents", table.held_out, write=write
            )
        )
        if not recipe.model.layers:
            return data
        measured = None if data.held_out is None else LayerData([data.held_out], model)
        # the head stays, and with it its calibration
        return RunData(LayerData([data.train, data.aside], model), measured)

    options = {"tokens": table.lengths or None, "seed": recipe.train.seed}
    return _split(
        SentenceData, examples, recipe, model, folder, write=write, share=share, **options
    )


def _split(
    kind: Any,
    items: Iterator[Any],
    recipe: Recipe,
    model: Model,
    folder: Path,
    *,
    write: bool,
    share: int,
    **options: Any,
) -> RunData:
    """Make held-out data of the first items, and training data of every
    `share`-th of the others.
    """
    table = recipe.data

    def made(name: str, part: Iterator[Any]) -> Any:
        path = folder / f"{name}.arrow"
        return kind.write(path, model, part, **options) if write else kind(model, path)

    held = made("held_out", itertools.islice(items, table.held_out)) if table.held_out else None
    first = list(itertools.islice(items, 1))
    tables.expect_left(first, ", ".join(data.path for data in table.sets), table.held_out)
    return RunData(
        made("train", itertools.islice(itertools.chain(first, items), 0, None, share)), held
    )


def prepared(recipe: Recipe) -> Model:
    """Load the model that a recipe starts from, with a head for the job and the
    recipe's adapters.
    """
    torch.manual_seed(recipe.train.seed)  # for a new head and adapters
    table = recipe.model
    model = (
        load_generator(table.name, "float32", "cpu")
        if recipe.job == "generate"
        else _load_reader(recipe)
    )
    if recipe.job == "generate" and model.tokenizer.end_id is None:
        raise CheckpointError(
            f"{table.name}: its tokenizer has no end marker, to learn where replies end; use"
            " another model"
        )
    check_segments(model, long(recipe))
    if recipe.lora is not None:
        lora = recipe.lora
        with needing("lora.four_bit needs bitsandbytes", "lab"):
            if lora.four_bit:
                import bitsandbytes  # noqa: F401  # it is needed later
        add_lora(model, lora.r, lora.alpha, dropout=lora.dropout, four_bit=lora.four_bit)
    model.prompts = tables.trained_prompts(recipe.data, model.prompts)
    model.card = (
        f"# {Path(table.name).name}, fine-tuned\n\nTrained by `runnel lab train` for {recipe.job!r}"
        f" from {table.name}.\n"
    )
    return model


def _load_reader(recipe: Recipe) -> Model:
    table = recipe.model
    reads = "rerank" if recipe.job == "rerank" else "embed"
    model = load_model(
        table.name,
        "float32",
        "cpu",
        pooling=table.pooling,
        template=table.template,
        job=cast(Any, reads),
    )
    model.unit = table.unit or model.unit
    missing = recipe.job not in model.heads
    stored = not missing and model.stores_vectors(recipe.job)
    refused = missing and (recipe.job == "embed" or not table.new_head)
    if refused or not (stored or recipe.job in ("embed", *model.templates)):
        have = ", ".join(sorted(set(model.heads) - {"features"})) or "none"
        no_head = (
            f"head for {recipe.job!r} (it has: {have}); use another model or, for a new head, --set"
            " model.new_head=true"
        )
        no_template = (
            f"template for {recipe.job!r}; use a recurrent model, which reads whole documents"
        )
        raise CheckpointError(f"{table.name} has no {no_head if refused else no_template}")
    _check_stored(recipe, model, stored=stored)
    if missing:
        own = isinstance(model.backbone, Library)  # sentence-transformers has made the layer
        model.heads[recipe.job] = Scores() if own else EndScore(model.backbone.hidden_size)
        log.info("%s gets a new head for %r, with random weights", table.name, recipe.job)
    elif stored and table.new_head:
        model.heads[recipe.job] = VectorScore.module(model.backbone.hidden_size)
    return model


def _check_stored(recipe: Recipe, model: Model, *, stored: bool) -> None:
    name, layers = recipe.model.name, recipe.model.layers
    unused = {
        "[long]": recipe.long != LongTable(),
        "[lora]": recipe.lora is not None,
        "data.lengths": bool(recipe.data.lengths),
    }
    unused |= {"train.precision": recipe.train.precision == "bf16" and not layers}
    settings = ", ".join(setting for setting, used in unused.items() if used)
    for message, wrong in {
        f"model.layers trains layers for sentences through a head that stays: {name} needs such layers, as pocket has, and model.new_head = false": (
            layers
            and (recipe.model.new_head or not stored or not model.backbone.config.sentence_layers)
        ),
        f"the head of {name} for {recipe.job!r} scores stored vectors, which no recipe trains; start from a model that reads query and document together: --model pocket-mamba2": (
            stored and not isinstance(model.head(recipe.job), VectorScore)
        ),
        f"{name} scores stored vectors: only its head is trained, so {settings} would have no effect; remove it, or use the recipe evidence-vectors": (
            stored and settings
        ),
    }.items():
        if wrong:
            raise InputError(message)


RECIPE, SUMMARY, SEARCH, LOCK, _DATA, _TRIALS = (
    "recipe.toml",
    "summary.json",
    "search.jsonl",
    "lock",
    "data",
    "search",
)


@dataclass(frozen=True)
class Summary:
    """The results of a run. `held_out` has the loss and the Trainer's other metrics on rows that
    were not trained on.
    """

    job: str
    model: str  # the folder
    steps: int
    first_loss: float
    last_loss: float
    held_out: dict[str, float]
    learning_rate: float
    tokens: int
    tokens_per_s: float
    seconds: float


def train(
    recipe: Recipe,
    folder: str | Path,
    *,
    data: str | Path | None = None,
    home: str | Path | None = None,
) -> Summary:
    """Run a recipe to its end, or resume the same run if it was stopped.

    `data` replaces the path in the recipe, or names the folder of several; the recipe's paths are
    relative to `home`.
    """
    if parse_flag_from_env("ACCELERATE_USE_FSDP"):
        raise InputError(
            "accelerate is configured for FSDP, which runs do not support; start with `accelerate"
            " launch --multi_gpu`: several processes share every batch (docs/training.md)"
        )
    folder = Path(folder)
    # it detects several processes on CPUs only with cpu=True
    state = PartialState(cpu=not torch.cuda.is_available())
    if state.is_main_process and state.num_processes > 1:
        log.info("%d processes share every batch", state.num_processes)
    used = locate_data(recipe, data, home)
    with _locked(folder, state), _reporting_full_disk(folder):
        summary = _run(used, folder, folder / _DATA, state)
        if state.is_main_process:
            shutil.rmtree(folder / _DATA, ignore_errors=True)
        return summary


def _run(recipe: Recipe, folder: Path, data: Path, state: Any, share: int = 1) -> Summary:
    """Run a recipe on 1/`share` of the examples, which are read from files in the folder `data`."""
    with state.main_process_first():
        _begin(folder, recipe)
    if (folder / SUMMARY).exists():
        return Summary(**json.loads((folder / SUMMARY).read_text(encoding="utf-8")))
    if recipe.search is not None:
        recipe = replace(
            recipe, train=replace(recipe.train, learning_rate=_search(recipe, folder, data, state))
        )
    model = prepared(recipe)
    with state.main_process_first():
        data.mkdir(mode=0o700, exist_ok=True)  # it holds texts
        examples = read_run_data(
            recipe, model, data, write=state.is_local_main_process, share=share
        )
    summary = _fit(recipe, model, examples, folder)
    if state.is_main_process:
        write_json(folder / SUMMARY, asdict(summary))
    return summary


def _search(recipe: Recipe, folder: Path, data: Path, state: Any) -> float:
    """Return the learning rate whose run has the best held-out figure; search.jsonl has them all,
    null for NaN.
    """
    search, table = recipe.search, recipe.train
    assert search is not None
    lines = (
        (folder / SEARCH).read_text(encoding="utf-8").splitlines()
        if (folder / SEARCH).exists()
        else []
    )
    figure_of = {row["learning_rate"]: row[search.metric] for row in map(json.loads, lines)}
    for rate in search.learning_rates:
        if rate in figure_of:
            continue
        smaller = replace(
            table, learning_rate=rate, batch=table.batch // search.share, checkpoints=1
        )
        trial = replace(recipe, search=None, train=smaller)
        try:
            held_out = _run(trial, folder / _TRIALS / f"{rate}", data, state, search.share).held_out
        except NumericalError as error:
            log.info("learning rate %g: %s", rate, error)
            held_out = {search.metric: math.nan}
        expect_choice(search.metric, held_out, "search.metric")
        figure_of[rate] = (
            held_out[search.metric] if math.isfinite(held_out[search.metric]) else None
        )
        if state.is_main_process:
            write_jsonl(
                folder / SEARCH,
                ({"learning_rate": r, search.metric: f} for r, f in figure_of.items()),
            )
            shutil.rmtree(folder / _TRIALS, ignore_errors=True)
    figures = {rate: figure for rate, figure in figure_of.items() if figure is not None}
    if not figures:
        raise NumericalError(
            f"no learning rate of {', '.join(map(str, figure_of))} trains without NaN; try lower"
            " ones"
        )
    best = min(
        figures,
        key=lambda rate: figures[rate] if search.metric.endswith("loss") else -figures[rate],
    )
    log.info("learning rates and %s: %s; %g is used", search.metric, figure_of, best)
    return best


@contextmanager
def _locked(folder: Path, state: Any) -> Iterator[None]:
    """Create and lock the folder against other runs; the main process holds the lock for all
    processes of this run.
    """
    lock = WriterLock(create_folder(folder) / LOCK, folder)
    if state.is_main_process:
        lock.acquire()
    try:
        yield
    finally:
        lock.release(remove=True)


def _begin(folder: Path, recipe: Recipe) -> None:
    """Begin a run in the folder, or check that the folder's run has this recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    path, inside = folder / RECIPE, {one.name for one in folder.iterdir()} - {LOCK}
    changes = recipes.differences(recipes.read(str(path)), recipe) if path.exists() else []
    first_try = {RECIPE, _DATA, _TRIALS}  # one that failed on its settings or data may be replaced
    if (changes and inside - first_try) or (inside and not path.exists()):
        other = (
            f"a run with different settings ({'; '.join(changes[:3])}: stored, given)"
            if changes
            else "something else"
        )
        raise InputError(
            f"{folder} holds {other}; give the same settings to resume, or choose another folder"
            " with --to"
        )
    if changes or not inside:
        for name in (_DATA, _TRIALS):
            shutil.rmtree(folder / name, ignore_errors=True)
        recipes.write(recipe, path)


def _fit(recipe: Recipe, model: Model, data: RunData, folder: Path) -> Summary:
    trainer = make_trainer(model, recipe, data.train, data.held_out, folder)
    before = {}
    # the weights may be good already
    if isinstance(trainer, AveragedTrainer) and data.held_out is not None:
        before = {f"{name}_before": value for name, value in _losses(trainer.evaluate()).items()}
    last = find_whole_checkpoint(folder / "checkpoints")
    if last is not None:
        log.info("resuming from %s", last)
    first = trainer.is_world_process_zero()
    with (
        Meter("training", unit="steps") if first else nullcontext(lambda done, total: None)
    ) as show:
        for callback in [
            Recorder(folder, trainer.watch, show),
            *([tensorboard(folder)] if first else []),
        ]:
            trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=str(last) if last else None)
    figures = trainer.watch.figures(trainer.args.world_size)
    _require_steps(trainer, recipe, data)
    if isinstance(trainer, AveragedTrainer):
        trainer.finish(data.aside)
    held_out = _losses(trainer.evaluate()) | before if data.held_out is not None else {}
    if isinstance(trainer.data_collator, EmbedderBatches) and trainer.data_collator.truncated:
        log.warning(
            "%d texts were cut to data.max_query_tokens or data.max_document_tokens",
            trainer.data_collator.truncated,
        )
    _save(trainer, recipe, model, folder)
    losses = [row["loss"] for row in logged_steps(trainer.state.log_history)] or [math.nan]
    steps, rate = trainer.state.global_step, recipe.train.learning_rate
    return Summary(
        recipe.job, str(folder / "model"), steps, losses[0], losses[-1], held_out, rate, **figures
    )


def _require_steps(trainer: Trainer, recipe: Recipe, data: RunData) -> None:
    """Raise InputError if there was no batch: the Trainer then ends without a step, as if it had
    finished.
    """
    if trainer.state.global_step:
        return
    sets = data.train if isinstance(data.train, dict) else {"train": data.train}
    counts = ", ".join(f"{name}: {len(rows):,}" for name, rows in sets.items())
    repeats = ", in which no text may repeat" if recipe.job == "embed" else ""
    world = trainer.args.world_size
    shared = f"; {world} processes share full batches only: use one, or" if world > 1 else ";"
    raise InputError(
        f"{sum(map(len, sets.values())):,} rows ({counts}) do not fill a batch of train.batch ="
        f" {recipe.train.batch} rows{repeats}{shared} lower train.batch or give more rows with"
        " different texts, in another folder (--to)"
    )


@contextmanager
def _reporting_full_disk(folder: Path) -> Iterator[None]:
    """Replace the libraries' errors, which have many forms, with one that says how to resume, if
    the disk is full.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if not re.search(
            "os error 28|No space left|file write failed|unexpected pos|iostream error", str(error)
        ):
            raise
        whole = find_whole_checkpoint(folder / "checkpoints")
        kept = f"{whole.name} is complete" if whole else "there is no complete checkpoint yet"
        what = "a file could not be written, probably because the disk is full"
        raise OSError(
            errno.ENOSPC,
            f"{what}; {kept}. Free some space and repeat the command to resume",
            str(folder),
        ) from error


def _save(trainer: Trainer, recipe: Recipe, model: Model, folder: Path) -> None:
    if trainer.is_world_process_zero():
        model.backbone.to("cpu")
        model.heads.to("cpu")
        if recipe.lora is not None:
            save_adapter(model, folder / "adapter")
            merge(model)
        finished(model)
        model.save(folder / "model", job="rerank" if recipe.job == "rerank" else None)


def _losses(metrics: dict[str, float]) -> dict[str, float]:
    """Return the Trainer's losses and recalls, without its times; "loss" is the mean over several
    sets.
    """
    kept = {
        k.removeprefix("eval_"): v
        for k, v in metrics.items()
        if k.endswith("loss") or "recall" in k
    }
    losses = [value for name, value in kept.items() if name.endswith("loss")]
    return {**kept, "loss": sum(losses) / len(losses)}
