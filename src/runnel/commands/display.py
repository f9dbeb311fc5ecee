"""The options that commands share, and how they show results: notes, errors and progress on stderr,
JSON or text on stdout.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from runnel.errors import InputError
from runnel.jobs.progress import WorkProgress
from runnel.redaction import redact

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderHook
    from rich.progress import Progress

Query = Annotated[str, typer.Argument(metavar="QUERY", help="A question, or words to look for.")]
Model = Annotated[
    str,
    typer.Option("--model", "-m", help="Built-in name (pocket, pocket-mamba2), folder or hub id."),
]
ModelOfIndex = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="Built-in name, folder or hub id (default: the index's own, else pocket).",
    ),
]
Dtype = Annotated[
    Literal["auto", "bf16", "fp32", "int8"],
    typer.Option(
        help=(
            "Precision of weights; auto is bf16 where the processor multiplies it. int8 is fastest"
            " on CPUs."
        )
    ),
]
Include = Annotated[
    list[str] | None,
    typer.Option("--include", metavar="GLOB", help="Of folders, read only these, e.g. *.md."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="GLOB", help="Skip files and folders, e.g. drafts/."),
]
OcrOption = Annotated[
    str | None,
    typer.Option(
        "--ocr",
        metavar="COMMAND",
        help='Read scanned pages by a command: "tesseract {image} stdout".',
    ),
]
PARSE_SECONDS = 120  # as `Limits.seconds`, whose import would take time
ParseSeconds = Annotated[
    int,
    typer.Option(
        "--parse-seconds",
        metavar="SECONDS",
        min=1,
        max=10**6,
        help="Most processor time to parse a file.",
    ),
]
Encoding = Annotated[
    str | None, typer.Option(help="Text encoding (default: detect, and warn when guessing).")
]
NoIgnore = Annotated[
    bool, typer.Option("--no-ignore", help="Also read files that .gitignore files ignore.")
]
Threads = Annotated[int, typer.Option(min=1, help="Requests at a time.")]
TestSets = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TESTSET",
        help="Leave out what shares sentences with it, or with qa:PATH; repeatable.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
NoUpdate = Annotated[
    bool, typer.Option("--no-update", help="Do not bring the project's index up to date first.")
]
Device = Annotated[
    str,
    typer.Option(
        "--device", help="Where models run: cpu, cuda or cuda:1; auto: on a GPU if there is one."
    ),
]
ShowProgress = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress",
        help="Show progress on stderr (default: yes, without --quiet).",
        show_default=False,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Write only errors to stderr: no notes, warnings and progress."
    ),
]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Log on stderr, e.g. kernels and the time of each stage."),
]
_OF_ALL = ("progress", "quiet", "verbose")


@dataclass(frozen=True)
class Bm25Options:
    """The settings of BM25."""

    k1: Annotated[
        float | None,
        typer.Option(help="BM25: how much the repetition of a word counts.", show_default="0.9"),
    ] = None
    b: Annotated[
        float | None,
        typer.Option(help="BM25: how much the length of a document counts.", show_default="0.4"),
    ] = None


@dataclass(frozen=True)
class PromptOptions:
    """What an embedder reads before texts."""

    prompt: Annotated[
        str | None, typer.Option(help="What is read before each query (default: the model's own).")
    ] = None
    document_prompt: Annotated[str | None, typer.Option(help="The same before each document.")] = (
        None
    )

    def by_kind(self) -> dict[str, str]:
        return given(query=self.prompt, document=self.document_prompt)


Form = Literal["layout", "plain", "files", "jsonl", "json"]


@dataclass(frozen=True)
class FormOptions:
    """The form of the output."""

    plain: Annotated[
        bool,
        typer.Option(
            "--plain",
            help="Print PATH:LINE:TEXT, one result per line (default where stdout is no terminal).",
        ),
    ] = False
    files: Annotated[
        bool,
        typer.Option(
            "--files-with-matches", "-l", help="Print only the names of the results' files."
        ),
    ] = False
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Print one JSON object per result, in a line each.")
    ] = False
    as_json: Json = False

    def form(self) -> Form:
        """Return the form that the options ask for; by default the layout on a terminal, and else
        plain lines.

        FORCE_COLOR asks for the layout where there is no terminal, as for other programs.
        """
        options: dict[Form, bool] = {
            "plain": self.plain,
            "files": self.files,
            "jsonl": self.jsonl,
            "json": self.as_json,
        }
        forms = [form for form, wanted in options.items() if wanted]
        names = ["--files-with-matches" if form == "files" else f"--{form}" for form in forms]
        refuse({" and ".join(names): len(forms) > 1}, "are forms of output; give one of them")
        terminal = sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))
        return forms[0] if forms else "layout" if terminal else "plain"


def given(**options: Any) -> dict[str, Any]:
    """Return the options that have a value."""
    return {name: value for name, value in options.items() if value is not None}


def given_options(group: Any) -> dict[str, object]:
    """Return whether the fields of a dataclass differ from their defaults, by option; each option
    has the name of its field.
    """
    return {
        f"--{one.name.replace('_', '-')}": getattr(group, one.name) != one.default
        for one in fields(group)
    }


def refuse(values: Mapping[str, object], why: str) -> None:
    """Raise a usage error for the first of `values`, by option, that is not empty: it would have no
    effect.
    """
    for name, value in values.items():
        if value:
            raise typer.BadParameter(f"{name} {why}")


def refuse_others(context: typer.Context, option: str, form: Callable[..., int]) -> None:
    """Raise a usage error for what was given and has no effect on a form of a command, which
    `option` chooses.

    The parameters of the form are the options that it takes; --device has an effect on one that
    takes a model.
    """
    takes = signature(form).parameters
    has_effect = {*takes, *_OF_ALL, *(["device"] if "model" in takes else [])}
    for parameter in context.command.params:
        shown = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.metavar
        source = context.get_parameter_source(str(parameter.name))
        was_given = source is not None and source.name == "COMMANDLINE"
        if parameter.name not in has_effect and shown != option:
            refuse({str(shown): was_given}, f"has no effect with {option}")


# ---- stderr and stdout ---------------------------------------------------------------------------
# Characters in JSON that a terminal would act on or hide; JSON has escapes for all of them.
_UNSAFE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
_JOINERS = "\u200c\u200d"

_log = logging.getLogger("runnel")
_progress_shown = True


def show_on_stderr(progress: bool | None, *, quiet: bool, verbose: bool) -> None:
    """Choose what this command writes to stderr besides errors: progress, notes and warnings, and
    with `verbose` all logs.
    """
    refuse({"--verbose": quiet and verbose}, "cannot be given with --quiet")
    global _progress_shown
    _progress_shown = not quiet if progress is None else progress
    logging.basicConfig(handlers=[LogLines()])
    logging.root.setLevel(logging.ERROR if quiet else logging.WARNING)
    _log.setLevel(logging.INFO if verbose else logging.ERROR if quiet else logging.WARNING)


def printable(text: str) -> str:
    """Replace characters that a terminal would act on by U+FFFD, keeping the length.

    Control characters would move the cursor or worse, and direction marks would reorder the text.
    Spaces, tabs and line feeds are kept, other line ends become spaces. Joiners are kept after
    letters and emoji of the scripts that use them.
    """
    if text.isprintable():
        return text
    return "".join(map(_printable, text, " " + text))


def _printable(c: str, before: str) -> str:
    if c.isprintable() or c in "\n\t" or unicodedata.category(c) == "Zs":
        return c
    if c.isspace():
        return " "
    joins = c in _JOINERS and not before.isascii() and unicodedata.category(before)[0] in "LMS"
    return c if joins else "\ufffd"


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
    from runnel.records import unanswered

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


def stdout_console() -> Console:
    """Return a console: colors on a terminal, else plain text of at least 100 columns. Text is
    `printable`, without markup.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = max(100, console.width)
        console.no_color = True
    console.push_render_hook(_printable_hook())
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


@cache
def _printable_hook() -> RenderHook:
    from rich.console import ConsoleRenderable, RenderHook
    from rich.segment import Segment

    class Printable:
        def __init__(self, inner: ConsoleRenderable) -> None:
            self._inner = inner

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
            for part in console.render(self._inner, options):
                yield part if part.control else Segment(printable(part.text), part.style)

    class Hook(RenderHook):
        def process_renderables(
            self, renderables: list[ConsoleRenderable]
        ) -> list[ConsoleRenderable]:
            return [Printable(one) for one in renderables]

    return Hook()


_FIRST_S, _EVERY_S = 5.0, 10.0  # until the first line of progress, and from one to the next
_BAR_S = 1.0  # until the bar


class Meter(WorkProgress):
    """Progress on stderr of work that takes long: a bar on a terminal, elsewhere a line after 5
    seconds and then every 10.

    Use as a context; it is the `progress` of a call.
    """

    def __init__(self, label: str, unit: str = "tokens") -> None:
        self.label, self._unit = label, unit
        self._start = time.monotonic()
        self._done = 0
        self._total: int | None = None
        self._bar: Progress | None = None
        self._over = threading.Event()
        self._on_terminal = sys.stderr.isatty()
        lines = _progress_shown and not self._on_terminal
        self._lines = threading.Thread(target=self._say_lines, daemon=True) if lines else None

    def __enter__(self) -> Meter:
        if self._lines is not None:
            self._lines.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._lines is not None:
            self._lines.join()
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int | None = None) -> None:
        self._done, self._total = done, total
        if not (_progress_shown and self._on_terminal) or time.monotonic() - self._start < _BAR_S:
            return
        if self._bar is None:
            self._bar = self._open()
        self._bar.update(
            self._bar.task_ids[0],
            completed=done,
            total=total,
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

    def _open(self) -> Progress:
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
