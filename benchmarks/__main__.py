"""The benchmarks' command, run from the repository root.

python -m benchmarks page docs             measure and write docs/performance.md, its json and its plots
python -m benchmarks check                 measure the bars in minutes
python -m benchmarks compare MODEL...      compare models or shapes with other systems
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.speed import OTHERS, Settings
from runnel.commands.display import describe, say
from runnel.errors import RunnelError
from runnel.speed.shapes import DTYPES


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return 1 on a failure, a failed check or a lost bar."""
    given = _parser().parse_args(arguments)
    try:
        return {"page": _page, "check": _check, "compare": _compare}[given.command](given)
    except (RunnelError, OSError) as error:
        say(f"error: {describe(error)}")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Benchmarks of runnel, for its developers.")
    commands = parser.add_subparsers(dest="command", required=True)
    page = commands.add_parser("page", help="measure and write FOLDER/performance.md, in about twenty minutes")
    page.add_argument("folder", type=Path, metavar="FOLDER")
    page.add_argument("--only", metavar="SECTION", help="measure this section alone: search or parts")
    commands.add_parser("check", help="measure every bar that this machine can show, in about seven minutes")
    compare = commands.add_parser("compare", help="compare models with other systems")
    compare.add_argument("models", nargs="+", metavar="MODEL-OR-SHAPE")
    compare.add_argument("--with", dest="others", nargs="+", choices=OTHERS, default=[], help="other systems")
    compare.add_argument("--tokens", nargs="+", type=int, default=[512, 2048], help="tokens of a text (default: 512 2048)")
    compare.add_argument("--texts", nargs="+", type=int, default=[1], help="texts at a time (default: 1)")
    compare.add_argument("--dtypes", nargs="+", choices=tuple(DTYPES), default=["bf16"], help="of our weights (default: bf16)")
    compare.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    compare.add_argument("--memory", action="store_true", help="also peak memory")
    compare.add_argument("--training", action="store_true", help="also training, with --texts as batch sizes")
    compare.add_argument("--remembered", action="store_true", help="also reranking with remembered documents")
    compare.add_argument("--padding", metavar="FILE", help="also the work that padding adds, for one length a line")
    compare.add_argument("--to", type=Path, metavar="FOLDER", help="write comparison.json and comparison.png there too")
    return parser


def _page(given: argparse.Namespace) -> int:
    from benchmarks.page import write_page, write_section

    return int(not (write_page(given.folder, say) if given.only is None else write_section(given.folder, given.only, say)))


def _check(given: argparse.Namespace) -> int:
    from benchmarks.bars import check_bars
    from benchmarks.page_text import table

    rows = check_bars(say)
    _print(table(["what", "bar", "measured", ""], [[r.what, r.bar, r.shown, r.verdict] for r in rows]))
    return int(any(row.lost for row in rows))


def _compare(given: argparse.Namespace) -> int:
    from benchmarks.compare import compare
    from benchmarks.padding import read_lengths
    from benchmarks.page import failures
    from benchmarks.page_text import comparison_text
    from benchmarks.plots import plot_speed

    settings = Settings(
        tuple(given.models),
        tuple((texts, tokens) for texts in given.texts for tokens in given.tokens),
        tuple(given.dtypes),
        tuple(given.others),
        device=given.device,
        memory=given.memory,
    )
    lengths = read_lengths(given.padding) if given.padding else ()
    result: dict[str, Any] = compare(settings, say, train=given.training, remember=given.remembered, lengths=lengths)
    _print(comparison_text(result))
    if given.to is not None:
        (given.to / "comparison.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        plot_speed(result["points"], given.to / "comparison.png")
    return int(bool(failures(result)))


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
