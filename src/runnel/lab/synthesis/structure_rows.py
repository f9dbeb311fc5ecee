"""Rows of evidence from the structure of documents, and counts of what is used and what is left out.

A long document is cut into parts, which are the documents of the rows, because each row holds its document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runnel.files import digest
from runnel.lab.synthesis.sources import Source, check_language, refusal
from runnel.lab.synthesis.strategies import BOILERPLATE
from runnel.lab.synthesis.structure import Asked, ask, cut
from runnel.lab.training.decontaminate import Decontaminator
from runnel.text.sentences import split_sentences

PART_SENTENCES = 300  # of a part, at most: training looks at that many sentences at a time
PART_QUESTIONS = 20  # about a part, at most


@dataclass
class StructureRows:
    """One run over documents. The same documents, in the same order, and the same seed give the same rows."""

    guard: Decontaminator
    language: str | None = None
    seed: int = 0
    read: int = 0  # parts so far
    kept: Counter[str] = field(default_factory=Counter)  # rows by strategy
    rejected: Counter[str] = field(default_factory=Counter)  # parts and questions, by reason

    def __post_init__(self) -> None:
        if self.language is not None:
            check_language(self.language)

    def rows(self, sources: Iterable[Source], limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield rows of evidence (docs/data.md), those of a document in its order, until there are `limit`."""
        for source in sources:
            for start, end in _parts(source.text):
                for row in self._part(source, start, end):
                    if limit is not None and self.kept.total() >= limit:
                        return
                    self.kept[row["strategy"]] += 1
                    yield row

    def _part(self, source: Source, start: int, end: int) -> Iterator[dict[str, Any]]:
        text = source.text[start:end]
        self.read += 1
        reason = refusal(text, self.guard, self.language)
        if reason is not None:
            self.rejected[reason] += 1
            return
        asked = self._choose(text, ask(text, lambda offset: source.places.kind_at(start + offset)))
        if not asked:
            self.rejected["parts whose structure asks nothing"] += 1
        document, place = cut(text, asked)
        for one in asked:
            answer = list(place(one.answer))
            row: dict[str, Any] = {"id": f"structure-{digest(source.name, document, one.question)}", "question": one.question}
            row |= {"document": document, "evidence": [answer], "strategy": one.strategy, "places": [answer]}
            row |= {"source": source.name, "source_start": start, "source_question": [start + offset for offset in one.source]}
            yield row | {"source_evidence": [start + offset for offset in one.answer]}

    def _choose(self, text: str, asked: list[Asked]) -> list[Asked]:
        usable = [one for one in asked if not BOILERPLATE.search(one.question + text[slice(*one.answer)])]
        if boilerplate := len(asked) - len(usable):
            self.rejected["questions about boilerplate of a publisher"] += boilerplate
        if (beyond := len(usable) - PART_QUESTIONS) <= 0:
            return usable
        self.rejected[f"questions beyond {PART_QUESTIONS} about a part"] += beyond
        rng = np.random.default_rng([self.seed, int(digest(text), 16)])
        return [usable[number] for number in sorted(rng.choice(len(usable), PART_QUESTIONS, replace=False).tolist())]


def _parts(text: str) -> Iterator[tuple[int, int]]:
    """Yield the parts [start, end) of a text: at most `PART_SENTENCES` neighboring sentences, about equally many in each."""
    spans = split_sentences(text)
    count = -(-len(spans) // PART_SENTENCES)
    for sentences in np.array_split(spans, count) if count else []:
        yield int(sentences[0, 0]), int(sentences[-1, 1])
