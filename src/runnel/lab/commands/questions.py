"""`runnel lab questions`: how well your own questions are answered, by an index or by the sentences
of a folder.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from runnel.commands import display, parameters
from runnel.errors import counted

# where the sentences come from that a question is compared with -> the title in the table
_TITLES = {"document": "in its document", "folder": "all documents"}


def questions(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Questions with the file, page, text or patterns that answer."
        ),
    ],
    *,
    model: parameters.ModelOfIndex = None,
    place: Annotated[
        str,
        typer.Option(
            "--in", metavar="DIR", help="Index to search; for patterns, folder of documents."
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Keep answers and results, and resume there."),
    ] = None,
    how: Annotated[
        Literal["embed", "sentences"] | None,
        typer.Option("--as", help="For patterns (default: sentences)."),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", "-k", min=1, max=50, help="Documents that are looked at (10)."),
    ] = None,
    sweep: Annotated[
        bool,
        typer.Option("--sweep", help="Try settings of the index's search, and print the best."),
    ] = False,
    weight: Annotated[
        float | None, typer.Option(help="Of an index: weight of meaning, where that of words is 1.")
    ] = None,
    rerank: Annotated[
        int | None, typer.Option(min=0, help="Of an index: documents to rerank.")
    ] = None,
    as_json: parameters.Json = False,
) -> int:
    """Measure how well the questions of FILE (jsonl or csv) are answered.

    Prints a table of metrics, and what went wrong.
    Example: runnel lab questions questions.jsonl --in library
    """
    from runnel.lab.evaluation.own import ask_questions

    result = ask_questions(
        file, place, model, how, out=out, top_k=top_k, sweep=sweep, weight=weight, rerank=rerank
    )
    if as_json:
        display.print_json(result)
    elif result["kind"] == "patterns":
        _show_patterns(result)
    else:
        _show_index(result)
    return 0


def _show_index(result: Mapping[str, Any]) -> None:
    metrics = result["metrics"]
    count = result["queries"]
    wrong = [answer for answer in result["answers"] if answer["problem"]]
    first = min(result["top_k"], result["documents"])
    display.print_text(
        f"{count - len(wrong):,} of {count:,} questions answered by the first {first} of"
        f" {result['documents']:,} documents in {display.one_line(result['index'])}"
    )
    names = [name for name in metrics if not name.startswith("place ")]
    rows = [["file", f"{count:,}", *(_number(name, metrics[name]) for name in names)]]
    if result["places"]:
        rows.append(
            [
                "page or text",
                f"{result['places']:,}",
                *(_number(n, metrics[f"place {n}"]) for n in names),
            ]
        )
    display.print_table(["found", "questions", *names], rows)
    if wrong:
        kinds = Counter(answer["problem"]["kind"] for answer in wrong)
        counts = ", ".join(f"{number:,} {kind}" for kind, number in kinds.most_common())
        display.print_text(f"what went wrong: {counts}")
    for answer in wrong:
        display.print_text(f"  {answer['id']}. {display.one_line(answer['question'])}")
        display.print_text(f"     expected {display.one_line(answer['expected'])}")
        display.print_text(f"     {display.one_line(answer['problem']['text'])}")
        if answer["rank"] != 1 and answer["found"]:
            files = [display.one_line(Path(name).name) for name in answer["found"][:3]]
            display.print_text(f"     first: {', '.join(files)}")
    if "settings" in result:
        rows = [
            [
                s["name"],
                *(_number(name, s["metrics"][name]) for name in names),
                f"{s['difference']:+.3f}",
                f"{s['p']:.3f}",
            ]
            for s in result["settings"]
        ]
        display.print_text("")
        display.print_table(["settings", *names, "difference", "p"], rows)
        display.print_text(result["advice"])


def _show_patterns(result: Mapping[str, Any]) -> None:
    display.print_text(
        f"{display.one_line(result['model'])} as {result['as']}: {result['queries']:,} questions"
        f" with an answer, {result['unanswerable']:,} without, {len(result['left_out']):,} left"
        f" out; {result['sentences']:,} sentences of {counted(result['documents'], 'document')}"
    )
    rankings = result["rankings"]
    metrics = list(rankings[0]["metrics"])
    heads = [
        f"{display.one_line(Path(ranking['system']).name)}, {_TITLES[ranking['place']]}"
        for ranking in rankings
    ]
    cells = [
        [f"{mean:.3f} ({low:.2f}-{high:.2f})" for mean, low, high in ranking["metrics"].values()]
        for ranking in rankings
    ]
    display.print_table(
        ["", *heads], [[metric, *row] for metric, *row in zip(metrics, *cells, strict=True)]
    )
    for ranking in rankings:
        if (kinds := ranking["kinds"]) and ranking["system"] == rankings[0]["system"]:
            rows = []
            for kind, values in kinds.items():
                rows.append(
                    [
                        display.one_line(kind),
                        f"{values['queries']:,}",
                        *[f"{values['metrics'][metric][0]:.3f}" for metric in metrics],
                    ]
                )
            display.print_table([_TITLES[ranking["place"]], "questions", *metrics], rows)


def _number(name: str, value: float) -> str:
    return f"{value:.3f}" if name == "MRR" else f"{value:.0%}"
