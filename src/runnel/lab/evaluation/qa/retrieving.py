"""What a language model is to read for each question: the best sentences or chunks of its document, or all of it in windows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from runnel.generation.asking import fit
from runnel.lab.evaluation.pieces import cut_sentences
from runnel.lab.evaluation.qa.records import QaDocument, QaQuestion, QaSet
from runnel.lab.evaluation.sentences import Scorer
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
