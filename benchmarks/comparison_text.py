"""The tables of the commands `compare` and `read`, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.machine import in_words
from benchmarks.page_text import (
    Values,
    checks,
    figure,
    mebibytes,
    remembered_table,
    skipped,
    speed_table,
    table,
)


def comparison_text(result: Values) -> str:
    """Return the tables of what the commands `compare` and `read` measured."""
    parts = [in_words(result["machine"])]
    parts += [f"## Speed\n\n{speed_table(result)}"] if result.get("points") else []
    titles = {"reading": ("Reading", _reading_table), "remembered": ("Reranking", remembered_table)}
    parts += [
        f"## {title}\n\n{text(result[key])}"
        for key, (title, text) in titles.items()
        if result.get(key)
    ]
    parts += [] if result.get("points") else [skipped(result)]
    return "\n\n".join([*filter(None, parts), checks(result)])


def _reading_table(rows: Sequence[Values]) -> str:
    """Return the table of the best batch of each system; a system without any figure keeps a row
    for each batch.
    """

    def name(row: Values) -> tuple[Any, ...]:
        return row["model"], row["system"], row["dtype"], row["cut"]

    measured = {name(row) for row in rows if row["best"]}
    cells = []
    for row in rows:
        if name(row) in measured and not row["best"]:
            continue
        median = row["seconds"]["median"] if row["seconds"] else None
        rates = ["–"] * 3
        if median is not None:
            rates = [
                f"{1000 * median / row['documents']:,.1f}",
                f"{row['documents'] / median:,.2f}",
            ]
            rates.append(f"{row['tokens'] / median:,.0f}")
        cells.append(
            [
                *name(row)[:3],
                f"{row['longest']:,}",
                str(row["batch"]),
                figure(row, "seconds", 2, extremes=True),
            ]
        )
        cells[-1] += [*rates, mebibytes(row) if median is not None else "–"]
    head = [
        "model",
        "system",
        "dtype",
        "longest text",
        "texts a batch",
        "seconds for all",
        "ms per document",
        "documents/s",
    ]
    return table([*head, "tokens/s", "peak MiB"], cells)


def table_of_work(rows: Sequence[Values], documents: int) -> str:
    """Return the table of what `reading.work` counted, for one of the documents."""
    cells = []
    for row in rows:
        facts = [
            row["model"],
            f"{row['parameters'] / 1e9:,.2f}",
            f"{row['tokens'] / documents:,.0f}",
            str(row["batch"]),
        ]
        for name, flops in row["flops"].items():
            cells.append(
                [
                    *facts,
                    name,
                    *(f"{flops[way] / documents / 1e12:,.4g}" for way in ("padded", "packed")),
                ]
            )
    return table(
        [
            "model",
            "10^9 parameters",
            "tokens",
            "texts a batch",
            "counted",
            "TFLOP",
            "TFLOP without padding",
        ],
        cells,
    )
