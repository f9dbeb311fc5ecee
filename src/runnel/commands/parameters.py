"""The arguments and options that commands share, as parameters of their functions, and the refusals
of options that do not go together.

The types (`Query`, `Model`, ...) annotate single parameters; the dataclasses (`FormOptions`, ...)
are groups: each field is an option of the command (`cli.py` makes them). `refuse` and
`refuse_others` raise usage errors for options without effect.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from inspect import signature
from typing import Annotated, Any, Literal

import typer

Query = Annotated[str, typer.Argument(metavar="QUERY", help="A question, or words to look for.")]
Model = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="pocket, minilm-mamba2, pocket-mamba2, a folder or a hub id."
    ),
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
OcrOption = Annotated[
    str | None,
    typer.Option(
        "--ocr",
        metavar="COMMAND",
        help='Read scanned pages by a command: "tesseract {image} stdout".',
    ),
]
PARSE_SECONDS = 120  # equals `Limits.seconds`, whose import would take time
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
        refuse({f"{' and '.join(names)} are forms of output; give one of them": len(forms) > 1})
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
        f"--{field.name.replace('_', '-')}": getattr(group, field.name) != field.default
        for field in fields(group)
    }


def refuse(cases: Mapping[str, object]) -> None:
    """Raise a usage error with the first message, which names an option, whose case holds."""
    for message, holds in cases.items():
        if holds:
            raise typer.BadParameter(message)


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
            refuse({f"{shown} has no effect with {option}": was_given})
