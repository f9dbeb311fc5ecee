"""`runnel lab compare`: what several results say together."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from runnel.commands.display import Json, print_json, print_table


def compare(
    results: Annotated[
        list[str],
        typer.Argument(metavar="[NAME=]FOLDER...", help="Folders of --out; repeats have one name."),
    ],
    to: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Write comparison.json and a plot, comparison.png."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Compare results, each in a FOLDER of --out.

    Prints one table: the mean of each metric, with the standard deviation of repeats; of two
    results their difference and its p. Example: runnel lab compare bm25 pocket
    """
    from runnel.lab.analysis.comparison import VERSION, compare_results

    named: dict[str, list[str]] = {}
    for one in results:
        name, equals, folder = one.partition("=")
        named.setdefault(name if equals else Path(one).name, []).append(folder if equals else one)
    rows = compare_results(named, to)
    if as_json:
        print_json({"version": VERSION, "rows": rows})
        return 0
    tested = (
        ["difference", "95 % interval", "p"] if any(row.get("comparison") for row in rows) else []
    )
    lines = [
        [
            row["task"],
            row["value"],
            f"{row['number']:,}",
            *(_cell(row["systems"].get(name)) for name in named),
        ]
        + (_tested(row["comparison"]) if tested else [])
        for row in rows
    ]
    print_table(["task", "value", "number", *named, *tested], lines, left=2)
    return 0


def _cell(value: Mapping[str, float] | None) -> str:
    if value is None:
        return "–"
    return f"{value['mean']:.4f}" + (
        "" if value["repeats"] == 1 else f" ± {value['deviation']:.4f}"
    )


def _tested(of: Mapping[str, float] | None) -> list[str]:
    if of is None:
        return ["", "", ""]
    return [f"{of['difference']:+.4f}", f"{of['low']:+.4f} to {of['high']:+.4f}", f"{of['p']:.4f}"]
