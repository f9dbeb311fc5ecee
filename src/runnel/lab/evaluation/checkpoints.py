"""How good the checkpoints of a training run are, along its steps."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runnel.errors import InputError, install_command
from runnel.files import replacing, write_json

log = logging.getLogger("runnel")


def find_checkpoints(model: str) -> Mapping[int, Path]:
    """Return step -> folder of the complete checkpoints in a run's folder `checkpoints`; none if the model is another one."""
    from runnel.lab.training.checkpoints import whole_checkpoints

    folder = Path(model)
    is_run = (folder / "recipe.toml").is_file() and not (folder / "config.json").exists()
    run = folder if is_run else folder.parent
    if not is_run and (folder.name != "checkpoints" or not (run / "recipe.toml").is_file()):
        return {}
    found = {} if is_run else dict(reversed(list(whole_checkpoints(folder))))
    part = next((path for path in found.values() if not (path / "config.json").exists()), None)
    if not found or part:
        what = f"{model} is a run" if is_run else f"{model} has no complete checkpoint"
        what = f"{part} holds only what was trained, adapters or a head, and not a model" if part else what
        raise InputError(f"{what}; evaluate the finished run's {run / 'model'}, or its whole models in {run / 'checkpoints'}")
    if len(found) == 1:
        log.warning("note: %s has one checkpoint; a run with --set train.checkpoints=10 keeps ten", model)
    return found


def write_checkpoints(found: Mapping[str, Any], folder: Path) -> None:
    """Write checkpoints.json, and checkpoints.png with the metrics over the steps."""
    write_json(folder / "checkpoints.json", found)
    _plot(found["checkpoints"], folder / "checkpoints.png")


def _plot(points: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot each metric over the steps, a panel for each task; without matplotlib, say so."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        log.warning("note: matplotlib is not installed, so %s is not drawn; run `%s`", path, install_command("lab"))
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
