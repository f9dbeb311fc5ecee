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

from runnel.cli import documents, models, texts
from runnel.cli.command import app, interrupt, report_unraisable
from runnel.commands.display import say

__all__ = ["console", "documents", "main", "models", "texts"]


def main() -> None:
    """Run the command in `sys.argv`; ends in SystemExit."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows "?" instead of failing
    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = report_unraisable
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
