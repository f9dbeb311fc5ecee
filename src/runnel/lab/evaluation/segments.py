"""Pieces of documents for what reads a part at a time: windows of tokens or of whole sentences, chunks of words; and the score of
a document from segments: FirstP, LongP, MaxP and SumP (docs/evaluation.md).

Source: Dai and Callan, Deeper Text Understanding for IR with Contextual Neural Language Modeling, 2019; paper C, 4.3 and B.2.2.
Differs: segments have a number of tokens, not of words. SumP of a reranker adds the sigmoids of its scores, so that no segment
lowers a sum.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from runnel.errors import InputError
from runnel.lab.training import recipes
from runnel.lab.training.data import Texts
from runnel.records import Document, expect_count
from runnel.text.sentences import split_sentences
from runnel.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Reading:
    """What is read of queries and documents; None: all."""

    max_tokens: int | None = None  # of a document, for a reranker of query and document, special ones included
    max_query_tokens: int | None = None  # of a query, for an embedder
    segment_tokens: int | None = None  # of a segment's text; only with it the next two count
    stride: int | None = None  # tokens from the start of a segment to the next; None: segments do not overlap
    aggregate: Literal["max", "sum"] = "max"  # how a document's score is made of its segments'

    def __post_init__(self) -> None:
        if self.segment_tokens is not None and self.stride is not None:
            expect_stride(self.stride, self.segment_tokens)

    def settings(self) -> dict[str, object]:
        """Return the settings that scores depend on; none if everything is read."""
        found = {name: value for name, value in asdict(self).items() if value is not None}
        return found if self.segment_tokens is not None else {n: v for n, v in found.items() if n != "aggregate"}

    def cut(self, text: str, tokenizer: Tokenizer) -> list[str]:
        """Return the segments of a text, at least one; together they cover it."""
        assert self.segment_tokens is not None
        encoded = tokenizer.encode(text)
        count, stride = len(encoded.ids), self.stride or self.segment_tokens
        if count <= self.segment_tokens:
            return [text]
        cuts = windows(np.arange(count + 1), self.segment_tokens, stride)
        pieces = [text[encoded.starts[first] : encoded.ends[last - 1]] for first, last in cuts]
        return [piece for piece in pieces if piece.strip()] or [text]

    def cut_all(self, documents: Iterable[Document], tokenizer: Tokenizer) -> tuple[Texts, np.ndarray]:
        """Return the segments of all documents, with ids such as "d1#0", and the document's row of each, int64."""
        owners: list[int] = []

        def pieces() -> Iterator[Document]:
            for row, document in enumerate(documents):
                for number, piece in enumerate(self.cut(document.text, tokenizer)):
                    owners.append(row)
                    yield Document(segment_id(document.id, number), piece)

        texts = Texts(pieces())
        return texts, np.array(owners, dtype=np.int64)

    def combine(self, scores: Mapping[str, float]) -> list[tuple[str, float]]:
        """Return documents with their scores, best first, from the logits of their segments."""
        combined: dict[str, float] = {}
        for name, score in scores.items():
            document = name.rpartition("#")[0]
            if self.aggregate == "sum":
                combined[document] = combined.get(document, 0.0) + 1 / (1 + math.exp(-max(score, -700.0)))
            else:
                combined[document] = max(combined.get(document, -math.inf), score)
        return sorted(combined.items(), key=lambda one: -one[1])


def expect_stride(stride: int, size: int) -> None:
    """Raise InputError unless windows of `size` tokens that begin each `stride` tokens together have every token."""
    if not 1 <= stride <= size:
        raise InputError(f"the stride is {stride:,} tokens; expected 1 to {size:,}, the tokens of a window or segment")


def windows(bounds: np.ndarray, size: int, stride: int) -> list[tuple[int, int]]:
    """Return windows [first, last) of units, each of at most `size` tokens or one unit, that together have every unit.

    A window begins `stride` tokens after the one before it, or where that ends, whichever is first; the last ends with the text.
    `bounds` is int64 (S + 1,): the tokens before each unit, and of all.

    Source: paper E, section 5.4: 120,000 and 60,000 tokens.
    """
    spans: list[tuple[int, int]] = []
    first = end = 0
    while end < len(bounds) - 1:
        last = max(first + 1, int(np.searchsorted(bounds, bounds[first] + size, side="right")) - 1)
        if last <= end:  # a long unit comes next, and the window would add nothing
            first += 1
            continue
        spans.append((first, last))
        at = bounds[first] + stride  # a unit without tokens there stays in this window
        following = max(int(np.searchsorted(bounds, at)), int(np.searchsorted(bounds, at, side="right")) - 1)
        first, end = min(last, max(first + 1, following)), last
    return spans


def cut_sentences(document: str, starts: np.ndarray, size: int, stride: int) -> list[tuple[int, int]]:
    """Return the characters of `windows` of whole sentences; `starts` (T,): the character at which each token starts."""
    edges = np.append(split_sentences(document)[:, 0], len(document))
    return [(int(edges[first]), int(edges[last])) for first, last in windows(np.searchsorted(starts, edges), size, stride)]


def split_chunks(document: str, words: int) -> np.ndarray:
    """Return the spans (n, 2) of chunks that tile a document; all but the last have `words` words.

    Source: paper E, 5.2, whose embedders retrieve five chunks of 300 words.
    """
    expect_count(words, "the words of a chunk")
    starts = [0, *(match.start() for match in islice(re.finditer(r"\S+", document), words, None, words))]
    return np.array(list(pairwise([*starts, len(document)])), np.int64)


def segment_id(document: str, number: int) -> str:
    """Return the id of a segment, from which `Reading.combine` reads the document's."""
    return f"{document}#{number}"


def recorded(model: str, job: str) -> Reading:
    """Return what a run's recipe says about evaluation, for RUN/model and RUN/checkpoints/...; other models read everything."""
    folder = Path(model)
    path = (folder.parent.parent if folder.parent.name == "checkpoints" else folder.parent) / "recipe.toml"
    if (folder.name != "model" and folder.parent.name != "checkpoints") or not path.is_file():
        return Reading()
    recipe = recipes.read(str(path))
    if recipe.job != job:
        return Reading()
    table = recipe.evaluation
    return Reading(table.max_tokens or table.max_document_tokens, table.max_query_tokens)
