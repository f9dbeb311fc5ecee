"""How commands show results: notes, errors and progress on stderr, JSON or text on stdout.

show_on_stderr               what a command writes to stderr, by --quiet, --verbose, --progress
one_line                     a name in one line
say, note_unanswered, report_bug, LogLines, JsonLogLines    lines on stderr
print_text, stream_text, print_json, print_facts, print_results, print_names, print_table,
stdout_console               results on stdout
file_link                    a link to a place in a file
Meter                        progress: a bar on a terminal, else lines
"""

import json
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from runnel.commands.parameters import Form, refuse
from runnel.commands.printable import printable
from runnel.errors import InputError
from runnel.jobs.progress import Item, WorkProgress
from runnel.records import AnsweringSentence, Hit, unanswered
from runnel.redaction import redact

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

# Characters in JSON that a terminal would act on or hide: controls, soft hyphens, direction marks,
# invisible characters, byte order marks, surrogates and tags. JSON has escapes for all of them.
_UNSAFE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)

_log = logging.getLogger("runnel")
_progress_shown = True


def show_on_stderr(progress: bool | None, *, quiet: bool, verbose: bool) -> None:
    """Choose what this command writes to stderr besides errors: progress, notes and warnings, and
    with `verbose` all logs.
    """
    refuse({"--verbose cannot be given with --quiet": quiet and verbose})
    global _progress_shown
    _progress_shown = not quiet if progress is None else progress
    logging.basicConfig(handlers=[LogLines()])
    logging.root.setLevel(logging.ERROR if quiet else logging.WARNING)
    _log.setLevel(logging.INFO if verbose else logging.ERROR if quiet else logging.WARNING)
    # that kernels are compiled, which takes long
    logging.getLogger("runnel.kernels").setLevel(logging.ERROR if quiet else logging.INFO)


def one_line(name: str) -> str:
    """Replace line feeds and tabs by spaces: a name or a heading must not look like lines of the
    output.
    """
    return name.replace("\n", " ").replace("\t", " ")


def say(message: str) -> None:
    """Write one line to stderr; with --quiet only an error."""
    if message.startswith("error") or _log.isEnabledFor(logging.WARNING):
        _write_line(message)


def _write_line(message: str) -> None:
    sys.stderr.write(printable(one_line(redact(f"runnel: {message}"))) + "\n")


def note_unanswered(answers: float | None) -> None:
    """Say so if probably nothing answers, from the probability that something does; None: it is not
    known.
    """
    if said := unanswered(answers):
        say(f"{said}; what comes nearest:")


def report_bug(error: BaseException) -> None:
    """Write the traceback of an unexpected error to stderr."""
    sys.stderr.write(printable(redact("".join(traceback.format_exception(error)))))


class LogLines(logging.Handler):
    """A handler that shows log records as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        _write_line(record.getMessage())
        if record.exc_info and isinstance(record.exc_info[1], Exception):
            report_bug(record.exc_info[1])


class JsonLogLines(logging.Handler):
    """A handler that writes each record as one JSON object on stderr; a record whose message is a
    dict adds its items.
    """

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, object] = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        facts |= (
            record.msg if isinstance(record.msg, dict) else {"message": redact(record.getMessage())}
        )
        if record.exc_info and isinstance(record.exc_info[1], Exception):
            facts["error"] = redact("".join(traceback.format_exception(record.exc_info[1])))
        sys.stderr.write(json.dumps(facts) + "\n")


def print_text(text: str) -> None:
    """Write text and a line end to stdout."""
    sys.stdout.write(printable(text) + "\n")


def stream_text(text: str) -> None:
    """Write a part of a text to stdout at once."""
    sys.stdout.write(printable(text))
    sys.stdout.flush()


def print_json(value: object, *, indent: int | None = 2) -> None:
    """Write one JSON object to stdout; without `indent`, in one line."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    sys.stdout.write(_UNSAFE.sub(lambda found: json.dumps(found[0])[1:-1], text) + "\n")


def print_facts(as_json: bool, facts: object, *lines: str) -> None:
    """Write what a command reports to stdout: as one JSON object, or as lines."""
    if as_json:
        print_json(facts)
    else:
        for line in lines:
            print_text(line)


def print_results(
    form: Form,
    whole: Callable[[], object],
    results: Iterable[AnsweringSentence | Hit],
    names: Iterable[str],
    lines: Iterable[str],
) -> None:
    """Write results to stdout in a form for programs: what `whole` returns as one JSON object, each
    of `results` as one, the different `names` of their files, or `lines`.
    """
    if form == "json":
        print_json(whole())
    elif form == "jsonl":
        for result in results:
            print_json(result.as_json(), indent=None)
    elif form == "files":
        print_names(dict.fromkeys(names))
    else:
        for line in lines:
            print_text(one_line(line))


def print_names(names: Iterable[str]) -> None:
    """Write names of files to stdout, a line each: unchanged for programs, `printable` on a
    terminal.
    """
    for name in names:
        if sys.stdout.isatty():
            print_text(one_line(name))
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(os.fsencode(name) + b"\n")


_EDITOR = "RUNNEL_EDITOR_URI"


def file_link(name: str, *, line: int | None = None, page: int | None = None) -> str:
    """Return a link to a place in a file, for a terminal that opens links.

    A line of text opens in an editor if $RUNNEL_EDITOR_URI says how: a link with {path} and {line},
    such as vscode://file{path}:{line}. Every character of the name that could end the link or act
    on a terminal is escaped.
    """
    path = Path(os.path.abspath(name)).as_uri().removeprefix("file://")
    template = os.environ.get(_EDITOR)
    if template and line is not None:
        if "{path}" not in template or not template.isprintable():
            raise InputError(
                f"{_EDITOR} is {template!r}; expected a link such as vscode://file{{path}}:{{line}}"
            )
        return template.replace("{path}", path).replace("{line}", str(line))
    return f"file://{path}" + (
        f"#page={page}" if page is not None else f"#L{line}" if line is not None else ""
    )


def stdout_console() -> "Console":
    """Return a console: colors on a terminal, else plain text of at least 100 columns. Text is
    `printable`, without markup.
    """
    from runnel.commands.console import PrintableConsole

    console = PrintableConsole(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = max(100, console.width)
        console.no_color = True
    return console


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """Print a table on stdout; the first `left` columns are text, the others numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(header):
        table.add_column(Text(name), justify="left" if place < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    stdout_console().print(table)


_FIRST_S, _EVERY_S = 5.0, 10.0  # until the first line of progress, and from one to the next
_BAR_S = 1.0  # until the bar


class Meter(WorkProgress):
    """Progress on stderr of work that takes long: a bar on a terminal, elsewhere a line after 5
    seconds and then every 10.

    Use as a context; it is the `progress` of a call.
    """

    def __init__(self, label: str, unit: str = "tokens") -> None:
        self.label, self._unit = label, unit
        self._work = label
        self._start = time.monotonic()
        self._done = 0
        self._total: int | None = None
        self._more_files = False  # whether files are yet to be opened, which no total has
        self._bar: Progress | None = None
        self._over = threading.Event()
        self._on_terminal = sys.stderr.isatty()
        lines = _progress_shown and not self._on_terminal
        self._lines = threading.Thread(target=self._say_lines, daemon=True) if lines else None

    def __enter__(self) -> Self:
        if self._lines is not None:
            self._lines.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._lines is not None:
            self._lines.join()
        if self._bar is not None:
            self._bar.stop()

    def files(self, files: Sequence[Item]) -> Iterator[Item]:
        """Yield files, and show which one was opened last, if there are several. A total is of the
        opened files, so it is shown when all are.
        """
        for number, file in enumerate(files, start=1):
            if len(files) > 1:
                self.label = f"{self._work} file {number:,} of {len(files):,}"
            self._more_files = number < len(files)
            self(self._done)
            yield file

    def __call__(self, done: int, total: int | None = None) -> None:
        self._done = done
        self._total = None if self._more_files else total
        if not (_progress_shown and self._on_terminal) or time.monotonic() - self._start < _BAR_S:
            return
        if self._bar is None:
            self._bar = self._open()
        self._bar.update(
            self._bar.task_ids[0],
            completed=done,
            total=self._total,
            description=self.label,
            speed=self._rate(),
        )

    def _say_lines(self) -> None:
        """Write lines until the work is over, also while one step takes long."""
        pause = _FIRST_S
        with suppress(OSError):  # nobody reads them
            while not self._over.wait(pause):
                pause = _EVERY_S
                total = f" of {self._total:,}" if self._total else ""
                done = f"{self._done:,}{total} {self._unit}, {self._rate()}, " if self._done else ""
                _write_line(f"{self.label}: {done}{time.monotonic() - self._start:,.0f} s")

    def _rate(self) -> str:
        rate = self._done / (time.monotonic() - self._start)
        return f"{f'{rate:,.0f}' if rate >= 10 else f'{rate:.2g}'} {self._unit}/s"

    def _open(self) -> "Progress":
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn(f"{{task.completed:,}} {self._unit}  {{task.fields[speed]}}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        bar.add_task(self.label, total=None, speed="")
        bar.start()
        return bar
