"""What every command has: its errors become one line and an exit code. And the options that several of them share."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Annotated, Any, Literal

import typer

from runnel.commands.display import LogLines, describe, print_text, printable, say
from runnel.errors import RunnelError

app = typer.Typer(
    name="runnel",
    help="One pass over a text of any length, in model memory that never grows: its vector, its relevance, "
    "or the sentences that answer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]  # click's, or what typer has in its place
interrupted = threading.Event()  # Ctrl-C was pressed

Model = Annotated[str, typer.Option("--model", "-m", help="Built-in name (pocket, pocket-mamba2), folder or hub id.")]
Dtype = Annotated[
    Literal["auto", "bf16", "fp32", "int8"],
    typer.Option(
        help="Precision of the model's weights; auto is bf16 where the processor multiplies it. int8 is fastest on CPUs."
    ),
]
IN_FULL = {"auto": "auto", "bf16": "bfloat16", "fp32": "float32", "int8": "int8"}  # as `load_backbone` calls them
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Log on stderr, e.g. which kernels run, or the time of each stage.")
]
MaxTokens = Annotated[
    int | None, typer.Option(min=1, help="Cut texts (rerank: pairs) to this many tokens, special ones included.")
]


def command(run: Callable[..., int | None]) -> Callable[..., None]:
    """Make `run` a command: its errors become one line on stderr and exit code 1, Ctrl-C 130, its return value the exit code.

    It also gets --verbose, which `runnel` itself has, too: people write it in either place.
    """

    @functools.wraps(run)
    def wrapped(*args: object, verbose: bool = False, **options: object) -> None:
        if verbose:
            _log(logging.INFO)
        try:
            code = run(*args, **options)
        except BrokenPipeError:
            raise  # typer ends quietly when the reader of a pipe has left
        except (RunnelError, OSError) as error:
            say(f"error: {describe(error)}")
            code = 1
        except KeyboardInterrupt:
            code = end_interrupted()
        except Exception:
            if not interrupted.is_set():
                raise  # a bug: its traceback is wanted
            code = end_interrupted()  # an interrupted compilation ends in errors of all kinds
        raise typer.Exit(code or 0)

    own = inspect.signature(run, eval_str=True)
    extra = inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Verbose)
    wrapped.__signature__ = own.replace(parameters=[*own.parameters.values(), extra])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {name: one.annotation for name, one in own.parameters.items()} | {"verbose": Verbose}
    return app.command()(wrapped)


def report_usage(error: Any) -> int:
    """Show a mistake in the arguments, which it may quote; return its exit code."""
    from typer.rich_utils import rich_format_error

    error.message = printable(error.message)
    rich_format_error(error)
    return int(error.exit_code)


def _log(level: int) -> None:
    logging.basicConfig(level=level, handlers=[LogLines()])
    logging.getLogger("runnel").setLevel(level)


def end_interrupted() -> int:
    """Report Ctrl-C; return its exit code."""
    say("interrupted")
    return 130


def interrupt(signal_number: int, frame: FrameType | None) -> None:
    """Ctrl-C, remembered: what it breaks off may end in an error of another kind."""
    interrupted.set()
    raise KeyboardInterrupt


def report_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Tell errors that nobody can catch, all but Ctrl-C: that ends in an error of its own, told as "interrupted"."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    verbose: Verbose = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print_text(f"runnel {installed('runnel')}")
        raise typer.Exit
    _log(logging.INFO if verbose else logging.WARNING)
