"""The options of `runnel bench`."""

from __future__ import annotations

from typing import Annotated

import typer


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
