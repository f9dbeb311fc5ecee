"""`runnel bench`: the speed and peak memory of models or shapes, next to their own matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from runnel.commands.display import print_json, say, stdout_console
from runnel.commands.options import Json
from runnel.errors import InputError

_MIB = 2**20
_HEAD = ("model", "system", "dtype", "tokens", "texts", "tokens/s (min - max)", "roofline", "GFLOP/s", "ms/text", "peak MiB")

_Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL-OR-SHAPE...", help="Model folders, hub ids, pocket, pocket-mamba2, or shapes such as mamba2-130m."
    ),
]
_Segment = Annotated[str, typer.Option(help="Tokens per step through all layers (vertical), or whole (horizontal).")]
_Budget = Annotated[int | None, typer.Option(min=1, help="MiB for steps and states; chooses the segment.")]


def bench(
    models: _Models,
    lengths: Annotated[str, typer.Option(help="Tokens per text, separated by commas; 8k is 8192.")] = "512,2048",
    batches: Annotated[str, typer.Option(help="Texts at a time, separated by commas.")] = "1",
    dtypes: Annotated[str, typer.Option(help="bf16, fp32, int8, separated by commas; int8 is compared with bf16.")] = "bf16",
    segment: _Segment = "1024",
    budget: _Budget = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; medians are shown.")] = 3,
    memory: Annotated[bool, typer.Option("--memory", help="Also measure peak memory, each figure in a new process.")] = False,
    as_json: Json = False,
) -> int:
    """Measure the speed and memory of models or shapes next to their own matrix products.

    No figure is shown unless the results agree with a plain fp64 run.
    """
    cells = [(batch, tokens) for batch in _numbers("--batches", batches) for tokens in _numbers("--lengths", lengths)]
    options: dict[str, Any] = {
        "device": device,
        "segment": None if segment == "whole" else _numbers("--segment", segment)[0],
        "budget": None if budget is None else budget * _MIB,
    }
    result = _measure(models, _names(dtypes), cells, options, rounds=rounds, memory=memory)
    if as_json:
        print_json(result)
    else:
        from runnel.speed.machine import in_words

        stdout_console().print(in_words(result["machine"]))
        _print_table([_row(point) for point in result["points"]])
        for plan in result["plans"].items():
            stdout_console().print("{}: {}".format(*plan))
    return int(result["wrong"])


def _measure(
    models: Sequence[str],
    dtypes: Sequence[str],
    cells: Sequence[tuple[int, int]],
    options: dict[str, Any],
    *,
    rounds: int,
    memory: bool,
) -> dict[str, Any]:
    """Check the arguments, then measure every model; values for JSON."""
    from runnel.speed.machine import machine
    from runnel.speed.measure import measure
    from runnel.speed.shapes import DTYPES
    from runnel.speed.subject import check_device, check_subject

    if unknown := set(dtypes or ("",)) - set(DTYPES):
        raise InputError(f"no dtype {min(unknown)!r}; there are {', '.join(DTYPES)}")
    check_device(options["device"])
    for model in models:
        check_subject(model, dtypes, **options)
    result: dict[str, Any] = {"format": 1, "machine": machine(), "points": [], "checks": [], "plans": {}}
    for model in models:
        points, checks, plan = measure(model, dtypes, cells, say, **options, rounds=rounds, memory=memory)
        result["points"] += [point.to_dict() for point in points]
        result["checks"] += [asdict(check) for check in checks]
        result["plans"] |= {model: plan} if plan else {}
    failed = (point["outcome"] in ("wrong", "error") for point in result["points"])
    return result | {"wrong": any(failed) or not all(check["passed"] for check in result["checks"])}


def _row(point: dict[str, Any]) -> list[str]:
    """Return the cells of a point. A point without figures has the reason instead."""
    name = [point["model"], point["title"], point["dtype"], f"{point['tokens']:,}", str(point["batch"])]
    if point["outcome"] != "ok":
        return [*name, ": ".join(filter(None, (point["outcome"], point["note"]))), "", "", "", ""]
    rates, share, peak = point["tokens_per_s"], point["of_roofline"], point["peak_bytes"]
    speed = f"{rates['median']:,.0f} ({rates['min']:,.0f} - {rates['max']:,.0f})"
    roofline = "" if share is None else f"{share['median']:,.2f}"
    memory = f"{peak / _MIB:,.0f}" if peak is not None else point["note"]
    return [*name, speed, roofline, f"{point['gflops_per_s']:,.1f}", f"{point['ms_per_document']:,.2f}", memory]


def _print_table(rows: list[list[str]]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(_HEAD):
        table.add_column(name, justify="left" if place in (0, 1, 2, 5) else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = stdout_console()
    if not console.is_terminal:
        console.width = 180
    console.print(table)


def _names(given: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))


def _numbers(option: str, given: str) -> tuple[int, ...]:
    """Parse integers separated by commas; "8k" is 8192.

    Raises:
        InputError: another form.
    """
    found = []
    for text in _names(given):
        digits, thousands = (text[:-1], 1024) if text[-1:] in ("k", "K") else (text, 1)
        if not digits.isdecimal() or int(digits) < 1:
            raise InputError(f"{option} takes whole numbers from 1 with commas between (8k is 8192), got {text!r}")
        found.append(int(digits) * thousands)
    if not found:
        raise InputError(f"{option} is empty; give whole numbers with commas between")
    return tuple(dict.fromkeys(found))
