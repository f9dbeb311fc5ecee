"""Scores of answers: accuracy by a judge, token F1, and their means over questions, sets, categories and lengths."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from runnel.lab.evaluation.metrics import ranges
from runnel.lab.evaluation.qa.judging import Verdict, any_yes
from runnel.lab.evaluation.qa.records import Category

LENGTHS = (4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000)  # tokens of a document
_RESAMPLED = 4000  # of an interval
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a question, which is named by its id."""

    question: str
    category: Category | None  # of its document
    tokens: int  # of its document
    answered: bool = False  # a question to which the language models did not reply has no score
    answer: str | None = None  # None: none was found in the replies, which counts as wrong
    verdicts: tuple[Verdict, ...] = ()  # one for each true answer
    correct: Verdict = None  # any verdict is yes; None: none is, and one could not be read, or the question is not answered
    f1: float | None = None  # None for multiple-choice questions and those not answered
    evidence: tuple[tuple[int, int], ...] = ()  # characters that the language model copied before it answered

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
    counts = {"name": name, "questions": len(outcomes), "unanswered": sum(not one.answered for one in outcomes)}
    counts |= {"unreadable": sum(one.answered and one.correct is None for one in outcomes), "correct": sum(judged)}
    means = {"accuracy": float(np.mean(judged)) if judged else None, "low": low, "high": high}
    return counts | means | {"F1": float(np.mean(f1)) if f1 else None}


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
    """Return the 95 % bootstrap interval of the mean over sets of the share of right answers; resampled sets are binomial."""
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
    groups = {name: [one for one in outcomes if one.tokens in lengths] for name, lengths in ranges(LENGTHS, "tokens").items()}
    return [group(name, some) for name, some in groups.items() if some]
