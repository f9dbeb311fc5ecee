"""`runnel lab qa`: questions about long documents, answered by a language model (`--llm`) from what
MODEL retrieves, and judged by a language model (docs/qa.md). `examine` does it; here are its
options and its table.

MODEL is what retrieves the text to read for a question from its document: a model or bm25 retrieves
sentences or chunks. Two words retrieve nothing, and are compared with retrieval:

    whole     the language model reads the whole document, in windows if it is longer than one
    copied    the language model first copies the sentences that matter, and answers from these
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from runnel.commands import ask, display, parameters
from runnel.errors import counted


@dataclass(frozen=True)
class ExcerptOptions:
    """What is read for a question."""

    how: Annotated[
        Literal["sentences", "embed"] | None,
        typer.Option("--as", help="What MODEL does (default: sentences)."),
    ] = None
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", "-k", min=1, help="Sentences (50) or chunks (5) to read."),
    ] = None
    context: Annotated[
        str | None, typer.Option(help="Tokens of the pieces to retrieve from, or: sentence.")
    ] = None
    chunk_words: Annotated[
        int | None, typer.Option(min=1, help="Retrieve chunks of this many words, not sentences.")
    ] = None
    window_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a window (default: whole, copied 120000; else none)."),
    ] = None
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens from one window to the next (default: half).")
    ] = None


def qa(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="What retrieves: a model, bm25; copied: --llm copies sentences; whole: nothing.",
        ),
    ],
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...", help="Files or folders of questions, documents, answers."
        ),
    ],
    *,
    dtype: parameters.Dtype = "auto",
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Keep results and all replies, and resume there.")
    ],
    only: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME", help="One of the sets there (repeatable)."),
    ] = None,
    asked: ask.LlmOptions = ask.LlmOptions(),
    threads: parameters.Threads = 8,
    judge: Annotated[
        str | None, typer.Option(metavar="URL", help="Endpoint of the judge (default: the same).")
    ] = None,
    judge_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The judge (default: the same model).")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prompts of your own for the judge (docs/data.md)."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Rows with a person\'s "right": measure the judge.'),
    ] = None,
    excerpts: ExcerptOptions = ExcerptOptions(),
    answer_tokens: Annotated[
        int, typer.Option(min=1, help="The most tokens of a reply with an answer.")
    ] = 2000,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Questions of each set, drawn at random (default: all)."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed draws others.")] = 0,
    as_json: parameters.Json = False,
) -> int:
    """Measure how well a language model answers each PATH's questions from what MODEL retrieves.

    Prints a table of scores.
    Example: runnel lab qa pocket questions.jsonl --out pocket

    Repeat the command after an interruption: no reply is paid for twice. Exit code 1: some
    questions have no reply yet.
    """
    from runnel.lab.evaluation.qa.examination import examine

    # a judge without one of its options is as for the answers; without both it is the same endpoint
    judged_by = ask.LlmOptions(judge or asked.llm, judge_model or asked.llm_model)
    report = examine(
        model,
        paths,
        out,
        asked.open(),
        judged_by.open() if judge or judge_model else None,
        only=only or (),
        limit=limit,
        seed=seed,
        labels=labels,
        prompts=prompts,
        dtype=dtype,
        answer_tokens=answer_tokens,
        threads=threads,
        **asdict(excerpts),
    )
    if as_json:
        display.print_json(report)
    else:
        _print_report(report)
    return 1 if report["all"]["unanswered"] else 0


def _print_report(report: Mapping[str, Any]) -> None:
    """Print a row of scores for each set of questions and for each group by category and length,
    the judge's agreement with people's labels, and the cost of each language model.
    """
    display.print_text(
        f"{report['model']} as {report['as']}: answers by {report['llm_model']}, judged by"
        f" {report['judge']}"
    )
    rows = [_score_row(part["task"], part) for part in report["sets"]]
    if len(report["sets"]) > 1:
        rows.append(_score_row("all questions", report["all"]))
        rows.append(_score_row("mean of sets", report["mean_of_sets"]))
    for groups in (report["by_category"], report["by_length"]):
        rows += [_score_row(group["name"], group) for group in groups]
    display.print_table(
        ["questions", "number", "right", "95 % interval", "token F1", "no verdict", "no reply"],
        rows,
    )
    if (agreement := report["agreement"]) is not None:
        # the F1 of the verdicts YES and of the verdicts NO; the macro F1 is their mean
        each = ", ".join(
            f"{name} {value:.3f}" for name, value in agreement["f1"].items() if value is not None
        )
        display.print_text(
            f"agreement with {counted(agreement['labeled'], 'label')}: macro F1"
            f" {agreement['macro_f1']:.3f} ({each}), {agreement['accuracy']:.1%} of verdicts equal"
        )
    for name, used in report["cost"].items():
        if used["requests"]:
            display.print_text(
                f"{name}: {counted(used['requests'], 'request')},"
                f" {counted(used['prompt_tokens'], 'token')} read,"
                f" {used['completion_tokens']:,} written"
            )


def _score_row(name: str, scores: Mapping[str, Any]) -> list[str]:
    """Return a row of the table. Its heads are "right" for accuracy, the share of right answers,
    "no verdict" for answers whose verdict is unreadable, "no reply" for unanswered questions.
    """

    def count(key: str) -> str:
        return f"{scores[key]:,}" if key in scores else ""

    return [
        name,
        count("questions"),
        "" if scores["accuracy"] is None else f"{scores['accuracy']:.1%}",
        "" if scores["low"] is None else f"{scores['low']:.1%} to {scores['high']:.1%}",
        "" if scores["F1"] is None else f"{scores['F1']:.3f}",
        count("unreadable"),
        count("unanswered"),
    ]
