"""What `runnel lab qa` lets a language model read: the best sentences or chunks of a document, or all of it in windows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from runnel.commands.runs import Rows, resumed_rows
from runnel.files import digest
from runnel.generation.asking import fit
from runnel.lab.evaluation.evidence import context_of, scorer_of
from runnel.lab.evaluation.qa.records import QaDocument, QaQuestion, QaSet
from runnel.lab.evaluation.retrieval import EMBEDDERS, How, System, refuse_unused
from runnel.lab.evaluation.segments import cut_sentences, expect_stride
from runnel.lab.evaluation.sentences import Scorer
from runnel.models.base import BUILT_IN
from runnel.records import expect_choice
from runnel.text.dialogue import GAP
from runnel.text.tokenizer import Tokenizer
from runnel.work import top

Span = tuple[int, int]
"""Characters [start, end) of a document."""

Parts = list[list[Span]]
"""Spans of a document. Each part is read by itself; answers from several parts are combined."""

Choose = Callable[[str, QaDocument], Parts]
"""Of a question and a document: what to read."""

Way = Literal["excerpts", "whole", "copied"]
"""How parts are used: excerpts that were retrieved are read; so are windows of the whole document; or a language model first
copies the sentences that matter from each window, and reads these."""


@dataclass(frozen=True, slots=True)
class Material:
    """What a language model is to read for a question."""

    question: QaQuestion
    tokens: int  # of the whole document
    parts: Parts
    way: Way


def find_all(data: QaSet, choose: Choose, tokenizer: Tokenizer) -> Iterator[tuple[str, int, Parts]]:
    """Yield for each question its id, the tokens of its document and what to read.

    A document that several questions in a row are about is tokenized once.
    """
    last, tokens = "", 0
    for one in data.questions:
        document = data.documents[one.document]
        if document.id != last:
            last, tokens = document.id, len(tokenizer.encode(document.text))
        yield one.id, tokens, choose(one.question, document)


def by_retrieval(score: Scorer, top_k: int, max_tokens: int | None, tokenizer: Tokenizer) -> Choose:
    """Read the `top_k` best sentences or chunks, or as many of them, best first, as have at most `max_tokens` tokens together."""

    def choose(question: str, document: QaDocument) -> Parts:
        text = document.text
        spans, scores = score(question, text, document.sentences)
        best = top(scores, top_k)
        ranked = [(start, end) for start, end in spans[best].tolist()]
        if max_tokens is not None:
            ranked = fit(ranked, lambda spans: len(tokenizer.encode(join(text, spans))), max_tokens)
        return [merge(text, ranked)]

    return choose


def by_windows(tokenizer: Tokenizer, size: int, stride: int) -> Choose:
    """Read the whole document, in windows of whole sentences of at most `size` tokens."""

    @lru_cache(maxsize=1)
    def cut(document: str) -> Parts:
        return [[span] for span in cut_sentences(document, tokenizer.encode(document).starts, size, stride)]

    return lambda question, document: cut(document.text)


def merge(document: str, spans: Iterable[Span]) -> list[Span]:
    """Return spans in document order; overlapping ones and those with only white space between them are joined."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and (start <= merged[-1][1] or not document[merged[-1][1] : start].strip()):
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def join(document: str, spans: Iterable[Span]) -> str:
    """Return the text of spans in document order, with `GAP` in a line of its own where text is left out between them.

    Source: paper E, section 3, and the authors' code. Differs: gaps are marked; there they are line ends, as in the document.
    """
    texts = (document[start:end].strip() for start, end in merge(document, spans))
    return f"\n{GAP}\n".join(text for text in texts if text)


def locate(document: str, lines: Iterable[str]) -> tuple[Span, ...]:
    """Return where copied lines first occur, in document order; a line that is not in the document has no place."""
    found = (re.search(r"\s+".join(map(re.escape, line.split())), document) for line in lines)
    return tuple(sorted({match.span() for match in found if match}))


@dataclass(frozen=True)
class Setup:
    """What is read for a question, and how it is used."""

    settings: Mapping[str, object]  # what that depends on, besides the questions and the weights of the model
    way: Way
    load: Callable[[Tokenizer], tuple[Choose, str | None]]  # what chooses it, and the fingerprint of the model


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
    size = given.get("window_tokens", WINDOW)
    window = size, given.get("stride", max(1, size // 2))
    expect_stride(window[1], size)
    settings: dict[str, object] = {"model": model, "as": kind}
    if kind in ("whole", "copied"):
        settings |= {"window_tokens": size, "stride": window[1]}
        return Setup(settings, kind, lambda tokenizer: (by_windows(tokenizer, *window), None))
    used = window if "window_tokens" in given else None  # of a recurrent model; None: it reads documents whole
    chunk_words, context, max_tokens = given.get("chunk_words"), context_of(given.get("context")), given.get("context_tokens")
    top_k = given.get("top_k", SENTENCES if chunk_words is None else CHUNKS)
    system = System(model, kind, dtype, context=context, chunk_words=chunk_words)
    settings |= {"context": context, "chunk_words": chunk_words, "top_k": top_k, "context_tokens": max_tokens}

    def load(tokenizer: Tokenizer) -> tuple[Choose, str | None]:
        score, fingerprint = scorer_of(system, used)
        return by_retrieval(score, top_k, max_tokens, tokenizer), fingerprint

    return Setup({**settings, "window": used and list(used)}, "excerpts", load)


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
        choose, fingerprint = setup.load(tokenizer)
        return find_all(data, choose, tokenizer), lambda row: dict(zip(("id", "tokens", "parts"), row, strict=True)), fingerprint

    questions = ([one.id, one.document, one.question] for one in data.questions)
    documents = ([one.id, one.text, one.sentences] for one in data.documents.values())
    settings = {**setup.settings, "questions": digest(*map(json.dumps, (*questions, *documents)))}
    rows = resumed_rows(out, settings, load)
    pairs = zip(data.questions, rows, strict=True)
    return [Material(question, row["tokens"], row["parts"], setup.way) for question, row in pairs]
