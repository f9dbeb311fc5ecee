"""What the commands show: notes, errors and progress on stderr; JSON or text on stdout."""

from __future__ import annotations

import json
import sys
import time
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def say(message: str) -> None:
    """One line on stderr, where notes, progress and errors go."""
    sys.stderr.write(f"runnel: {message}\n")


def describe(error: Exception) -> str:
    """An error in one line."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def print_json(value: object) -> None:
    """One JSON object on stdout."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")  # half a surrogate pair: JSON's escape


def stdout_console() -> Console:
    """Colours on a terminal; plain text of at least 100 columns elsewhere."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=max(100, console.width), no_color=True)


@cache
def note_compiling() -> None:
    """Have it said, once, when a kernel is compiled because numba's cache does not have it."""
    from numba.core import event

    class Note(event.Listener):
        said = False

        def on_start(self, event: event.Event) -> None:
            if not self.said:
                self.said = True
                say("compiling kernels for this processor, once; later runs start at once")

        def on_end(self, event: event.Event) -> None:
            pass

    event.register("numba:compile", Note())


class Meter:
    """A progress bar in tokens/s on stderr, shown when work on a terminal has taken more than `delay_s`.

    Use as a context; call with (tokens done, tokens in all or None), or `add` tokens.
    """

    def __init__(self, label: str, *, unit: str = "tokens", delay_s: float = 1.0, console: Console | None = None) -> None:
        self.label, self._unit, self._delay_s, self._console = label, unit, delay_s, console
        self._start = time.monotonic()
        self._done = 0
        self._wanted = console is not None or sys.stderr.isatty()
        self._bar: Progress | None = None

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int | None = None) -> None:
        if not self._wanted or time.monotonic() - self._start < self._delay_s:
            return
        if self._bar is None:
            self._bar = self._open()
        seconds = time.monotonic() - self._start
        self._bar.update(
            self._bar.task_ids[0],
            completed=done,
            total=total,
            description=self.label,
            speed=f"{done / seconds:,.0f} {self._unit}/s",
        )

    def add(self, tokens: int) -> None:
        """Count `tokens` more."""
        self._done += tokens
        self(self._done)

    def _open(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn(f"{{task.completed:,}} {self._unit}  {{task.fields[speed]}}"),
            TimeRemainingColumn(),
            console=self._console or Console(stderr=True),
            transient=True,
        )
        bar.add_task(self.label, total=None, speed="")
        bar.start()
        return bar
