"""`runnel lab train`: train or fine-tune a model as a recipe says."""

import os
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from runnel.commands import display, parameters
from runnel.errors import MissingDependency, counted, install_command

_NEEDED = (
    "sentence_transformers",
    "transformers",
    "datasets",
    "accelerate",
    "tensorboard",
)


def train(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="Name of a shipped recipe, or a TOML file.")
    ],
    *,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Start from this model, not the recipe's.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="File or folder with the examples, in place of the recipe's path."),
    ] = None,
    to: Annotated[str | None, typer.Option(help="Run folder; default runs/RECIPE.")] = None,
    size: Annotated[
        str | None,
        typer.Option(help="Settings for a model of that size, where the recipe has some."),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Change a setting.")
    ] = None,
    as_json: parameters.Json = False,
) -> int:
    """Train a model as RECIPE says. An interrupted run resumes when you repeat the command.

    Writes RUN/model, and in RUN the settings as used, the losses and the checkpoints.
    Example: runnel lab train evidence-vectors --data evidence.jsonl --to runs/mine
    """
    from runnel.lab.training import recipes

    # 1. Read the recipe, whose errors come before heavy imports.
    changes = [*(changes or []), *([f"model.name={model}"] if model is not None else [])]
    settings = recipes.read(recipe, size=size, changes=tuple(changes))
    path = recipes.find(recipe)
    # relative paths of a recipe of your own start at its folder
    home = None if path.parent == recipes.SHIPPED else path.parent
    # 2. Run it.
    prepare_libraries()
    from runnel.lab.training.run import SUMMARY, run_recipe

    folder = Path("runs") / Path(recipe).stem if to is None else Path(to)
    finished = (folder / SUMMARY).exists()
    summary = run_recipe(settings, folder, data=data, home=home)
    # 3. Print the summary.
    if finished:
        display.say(f"note: {folder} is finished already")
    if os.environ.get("RANK", "0") != "0":  # one of several processes speaks for all
        return 0
    held_out = "".join(
        f"; held out: {name} {value:.4f}" for name, value in summary.held_out.items()
    )
    losses = " to ".join(
        dict.fromkeys(f"{loss:.4f}" for loss in (summary.first_loss, summary.last_loss))
    )
    display.print_facts(
        as_json,
        asdict(summary),
        f"{summary.model}: {counted(summary.steps, 'step')}, loss {losses}{held_out}; "
        f"{summary.tokens:,} tokens in {summary.seconds:,.1f} s",
    )
    return 0


def prepare_libraries() -> None:
    """Import the libraries that training needs, and silence them."""
    if missing := [package for package in _NEEDED if find_spec(package) is None]:
        raise MissingDependency(
            f"training needs {', '.join(missing)}; run `{install_command('lab')}`"
        )
    import datasets
    import transformers

    transformers.utils.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
