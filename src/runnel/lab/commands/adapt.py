"""`runnel lab adapt`: adapt sentence retrieval to documents, without a language model, and measure
what it gains.
"""

from pathlib import Path
from typing import Annotated

import typer

from runnel.commands import display, parameters
from runnel.errors import counted


def adapt(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="Files, folders, indexes, or jsonl of documents."),
    ],
    *,
    model: parameters.Model = "pocket",
    to: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the model and the work.")],
    dev: Annotated[
        Path | None,
        typer.Option(metavar="EVIDENCE", help="Your own questions, to measure the gain on."),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="The most questions, to train on and held back.")
    ] = 2000,
    seed: Annotated[
        int, typer.Option(min=0, help="For the choice of questions and the training.")
    ] = 0,
    exclude: parameters.TestSets = None,
    as_json: parameters.Json = False,
) -> int:
    """Adapt a model's sentence retrieval to the documents of each SOURCE, and measure the gain.

    Writes DIR/model if recall@10 rises, on --dev or on questions held back; else exits with 1.
    Example: runnel lab adapt manuals/ --to adapted

    Headings, questions, definitions and lists of the documents are the questions to train on; one
    in ten, in whole documents, is held back. Interrupted work resumes when you repeat the command.
    """
    from runnel.lab.commands.train import prepare_libraries

    prepare_libraries()
    from runnel.lab.training.adaptation import adapt as adapt_model

    result = adapt_model(
        sources, to, model=model, dev=dev, exclude=exclude or (), limit=limit, seed=seed
    )
    lines = [
        f"{name}: recall@10 {gain['a']:.4f} before, {gain['b']:.4f} after, difference"
        f" {gain['difference']:+.4f} (95 % interval {gain['low']:+.4f} to"
        f" {gain['high']:+.4f}; {counted(gain['queries'], 'question')})"
        for name, gain in result["measured"].items()
    ]
    if result["model"]:
        lines.append(f"{result['model']}: use it with runnel find -m {result['model']}")
    display.print_facts(as_json, result, *lines)
    return 0 if result["model"] else 1
