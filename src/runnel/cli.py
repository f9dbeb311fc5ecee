"""The command line: declares commands and options, and turns errors into one line and an exit code.

Exit codes: 0 done; 1 an error, told in one line on stderr; 2 wrong usage; 130 interrupted. What a command does is in
`runnel.commands`, imported when it runs, so that `runnel --help` imports neither torch nor numpy.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Annotated, Literal

import typer

from runnel.commands.display import describe, say
from runnel.errors import RunnelError

app = typer.Typer(
    name="runnel",
    help="One pass over a text of any length, in constant memory: its vector, its relevance, the sentences that answer a query.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_interrupted = threading.Event()  # Ctrl-C was pressed

_Model = Annotated[str, typer.Option("--model", "-m", help="Built-in name (pocket), model folder or hub id.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
_MaxTokens = Annotated[int | None, typer.Option(min=1, help="Cut documents to this many tokens; the number cut is reported.")]


def _command(run: Callable[..., int | None]) -> Callable[..., None]:
    """Make `run` a command: its errors become one line on stderr and exit code 1, Ctrl-C 130, its return value the exit code."""

    @functools.wraps(run)
    def wrapped(*args: object, **options: object) -> None:
        try:
            code = run(*args, **options)
        except BrokenPipeError:
            raise  # typer ends quietly when the reader of a pipe has left
        except (RunnelError, OSError) as error:
            say(f"error: {describe(error)}")
            code = 1
        except KeyboardInterrupt:
            code = _end_interrupted()
        except Exception:
            if not _interrupted.is_set():
                raise  # a bug: its traceback is wanted
            code = _end_interrupted()  # an interrupted compilation ends in errors of all kinds
        raise typer.Exit(code or 0)

    return app.command()(wrapped)


def _end_interrupted() -> int:
    say("interrupted")
    return 130


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
    _interrupted.set()
    raise KeyboardInterrupt


def _report_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):  # those end in an error of their own, told as "interrupted"
        sys.__unraisablehook__(unraisable)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log on stderr, e.g. which kernels run and why.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"runnel {installed('runnel')}")
        raise typer.Exit
    if verbose:
        import logging

        logging.basicConfig(level=logging.INFO, format="runnel: %(message)s")


@_command
def find(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What is asked, as a question or as words.", show_default=False)],
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Text files to read; - is standard input.", show_default=False)
    ],
    model: _Model = "pocket",
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Sentences to show, over all files together.")] = 5,
    context: Annotated[int, typer.Option("--context", "-c", min=0, help="Sentences to show before and after each one.")] = 1,
    encoding: Annotated[
        str | None, typer.Option(help="Encoding of the files; default UTF-8, or what a byte order mark says.")
    ] = None,
    as_json: _Json = False,
) -> int:
    """Show the sentences of FILEs that answer QUERY, with their place. One pass over each file, however long."""
    from runnel.commands.find import run

    return run(query, files, model=model, top_k=top_k, context=context, encoding=encoding, as_json=as_json)


@_command
def embed(
    texts: Annotated[
        str, typer.Argument(metavar="INPUT", help="jsonl (id, text), tsv (id, text) or txt (a text a line); - is stdin.")
    ],
    to: Annotated[str, typer.Option(help="OUT.npy (ids go to OUT.ids) or OUT.jsonl.", show_default=False)],
    model: _Model = "pocket",
    as_query: Annotated[bool, typer.Option("--query/--document", help="Which of the model's prompts each text gets.")] = False,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Take part I of N of the rows (I from 1): row r goes to part r mod N.")
    ] = None,
    max_tokens: _MaxTokens = None,
    pooling: Annotated[
        Literal["cls", "eos", "mean"] | None,
        typer.Option(help="Vector of a text: its first token's, its last's or the mean; default: what the model was made for."),
    ] = None,
    as_json: _Json = False,
) -> int:
    """Write one vector for each text of INPUT. Stopped work goes on where it was when the same command is run again."""
    from runnel.commands.embed import run

    return run(
        texts,
        to,
        model=model,
        as_query=as_query,
        shard=shard,
        max_tokens=max_tokens,
        pooling=pooling,
        as_json=as_json,
    )


@_command
def rerank(
    query: Annotated[str | None, typer.Argument(help="One query ...", show_default=False)] = None,
    documents: Annotated[
        str | None,
        typer.Argument(help="... and the documents to rank for it: jsonl, tsv or txt; - is stdin.", show_default=False),
    ] = None,
    queries: Annotated[str | None, typer.Option(help="Or many queries: jsonl or tsv (id, text).", show_default=False)] = None,
    corpus: Annotated[
        str | None, typer.Option(help="Documents of the candidates: jsonl or tsv (id, text).", show_default=False)
    ] = None,
    candidates: Annotated[
        str | None, typer.Option("--run", help="TREC run with the candidates of each query.", show_default=False)
    ] = None,
    to: Annotated[str | None, typer.Option(help="TREC run to write.", show_default=False)] = None,
    model: _Model = "pocket",
    top_k: Annotated[
        int | None, typer.Option("--top-k", "-k", min=1, help="Documents to keep for each query; default all.")
    ] = None,
    depth: Annotated[int | None, typer.Option(min=1, help="Candidates to take from the run for each query; default all.")] = None,
    memory: Annotated[
        str | None, typer.Option(help="Folder for the states of read documents, kept and used again; default: in RAM.")
    ] = None,
    dtype: Annotated[Literal["int8", "bf16", "fp32"], typer.Option(help="Precision of those states.")] = "int8",
    template: Annotated[
        Literal["rankmamba", "ssm-rerankers", "pair"] | None,
        typer.Option(help="How a pair is written: as in a paper, or as the tokenizer does; default: the model's own."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Cut documents so that they and the query keep to this many tokens; the number cut is reported."
        ),
    ] = None,
    as_json: _Json = False,
) -> int:
    """Order documents by how well they answer a query: one QUERY over DOCUMENTS, or --queries, --corpus, --run and --to.

    Each document is read once, whatever the number of queries. Stopped work goes on where it was when the same command
    is run again.
    """
    from runnel.commands import rerank as command

    many = {"--queries": queries, "--corpus": corpus, "--run": candidates, "--to": to}
    if query is not None and documents is not None and not any(many.values()):
        return command.one(query, documents, model=model, top_k=top_k, template=template, max_tokens=max_tokens, as_json=as_json)
    missing = [name for name, value in many.items() if value is None]
    if query is not None or missing:
        raise typer.BadParameter(
            f"give QUERY and DOCUMENTS, or all of {', '.join(many)}"
            + (f"; {', '.join(missing)} missing" if query is None else "")
        )
    return command.many(
        str(queries),
        str(corpus),
        str(candidates),
        str(to),
        model=model,
        top_k=top_k,
        depth=depth,
        memory=memory,
        dtype=dtype,
        template=template,
        max_tokens=max_tokens,
        as_json=as_json,
    )


@_command
def info(
    model: Annotated[str, typer.Argument(help="Built-in name (pocket), folder, weights file or hub id.")] = "pocket",
    as_json: _Json = False,
) -> int:
    """Show what a model is: architecture, sizes, memory per sequence, heads, templates, and what fits this machine."""
    from runnel.commands.info import run

    return run(model, as_json=as_json)


@_command
def bench(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL-OR-SHAPE]...", help="Model folders, pocket, or shapes such as mamba2-130m.", show_default=False
        ),
    ] = None,
    lengths: Annotated[str, typer.Option(help="Tokens of a text, with commas between; 8k is 8192.")] = "512,2048",
    batches: Annotated[
        str | None, typer.Option(help="Texts at a time; default 1, in training 1 to 16.", show_default=False)
    ] = None,
    dtypes: Annotated[str, typer.Option(help="bf16, fp32 or both.")] = "bf16",
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
    check: Annotated[
        bool, typer.Option("--check", help="Instead: a quick look whether this package is as fast as it should be.")
    ] = False,
) -> int:
    """Measure speed and memory of models or shapes. No figure is shown unless the results agree with a plain fp64 run."""
    from runnel.commands import bench as command

    if (page is not None) + check + bool(models) != 1:
        raise typer.BadParameter("give MODEL-OR-SHAPE..., or --page DIR, or --check")
    if check:
        return command.check()
    if page is not None:
        return command.page(page)
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


def main() -> None:
    """Run the command in `sys.argv`; ends in SystemExit."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows "?" instead of failing
    signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = _report_unraisable
    warnings.showwarning = lambda message, *rest, **more: say(f"warning: {message}")
    app(prog_name="runnel")


def console() -> None:
    """Entry point of the console script: `main` for a process of its own.

    It ends without taking the interpreter and the compiled kernels apart, which takes most of a second.
    """
    gc.set_threshold(100_000, 50, 50)  # imports make a million objects that stay; looking through them takes a quarter second
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except BrokenPipeError:
            code = code or 1
        os._exit(code)


if __name__ == "__main__":
    console()
