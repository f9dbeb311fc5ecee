"""Running of a recipe: load model and data, train with the library's Trainer for the job, store everything in the run folder.

docs/training.md lists what is in the folder. In addition, while the run is at work: data/, search/ with the run of the learning
rate that is being tried, and lock, which the main process holds. Each of several processes has a part of every batch.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import SafetensorError
from transformers import Trainer

from runnel.errors import InputError, NumericalError
from runnel.files import WriterLock, create_folder, write_json, write_jsonl
from runnel.lab.training import recipes
from runnel.lab.training.checkpoints import find_whole_checkpoint
from runnel.lab.training.document_trainer import AveragedTrainer
from runnel.lab.training.forward import finished
from runnel.lab.training.preparing import prepared
from runnel.lab.training.progress import Recorder, Watch, logged_steps
from runnel.lab.training.run_data import RunData, locate_data, read_run_data
from runnel.lab.training.sentences import SentenceTrainer
from runnel.lab.training.settings import Recipe
from runnel.lab.training.trainers import EmbedderBatches, make_trainer, tensorboard
from runnel.models.adapters import merge, save_adapter
from runnel.models.base import Model
from runnel.records import expect_choice

log = logging.getLogger("runnel")

RECIPE, SUMMARY, SEARCH, LOCK, _DATA, _TRIALS = "recipe.toml", "summary.json", "search.jsonl", "lock", "data", "search"


@dataclass(frozen=True)
class Summary:
    """The results of a run. `held_out` has the loss and the Trainer's other metrics on rows that were not trained on."""

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


def train(recipe: Recipe, folder: str | Path, *, data: str | Path | None = None, home: str | Path | None = None) -> Summary:
    """Run a recipe to its end, or resume the same run if it was stopped.

    `data` replaces the path in the recipe, or names the folder of several; the recipe's paths are relative to `home`.
    """
    folder = Path(folder)
    state = PartialState(cpu=not torch.cuda.is_available())  # it detects several processes on CPUs only with cpu=True
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
        recipe = replace(recipe, train=replace(recipe.train, learning_rate=_search(recipe, folder, data, state)))
    model = prepared(recipe)
    with state.main_process_first():
        data.mkdir(mode=0o700, exist_ok=True)  # it holds texts
        examples = read_run_data(recipe, model, data, write=state.is_local_main_process, share=share)
    summary = _fit(recipe, model, examples, folder)
    if state.is_main_process:
        write_json(folder / SUMMARY, asdict(summary))
    return summary


def _search(recipe: Recipe, folder: Path, data: Path, state: Any) -> float:
    """Return the learning rate whose run has the best held-out figure; search.jsonl has them all, null for NaN."""
    search, table = recipe.search, recipe.train
    assert search is not None
    lines = (folder / SEARCH).read_text(encoding="utf-8").splitlines() if (folder / SEARCH).exists() else []
    figure_of = {row["learning_rate"]: row[search.metric] for row in map(json.loads, lines)}
    for rate in search.learning_rates:
        if rate in figure_of:
            continue
        smaller = replace(table, learning_rate=rate, batch=table.batch // search.share, checkpoints=1)
        trial = replace(recipe, search=None, train=smaller)
        try:
            held_out = _run(trial, folder / _TRIALS / f"{rate}", data, state, search.share).held_out
        except NumericalError as error:
            log.info("learning rate %g: %s", rate, error)
            held_out = {search.metric: math.nan}
        expect_choice(search.metric, held_out, "search.metric")
        figure_of[rate] = held_out[search.metric] if math.isfinite(held_out[search.metric]) else None
        if state.is_main_process:
            write_jsonl(folder / SEARCH, ({"learning_rate": r, search.metric: f} for r, f in figure_of.items()))
            shutil.rmtree(folder / _TRIALS, ignore_errors=True)
    figures = {rate: figure for rate, figure in figure_of.items() if figure is not None}
    if not figures:
        raise NumericalError(f"no learning rate of {', '.join(map(str, figure_of))} trains without NaN; try lower ones")
    best = min(figures, key=lambda rate: figures[rate] if search.metric.endswith("loss") else -figures[rate])
    log.info("learning rates and %s: %s; %g is used", search.metric, figure_of, best)
    return best


@contextmanager
def _locked(folder: Path, state: Any) -> Iterator[None]:
    """Create and lock the folder against other runs; the main process holds the lock for all processes of this run."""
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
        other = f"a run with different settings ({'; '.join(changes[:3])}: stored, given)" if changes else "something else"
        raise InputError(f"{folder} holds {other}; give the same settings to resume, or choose another folder with --to")
    if changes or not inside:
        for name in (_DATA, _TRIALS):
            shutil.rmtree(folder / name, ignore_errors=True)
        recipes.write(recipe, path)


def _fit(recipe: Recipe, model: Model, data: RunData, folder: Path) -> Summary:
    watch = Watch()
    recorder = Recorder(folder, watch)
    trainer = make_trainer(model, recipe, data.train, data.held_out, folder, watch)
    if trainer.is_fsdp_enabled and (recipe.lora is not None or not isinstance(trainer, SentenceTrainer)):
        raise InputError(
            f"weights of the job {recipe.job!r}, or of adapters, cannot be saved after FSDP has sharded them over devices; use "
            "several processes without FSDP (accelerate launch --multi_gpu), which share every batch"
        )
    before = {}
    if isinstance(trainer, AveragedTrainer) and data.held_out is not None:  # the weights may be good already
        before = {f"{name}_before": value for name, value in _losses(trainer.evaluate()).items()}
    for callback in [recorder, *(tensorboard(folder) if trainer.is_world_process_zero() else [])]:
        trainer.add_callback(callback)
    last = find_whole_checkpoint(folder / "checkpoints")
    if last is not None:
        log.info("resuming from %s", last)
    try:
        trainer.train(resume_from_checkpoint=str(last) if last else None)
    finally:
        recorder.close()
    figures = watch.figures(trainer.args.world_size)
    _require_steps(trainer, recipe, data)
    if isinstance(trainer, AveragedTrainer):
        trainer.finish(data.aside)
    held_out = _losses(trainer.evaluate()) | before if data.held_out is not None else {}
    if isinstance(trainer.data_collator, EmbedderBatches) and trainer.data_collator.truncated:
        log.warning("%d texts were cut to data.max_query_tokens or data.max_document_tokens", trainer.data_collator.truncated)
    _save(trainer, recipe, model, folder)
    losses = [row["loss"] for row in logged_steps(trainer.state.log_history)] or [math.nan]
    steps, rate = trainer.state.global_step, recipe.train.learning_rate
    return Summary(recipe.job, str(folder / "model"), steps, losses[0], losses[-1], held_out, rate, **figures)


def _require_steps(trainer: Trainer, recipe: Recipe, data: RunData) -> None:
    """Raise InputError if there was no batch: the Trainer then ends without a step, as if it had finished."""
    if trainer.state.global_step:
        return
    sets = data.train if isinstance(data.train, dict) else {"train": data.train}
    counts = ", ".join(f"{name}: {len(rows):,}" for name, rows in sets.items())
    repeats = ", in which no text may repeat" if recipe.job == "embed" else ""
    world = trainer.args.world_size
    shared = f"; {world} processes share full batches only: use one, or" if world > 1 else ";"
    raise InputError(
        f"{sum(map(len, sets.values())):,} rows ({counts}) do not fill a batch of train.batch = {recipe.train.batch} rows"
        f"{repeats}{shared} lower train.batch or give more rows with different texts, in another folder (--to)"
    )


@contextmanager
def _reporting_full_disk(folder: Path) -> Iterator[None]:
    """Replace the libraries' errors for a full disk with one that says how to resume."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        full = getattr(error, "errno", None) == errno.ENOSPC or re.search("os error 28|No space left", str(error))
        if not full and not re.search("file write failed|unexpected pos|iostream error", str(error)):  # torch's, for any cause
            raise
        whole = find_whole_checkpoint(folder / "checkpoints")
        kept = f"{whole.name} is complete" if whole else "there is no complete checkpoint yet"
        why = "the disk is full" if full else "a file could not be written, probably because the disk is full"
        message = f"{why}; {kept}. Free some space and repeat the command to resume"
        raise OSError(errno.ENOSPC, message, str(folder)) from error


def _save(trainer: Trainer, recipe: Recipe, model: Model, folder: Path) -> None:
    if trainer.is_fsdp_enabled:
        trainer.save_model(str(folder / "model"))  # gathers the shards from the devices
        return
    if trainer.is_world_process_zero():
        model.backbone.to("cpu")
        model.heads.to("cpu")
        if recipe.lora is not None:
            save_adapter(model, folder / "adapter")
            merge(model)
        finished(model)
        model.save(folder / "model", job="rerank" if recipe.job == "rerank" else None)


def _losses(metrics: dict[str, float]) -> dict[str, float]:
    """Return the Trainer's losses and recalls, without its times; "loss" is the mean over several sets."""
    kept = {k.removeprefix("eval_"): v for k, v in metrics.items() if k.endswith("loss") or "recall" in k}
    losses = [value for name, value in kept.items() if name.endswith("loss")]
    return {**kept, "loss": sum(losses) / len(losses)}
