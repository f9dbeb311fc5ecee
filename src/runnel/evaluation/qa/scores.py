"""Scores of answers: accuracy by a judge, token F1, and their means over questions, sets, categories and lengths."""

from __future__ import annotations

import re
import string
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from runnel.evaluation.qa.judging import Verdict, any_yes
from runnel.evaluation.qa.records import Category

LENGTHS = (-1, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000)  # tokens of a document
_RESAMPLED = 4000  # of an interval
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a question.

    Attributes:
        question: its id.
        category: of its document.
        tokens: of its document.
        answered: whether the language models replied; a question without replies has no score.
        answer: None: none was found in the replies, which counts as wrong.
        verdicts: one for each true answer; None: the judgment could not be read.
        correct: whether any verdict is yes; None: none is, and one could not be read, or the question is not answered.
        f1: token F1; None for multiple-choice questions and those not answered.
        evidence: characters of the document that the language model copied before it answered; (): it was not asked to copy.
    """

    question: str
    category: Category | None
    tokens: int
    answered: bool = False
    answer: str | None = None
    verdicts: tuple[Verdict, ...] = ()
    correct: Verdict = None
    f1: float | None = None
    evidence: tuple[tuple[int, int], ...] = ()

    def judged(self, answer: str, verdicts: Sequence[Verdict], f1: float | None) -> Outcome:
        """Return the outcome of an answer with its verdicts."""
        return replace(self, answered=True, answer=answer, verdicts=tuple(verdicts), correct=any_yes(verdicts), f1=f1)

    def wrong(self, multiple_choice: bool) -> Outcome:
        """Return the outcome of a question to which the language model wrote no answer."""
        return replace(self, answered=True, correct=False, f1=None if multiple_choice else 0.0)

    def values(self) -> dict[str, float]:
        """Return the scores that the question has."""
        scores = {"accuracy": self.correct, "F1": self.f1}
        return {name: float(score) for name, score in scores.items() if score is not None}


def normalize(text: str) -> list[str]:
    """Return the words of a text in lower case, without ASCII punctuation and English articles.

    Source: SQuAD's evaluation script.
    """
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def token_f1(answer: str, truth: str) -> float:
    """Return the harmonic mean of precision and recall of words; 0 if they share none."""
    words, expected = Counter(normalize(answer)), Counter(normalize(truth))
    common = (words & expected).total()
    return 2 * common / (words.total() + expected.total()) if common else 0.0


def best_f1(answer: str, truths: Iterable[str]) -> float:
    """Return the highest token F1 over the true answers, one at least."""
    return max(token_f1(answer, truth) for truth in truths)


# ---- means ------------------------------------------------------------------------------------------------------------


def summarize(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the scores of a set, with those of its categories and of documents of several lengths."""
    return group("all", outcomes) | {"by_category": by_category(outcomes), "by_length": by_length(outcomes)}


def group(name: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the scores of some questions.

    accuracy is the share of right answers among questions with a verdict, `low` to `high` its 95 % interval by the bootstrap
    over questions; F1 the mean over free-form questions. Without such a question they are None.
    """
    judged = [one.correct for one in outcomes if one.correct is not None]
    f1 = [one.f1 for one in outcomes if one.f1 is not None]
    low, high = interval([judged]) if judged else (None, None)
    return {
        "name": name,
        "questions": len(outcomes),
        "unanswered": sum(not one.answered for one in outcomes),
        "unreadable": sum(one.answered and one.correct is None for one in outcomes),
        "correct": sum(judged),
        "accuracy": float(np.mean(judged)) if judged else None,
        "low": low,
        "high": high,
        "F1": float(np.mean(f1)) if f1 else None,
    }


def mean_of_sets(sets: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
    """Return the means over sets, each set alike; those without a score are left out of that score."""
    groups = [group(name, outcomes) for name, outcomes in sets.items()]
    judged = [[one.correct for one in outcomes if one.correct is not None] for outcomes in sets.values()]
    judged = [one for one in judged if one]
    low, high = interval(judged) if judged else (None, None)
    means = {}
    for name in ("accuracy", "F1"):
        values = [one[name] for one in groups if one[name] is not None]
        means[name] = float(np.mean(values)) if values else None
    return {"sets": len(sets), "low": low, "high": high, **means}


def interval(sets: Sequence[Sequence[bool]], seed: int = 0) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean over sets of the share of right answers.

    Questions are resampled within their set. Right answers of a resampled set are binomially distributed, so they are drawn as
    such.
    """
    rng = np.random.default_rng(seed)
    drawn = np.mean([rng.binomial(len(one), np.mean(one), _RESAMPLED) / len(one) for one in sets], axis=0)
    low, high = np.percentile(drawn, [2.5, 97.5]).tolist()
    return low, high


def by_category(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the scores of each category; questions without one are in none."""
    categories = dict.fromkeys(one.category for one in outcomes if one.category is not None)
    return [group(name, [one for one in outcomes if one.category == name]) for name in sorted(categories)]


def by_length(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the scores of questions about documents of several lengths in tokens."""
    lengths = [(f"{a + 1:,} to {b:,} tokens" if a > 0 else f"up to {b:,} tokens", a, b) for a, b in pairwise(LENGTHS)]
    lengths.append((f"over {LENGTHS[-1]:,} tokens", LENGTHS[-1], sys.maxsize))
    groups = {name: [one for one in outcomes if a < one.tokens <= b] for name, a, b in lengths}
    return [group(name, some) for name, some in groups.items() if some]
