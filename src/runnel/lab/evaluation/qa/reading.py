"""What `runnel lab qa` lets a language model read: excerpts that a system retrieves, or windows of whole documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from runnel.commands.runs import Rows, resumed_rows
from runnel.files import digest
from runnel.lab.evaluation.embedders import EMBEDDERS
from runnel.lab.evaluation.evidence import context_of, scorer_of
from runnel.lab.evaluation.pieces import expect_stride
from runnel.lab.evaluation.qa.records import QaSet
from runnel.lab.evaluation.qa.retrieving import Choose, Material, Parts, Way, by_retrieval, by_windows, find_all
from runnel.lab.evaluation.retrieval import How, System, refuse_unused
from runnel.models.base import BUILT_IN
from runnel.records import expect_choice
from runnel.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Setup:
    """What is read for a question, and how it is used."""

    settings: Mapping[str, object]  # what that depends on, besides the questions and the weights of the model
    way: Way
    load: Callable[[Tokenizer, QaSet], tuple[Choose, str | None]]  # what chooses it, and the fingerprint of the model


SENTENCES, CHUNKS, WINDOW = 50, 5, 120_000  # to read, and tokens of a window, as in paper E
_WINDOWS, _RETRIEVAL = ("window_tokens", "stride"), ("top_k", "context_tokens")
_TAKES = {  # the options of each way to read
    "whole": _WINDOWS,
    "copied": _WINDOWS,
    "bm25": (*_RETRIEVAL, "chunk_words"),
    "embed": (*_RETRIEVAL, "chunk_words", "dtype"),
    "sentences": (*_RETRIEVAL, *_WINDOWS, "context", "dtype"),
}


def setup_of(model: str, *, how: How | None = None, dtype: str = "auto", **options: Any) -> Setup:
    """Return what is read of documents; the arguments are options of `runnel lab qa`.

    Raises:
        InputError: an option has no effect on what the model reads.
    """
    forced = model if model in ("whole", "copied", "bm25") else "embed" if model.startswith(EMBEDDERS) else None
    kind: Any = forced or how or "sentences"
    expect_choice(kind, _TAKES, f"what {model} does")
    given = {"dtype": dtype if dtype != "auto" else None, "how": how if how != kind else None, **options}
    given = {name: value for name, value in given.items() if value is not None}
    taken = {*_TAKES[kind]}
    if "context" in given:  # its pieces are read whole
        taken -= {*_WINDOWS}
    elif "window_tokens" not in given and kind == "sentences":
        taken -= {"stride"}
    refuse_unused(given, taken, f"{model} as {kind}")
    window = _window_of(given.get("window_tokens", WINDOW), given.get("stride"))
    if kind in ("whole", "copied"):
        return _read_windows(kind, window)
    chunk_words, context = given.get("chunk_words"), context_of(given.get("context"))
    system = System(model, kind, dtype, context=context, chunk_words=chunk_words)
    top_k = given.get("top_k", SENTENCES if chunk_words is None else CHUNKS)
    return _read_excerpts(system, top_k, given.get("context_tokens"), window if "window_tokens" in given else None)


def _window_of(size: int, stride: int | None) -> tuple[int, int]:
    """Return the tokens of a window and those from one window to the next, by default half as many."""
    step = max(1, size // 2) if stride is None else stride
    expect_stride(step, size)
    return size, step


def _read_excerpts(system: System, top_k: int, max_tokens: int | None, window: tuple[int, int] | None) -> Setup:
    """Read the best sentences or chunks by a system; sentences are those of the data, if it has them.

    `window`: tokens of one and from one to the next, for a recurrent model; None: it reads documents whole.
    """

    def load(tokenizer: Tokenizer, data: QaSet) -> tuple[Choose, str | None]:
        score, fingerprint = scorer_of(system, window)
        return by_retrieval(score, top_k, max_tokens, tokenizer), fingerprint

    settings = {"model": system.model, "as": system.how, "context": system.context, "chunk_words": system.chunk_words}
    return Setup({**settings, "top_k": top_k, "context_tokens": max_tokens, "window": window and list(window)}, "excerpts", load)


def _read_windows(way: Way, window: tuple[int, int]) -> Setup:
    """Read whole documents in windows: `way` is "whole" or "copied"."""

    def load(tokenizer: Tokenizer, data: QaSet) -> tuple[Choose, str | None]:
        return by_windows(tokenizer, *window), None

    return Setup({"model": way, "as": way, "window_tokens": window[0], "stride": window[1]}, way, load)


def draw(data: QaSet, limit: int | None, seed: int) -> QaSet:
    """Return a set with `limit` of its questions, drawn at random, in their order, and with a note of that; None: all.

    Source: paper E draws 200 questions of larger sets (table 8). Another `limit` draws more or fewer of the same.
    """
    count = len(data.questions)
    if limit is None or limit >= count:
        return data
    chosen = sorted(np.random.default_rng(seed).permutation(count)[:limit].tolist())
    note = f"{limit:,} of its {count:,} questions, drawn at random with seed {seed}"
    return replace(data, questions=tuple(data.questions[i] for i in chosen), notes=(*data.notes, note))


def find(data: QaSet, setup: Setup, out: Path) -> list[Material]:
    """Return what is read for each question, written to OUT unless it is there."""
    tokenizer = Tokenizer.load(BUILT_IN["pocket"])  # counts for every system, so that lengths are comparable

    def load() -> Rows[tuple[str, int, Parts]]:
        choose, fingerprint = setup.load(tokenizer, data)
        return find_all(data, choose, tokenizer), lambda row: dict(zip(("id", "tokens", "parts"), row, strict=True)), fingerprint

    rows = resumed_rows(out, {**setup.settings, "questions": _digest(data)}, load)
    pairs = zip(data.questions, rows, strict=True)
    return [Material(question, row["tokens"], row["parts"], setup.way) for question, row in pairs]


def _digest(data: QaSet) -> str:
    """Return a digest of all that decides what is read: questions and documents."""
    questions = ([one.id, one.document, one.question] for one in data.questions)
    documents = ([one.id, one.text, one.sentences] for one in data.documents.values())
    return digest(*map(json.dumps, (*questions, *documents)))
