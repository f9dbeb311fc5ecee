"""`runnel lab compare`: what several results say together."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from runnel.commands import display, parameters


def compare(
    results: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]FOLDER...", help="Folders of --out; give repeats the same NAME."
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Write comparison.json and a plot, comparison.png."),
    ] = None,
    as_json: parameters.Json = False,
) -> int:
    """Compare results, each in a FOLDER of --out.

    Prints the mean and deviation of each metric; of two results their difference and its p.
    Example: runnel lab compare bm25 pocket
    """
    from runnel.lab.analysis.comparison import VERSION, compare_results

    named: dict[str, list[str]] = {}
    for text in results:
        name, equals, folder = text.partition("=")
        named.setdefault(name if equals else Path(text).name, []).append(folder if equals else text)
    rows = compare_results(named, to)
    if as_json:
        display.print_json({"version": VERSION, "rows": rows})
        return 0
    tested = any(row.get("comparison") for row in rows)
    test_heads = ["difference", "95 % interval", "p"] if tested else []
    lines = []
    for row in rows:
        values = [_cell(row["systems"].get(name)) for name in named]
        test = _test_cells(row["comparison"]) if tested else []
        lines.append([row["task"], row["value"], f"{row['number']:,}", *values, *test])
    display.print_table(["task", "value", "number", *named, *test_heads], lines, left=2)
    return 0


def _cell(value: Mapping[str, float] | None) -> str:
    if value is None:
        return "–"
    mean = f"{value['mean']:.4f}"
    return mean if value["repeats"] == 1 else f"{mean} ± {value['deviation']:.4f}"


def _test_cells(test: Mapping[str, float] | None) -> list[str]:
    if test is None:
        return ["", "", ""]
    return [
        f"{test['difference']:+.4f}",
        f"{test['low']:+.4f} to {test['high']:+.4f}",
        f"{test['p']:.4f}",
    ]
