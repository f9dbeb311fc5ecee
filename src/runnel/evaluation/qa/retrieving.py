"""What a language model is to read for each question: the best sentences or chunks of its document, or all of it in windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from runnel.evaluation.pieces import cut_sentences
from runnel.evaluation.qa.context import Span, fit, merge
from runnel.evaluation.qa.records import QaDocument, QaQuestion, QaSet
from runnel.evaluation.sentences import Scorer
from runnel.text.tokenizer import Tokenizer

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
        best = np.argsort(-scores, kind="stable")[:top_k]
        ranked = [(start, end) for start, end in spans[best].tolist()]
        if max_tokens is not None:
            ranked = fit(text, ranked, max_tokens, lambda part: len(tokenizer.encode(part)))
        return [merge(text, ranked)]

    return choose


def by_windows(tokenizer: Tokenizer, size: int, stride: int) -> Choose:
    """Read the whole document, in windows of whole sentences of at most `size` tokens."""

    @lru_cache(maxsize=1)
    def cut(document: str) -> Parts:
        return [[span] for span in cut_sentences(document, tokenizer.encode(document).starts, size, stride)]

    return lambda question, document: cut(document.text)
