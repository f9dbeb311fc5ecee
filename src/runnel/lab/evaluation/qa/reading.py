"""What `runnel lab qa` lets a language model read: excerpts that a system retrieves, or windows of whole documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.commands.runs import Rows, resumed_rows
from runnel.errors import InputError
from runnel.files import digest

if TYPE_CHECKING:
    from runnel.lab.evaluation.qa.records import QaSet
    from runnel.lab.evaluation.qa.retrieving import Choose, Material, Parts, Way
    from runnel.lab.evaluation.retrieval import How, System
    from runnel.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Setup:
    """What is read for a question, and how it is used."""

    settings: Mapping[str, object]  # what that depends on, besides the questions and the weights of the model
    way: Way
    load: Callable[[Tokenizer, QaSet], tuple[Choose, str | None]]  # what chooses it, and the fingerprint of the model


WINDOWED: tuple[Way, ...] = ("whole", "copied")  # instead of a model; see `retrieving.Way`
SENTENCES, CHUNKS, WINDOW = 50, 5, 120_000  # to read, and tokens of a window, as in paper E


def setup_of(
    model: str,
    *,
    how: How | None = None,
    dtype: str = "auto",
    top_k: int | None = None,
    chunk_words: int | None = None,
    context: str | None = None,
    context_tokens: int | None = None,
    window_tokens: int | None = None,
    stride: int | None = None,
) -> Setup:
    """Return what is read of documents; the arguments are options of `runnel lab qa`.

    Raises:
        InputError: an option has no effect on what the model reads.
    """
    if model in WINDOWED:
        options = {"--as": how, "--top-k": top_k, "--chunk-words": chunk_words, "--context": context}
        options |= {"--context-tokens": context_tokens, "--dtype": None if dtype == "auto" else dtype}
        if unused := next((name for name, value in options.items() if value is not None), None):
            raise InputError(f"{unused} is for retrieval by a model; {model} reads whole documents")
        return read_windows("whole" if model == "whole" else "copied", window_of(window_tokens or WINDOW, stride))
    if window_tokens is None and stride is not None:
        raise InputError(f"--stride is {stride:,} tokens between windows; give --window-tokens too")
    window = None if window_tokens is None else window_of(window_tokens, stride)
    system = system_of(model, how, dtype, chunk_words, context)
    return read_excerpts(system, top_k or (SENTENCES if chunk_words is None else CHUNKS), context_tokens, window)


def system_of(model: str, how: How | None, dtype: str, chunk_words: int | None, context: str | None) -> System:
    """Return what retrieves."""
    from runnel.lab.evaluation.embedders import EMBEDDERS
    from runnel.lab.evaluation.evidence import context_of
    from runnel.lab.evaluation.retrieval import System

    kind: How = "bm25" if model == "bm25" else how or ("embed" if model.startswith(EMBEDDERS) else "sentences")
    if (how is not None and kind != how) or (model.startswith(EMBEDDERS) and kind != "embed"):
        raise InputError(f"{model} cannot retrieve as {how}; leave --as out")
    if kind == "sentences" and chunk_words is not None:
        raise InputError(f"{model} retrieves sentences; --chunk-words is for bm25 and --as embed")
    if kind == "bm25" and dtype != "auto":
        raise InputError("bm25 is no model; --dtype is for models")
    if kind != "sentences" and context is not None:
        raise InputError(f"{model} reads each sentence by itself; --context is for sentence retrievers")
    return System(model, kind, dtype, context=context_of(context), chunk_words=chunk_words)


def read_excerpts(system: System, top_k: int, max_tokens: int | None, window: tuple[int, int] | None) -> Setup:
    """Read the best sentences or chunks by a system; sentences are those of the data, if it has them.

    `window`: tokens of one and from one to the next, for a recurrent model; None: it reads documents whole.
    """
    if window is not None and (system.how != "sentences" or system.context is not None):
        raise InputError("windows are for sentence retrievers that read whole documents; leave --window-tokens out")

    def load(tokenizer: Tokenizer, data: QaSet) -> tuple[Choose, str | None]:
        from runnel.lab.evaluation.evidence import scorer_of
        from runnel.lab.evaluation.qa.retrieving import by_retrieval

        score, fingerprint = scorer_of(system, window)
        return by_retrieval(score, top_k, max_tokens, tokenizer), fingerprint

    settings = {"model": system.model, "as": system.how, "context": system.context, "chunk_words": system.chunk_words}
    return Setup({**settings, "top_k": top_k, "context_tokens": max_tokens, "window": window and list(window)}, "excerpts", load)


def window_of(size: int, stride: int | None) -> tuple[int, int]:
    """Return the tokens of a window and those from one window to the next, by default half as many."""
    step = max(1, size // 2) if stride is None else stride
    if step > size:
        raise InputError(f"--stride is {step:,}; expected 1 to the tokens of a window, {size:,}")
    return size, step


def read_windows(way: Way, window: tuple[int, int]) -> Setup:
    """Read whole documents in windows: `way` is "whole" or "copied"."""
    size, stride = window

    def load(tokenizer: Tokenizer, data: QaSet) -> tuple[Choose, str | None]:
        from runnel.lab.evaluation.qa.retrieving import by_windows

        return by_windows(tokenizer, size, stride), None

    return Setup({"model": way, "as": way, "window_tokens": size, "stride": stride}, way, load)


def draw(data: QaSet, limit: int | None, seed: int) -> QaSet:
    """Return a set with `limit` of its questions, drawn at random, in their order, and with a note of that; None: all.

    Source: paper E draws 200 questions of larger sets (table 8). Another `limit` draws more or fewer of the same.
    """
    count = len(data.questions)
    if limit is None or limit >= count:
        return data
    import numpy as np

    chosen = sorted(np.random.default_rng(seed).permutation(count)[:limit].tolist())
    note = f"{limit:,} of its {count:,} questions, drawn at random with seed {seed}"
    return replace(data, questions=tuple(data.questions[i] for i in chosen), notes=(*data.notes, note))


def find(data: QaSet, setup: Setup, out: Path) -> list[Material]:
    """Return what is read for each question, written to OUT unless it is there."""
    from runnel.lab.evaluation.qa.retrieving import Material, find_all
    from runnel.models.base import BUILT_IN
    from runnel.text.tokenizer import Tokenizer

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
