"""Commands about models: what one is, how fast it is, and making better ones."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from runnel.cli.command import Json, command


@command
def info(
    model: Annotated[
        str, typer.Argument(help="Built-in name (pocket, pocket-mamba2), folder, weights file or hub id.")
    ] = "pocket",
    as_json: Json = False,
) -> int:
    """Show what a model is: architecture, sizes, memory per sequence, heads, templates, and what fits this machine."""
    from runnel.commands.info import run

    return run(model, as_json=as_json)


@command
def bench(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL-OR-SHAPE]...",
            help="Model folders, pocket, pocket-mamba2, or shapes such as mamba2-130m.",
            show_default=False,
        ),
    ] = None,
    lengths: Annotated[str, typer.Option(help="Tokens of a text, with commas between; 8k is 8192.")] = "512,2048",
    batches: Annotated[
        str | None, typer.Option(help="Texts at a time; default 1, in training 1 to 16.", show_default=False)
    ] = None,
    dtypes: Annotated[str, typer.Option(help="Some of bf16,fp32,int8; int8 is held against the linear layers in bf16.")] = "bf16",
    others: Annotated[str, typer.Option("--with", help="Compare with some of transformers,llama.cpp,bert.")] = "",
    segment: Annotated[
        str, typer.Option(help="Tokens that go through all layers at a time (vertical), or whole (horizontal).")
    ] = "1024",
    budget: Annotated[
        int | None, typer.Option(min=1, help="MiB for steps and states; picks the segment.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; medians are shown.")] = 3,
    memory: Annotated[bool, typer.Option("--memory", help="Also peak memory, each figure from a process of its own.")] = False,
    training: Annotated[bool, typer.Option("--training", help="Also training tokens/s for each of --batches.")] = False,
    memory_limit: Annotated[
        int | None, typer.Option(min=1, help="MiB that a training process may take; default: what is free.", show_default=False)
    ] = None,
    remembered: Annotated[bool, typer.Option("--remembered", help="Also reranking with remembered documents.")] = False,
    length_list: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Lengths of texts, one a line: the work that padding adds.", show_default=False),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON; - prints it.", show_default=False)
    ] = None,
    plots: Annotated[str | None, typer.Option(metavar="DIR", help="Write plots there.", show_default=False)] = None,
    page: Annotated[
        str | None, typer.Option(metavar="DIR", help="Instead: measure and write performance.md there.", show_default=False)
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="SECTION", help="With --page: measure this section alone (search, parts).", show_default=False),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Instead: a quick look whether this package is as fast as it should be.")
    ] = False,
) -> int:
    """Measure speed and memory of models or shapes. No figure is shown unless the results agree with a plain fp64 run."""
    from runnel.commands import bench as command

    if (page is not None) + check + bool(models) != 1:
        raise typer.BadParameter("give MODEL-OR-SHAPE..., or --page DIR, or --check")
    if only is not None and page is None:
        raise typer.BadParameter("--only goes with --page DIR")
    if check:
        return command.check()
    if page is not None:
        return command.page(page, only)
    return command.run(
        models or [],
        lengths=lengths,
        batches=batches,
        dtypes=dtypes,
        others=others,
        segment=segment,
        budget_mib=budget,
        limit_mib=memory_limit,
        device=device,
        rounds=rounds,
        memory=memory,
        training=training,
        remembered=remembered,
        length_list=length_list,
        json_file=json_file,
        plots=plots,
    )


@command
def train(
    recipe: Annotated[str, typer.Argument(help="Name of a shipped recipe, or a TOML file.", show_default=False)],
    data: Annotated[
        str | None, typer.Option(help="File or folder with the examples, in place of the recipe's path.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Start from this model, not the recipe's.", show_default=False)
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="Settings for a model of that size, where the recipe has some.", show_default=False)
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. train.learning_rate=1e-4.", show_default=False),
    ] = None,
    to: Annotated[str | None, typer.Option(help="Run folder; default runs/RECIPE.", show_default=False)] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="Try the recipe in seconds, on a tiny random model.")] = False,
    as_json: Json = False,
) -> int:
    """Train or fine-tune a model as a recipe says. A stopped run goes on when the same command is run again.

    The result is RUN/model, beside the settings as used, the losses and the checkpoints.
    """
    from runnel.commands.train import run

    return run(recipe, to=to, data=data, model=model, size=size, smoke=smoke, changes=changes or [], as_json=as_json)


@command
def mine(
    data: Annotated[
        str, typer.Argument(help="Queries with positives: BEIR folder, qrels, CSV of pairs, jsonl, ...", show_default=False)
    ],
    to: Annotated[str, typer.Option(help="OUT.jsonl, which training reads.", show_default=False)],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="What searches: bm25, or an embedder.", show_default="bm25")
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="Instead of a search: a run (TREC, MS MARCO) of these queries.", show_default=False)
    ] = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Negatives to draw for each query.")] = 7,
    ranks: Annotated[str, typer.Option(metavar="FIRST-LAST", help="Ranks to draw from, uniformly.")] = "1-100",
    seed: Annotated[int, typer.Option(min=0, help="Another seed draws others.")] = 0,
    max_score: Annotated[
        float | None, typer.Option(help="Refuse candidates that score higher, by the embedder.", show_default=False)
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="Refuse those that score higher than the positive less this.", show_default=False)
    ] = None,
    relative_margin: Annotated[
        float | None,
        typer.Option(help="Refuse those that score higher than the positive less this part of it.", show_default=False),
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="Embedder whose scores these are; default: the one that searches.", show_default=False)
    ] = None,
    k1: Annotated[float | None, typer.Option(help="BM25: how much the repetition of a word counts.", show_default="0.9")] = None,
    b: Annotated[float | None, typer.Option(help="BM25: how much the length of a document counts.", show_default="0.4")] = None,
    prompt: Annotated[
        str | None,
        typer.Option(help="Text that the embedder reads before each query; default: the model's own.", show_default=False),
    ] = None,
    document_prompt: Annotated[str | None, typer.Option(help="The same before each document.", show_default=False)] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Test set, a file or folder, that must not be trained on; may be repeated.", show_default=False),
    ] = None,
    corpus: Annotated[str | None, typer.Option(help="Documents to draw from: jsonl or tsv.", show_default=False)] = None,
    queries: Annotated[str | None, typer.Option(help="Texts of the query ids in DATA: jsonl or tsv.", show_default=False)] = None,
    format: Annotated[
        Literal["qrels", "id-triples", "text-triples", "tevatron", "flagembedding", "columns"] | None,
        typer.Option(help="Format of DATA; default: what its first row looks like.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> int:
    """Find hard negatives: documents that a search finds for a query although they do not answer it.

    Copies of a positive are never taken. Stopped work goes on where it was when the same command is run again.
    """
    from runnel.commands.mine import run as start

    return start(
        data,
        to,
        format=format,
        corpus=corpus,
        queries=queries,
        model=model,
        candidates=run,
        judge=judge,
        exclude=exclude or [],
        k1=k1,
        b=b,
        prompt=prompt,
        document_prompt=document_prompt,
        ranks=ranks,
        number=number,
        seed=seed,
        max_score=max_score,
        margin=margin,
        relative_margin=relative_margin,
        as_json=as_json,
    )
