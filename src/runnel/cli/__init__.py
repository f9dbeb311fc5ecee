"""The command line: declares commands and options, and turns errors into one line and an exit code.

Exit codes: 0 done; 1 an error, told in one line on stderr; 2 wrong usage; 130 interrupted. What a command does is in
`runnel.commands`, imported when it runs, so that `runnel --help` imports neither torch nor numpy.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings

import typer

from runnel.cli import documents, models, texts
from runnel.cli.command import USAGE_ERROR, app, end_interrupted, interrupt, report_unraisable, report_usage
from runnel.commands.display import report_bug, say

__all__ = ["console", "documents", "main", "models", "texts"]


def main() -> None:
    """Run the command in `sys.argv`; ends in SystemExit."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows "?" instead of failing
    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = report_unraisable
    warnings.showwarning = lambda message, *rest, **more: say(f"warning: {message}")
    try:
        code = app(prog_name="runnel", standalone_mode=False)
    except USAGE_ERROR as error:
        code = report_usage(error)
    except typer.Abort:
        code = end_interrupted()
    sys.exit(code)


def console() -> None:
    """Entry point of the console script: `main` for a process of its own.

    It ends without taking the interpreter and the compiled kernels apart, which takes most of a second.
    """
    gc.set_threshold(100_000, 50, 50)  # imports make a million objects that stay; looking through them takes a quarter second
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        report_bug(error)
        code = 1
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = code or 1
    os._exit(code)
