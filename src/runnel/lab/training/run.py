"""Run a recipe.

In: a recipe, and the path of its data. Out: a run folder, which has the trained model, and a
`Summary`. An interrupted run resumes.

docs/training.md lists what is in the folder. In addition, while the run is at work: data/, search/
with the run of the learning rate that is being tried, and lock, which the main process holds. Each
of several processes has a part of every batch.

The way of the data: `run_recipe` locates them, `_run` reads them (`run_data`), `_train_model` hands
them to the Trainer of the job (`trainers`), which makes batches of them, and whose `training_step`
(`progress`) and `compute_loss` see each batch.
"""

import errno
import json
import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from safetensors import SafetensorError
from transformers import Trainer
from transformers.integrations.integration_utils import TensorBoardCallback

from runnel.checks import expect_choice, refuse_when
from runnel.errors import InputError, NumericalError
from runnel.files import WriterLock, create_folder, write_json, write_jsonl
from runnel.jobs.progress import WorkProgress, inform, notify, open_progress
from runnel.lab.training import (
    document_trainer,
    forward,
    processes,
    progress,
    recipes,
    run_data,
    start,
    trainers,
    vectors,
)
from runnel.models.model import Model
from runnel.models.recurrent.adapters import merge, save_adapter
from runnel.text.lines import read_json

# files and folders in a run folder
RECIPE = "recipe.toml"
SUMMARY = "summary.json"
SEARCH = "search.jsonl"
LOCK = "lock"
_DATA = "data"
_TRIALS = "search"


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


def run_recipe(
    recipe: recipes.Recipe,
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
    # 1. Find the other processes of this run.
    folder = Path(folder)
    # it detects several processes on CPUs only with cpu=True
    state = PartialState(cpu=not torch.cuda.is_available())
    if state.is_main_process and state.num_processes > 1:
        inform(f"{state.num_processes} processes share every batch")
    # 2. Find the data.
    located = run_data.locate_data(recipe, data, home)
    # 3. Run, alone in the folder.
    lock = WriterLock(create_folder(folder) / LOCK, folder)
    if state.is_main_process:  # for all processes of this run
        lock.acquire()
    try:
        with _reporting_full_disk(folder):
            summary = _run(located, folder, folder / _DATA, state)
        if state.is_main_process:
            shutil.rmtree(folder / _DATA, ignore_errors=True)
        return summary
    finally:
        lock.release(remove=True)


def _run(
    recipe: recipes.Recipe, folder: Path, data: Path, state: PartialState, share: int = 1
) -> Summary:
    """Run a recipe on 1/`share` of the examples, which are read from files in the folder `data`."""
    # 1. Begin, or resume; a finished run only returns its summary.
    with state.main_process_first():
        _begin(folder, recipe)
    if (folder / SUMMARY).exists():
        return Summary(**json.loads((folder / SUMMARY).read_text(encoding="utf-8")))
    # 2. Choose the learning rate by shorter runs.
    if recipe.search is not None:
        rate = _search_learning_rate(recipe, folder, data, state)
        recipe = replace(recipe, train=replace(recipe.train, learning_rate=rate))
    # 3. Load the model, and read the data in its tokens.
    model = start.load_start(recipe)
    with processes.writers_first(state):
        data.mkdir(mode=0o700, exist_ok=True)  # it holds texts
        files = run_data.DataFiles(data, state.is_local_main_process, share)
        examples = run_data.read_run_data(recipe, model, files)
    # 4. Train, measure and save the model.
    summary = _train_model(recipe, model, examples, folder)
    if state.is_main_process:
        write_json(folder / SUMMARY, asdict(summary))
    return summary


def _search_learning_rate(
    recipe: recipes.Recipe, folder: Path, data: Path, state: PartialState
) -> float:
    """Return the learning rate whose run has the best held-out figure; search.jsonl has them all,
    null for NaN.
    """
    search = recipe.search
    assert search is not None
    figure_of: dict[float, float | None] = {}  # by learning rate
    if (folder / SEARCH).exists():
        for _, row in read_json(folder / SEARCH):
            figure_of[row["learning_rate"]] = row[search.metric]
    for rate in [rate for rate in search.learning_rates if rate not in figure_of]:
        batch = recipe.train.batch // search.share
        settings = replace(recipe.train, learning_rate=rate, batch=batch, checkpoints=1)
        trial = replace(recipe, search=None, train=settings)
        try:
            held_out = _run(trial, folder / _TRIALS / f"{rate}", data, state, search.share).held_out
        except NumericalError as error:
            inform(f"learning rate {rate:g}: {error}")
            held_out = {search.metric: math.nan}
        expect_choice(search.metric, held_out, "search.metric")
        figure = held_out[search.metric]
        figure_of[rate] = figure if math.isfinite(figure) else None
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
    sign = 1 if search.metric.endswith("loss") else -1
    best = min(figures, key=lambda rate: sign * figures[rate])
    inform(f"learning rates and {search.metric}: {figure_of}; {best:g} is used")
    return best


def _begin(folder: Path, recipe: recipes.Recipe) -> None:
    """Begin a run in the folder, or check that the folder's run has this recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RECIPE
    content = {file.name for file in folder.iterdir()} - {LOCK}
    changes = recipes.differences(recipes.read(str(path)), recipe) if path.exists() else []
    remedy = "give the same settings to resume, or choose another folder with --to"
    refuse_when(
        (content and not path.exists(), f"{folder} holds something else; {remedy}"),
        (
            # a run that failed on its settings or data may be replaced
            changes and content - {RECIPE, _DATA, _TRIALS},
            f"{folder} holds a run with different settings ({'; '.join(changes[:3])}: stored,"
            f" given); {remedy}",
        ),
    )
    if changes or not content:
        for name in (_DATA, _TRIALS):
            shutil.rmtree(folder / name, ignore_errors=True)
        recipes.write(recipe, path)


def _train_model(
    recipe: recipes.Recipe, model: Model, data: run_data.RunData, folder: Path
) -> Summary:
    # 1. Make the Trainer, and measure a model that may be good already.
    trainer = trainers.make_trainer(model, recipe, data, folder)
    before = {}
    if isinstance(trainer, document_trainer.AveragedTrainer) and data.held_out is not None:
        before = {f"{name}_before": value for name, value in _losses(trainer.evaluate()).items()}
    # 2. Train, from the last checkpoint if there is one.
    last = progress.find_whole_checkpoint(folder / "checkpoints")
    if last is not None:
        inform(f"resuming from {last}")
    is_main = trainer.is_world_process_zero()  # one of several processes
    open_meter = open_progress if is_main else WorkProgress  # the latter shows nothing
    with open_meter("training", "steps") as show:
        trainer.add_callback(progress.Recorder(trainer.watch, show))
        if is_main:
            tensorboard = TensorBoardCallback()
            tensorboard.logging_dir = str(folder / "tensorboard")
            trainer.add_callback(tensorboard)
        trainer.train(resume_from_checkpoint=str(last) if last else None)
    throughput = trainer.watch.throughput(trainer.args.world_size)
    _require_steps(trainer, recipe, data)
    # 3. Measure the trained model.
    if isinstance(trainer, document_trainer.AveragedTrainer):
        trainer.use_average()
    if isinstance(trainer, vectors.VectorTrainer):
        trainer.calibrate(data.aside)
    held_out = _losses(trainer.evaluate()) | before if data.held_out is not None else {}
    if (
        isinstance(trainer.data_collator, trainers.EmbedderBatches)
        and trainer.data_collator.truncated
    ):
        notify(
            f"{trainer.data_collator.truncated} texts were cut to data.max_query_tokens or"
            " data.max_document_tokens"
        )
    # 4. Save it.
    if is_main:
        model.backbone.to("cpu")
        model.heads.to("cpu")
        if recipe.lora is not None:
            save_adapter(model, folder / "adapter")
            merge(model)
        forward.freeze(model)
        model.save(folder / "model", job="rerank" if recipe.job == "rerank" else None)
    losses = [row["loss"] for row in progress.logged_steps(trainer.state.log_history)] or [math.nan]
    return Summary(
        job=recipe.job,
        model=str(folder / "model"),
        steps=trainer.state.global_step,
        first_loss=losses[0],
        last_loss=losses[-1],
        held_out=held_out,
        learning_rate=recipe.train.learning_rate,
        **throughput,
    )


def _require_steps(trainer: Trainer, recipe: recipes.Recipe, data: run_data.RunData) -> None:
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
        path = progress.find_whole_checkpoint(folder / "checkpoints")
        saved = f"{path.name} is complete" if path else "there is no complete checkpoint yet"
        raise OSError(
            errno.ENOSPC,
            f"a file could not be written, probably because the disk is full; {saved}. Free some"
            " space and repeat the command to resume",
            str(folder),
        ) from error


def _losses(metrics: dict[str, float]) -> dict[str, float]:
    """Return the Trainer's losses and recalls, without its times; "loss" is the mean over several
    sets.
    """
    figures = {
        name.removeprefix("eval_"): value
        for name, value in metrics.items()
        if name.endswith("loss") or "recall" in name
    }
    losses = [value for name, value in figures.items() if name.endswith("loss")]
    return {**figures, "loss": sum(losses) / len(losses)}
