"""`runnel train`: a recipe, run to its end or on from where it was stopped."""

from __future__ import annotations

import logging
import os
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.commands.display import note_compiling, print_json, print_text, say
from runnel.errors import MissingDependency
from runnel.training import recipes

if TYPE_CHECKING:
    from runnel.training.run import Summary

_NEEDED = ("sentence_transformers", "transformers", "datasets", "accelerate")


def run(
    recipe: str,
    *,
    to: str | None,
    data: str | None,
    model: str | None,
    size: str | None,
    smoke: bool,
    changes: list[str],
    as_json: bool,
) -> int:
    """Train as the recipe says; the result is in `to`/model."""
    name = Path(recipe).stem
    changes = [*changes, *([f"model.name={model}"] if model is not None else [])]
    wanted = recipes.read(recipe, size=size, smoke=smoke, changes=tuple(changes))  # its errors come before heavy imports
    folder = Path(to) if to is not None else Path("runs") / name
    if missing := [package for package in _NEEDED if find_spec(package) is None]:
        raise MissingDependency(f"training needs {', '.join(missing)}: pip install 'runnel[train]'")
    note_compiling()
    import datasets
    import transformers

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it looks for other people's kernels
    transformers.utils.logging.set_verbosity_error()
    from runnel.training.run import SUMMARY, train

    datasets.disable_progress_bars()  # `training.progress` has the one that counts
    transformers.utils.logging.disable_progress_bar()
    if (folder / SUMMARY).exists():
        say(f"note: {folder} is finished already")
    path = recipes.find(recipe)
    home = None if path.parent == recipes.SHIPPED else path.parent
    summary = train(wanted, folder, data=data, home=home)
    if os.environ.get("RANK", "0") == "0":  # one of several processes speaks for all
        _report(summary, as_json)
    return 0


def _report(summary: Summary, as_json: bool) -> None:
    if as_json:
        print_json(asdict(summary))
        return
    held_out = "".join(f"; held out: {name} {value:.4f}" for name, value in summary.held_out.items())
    print_text(
        f"{summary.model}: {summary.steps:,} steps, loss {summary.first_loss:.4f} to {summary.last_loss:.4f}{held_out}; "
        f"{summary.tokens:,} tokens in {summary.seconds:,.1f} s"
    )
