"""Hard negatives: documents that a search returns for a query although they do not answer it.

Some results do answer the query but were never judged. Copies of a positive are always refused; documents that an embedder
scores nearly as high as a positive are refused if a margin is set.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from runnel.errors import InputError
from runnel.lab.training.candidates import Search
from runnel.lab.training.corpora import Texts
from runnel.lab.training.data import Triple

if TYPE_CHECKING:
    from runnel.models.embedder import Embedder

_BLOCK = 256  # queries searched together
_KNOWN = 100_000  # cached vectors of candidates, as many queries share candidates
_COPY = 0.9  # least share of common word triples in copies

EMPTY = "empty"
POSITIVE = "a positive or a copy of one"
NEGATIVE = "a copy of another negative"
LIKELY = "scored like a positive"


@dataclass(frozen=True, slots=True)
class Mining:
    """Settings for drawing negatives. Ranks count from 1 with positives; the n-th query's draw depends on the seed and n."""

    number: int = 7
    ranks: tuple[int, int] = (1, 100)
    seed: int = 0
    max_score: float | None = None
    margin: float | None = None
    relative_margin: float | None = None

    def __post_init__(self) -> None:
        first, last = self.ranks
        if not 0 < self.number <= last - first + 1 or first < 1:
            raise InputError(f"{self.number} negatives of ranks {first} to {last}; expected at least 1, and as many ranks from 1")

    @property
    def needs_scores(self) -> bool:
        return (self.max_score, self.margin, self.relative_margin) != (None, None, None)

    def highest(self, positive: float) -> float:
        """Return the highest score allowed for a negative, given the mean score of the positives."""
        bars = [np.inf if self.max_score is None else self.max_score]
        if self.margin is not None:
            bars.append(positive - self.margin)
        if self.relative_margin is not None:
            bars.append(positive - self.relative_margin * abs(positive))
        return min(bars)


class NegativeJudge:
    """An embedder that scores candidates."""

    def __init__(
        self,
        embedder: Embedder,
        corpus: Texts | None = None,
        vectors: Callable[[Sequence[int]], Sequence[np.ndarray] | np.ndarray] | None = None,
    ) -> None:
        assert (corpus is None) != (vectors is None)
        self.embedder, self._corpus = embedder, corpus
        self.vectors = vectors or self._encode
        self._known: dict[int, np.ndarray] = {}

    def _encode(self, rows: Sequence[int]) -> list[np.ndarray]:
        if len(self._known) > _KNOWN:
            self._known.clear()
        assert self._corpus is not None
        new = [row for row in rows if row not in self._known]
        if new:
            self._known |= zip(new, self.embedder.encode_document([self._corpus.at(row) for row in new]), strict=True)
        return [self._known[row] for row in rows]


@dataclass(slots=True)
class Mined:
    """An example with the negatives drawn for it. `refused` counts candidates by reason."""

    triple: Triple
    drawn: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


def mine(
    triples: Iterable[Triple], corpus: Texts, search: Search, mining: Mining, judge: NegativeJudge | None = None, start: int = 0
) -> Iterator[Mined]:
    """Draw negatives for each example, in order. An example with too few candidates gets fewer."""
    assert judge is not None or not mining.needs_scores
    numbered = itertools.islice(enumerate(triples), start, None)
    while block := list(itertools.islice(numbered, _BLOCK)):
        results = search([triple for _, triple in block], mining.ranks[1])
        draws = [_Draw(triple, rows, i, corpus, mining) for (i, triple), rows in zip(block, results, strict=True)]
        if mining.needs_scores and judge is not None:
            _fill_judged(draws, mining, judge)
        else:
            for draw in draws:
                for _, text in draw.next():
                    draw.accept(text)
        yield from (draw.mined for draw in draws)


def word_triples(text: str) -> frozenset[tuple[str, ...]]:
    """Return the set of three consecutive words, by which copies are recognized; case and punctuation do not count."""
    words = re.findall(r"\w+", text.casefold()) or [text.strip()]
    return frozenset(zip(words, words[1:], words[2:], strict=False)) if len(words) > 2 else frozenset([tuple(words)])


class _Draw:
    def __init__(self, triple: Triple, rows: np.ndarray, index: int, corpus: Texts, mining: Mining) -> None:
        self.mined = Mined(triple)
        self._corpus, self._missing = corpus, mining.number
        within = rows[mining.ranks[0] - 1 :]
        self._rows = iter(np.random.default_rng([mining.seed, index]).permutation(within).tolist())
        self._positives = [word_triples(text) for text in triple.positives]
        self._negatives = [word_triples(text) for text in triple.negatives]

    def next(self) -> list[tuple[int, str]]:
        """Return as many candidates as are missing, or all that are left: (row, text) pairs without copies."""
        candidates: list[tuple[int, str]] = []
        while len(candidates) < self._missing and (row := next(self._rows, None)) is not None:
            text = self._corpus.at(row)
            triples = word_triples(text)
            copied = [any(_are_copies(triples, one) for one in texts) for texts in (self._positives, self._negatives)]
            if not text.strip() or any(copied):
                self.mined.refused[EMPTY if not text.strip() else POSITIVE if copied[0] else NEGATIVE] += 1
            else:
                self._negatives.append(triples)
                candidates.append((row, text))
        return candidates

    def accept(self, text: str) -> None:
        self.mined.drawn.append(text)
        self._missing -= 1


def _fill_judged(draws: list[_Draw], mining: Mining, judge: NegativeJudge) -> None:
    """Draw and score until every example has its negatives or no candidates are left."""
    queries = judge.embedder.encode_query([draw.mined.triple.query for draw in draws])  # (B, d)
    positives = [draw.mined.triple.positives for draw in draws]
    vectors = iter(judge.embedder.encode_document([text for texts in positives for text in texts]))
    scores = [np.mean([query @ next(vectors) for _ in texts]) for query, texts in zip(queries, positives, strict=True)]
    bars = [mining.highest(float(score)) for score in scores]
    while proposals := [(i, row, text) for i, draw in enumerate(draws) for row, text in draw.next()]:
        rows = sorted({row for _, row, _ in proposals})
        scored = dict(zip(rows, judge.vectors(rows), strict=True))
        for i, row, text in proposals:
            if float(queries[i] @ scored[row]) > bars[i]:
                draws[i].mined.refused[LIKELY] += 1
            else:
                draws[i].accept(text)


def _are_copies(a: frozenset[tuple[str, ...]], b: frozenset[tuple[str, ...]]) -> bool:
    """Return whether the Jaccard similarity is at least `_COPY`; usually the sizes alone decide."""
    if min(len(a), len(b)) < _COPY * max(len(a), len(b)):
        return False
    common = len(a & b)
    return common >= _COPY * (len(a) + len(b) - common)
