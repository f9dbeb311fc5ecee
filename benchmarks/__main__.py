"""The benchmarks' command, run from the repository root.

python -m benchmarks page docs             measure and write docs/performance.md, its json and its
                                           plots
python -m benchmarks check                 measure the bars in minutes
python -m benchmarks compare MODEL...      speed and memory of models or shapes by length and batch,
                                           next to other systems
python -m benchmarks read MODEL...         time and work of reading documents, with the best batch
python -m benchmarks train MODEL...        training speed and memory by batch, with adapters or all
                                           weights
python -m benchmarks lengths MODEL CORPUS  write the lengths in tokens of documents, or of their
                                           pieces
python -m benchmarks results DATA WORK docs   measure quality and write docs/results.md, its json
                                              and its plot
python -m benchmarks asked QUESTIONS FOLDER MODEL WORK   ask a recurrent model about documents, for
                                                         the results' first table
python -m benchmarks serve                 load the server with short and long texts; compare every
                                           answer with the offline one
python -m benchmarks control FILE          train families of equal size from scratch on the same
                                           data, and compare them
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.results_page import ABOUT
from benchmarks.shapes import DTYPES
from benchmarks.speed import OTHERS, Settings
from runnel.commands.display import say
from runnel.errors import RunnelError, describe
from runnel.files import write


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return 1 on a failure, a failed check or a lost bar."""
    given = _parser().parse_args(arguments)
    try:
        return globals()[f"_{given.command}"](given)
    except (RunnelError, OSError) as error:
        say(f"error: {describe(error)}")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Benchmarks of runnel, for its developers."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    page = commands.add_parser(
        "page", help="measure and write FOLDER/performance.md, in about twenty minutes"
    )
    page.add_argument("folder", type=Path, metavar="FOLDER")
    page.add_argument(
        "--only", metavar="SECTION", help="measure this section alone: search or parts"
    )
    commands.add_parser("check", help="measure every bar that this machine can show")
    compare = _of_models(commands, "compare", "speed and memory of models by length and batch", [1])
    compare.add_argument(
        "--tokens",
        nargs="+",
        type=int,
        default=[512, 2048],
        help="tokens of a text (default: 512 2048)",
    )
    compare.add_argument("--memory", action="store_true", help="also peak memory")
    compare.add_argument(
        "--remembered", action="store_true", help="also reranking with remembered documents"
    )
    read = _of_models(
        commands, "read", "time and work of reading documents, with the best batch", [1, 8, 32]
    )
    read.add_argument(
        "--documents",
        required=True,
        metavar="FILE-or-NxT",
        help="lengths in tokens, or N texts of T tokens",
    )
    read.add_argument(
        "--cut",
        nargs="+",
        type=int,
        metavar="TOKENS",
        help="cut texts to these numbers of tokens, one by one",
    )
    read.add_argument("--count", action="store_true", help="count the work, and measure nothing")
    train = _of_models(commands, "train", "training speed and memory by batch", [1, 4, 16])
    train.add_argument("--tokens", type=int, default=512, help="tokens of a text (default: 512)")
    train.add_argument(
        "--lora",
        nargs="+",
        type=int,
        default=[0],
        metavar="RANK",
        help="adapters; 0: all weights (default)",
    )
    lengths = commands.add_parser(
        "lengths", help="write the lengths in tokens of a corpus, for `read --documents`"
    )
    lengths.add_argument(
        "model", help="a model folder, or a built-in model, whose tokenizer counts"
    )
    lengths.add_argument(
        "corpus", type=Path, metavar="CORPUS", help="a BEIR folder, or a jsonl, csv or tsv file"
    )
    lengths.add_argument("--to", type=Path, required=True, metavar="FILE", help="the file to write")
    lengths.add_argument(
        "--pieces",
        metavar="WORDS",
        help="chunks of this many words, or: sentences (default: whole documents)",
    )
    results = commands.add_parser(
        "results", help="measure quality on a data folder and write FOLDER/results.md; resumes"
    )
    results.add_argument(
        "data", type=Path, metavar="DATA", help="folder with retrieval/ and evidence/"
    )
    results.add_argument("work", type=Path, metavar="WORK", help="folder that keeps the runs")
    results.add_argument("folder", type=Path, metavar="FOLDER", help="of the page")
    results.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="SET",
        help="measure these sets; the page has all finished ones",
    )
    results.add_argument(
        "--part",
        nargs="+",
        default=[],
        help="measure these parts of the page; what the page has of the others stays",
    )
    asked = commands.add_parser(
        "asked", help="ask a recurrent model questions about documents, for the results; resumes"
    )
    asked.add_argument("questions", type=Path, metavar="QUESTIONS", help="with patterns")
    asked.add_argument("documents", type=Path, metavar="FOLDER", help="of the documents")
    asked.add_argument("model", metavar="MODEL", help="a sentence retriever")
    asked.add_argument("work", type=Path, metavar="WORK", help="folder of the results' runs")
    asked.add_argument("about", choices=ABOUT, help="what the questions are about")
    control = commands.add_parser(
        "control",
        help="train families of equal size from scratch on the same data, and compare them",
    )
    control.add_argument(
        "experiment", type=Path, metavar="FILE", help="such as benchmarks/control.toml"
    )
    control.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="holds the file's data sets and tasks",
    )
    control.add_argument(
        "--to",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="results; interrupted work resumes there",
    )
    served = commands.add_parser(
        "serve", help="load the server with short and long texts, and compare every answer"
    )
    served.add_argument(
        "--model", default="pocket", help="a built-in model or folder (default: pocket)"
    )
    served.add_argument(
        "--long-tokens", type=int, default=200_000, help="tokens of a long text (default: 200000)"
    )
    served.add_argument(
        "--requests", type=int, default=20, help="of each client with short texts (default: 20)"
    )
    return parser


def _of_models(commands: Any, name: str, text: str, texts: list[int]) -> argparse.ArgumentParser:
    """Add a command that measures models, with the options that such commands share."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text)
    parser.add_argument("models", nargs="+", metavar="MODEL-OR-SHAPE")
    parser.add_argument(
        "--with", dest="others", nargs="+", choices=OTHERS, default=[], help="other systems"
    )
    shown = " ".join(map(str, texts))
    parser.add_argument(
        "--texts", nargs="+", type=int, default=texts, help=f"texts of a batch (default: {shown})"
    )
    parser.add_argument(
        "--dtypes",
        nargs="+",
        choices=tuple(DTYPES),
        default=["bf16"],
        help="of our weights (default: bf16)",
    )
    gpu = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default=gpu, help="default: a GPU if there is one"
    )
    parser.add_argument(
        "--segment", type=_segment, default=1024, help="tokens of a step (default: 1024), or: whole"
    )
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default: 3)")
    parser.add_argument(
        "--to",
        type=Path,
        metavar="FOLDER",
        help="keep json, table and plot there, and resume there",
    )
    return parser


def _segment(text: str) -> int | None:
    return None if text == "whole" else int(text)


def _settings(given: argparse.Namespace, tokens: list[int]) -> Settings:
    cells = tuple((texts, length) for texts in given.texts for length in tokens)
    more = {"device": given.device, "segment": given.segment, "rounds": given.rounds}
    return Settings(tuple(given.models), cells, tuple(given.dtypes), tuple(given.others), **more)


def _common(given: argparse.Namespace, *more: str) -> dict[str, Any]:
    """Return the settings that all parts of a measurement share."""
    names = ("texts", "dtypes", "others", "device", "segment", "rounds", *more)
    return {name: getattr(given, name) for name in names}


def _page(given: argparse.Namespace) -> int:
    from benchmarks.page import write_page, write_section

    return int(
        not (
            write_page(given.folder, say)
            if given.only is None
            else write_section(given.folder, given.only, say)
        )
    )


def _check(given: argparse.Namespace) -> int:
    from benchmarks.bars import check_bars
    from benchmarks.page_text import table

    rows = check_bars(say)
    _print(
        table(["what", "bar", "measured", ""], [[r.what, r.bar, r.shown, r.verdict] for r in rows])
    )
    return int(any(row.lost for row in rows))


def _compare(given: argparse.Namespace) -> int:
    from dataclasses import replace

    from benchmarks.compare import compare
    from benchmarks.comparison_text import comparison_text
    from benchmarks.kept import Kept, failures
    from benchmarks.plots import plot_speed

    kept = Kept(given.to, "comparison", _common(given, "tokens", "memory", "remembered"))
    settings = replace(_settings(given, given.tokens), memory=given.memory)
    result = compare(settings, kept, say, remember=given.remembered)
    text = comparison_text(result)
    _print(text)
    kept.publish(text, lambda file: plot_speed(result["points"], file))
    return int(bool(failures(result)))


def _read(given: argparse.Namespace) -> int:
    from benchmarks import reading
    from benchmarks.compare import read
    from benchmarks.comparison_text import comparison_text, table_of_work
    from benchmarks.kept import Kept, failures
    from benchmarks.plots import plot_reading

    documents = reading.read_documents(given.documents)
    cuts = given.cut or [None]
    result: dict[str, Any] = {"reading": []}
    if not given.count:
        kept = Kept(given.to, "reading", _common(given) | {"documents": reading.digest(documents)})
        result = read(_settings(given, [0]), documents, cuts, kept, say)
    best = {
        (row["model"], row["cut"]): row["batch"]
        for row in result["reading"]
        if row["best"] and row["system"] == "runnel"
    }
    counted = [
        reading.work(model, reading.cut(documents, cut), batch) | {"cut": cut}
        for model in given.models
        for cut in cuts
        for batch in ([best[model, cut]] if (model, cut) in best else given.texts)
    ]
    text = f"## Work for a document\n\n{table_of_work(counted, len(documents))}"
    if not given.count:
        text = f"{comparison_text(result)}\n\n{text}"
        kept.publish(text, lambda file: plot_reading(result["reading"], file))
    _print(text)
    return int(bool(failures(result)))


def _train(given: argparse.Namespace) -> int:
    from benchmarks.compare import train
    from benchmarks.kept import Kept, failures
    from benchmarks.page_text import training_table
    from benchmarks.plots import plot_training

    kept = Kept(given.to, "training", _common(given, "tokens"))
    ranks = [rank or None for rank in given.lora]
    rows = train(_settings(given, [given.tokens]), given.tokens, ranks, kept, say)
    text = training_table(rows)
    _print(text)
    kept.publish(text, lambda file: plot_training(rows, file))
    return int(bool(failures({"training": rows})))


def _lengths(given: argparse.Namespace) -> int:
    from benchmarks.reading import lengths_of

    found = list(lengths_of(given.model, given.corpus, given.pieces))
    write(given.to, "".join(" ".join(map(str, pieces)) + "\n" for pieces in found if pieces))
    read = sum(map(bool, found))
    say(
        f"{given.to}: {read:,} documents with {sum(map(sum, found)):,} tokens; left out"
        f" {len(found) - read:,} without text"
    )
    return 0


def _results(given: argparse.Namespace) -> int:
    import json

    from benchmarks.results import Work, collect, measure
    from benchmarks.results_page import page_text, plot

    work = Work(given.work)
    failed = measure(given.data, work, given.only, say, given.part)
    page = given.folder / "results.json"
    known = json.loads(page.read_text(encoding="utf-8")) if page.exists() else {}
    result = collect(given.data, work, known)
    write(given.folder / "results.json", json.dumps(result, indent=1) + "\n")
    write(given.folder / "results.md", page_text(result))
    plot(result, given.folder / "results.png")
    return int(bool(failed))


def _asked(given: argparse.Namespace) -> int:
    from benchmarks.asked import ask

    folder = given.work / "questions" / given.about
    ask(given.questions, given.documents, given.model, folder, say)
    return 0


def _control(given: argparse.Namespace) -> int:
    from benchmarks.control import run_experiment
    from benchmarks.control_page import page_text, plot

    result = run_experiment(given.experiment, given.data, given.to, say)
    text = page_text(result)
    write(given.to / "control.md", text)
    plot(result, given.to / "control.png")
    _print(text)
    return 0


def _serve(given: argparse.Namespace) -> int:
    import asyncio

    from benchmarks.serving import Load, measure, server
    from runnel.models.folder import load_model

    load = Load(long_tokens=given.long_tokens, requests=given.requests)
    with server(given.model) as url:
        _print(asyncio.run(measure(url, load_model(given.model), load, say)))
    return 0


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
