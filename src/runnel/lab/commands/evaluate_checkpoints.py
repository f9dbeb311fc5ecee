"""`runnel evaluate RUN/checkpoints TASK...`: how good the checkpoints of a training run are, along its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runnel.commands.display import print_table, print_text, say
from runnel.errors import InputError, counted, install_command
from runnel.files import replacing, write_json


def find_checkpoints(model: str) -> Mapping[int, Path]:
    """Return step -> folder of the complete checkpoints in a run's folder `checkpoints`; none if the model is another one."""
    from runnel.lab.training.checkpoints import whole_checkpoints

    folder = Path(model)
    if (folder / "recipe.toml").is_file() and not (folder / "config.json").exists():
        raise InputError(
            f"{model} is a run; evaluate its result, {folder / 'model'}, or its checkpoints, {folder / 'checkpoints'}"
        )
    if folder.name != "checkpoints" or not (folder.parent / "recipe.toml").is_file():
        return {}
    found = dict(reversed(list(whole_checkpoints(folder))))
    if not found:
        raise InputError(f"{model} has no complete checkpoint; train first")
    if part := next((path for path in found.values() if not (path / "config.json").exists()), None):
        raise InputError(
            f"{part} holds only what was trained, adapters or a head, and not a model; evaluate {folder.parent / 'model'}, which "
            "is complete when the run is finished"
        )
    if len(found) == 1:
        say(f"note: {model} has one checkpoint; a run with --set train.checkpoints=10 keeps ten")
    return found


def write_checkpoints(found: Mapping[str, Any], folder: Path) -> None:
    """Write checkpoints.json, and checkpoints.png with the metrics over the steps."""
    write_json(folder / "checkpoints.json", found)
    _plot(found["checkpoints"], folder / "checkpoints.png")


def show_checkpoints(points: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of steps and metrics for each task."""
    for place, task in enumerate(points[0]["results"]):
        metrics = list(task["metrics"])
        rows = [[f"{p['step']:,}", *(f"{p['results'][place]['metrics'][name]:.4f}" for name in metrics)] for p in points]
        print_text(f"checkpoints as {task['as']}: {task['task']}, {counted(task['queries'], 'query')}")
        print_table(["step", *metrics], rows)


def _plot(points: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot each metric over the steps, a panel for each task; without matplotlib, say so."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        say(f"note: matplotlib is not installed, so {path} is not drawn; run `{install_command('lab')}`")
        return
    tasks = points[0]["results"]
    figure = Figure(figsize=(5 * len(tasks), 4), layout="constrained")
    for place, (axis, task) in enumerate(zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True)):
        for name in task["metrics"]:
            axis.plot([p["step"] for p in points], [p["results"][place]["metrics"][name] for p in points], marker="o", label=name)
        axis.set(title=task["task"], xlabel="step")
        axis.legend(fontsize=8)
    with replacing(path) as partial:
        figure.savefig(partial, format="png", dpi=120)
