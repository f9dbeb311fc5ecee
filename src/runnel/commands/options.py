"""Options that several commands share, and refusing those that have no effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from runnel.text.folders import Selection

Query = Annotated[str, typer.Argument(metavar="QUERY", help="A question, or words to look for.")]
Model = Annotated[str, typer.Option("--model", "-m", help="Built-in name (pocket, pocket-mamba2), folder or hub id.")]
Dtype = Annotated[
    Literal["auto", "bf16", "fp32", "int8"],
    typer.Option(
        help="Precision of the model's weights; auto is bf16 where the processor multiplies it. int8 is fastest on CPUs."
    ),
]
DTYPES = {"auto": "auto", "bf16": "bfloat16", "fp32": "float32", "int8": "int8"}  # as `load_backbone` calls them
K1Option = Annotated[float | None, typer.Option(help="BM25: how much the repetition of a word counts.", show_default="0.9")]
BOption = Annotated[float | None, typer.Option(help="BM25: how much the length of a document counts.", show_default="0.4")]
Prompt = Annotated[str | None, typer.Option(help="Text that the embedder reads before each query (default: the model's own).")]
DocumentPrompt = Annotated[str | None, typer.Option(help="The same before each document.")]
Include = Annotated[
    list[str] | None, typer.Option("--include", metavar="GLOB", help="Of folders, read only matching files, e.g. *.md.")
]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="GLOB", help="Skip matching files and folders, e.g. drafts/.")
]
OcrOption = Annotated[
    str | None,
    typer.Option(
        "--ocr", metavar="COMMAND", help='Read scanned pages of PDF files by a command, e.g. "tesseract {image} stdout".'
    ),
]
NoIgnore = Annotated[bool, typer.Option("--no-ignore", help="Also read files that .gitignore files ignore.")]
Llm = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Endpoint like OpenAI's, e.g. http://127.0.0.1:8080/v1; or local:MODEL.", envvar="OPENAI_BASE_URL"
    ),
]
LlmModel = Annotated[
    str | None, typer.Option(metavar="NAME", help="Its model (default: the only one it lists).", envvar="RUNNEL_LLM_MODEL")
]
Batch = Annotated[bool, typer.Option("--batch", help="Send requests in batches, which cost less and take up to a day.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
JsonLines = Annotated[bool, typer.Option("--jsonl", help="Print one JSON object per result, in a line each.")]
Plain = Annotated[
    bool, typer.Option("--plain", help="Print PATH:LINE:TEXT, one result per line (default where stdout is no terminal).")
]
NoUpdate = Annotated[bool, typer.Option("--no-update", help="Do not bring the project's index up to date first.")]
FilesOnly = Annotated[bool, typer.Option("--files-with-matches", "-l", help="Print only the names of the results' files.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Log on stderr, e.g. which kernels run, or the time of each stage.")
]


def select(include: Sequence[str] | None, exclude: Sequence[str] | None, no_ignore: bool) -> Selection:
    """Return the selection that --include, --exclude and --no-ignore describe.

    Raises:
        InputError: an invalid glob.
    """
    from runnel.text.folders import Selection

    return Selection(tuple(include or ()), tuple(exclude or ()), not no_ignore)


def refuse(given: Mapping[str, object], why: str) -> None:
    """Raise a usage error for the first of `given`, values by option, that has a value: it would have no effect."""
    for name, value in given.items():
        if value:
            raise typer.BadParameter(f"{name} {why}")


def refuse_others(context: typer.Context, option: str, allowed: Iterable[str]) -> None:
    """Raise a usage error for a given option that has no effect with `option`; those in `allowed`, and --verbose, have."""
    for parameter in context.command.params:
        name, source = parameter.opts[0], context.get_parameter_source(str(parameter.name))
        has_effect = {option, "--verbose", *allowed}
        if name not in has_effect and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"{name} has no effect with {option}")
