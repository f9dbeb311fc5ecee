"""One experiment over several families: models of equal size, from random weights, on the same data
with the same recipe.

Published comparisons of families start from checkpoints that were pretrained on different data.
Here only the family differs: every model has the same vocabulary, the same width, nearly the same
number of active parameters, the same batches in the same order for a seed, and its family's own
initialization.

TO/FAMILY-SEED/     a part: start/ (random weights), recipe.toml, run/ (of `lab train`), evaluation/
                    (of `lab evaluate`), settings.json and part.json, its result
TO/bm25/            BM25 on the same tasks
TO/control.json     all figures;  control.md: the table;  control.png: loss and quality

A part runs in a process of its own, which ends with this one. part.json is written last: a finished
part is not run again, and an interrupted one resumes from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import sys
import threading
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any

import torch

from benchmarks.families import Shape, load_vocabulary, match, write_random_model
from benchmarks.machine import peak_bytes, reset_peak
from benchmarks.measure import Progress
from runnel.commands.doctor import machine
from runnel.config import arguments
from runnel.errors import InputError, ReadError
from runnel.files import WriterLock, file_digest, write
from runnel.lab.evaluation.metrics import parse_metrics
from runnel.lab.evaluation.tasks import expect_task
from runnel.lab.training import recipes
from runnel.lab.training.recipes import Recipe

VERSION = 1


@dataclass(frozen=True)
class Settings:
    """The top level of an experiment file.

    Attributes:
        seeds: of random weights and of the order of the data; a run for each.
        tasks: what `runnel lab evaluate` measures, relative to the data's folder.
        metrics: names as for `runnel lab evaluate --metrics`; the first is plotted.
        parameters: active ones, which the number of layers of each family is chosen for
            (`families.match`).
        hidden_size: width of all models.
        vocabulary: a built-in model or a folder with a tokenizer.
    """

    seeds: tuple[int, ...]
    tasks: tuple[str, ...]
    metrics: tuple[str, ...]
    parameters: int
    hidden_size: int
    vocabulary: str = "pocket"


@dataclass(frozen=True)
class Experiment:
    """An experiment file: its settings, the recipe of all runs, and the shape of each family."""

    settings: Settings
    recipe: Recipe
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class Part:
    """One family with one seed. `data` has the digests of the data's files."""

    shape: Shape
    seed: int
    settings: Settings
    recipe: Recipe
    data: dict[str, str]

    @property
    def name(self) -> str:
        return f"{self.shape.family}-{self.seed}"

    def facts(self) -> dict[str, Any]:
        """Return all that its figures depend on, as JSON values."""
        shared = {
            name: value
            for name, value in asdict(self.settings).items()
            if name not in ("seeds", "parameters")
        }
        facts = {
            "shape": asdict(self.shape),
            "seed": self.seed,
            **shared,
            "recipe": asdict(self.recipe),
            "data": self.data,
        }
        plain: dict[str, Any] = json.loads(json.dumps(facts))
        return plain


def read_experiment(path: Path) -> Experiment:
    """Read an experiment file: the settings, [families.NAME] tables and a [recipe].

    Raises:
        ReadError: the file does not exist.
        InputError: it is not TOML, a setting is wrong, or the families' sizes cannot be matched.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ReadError(
            f"{path}: no such experiment file; expected a TOML file such as benchmarks/control.toml"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}") from error
    tables = {name: content.pop(name, None) for name in ("families", "recipe")}
    for name, table in tables.items():
        if not isinstance(table, dict) or not table:
            raise InputError(
                f"{path}: {name} must be a table, got {table!r}; see benchmarks/control.toml"
            )
    settings = Settings(**arguments(Settings, content, str(path), defaults=True, error=InputError))
    recipe = recipes.parse(tables["recipe"], f"{path}: recipe")
    for name, value, default in (
        ("model.name", recipe.model.name, "pocket"),
        ("train.seed", recipe.train.seed, 0),
    ):
        if value != default:
            raise InputError(
                f"{path}: recipe.{name} is {value!r}, but the experiment sets it for each run;"
                " remove it"
            )
    if not settings.seeds or len(set(settings.seeds)) < len(settings.seeds) or not settings.tasks:
        got = f"got {list(settings.seeds)} and {list(settings.tasks)}"
        raise InputError(
            f"{path}: expected seeds that differ and tasks, at least one of each; {got}"
        )
    if min(settings.parameters, settings.hidden_size) < 1:
        raise InputError(f"{path}: parameters and hidden_size must be at least 1")
    parse_metrics(settings.metrics)
    if recipe.job == "generate":
        raise InputError(
            f"{path}: the experiment measures retrieval, not {recipe.job!r}; expected embed, rerank"
            " or sentences"
        )
    if recipe.job != "embed" and not recipe.model.new_head:
        raise InputError(
            f"{path}: models with random weights have no head for {recipe.job!r}; set"
            " recipe.model.new_head = true"
        )
    rows = load_vocabulary(settings.vocabulary).vocab_size
    tokens = (
        recipe.data.max_document_tokens
        or recipe.data.max_tokens
        or max(recipe.data.lengths, default=512)
    )
    shapes = match(
        tables["families"], settings.hidden_size, settings.parameters, rows, tokens, str(path)
    )
    return Experiment(settings, recipe, tuple(shapes))


def run_experiment(path: Path, data: Path, to: Path, progress: Progress) -> dict[str, Any]:
    """Train and evaluate every family with every seed, or what is left to do; values for JSON, also
    written to TO.

    Args:
        data: the folder that the recipe's data sets and the tasks are in.

    Raises:
        InputError: as `read_experiment`; data are missing; or a part in TO has other settings.
        StoreBusy: another process works on TO.
    """
    experiment = read_experiment(path)
    settings = experiment.settings
    digests = _digests(experiment, data)
    parts = [
        Part(shape, seed, settings, experiment.recipe, digests)
        for seed in settings.seeds
        for shape in experiment.shapes
    ]
    to.mkdir(parents=True, exist_ok=True)
    lock = WriterLock(to / "lock", to)
    lock.acquire()
    try:
        # parts with other settings are reported before any work
        rows = [_finished(part, to / part.name) for part in parts]
        for place, part in enumerate(parts):
            if rows[place] is None:
                progress(
                    f"part {place + 1} of {len(parts)}: {part.name}, {part.shape.active:,} active"
                    " parameters"
                )
                rows[place] = _in_new_process(part, data, to / part.name)
        result = {
            "version": VERSION,
            "machine": machine(),
            "settings": asdict(settings),
            "data": digests,
        }
        result |= {
            "recipe": asdict(experiment.recipe),
            "parts": rows,
            "bm25": _bm25(experiment, data, to / "bm25"),
        }
        result["families"] = summarize([row for row in rows if row is not None])
        text = json.dumps(result, indent=1) + "\n"
        write(to / "control.json", text)
    finally:
        lock.release(remove=True)
    found: dict[str, Any] = json.loads(text)
    return found


def summarize(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each family its shape, and mean, sample deviation (0 for one seed) and values of
    each figure over seeds.
    """
    found = []
    for family in dict.fromkeys(row["shape"]["family"] for row in rows):
        mine = [row for row in rows if row["shape"]["family"] == family]
        shape = {
            name: mine[0]["shape"][name]
            for name in ("family", "layers", "active", "total", "tokens", "flops")
        }
        quality = {
            task: {
                metric: _spread([row["metrics"][task][metric] for row in mine])
                for metric in metrics
            }
            for task, metrics in mine[0]["metrics"].items()
        }
        names = ("last_loss", "tokens_per_s", "peak_bytes")
        figures = {
            name: _spread([row[name] for row in mine if row[name] is not None]) for name in names
        }
        found.append(
            {**shape, "seeds": [row["seed"] for row in mine], "metrics": quality, **figures}
        )
    return found


def _spread(values: Sequence[float]) -> dict[str, Any] | None:
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "deviation": deviation, "values": list(values)}


# ---- parts ---------------------------------------------------------------------------------------


def _digests(experiment: Experiment, data: Path) -> dict[str, str]:
    """Return a digest of each file that is trained on or evaluated; path relative to the data ->
    digest.

    Raises:
        InputError: a data set or a task is missing.
    """
    files: dict[str, Path] = {}
    for one in experiment.recipe.data.sets:
        if not (data / one.path).exists():
            raise InputError(
                f"{data / one.path} is missing; --data names the folder of the experiment's data"
                " sets and tasks"
            )
        files[one.path] = data / one.path
    files |= {task: expect_task(data / task) for task in experiment.settings.tasks}
    if not files or not experiment.recipe.data.sets:
        raise InputError(
            "the experiment's recipe has no [[recipe.data.sets]]; add the training data there"
        )
    every = sorted(
        {
            file
            for path in files.values()
            for file in (path.rglob("*") if path.is_dir() else [path])
            if file.is_file()
        }
    )
    return {str(file.relative_to(data)): file_digest(str(file)) for file in every}


def _finished(part: Part, folder: Path) -> dict[str, Any] | None:
    """Return the result of a finished part; None if it is not finished.

    Raises:
        InputError: the folder has a part with other settings.
    """
    path = folder / "settings.json"
    if path.exists() and (stored := json.loads(path.read_text(encoding="utf-8"))) != part.facts():
        changed = [name for name, value in part.facts().items() if stored.get(name) != value]
        raise InputError(
            f"{folder} has a part with other settings or data ({', '.join(changed)}); use another"
            " folder with --to, or remove it"
        )
    result = folder / "part.json"
    return json.loads(result.read_text(encoding="utf-8")) if result.exists() else None


def _in_new_process(part: Part, data: Path, folder: Path) -> dict[str, Any]:
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(_run_part, part, data.resolve(), folder.resolve()).result()
    except BrokenProcessPool as error:
        raise MemoryError(
            f"the process of {part.name} was killed, perhaps for its memory; repeat the command to"
            " resume"
        ) from error


def _run_part(part: Part, data: Path, folder: Path) -> dict[str, Any]:
    """Train and evaluate a part; runs in its own process."""
    from runnel.lab.training.progress import STATE, find_whole_checkpoint, logged_steps

    _end_with_parent()
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "settings.json", json.dumps(part.facts(), indent=1) + "\n")
    write_random_model(part.shape, part.settings.vocabulary, folder / "start", part.seed)
    model = replace(part.recipe.model, name=str(folder / "start"))
    recipes.write(
        replace(part.recipe, model=model, train=replace(part.recipe.train, seed=part.seed)),
        folder / "recipe.toml",
    )
    fresh = not any((folder / "run" / name).exists() for name in ("checkpoints", "summary.json"))
    with _on_stderr():
        peak = _train(folder, data)
        metrics = _evaluate(str(folder / "run" / "model"), part, data, folder / "evaluation")
    summary = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    whole = find_whole_checkpoint(folder / "run" / "checkpoints")
    assert whole is not None
    curve = logged_steps(json.loads((whole / STATE).read_text(encoding="utf-8"))["log_history"])
    result = {
        "shape": asdict(part.shape),
        "seed": part.seed,
        "metrics": metrics,
        "held_out": summary["held_out"],
    }
    result |= {
        "steps": summary["steps"],
        "tokens": summary["tokens"],
        "last_loss": summary["last_loss"],
    }
    result |= {"learning_rate": summary["learning_rate"], "tokens_per_s": tokens_per_s(curve)}
    result["peak_bytes"] = peak if fresh else None  # a resumed run may have read less
    result["curve"] = [[row["tokens"], row["loss"]] for row in curve]
    write(folder / "part.json", json.dumps(result, indent=1) + "\n")
    return result


def _train(folder: Path, data: Path) -> int:
    """Run `runnel lab train`; return the peak memory in bytes, on a CPU beyond that of the process
    before.
    """
    from runnel.lab.commands.train import train

    device = "cuda" if torch.cuda.is_available() else "cpu"
    import sentence_transformers  # noqa: F401  # before the memory is measured

    reset_peak(device)
    before = peak_bytes(device)
    train(str(folder / "recipe.toml"), data=str(data), to=str(folder / "run"))
    return peak_bytes(device) - before


def _evaluate(
    model: str, part: Part | Experiment, data: Path, folder: Path
) -> dict[str, dict[str, float]]:
    """Run `runnel lab evaluate`; return task -> metric -> value."""
    from runnel.lab.evaluation.run import evaluate

    tasks = [str(data / task) for task in part.settings.tasks]
    job: Any = None if model == "bm25" else part.recipe.job
    found = evaluate(model, tasks, job, metrics=",".join(part.settings.metrics), out=folder)
    return {one["task"]: one["metrics"] for one in found["results"]}


def _bm25(experiment: Experiment, data: Path, folder: Path) -> dict[str, dict[str, float]]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _on_stderr():
        return _evaluate("bm25", experiment, data, folder)


def tokens_per_s(curve: Sequence[dict[str, Any]]) -> float | None:
    """Return the median speed over the intervals between logged lines, which a pause of the machine
    hardly changes.
    """
    pairs = itertools.pairwise(curve)
    speeds = [
        (b["tokens"] - a["tokens"]) / (b["seconds"] - a["seconds"])
        for a, b in pairs
        if b["seconds"] > a["seconds"]
    ]
    return statistics.median(speeds) if speeds else None


@contextlib.contextmanager
def _on_stderr() -> Iterator[None]:
    """Send what the commands print to stderr, with their notes; stdout is for the table."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _end_with_parent() -> None:
    """End this process when its parent ends, even by kill -9: the next run of the command needs the
    folder.
    """
    parent = parent_process()
    if parent is None:  # called in a test
        return

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
