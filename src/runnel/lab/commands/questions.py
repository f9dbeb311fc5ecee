"""`runnel lab questions`: how well your own questions are answered. The file of questions decides
between two modes; `lab/evaluation/own.py` measures, this file shows the result.

Index: --in is an index. Each question names the file that answers it, and perhaps the place in the
file: a page or a text. The index is searched. Two ranks are measured: of the first file that
answers, and of the first that is shown with a sentence at the place.

    {"question": "who approved the budget", "file": "reports/2024.pdf", "page": 12}

Patterns: --in is a folder of documents. Each question has regular expressions, the patterns, that
an answering sentence matches, or none if nothing answers it. The model ranks the sentences of the
question's document, and the sentences of all documents; BM25 does the same for comparison. --as
says how the model ranks them: "sentences", by its scores of sentences (`SentenceRetriever`), or
"embed", by the cosine of the vectors of the query and of each sentence alone (`Embedder`).

    {"question": "how long is the warranty", "file": "terms.docx", "patterns": ["two years from"]}

The fields of a result that are shown; --json prints all of them:

    index      index, documents (their number), queries (the number of questions), top_k
               places     the number of questions with a place
               metrics    metric -> value, of files; "place " + metric -> value, of places
               answers    one for each question: id, question, expected, rank, found (paths, best
                          first), problem (None, or its kind and text)
    patterns   model, as, documents, sentences (their numbers)
               queries, unanswerable, left_out    the numbers of questions with and without an
                          answer; the ids of questions whose patterns match no sentence
               rankings   one for each system and each key of `_TITLES`: system (the model or
                          "BM25"), place (that key: here, where the ranked sentences come from),
                          metrics (metric -> mean, low and high end of a 90 % interval), kinds (kind
                          of question -> its queries and metrics)
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from runnel.commands import display, parameters
from runnel.errors import counted

# the sentences that are ranked for a question, its document's or the whole folder's -> the title of
# their column
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
    index_or_folder: Annotated[
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
        file,
        index_or_folder,
        model,
        how,
        out=out,
        top_k=top_k,
        weight=weight,
        rerank=rerank,
    )
    if as_json:
        display.print_json(result)
    elif result["kind"] == "patterns":
        _show_patterns(result)
    else:
        _show_index(result)
    return 0


def _show_index(result: Mapping[str, Any]) -> None:
    """Print the number of questions answered, the metrics, and each wrong answer."""
    metrics = result["metrics"]
    count = result["queries"]
    wrong = [answer for answer in result["answers"] if answer["problem"]]
    first = min(result["top_k"], result["documents"])
    display.print_text(
        f"{count - len(wrong):,} of {count:,} questions answered by the first {first} of"
        f" {result['documents']:,} documents in {display.one_line(result['index'])}"
    )
    # the metrics of files; each has a metric of places, with the prefix "place "
    names = [name for name in metrics if not name.startswith("place ")]
    rows = [["file", f"{count:,}", *(_number(name, metrics[name]) for name in names)]]
    if result["places"]:
        rows.append(
            [
                "page or text",
                f"{result['places']:,}",
                *(_number(name, metrics[f"place {name}"]) for name in names),
            ]
        )
    display.print_table(["found", "questions", *names], rows)
    if wrong:
        kinds = Counter(answer["problem"]["kind"] for answer in wrong)
        display.print_text(
            "what went wrong: "
            + ", ".join(f"{number:,} {kind}" for kind, number in kinds.most_common())
        )
    for answer in wrong:
        display.print_text(f"  {answer['id']}. {display.one_line(answer['question'])}")
        display.print_text(f"     expected {display.one_line(answer['expected'])}")
        display.print_text(f"     {display.one_line(answer['problem']['text'])}")
        # what search shows instead of the expected file, unless that is first
        if answer["rank"] != 1 and answer["found"]:
            files = [display.one_line(Path(name).name) for name in answer["found"][:3]]
            display.print_text(f"     first: {', '.join(files)}")


def _show_patterns(result: Mapping[str, Any]) -> None:
    """Print the numbers of questions, a table with a column for each ranking, and for the model's
    rankings a table with a row for each kind of question.
    """
    display.print_text(
        f"{display.one_line(result['model'])} as {result['as']}: {result['queries']:,} questions"
        f" with an answer, {result['unanswerable']:,} without, {len(result['left_out']):,} left"
        f" out; {result['sentences']:,} sentences of {counted(result['documents'], 'document')}"
    )
    rankings = result["rankings"]
    metrics = list(rankings[0]["metrics"])
    columns = [
        f"{display.one_line(Path(ranking['system']).name)}, {_TITLES[ranking['place']]}"
        for ranking in rankings
    ]
    cells = [
        [f"{mean:.3f} ({low:.2f}-{high:.2f})" for mean, low, high in ranking["metrics"].values()]
        for ranking in rankings
    ]
    display.print_table(
        ["", *columns], [[metric, *row] for metric, *row in zip(metrics, *cells, strict=True)]
    )
    for ranking in rankings:
        # the first is the model's; BM25, which is compared with it, gets no table of kinds
        if ranking["kinds"] and ranking["system"] == rankings[0]["system"]:
            rows = [
                [
                    display.one_line(kind),
                    f"{values['queries']:,}",
                    *[f"{values['metrics'][metric][0]:.3f}" for metric in metrics],
                ]
                for kind, values in ranking["kinds"].items()
            ]
            display.print_table([_TITLES[ranking["place"]], "questions", *metrics], rows)


def _number(name: str, value: float) -> str:
    """Return a metric's value as text: MRR as a number, a share of questions in percent."""
    return f"{value:.3f}" if name == "MRR" else f"{value:.0%}"
