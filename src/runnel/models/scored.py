"""The sentences of a document with their scores, and the results of pocket's two looks at it
(`models/pocket/looks.py`).

S  sentences of a document      Q  tokens of the query
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from runnel.batching import top
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.records import Sentence, probability
from runnel.text.kinds import TEXT, TITLES

# Sentences after a heading among which the first text is looked for: few headings follow each
# other.
_AHEAD = 8


@dataclass(frozen=True, eq=False)
class FirstLook:
    """The result of the first look at a document."""

    query: np.ndarray  # (Q,) the ids of the query, without markers
    document: SentenceVectors
    plain: np.ndarray  # (S,) float32 scores of the head; -inf for a sentence without a token
    # (S,) float32: `plain` with the shares that titles pass to the text below them; -inf also for
    # asides
    scores: np.ndarray
    facts: np.ndarray  # (FACTS,) facts about the whole document: see `first_look`


@dataclass(frozen=True, eq=False)
class SecondLook:
    """The result of the second look at a document."""

    scores: np.ndarray  # (S,) float32, the final scores
    answers: float | None  # the logit that the document answers, if the judge is fitted
    read: np.ndarray  # (S,) bool: the sentences that were read again
    judged: np.ndarray  # (S,) the judge's scores of these, and a constant for the others
    apart: np.ndarray  # (any,) the scores of the judge layers alone, of the sentences read again
    led: np.ndarray  # (S,) the shares of `judged` that titles pass to the text below them


@dataclass(frozen=True, eq=False)
class Scored:
    """The sentences of a document with their scores: 20 bytes each until a `Sentence` is made."""

    text: str
    spans: np.ndarray  # (S, 2) int64 characters
    # (S,) float32; -inf for a sentence without a token, and for one that is no answer (a line of
    # contents)
    scores: np.ndarray
    kinds: np.ndarray | None = None  # (S,) uint8, as `SentenceTokens.kinds`; None: all are text
    first: FirstLook | None = None  # of a model that stores vectors
    second: SecondLook | None = None

    @property
    def answers(self) -> float | None:
        """The probability that the document answers the query at all; None if
        the model cannot say.
        """
        answers = None if self.second is None else self.second.answers
        return None if answers is None else probability(answers)

    def __len__(self) -> int:
        return len(self.spans)

    def below(self, index: int) -> int:
        """Return the position of the first text below a question or heading; `index` if it is
        neither, or no text follows.
        """
        if self.kinds is None or self.kinds[index] not in TITLES:
            return index
        ahead = np.flatnonzero(self.kinds[index : index + _AHEAD] == TEXT)
        return index + int(ahead[0]) if len(ahead) else index

    def sentence(self, index: int) -> Sentence:
        """Return one sentence by its position in the document."""
        start, end = self.spans[index].tolist()
        return Sentence(self.text[start:end], start, end, float(self.scores[index]), index)

    def sentences(self) -> list[Sentence]:
        """Return all sentences in document order."""
        return [self.sentence(index) for index in range(len(self))]

    def ranked(self) -> Iterator[Sentence]:
        """Yield the sentences with a token, best first, ties in document order."""
        count = int(np.count_nonzero(self.scores > -np.inf))
        return map(self.sentence, top(self.scores, count).tolist())
