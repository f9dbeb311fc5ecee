"""`runnel lab synthesize`: questions about documents with their evidence, by a language model or
from structure.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from runnel.commands import ask, display, parameters
from runnel.errors import InputError, counted


def synthesize(
    context: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="Files, folders, indexes, or jsonl of documents."),
    ],
    *,
    model: parameters.Model = "pocket",
    to: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the examples and the stored replies.")
    ],
    without_llm: Annotated[
        bool, typer.Option("--without-llm", help="Use the structure of documents: headings, lists.")
    ] = False,
    asked: ask.LlmOptions = ask.LlmOptions(),
    threads: parameters.Threads = 8,
    strategy: Annotated[
        Literal["link", "pair", "chunk"],
        typer.Option(
            help="A question is about one place of a document (chunk), two places that are alike"
            " (pair), or two that the model connects (link, the best by paper E)."
        ),
    ] = "link",
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prompts of your own (docs/data.md).")
    ] = None,
    reply_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of a reply.")] = 2000,
    lengths: Annotated[
        str, typer.Option(help="Tokens of the examples' documents, each length as often.")
    ] = "2000,5000,10000",
    unit: Annotated[
        Literal["sentence", "clauses"],
        typer.Option(help="Units of evidence: sentences, or groups of clauses within them."),
    ] = "sentence",
    limit: Annotated[
        int | None, typer.Option(min=1, help="The most examples (default: all).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="For the choice of documents and places.")] = 0,
    exclude: parameters.TestSets = None,
    language: Annotated[
        str | None, typer.Option(metavar="CODE", help="Leave out other languages, e.g. en.")
    ] = None,
    as_json: parameters.Json = False,
) -> int:
    """Let a language model write questions about each SOURCE, with the sentences that answer.

    Writes DIR/STRATEGY.jsonl, for `runnel lab train`; prints counts.
    Example: runnel lab synthesize manuals/ --to examples --llm http://127.0.0.1:8080/v1

    Replies are stored in DIR: repeat the command after an interruption, and nothing is paid for
    twice. The model -m counts tokens; for --strategy pair its vectors say which places are alike.

    With --without-llm, headings, questions, definitions and lists of the documents become the
    questions, in DIR/structure.jsonl; of the options, --limit, --seed, --exclude, --language and
    --json apply.
    """
    if without_llm:
        parameters.refuse_others(context, "--without-llm", _from_structure)
        return _from_structure(sources, to, limit, seed, exclude, language, as_json)
    from runnel.lab.synthesis import examples

    report = examples.synthesize(
        sources,
        to,
        asked.open(),
        examples.Settings(strategy, unit, seed, reply_tokens, threads, language),
        lengths=_numbers(lengths),
        limit=limit,
        exclude=exclude or (),
        model=model,
        prompts=prompts,
    )
    display.print_facts(as_json, report, *_lines(report, to / f"{strategy}.jsonl"))
    return 0 if report["examples"] and not report["stopped"] else 1


def _from_structure(
    sources: list[str],
    to: Path,
    limit: int | None,
    seed: int,
    exclude: list[str] | None,
    language: str | None,
    as_json: bool,
) -> int:
    from runnel.lab.synthesis.examples import ask_structure

    report = ask_structure(
        sources, to, limit=limit, seed=seed, language=language, exclude=exclude or ()
    )
    counts = [f"{count:,} {name}" for name, count in report["examples_by_strategy"].items()]
    display.print_facts(
        as_json,
        report,
        f"{to / 'structure.jsonl'}: {counted(report['examples'], 'example')} from"
        f" {counted(report['parts'], 'part')} of documents ({', '.join(counts) or 'none'})",
    )
    return 0 if report["examples"] else 1


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError as error:
        raise InputError(
            f"--lengths are {text!r}; expected numbers of tokens with commas, such as"
            " 2000,5000,10000"
        ) from error


def _lines(report: dict[str, Any], path: Path) -> Iterator[str]:
    counts = [
        f"{count:,} of {length:,} tokens" for length, count in report["examples_by_length"].items()
    ]
    yield (
        f"{path}: {counted(report['examples'], 'example')} from"
        f" {counted(report['subsequences'], 'subsequence')} ({', '.join(counts)})"
    )
    used = report["used"]
    yield (
        f"{counted(used['requests'], 'request')}, {counted(used['prompt_tokens'], 'token')} read,"
        f" {used['completion_tokens']:,} written"
    )
    if rate := report["per_million_examples"]:
        yield (
            f"a million such examples: {rate['input_tokens'] / 1e6:,.0f} million tokens read,"
            f" {rate['output_tokens'] / 1e6:,.0f} million written"
        )
