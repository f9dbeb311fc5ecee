"""The words and tables of docs/performance.md, in Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.machine import in_words
from benchmarks.padding import WAYS

_MIB = 2**20
# texts and tokens of the page's table of speed; the json has all
SHOWN = ((1, 2048), (1, 8192), (128, 64))
Values = dict[str, Any]


def page_text(result: Values) -> str:
    """Return docs/performance.md from what `page.py` measured."""
    parts = [
        _head(result),
        _bars(result),
        _speed(result),
        _long(result),
        _parts(result),
        _segments(result),
        _CHUNKS,
    ]
    parts += [
        _training(result),
        _remembered(result),
        _search(result),
        _padding(result),
        checks(result),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def pivot(
    head: Sequence[str],
    rows: Sequence[Values],
    name: Callable[[Values], tuple[str, ...]],
    column: Callable[[Values], str],
    cell: Callable[[Values], str],
) -> str:
    """Return a table with a line for each name and a column for each value of `column`."""
    columns = [*dict.fromkeys(map(column, rows))]
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        lines.setdefault(name(row), {})[column(row)] = cell(row)
    return table(
        [*head, *columns],
        [[*line, *(cells.get(key, "–") for key in columns)] for line, cells in lines.items()],
    )


def texts(row: Values) -> str:
    """Return how many texts of how many tokens a row is about."""
    return f"{row['batch']} x {row['tokens']:,}"


def _rate(row: Values, middle: str = "median") -> str:
    """Return tokens per second and, if measured, the share of the linear
    layers' and peak memory.
    """
    share = (
        f" ({row['of_roofline']['median']:.2f})"
        if row.get("of_roofline") and row["system"] == "runnel"
        else ""
    )
    return (
        figure(row, "tokens_per_s", middle=middle)
        + share
        + (f", {mebibytes(row)} MiB" if row["peak_bytes"] else "")
    )


def figure(
    row: Values, key: str, digits: int = 0, *, extremes: bool = False, middle: str = "median"
) -> str:
    """Return the median or mean of a figure, or why there is none."""
    if row["outcome"] != "ok":
        return f"{row['outcome']}: {row['note']}" if row.get("note") else str(row["outcome"])
    spread = row[key]
    if spread is None:
        return "–"
    text: Callable[[str], str] = lambda which: f"{spread[which]:,.{digits}f}"  # noqa: E731
    return (
        f"{text(middle)} ({text('min')}–{text('max')})"
        if extremes and spread["runs"] > 1
        else text(middle)
    )


def _apart(result: Values, section: str) -> str:
    """Return when and on which machine a section was measured, if not with the rest; else ""."""
    apart = result.get("apart", {}).get(section)
    if not apart:
        return ""
    where = (
        "the same machine" if apart["machine"] == in_words(result["machine"]) else apart["machine"]
    )
    return f"Measured apart from the rest of this page: {apart['date']}, {where}."


def mebibytes(row: Values) -> str:
    """Return the peak memory of a row."""
    return "–" if row.get("peak_bytes") is None else f"{row['peak_bytes'] / _MIB:,.0f}"


def _head(result: Values) -> str:
    where = (
        f"Measured on {in_words(result['machine'])}. Absolute figures belong to that machine;"
        " ratios carry over better."
    )
    return f"""# Performance

Written by `make bench` (`python -m benchmarks page docs`), never by hand; performance.json has every figure. `make bench-check`
checks the bars in minutes; `python -m benchmarks compare MODEL-OR-SHAPE...` measures your models, with `--with` also others.

{textwrap.fill(where, 130)}

Figures are medians. Weights of named shapes are random. A system is timed only if its hidden vectors (in training: its gradient)
agree with a plain torch run in fp64. Memory is the peak of a new process, weights and
libraries included. "Linear layers" are the matrix products of the same model alone; int8 is compared with those in bf16."""


def _bars(result: Values) -> str:
    rows = [[row["what"], row["bar"], row["shown"], row["verdict"]] for row in result["bars"]]
    lost = [row for row in result["bars"] if row["lost"]]
    summary = (
        f"{len(lost)} of {len(rows)} bars fail."
        if lost
        else "Every bar that could be measured holds."
    )
    return f"## Bars\n\n{summary}\n\n" + table(["what", "bar", "measured", ""], rows)


def _speed(result: Values) -> str:
    head = ["model", "system", "dtype"]
    points = [
        point
        for point in result["points"]
        if point["system"] != "linear layers" and (point["batch"], point["tokens"]) in SHOWN
    ]
    rates = pivot(head, points, lambda p: (p["model"], p["title"], p["dtype"]), texts, _rate)
    parts = [
        "## Speed",
        (
            "Tokens/s of texts x tokens (share of the linear layers' rate), peak memory; without"
            " tokenization."
        ),
    ]
    return "\n\n".join(
        filter(
            None,
            [*parts, rates, skipped(result), "![tokens per second and memory](performance.png)"],
        )
    )


def speed_table(result: Values) -> str:
    """Return the table of all points, and the systems that were not compared."""
    points = result["points"]
    ours = {
        (p["model"], p["dtype"], p["batch"], p["tokens"]): p
        for p in points
        if p["system"] == "runnel"
    }
    rows = []
    for point in points:
        model, dtype, *cell = (point[key] for key in ("model", "dtype", "batch", "tokens"))
        # in the same dtype, else in bf16
        own = ours.get((model, dtype, *cell)) or ours.get((model, "bf16", *cell))
        times = "–"
        if own is not None and own is not point and own["tokens_per_s"] and point["tokens_per_s"]:
            times = f"{own['tokens_per_s']['median'] / point['tokens_per_s']['median']:.2f}"
        name = [point["model"], point["title"], point["dtype"], texts(point)]
        roofline = figure(point, "of_roofline", 2) if point["system"] == "runnel" else "–"
        each = "–" if point["ms_per_document"] is None else f"{point['ms_per_document']:,.1f}"
        rows.append(
            [
                *name,
                figure(point, "tokens_per_s", extremes=True),
                times,
                roofline,
                each,
                mebibytes(point),
            ]
        )
    head = [
        "model",
        "system",
        "dtype",
        "texts x tokens",
        "tokens/s",
        "runnel over this",
        "of roofline",
        "ms per text",
        "peak MiB",
    ]
    return "\n\n".join(filter(None, [table(head, rows), skipped(result)]))


def skipped(result: Values) -> str:
    """Return the list of systems that could not be compared."""
    skipped = "".join(f"\n- {s['system']}, {s['model']}: {s['reason']}" for s in result["skipped"])
    return f"Not compared:\n{skipped}" if skipped else ""


def _long(result: Values) -> str:
    rows = [
        [point["model"], f"{point['tokens']:,}", figure(point, "tokens_per_s"), mebibytes(point)]
        for point in result["long"]
    ]
    return "## One long text\n\n" + table(["model", "tokens", "tokens/s", "peak MiB"], rows)


def _segments(result: Values) -> str:
    size: Callable[[Values], str] = lambda p: (  # noqa: E731
        "all (horizontal)" if p["segment"] is None else f"V = {p['segment']:,}"
    )
    rows = sorted(result["segments"], key=lambda p: p["segment"] or 1 << 40)
    rates = pivot(
        ["model", "texts x tokens"],
        rows,
        lambda p: (p["model"], texts(p)),
        size,
        lambda p: _rate(p, "mean"),
    )
    return f"""## Horizontal and vertical inference

Vertical inference (`Engine(backbone, step_tokens=V)`) takes V tokens of all texts of a step through all layers before
the next V; horizontal inference (`Engine(backbone, whole=True)`) takes everything through one layer at a time. Both give the same
vectors. Mean tokens/s of three runs in bf16, and peak memory:

{rates}

![segments](performance-segments.png)

A step on a CPU has 1,024 tokens, because short texts wait for the running step; on a GPU 4,096 of one text, or
16,384 of several, as far as half of its free memory allows (paper D's sizes, not measured here)."""


_CHUNKS = """### Chunks inside an operator

Q is free in the parallel form of three operators, plain torch in fp32, which runs where there are no kernels. One layer's
recurrence alone at the shapes of mamba2-130m, rwkv7-0.1b and xlstm-scaled, three runs. The operators take 64, 32
and 64, and less for shorter texts.

![chunks](performance-chunks.png)"""


def _parts(result: Values) -> str:
    rows = []
    for row in result["parts"]:
        name = [row["model"], row["dtype"]]
        if row["seconds"] is None:
            rows.append([*name, figure(row, "seconds"), "–"])
            continue
        whole = sum(row["seconds"].values())
        shares = ", ".join(
            f"{part} {seconds / whole:.0%}"
            for part, seconds in row["seconds"].items()
            if seconds >= 0.005 * whole
        )
        rows.append([*name, shares, f"{1e6 * whole / row['tokens']:,.0f}"])
    tokens = result["parts"][0]["tokens"] if result["parts"] else 0
    context = textwrap.fill(_apart(result, "parts"), 130)
    return f"""## Where the time goes

One step of {tokens:,} tokens, by part; kernels by name.{context and chr(10) * 2 + context}

{table(["model", "dtype", "share of the time", "µs per token"], rows)}"""


def _training(result: Values) -> str:
    if not result["training"]:
        return ""
    first = result["training"][0]
    limit = f"{first['memory_limit'] / 2**30:.0f} GiB" if first["memory_limit"] else "what is free"
    return f"""## Training

Tokens/s and peak memory of forward, backward and AdamW over all weights, fp32, texts of {first["tokens"]} tokens, one vector a
text. Each process may take {limit} of memory; "bert" is a transformer of as many weights.

{training_table(result["training"])}"""


def training_table(rows: Sequence[Values]) -> str:
    """Return the table of training steps; with adapters "system" has their rank."""
    system: Callable[[Values], str] = lambda r: (  # noqa: E731
        f"{r['system']}, LoRA of rank {r['lora']}" if r.get("lora") else r["system"]
    )
    return pivot(
        ["model", "system"],
        rows,
        lambda r: (r["model"], system(r)),
        lambda r: f"batch {r['batch']}",
        _rate,
    )


def _remembered(result: Values) -> str:
    if not result["remembered"]:
        return ""
    first = result["remembered"][0]
    return f"""## Reranking with remembered documents

{first["documents"]} documents of {first["tokens"]} tokens, one query.

{remembered_table(result["remembered"])}"""


def remembered_table(rows: Sequence[Values]) -> str:
    """Return the table of reranking with remembered documents."""
    head = [
        "model",
        "documents as",
        "ms per document",
        "whole pairs over this",
        "correlation of scores",
    ]
    cells = []
    for row in rows:
        figures = figure(row, "ms_per_document", 2, extremes=True), figure(row, "over_whole", 1)
        cells.append(
            [
                row["model"],
                row["way"],
                *figures,
                "–" if row["agreement"] is None else f"{row['agreement']:.5f}",
            ]
        )
    return table(head, cells)


_STAGES = {
    "query": "query: its vector",
    "dense": "dense: the nearest of all passages",
    "lexical": "lexical: BM25",
    "first stage": "first stage: these three",
    "rerank": "rerank: 50 remembered documents",
    "fetch": "fetch: the texts of 10",
    "sentences": "sentences: {sentences}",
    "whole search": "whole search",
    "without reranking": "whole search without reranking",
}
_WAYS = {
    "engine": "the engine alone, on ready-made ids",
    "index": "indexing",
    "remember": "indexing with remembered documents",
}


def _search(result: Values) -> str:
    found = result.get("search")
    if not found:
        return ""
    head = "## Indexing and searching\n\n"
    if found["outcome"] != "ok":
        return f"{head}{found['outcome']}: {found['note']}"
    ms = lambda row: [f"{row[key]:,.1f}" for key in ("min", "median", "p95")]  # noqa: E731
    sentences = (
        "of 10 remembered documents"
        if found["keeps_sentences"]
        else "5 documents read after the query"
    )
    titles = {name: title.format(sentences=sentences) for name, title in _STAGES.items()}
    stages = [
        [title, *ms(found["stages"][name])]
        for name, title in titles.items()
        if name in found["stages"]
    ]
    ways = [
        [text, *(f"{row[key]['median']:,.{digits}f}" for key, digits in _INDEXING)]
        for name, text in _WAYS.items()
        for row in [found["indexing"][name]]
    ]
    peak = f"{found['peak_bytes'] / _MIB:,.0f} MiB at most"
    facts = (
        f"{found['documents']:,} documents of {found['words']:,} words ({found['passages']:,}"
        f" passages) in LanceDB, `{found['model']}`, remembered in 8 bits:"
        f" {found['disk_bytes'] / 2**30:,.1f} GiB on disk with earlier commits. A process that"
        f" searches takes {peak}, including mapped files. The texts are sentences of the Python"
        f" reference in random order with made-up words; the model has read {found['read']:,} of"
        " them, the rest have vectors close to theirs."
    )
    context = "\n\n".join(
        textwrap.fill(paragraph, 130)
        for paragraph in (facts, _apart(result, "search"))
        if paragraph
    )
    times = found["stages"]["first stage"]["runs"]
    return f"""{head}{context}

Milliseconds of {times} searches for eight words in a row from a document:

{table(["stage", "least", "median", "95 %"], stages)}

Indexing with `{found["indexing_model"]}` and `Engine.map`, in turns; "over the engine" is by wall-clock time, then by processor
time of all threads:

{table(["", "tokens/s", "over the engine", "by processor time"], ways)}"""


_INDEXING = (("tokens_per_s", 0), ("over_engine", 2), ("over_engine_processor", 2))


def _padding(result: Values) -> str:
    if not result["padding"]:
        return ""
    first = result["padding"][0]
    return f"""## What padding would cost

GFLOP for the {first["texts"]} sections of the Python reference ({first["tokens"]:,} tokens) by `{first["model"]}`.
runnel never pads. Linear layers, convolution and recurrence are {first["flops"]:,} FLOP a token, without embedding and LM head.

{_padding_table(result["padding"])}"""


def _padding_table(rows: Sequence[Values]) -> str:
    head = ["texts a batch", "packed", "padded, sorted by length", "padded", "padded over packed"]
    cells = [
        [
            str(row["batch"]),
            *(f"{row[f'{way}_flops'] / 1e9:,.1f}" for way in WAYS),
            f"{row['padded'] / row['tokens']:.2f}",
        ]
        for row in rows
    ]
    return table(head, cells)


def checks(result: Values) -> str:
    """Return the table of comparisons with fp64."""
    cosine: Callable[[Values], str] = lambda check: (  # noqa: E731
        "–" if check["cosine"] is None else f"{check['cosine']:.6f}"
    )
    cells = pivot(
        ["model", "system"],
        result["checks"],
        lambda check: (check["model"], check["system"]),
        lambda check: check["dtype"],
        lambda check: cosine(check) + ("" if check["passed"] else f" {check['note']}"),
    )
    return (
        "## Checks\n\nLeast cosine of hidden vectors with a plain run in fp64, two texts of 130"
        f" and 70 tokens.\n\n{cells}"
    )
