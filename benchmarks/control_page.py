"""The table and the plot of an experiment over several families (control.py)."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.machine import in_words
from benchmarks.page_text import table

_MIB = 2**20


def page_text(result: dict[str, Any]) -> str:
    """Return the table in Markdown, with what it depends on: one row for each family, and one for
    BM25.
    """
    families = result["families"]
    seeds = result["settings"]["seeds"]
    names = [
        (task, metric) for task, metrics in families[0]["metrics"].items() for metric in metrics
    ]
    several = len(families[0]["metrics"]) > 1
    tokens = families[0]["tokens"]
    head = [
        "",
        "layers",
        "active parameters",
        "all",
        *(f"{task} {metric}" if several else metric for task, metric in names),
    ]
    head += [
        "last loss",
        "training tokens/s",
        "training memory, MiB",
        f"MFLOP per token of {tokens:,}",
    ]
    rows = []
    for one in families:
        memory = one["peak_bytes"]
        row = [one["family"], str(one["layers"]), f"{one['active']:,}", f"{one['total']:,}"]
        row += [_figure(one["metrics"][task][metric], 3) for task, metric in names]
        row += [_figure(one["last_loss"], 3), _figure(one["tokens_per_s"], 0)]
        rows.append(
            [
                *row,
                f"{max(memory['values']) / _MIB:,.0f}" if memory else "–",
                f"{one['flops'] / tokens / 1e6:.2f}",
            ]
        )
    rows.append(
        [
            "BM25",
            *[""] * 3,
            *(f"{result['bm25'][task][metric]:.3f}" for task, metric in names),
            *[""] * 4,
        ]
    )
    steps = {part["steps"] for part in result["parts"]}
    facts = (
        f"Mean and standard deviation over {len(seeds)} seeds;"
        f" {' or '.join(f'{n:,}' for n in sorted(steps))} steps of"
        f" {result['recipe']['train']['batch']} queries; memory beyond that of the libraries, the"
        f" most of any seed.\n{in_words(result['machine'])}."
    )
    return f"{table(head, rows)}\n\n{facts}\n"


def plot(result: dict[str, Any], file: Path) -> None:
    """Plot the loss over the tokens read, a mean over seeds, and the first metric of the first task
    over training speed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    task, metric = next(
        (task, metric)
        for task, metrics in result["families"][0]["metrics"].items()
        for metric in metrics
    )
    for one in result["families"]:
        curves = [
            part["curve"] for part in result["parts"] if part["shape"]["family"] == one["family"]
        ]
        points = [
            [statistics.fmean(values) for values in zip(*rows, strict=True)]
            for rows in zip(*curves, strict=False)
        ]
        (line,) = left.plot([x for x, _ in points], [y for _, y in points], label=one["family"])
        speed = one["tokens_per_s"]
        quality = one["metrics"][task][metric]
        if speed is not None:
            spread = {"xerr": speed["deviation"], "yerr": quality["deviation"]}
            right.errorbar(
                speed["mean"],
                quality["mean"],
                **spread,
                marker="o",
                capsize=3,
                color=line.get_color(),
            )
            right.annotate(
                one["family"],
                (speed["mean"], quality["mean"]),
                textcoords="offset points",
                xytext=(6, 4),
                fontsize=8,
            )
    right.axhline(
        result["bm25"][task][metric], linestyle="--", color="gray", linewidth=0.8, label="BM25"
    )
    left.set(xlabel="training tokens", ylabel="training loss")
    right.set(
        xlabel="training tokens per second",
        ylabel=f"{task}: {metric}",
        ylim=(0, None),
        xlim=(0, None),
    )
    left.legend(fontsize=8)
    right.legend(fontsize=8)
    figure.savefig(file, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def _figure(spread: dict[str, Any] | None, digits: int) -> str:
    """Return mean and deviation; the mean alone for one seed."""
    if spread is None:
        return "–"
    text = f"{spread['mean']:,.{digits}f}"
    return f"{text} ± {spread['deviation']:,.{digits}f}" if len(spread["values"]) > 1 else text
