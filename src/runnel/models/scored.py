"""The sentences of a document with their scores, and what a model that stores vectors of sentences
(pocket) found in its two looks at the document (`models/pocket/looks.py`):

    first look     scores every sentence from the stored vectors, with the head `VectorScore`
    second look    reads the best sentences again, with the layers of the head `Judge`, and says
                   how probable it is that the document answers at all

A title is a heading or a question: its answer is below it, so a share of its score passes to the
sentences there. An aside is a sentence that is no answer, such as a line of a table of contents.

S  sentences of a document      R  sentences that were read again      Q  tokens of the query
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from runnel.batching import top
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.records import Sentence, probability
from runnel.text.kinds import TEXT, TITLES

_AHEAD = 8  # sentences, a title and those after it, among which the first text is looked for


@dataclass(frozen=True, eq=False)
class FirstLook:
    """The result of the first look at a document."""

    query: np.ndarray  # (Q,) the token ids of the query, without those of its begin and end
    document: SentenceVectors
    plain: np.ndarray  # (S,) float32 scores of `VectorScore`; -inf for a sentence without a token
    scores: np.ndarray  # (S,) float32: `plain` with the shares of titles; -inf also for asides
    # (FACTS,) numbers about the document, such as its length and best score, by which it is judged:
    # see `first_look` in `models/pocket/looks.py`
    facts: np.ndarray


@dataclass(frozen=True, eq=False)
class SecondLook:
    """The result of the second look at a document."""

    scores: np.ndarray  # (S,) float32, the final scores
    answers_logit: float | None  # that the document answers; None: the judge is not calibrated
    read: np.ndarray  # (S,) bool: the sentences that were read again
    # (S,) their scores by the judge, the pair layers and the sentence alone; the other sentences
    # get one low constant
    judged: np.ndarray
    judge_only: np.ndarray  # (R,) the part of these scores that the judge layers gave
    from_titles: np.ndarray  # (S,) the shares of `judged` that titles pass to the text below them


@dataclass(frozen=True, eq=False)
class Scored:
    """The sentences of a document with their scores, as arrays: a book has 100,000 sentences, of
    which few become a `Sentence`.
    """

    text: str
    spans: np.ndarray  # (S, 2) int64 characters
    scores: np.ndarray  # (S,) float32; -inf for a sentence without a token, and for an aside
    kinds: np.ndarray | None = None  # (S,) uint8, as `SentenceTokens.kinds`; None: all are text
    first: FirstLook | None = None  # None: the model stores no vectors
    second: SecondLook | None = None

    @property
    def answers(self) -> float | None:
        """The probability that the document answers the query at all; None if
        the model cannot say.
        """
        logit = None if self.second is None else self.second.answers_logit
        return None if logit is None else probability(logit)

    def __len__(self) -> int:
        return len(self.spans)

    def text_below(self, index: int) -> int:
        """Return the position of the first text below a title; `index` if the sentence is none, or
        no text follows.
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
