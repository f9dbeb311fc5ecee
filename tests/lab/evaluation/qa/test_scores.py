"""Scores of answers and their means."""

import numpy as np
import pytest

from runnel.lab.evaluation.qa.judging import Outcome, by_length, group, interval, mean_of_sets, summarize, token_f1


def outcome(name, correct=None, tokens=100, category=None, f1=None, answered=True):
    return Outcome(name, category, tokens, answered, "answer" if answered else None, (correct,), correct, f1)


@pytest.mark.parametrize(
    ("answer", "truth", "value"),
    [
        ("The cat sat on a mat.", "Cat on mat!", 2 * (3 / 4) * 1 / (3 / 4 + 1)),
        ("cat cat cat", "cat", 2 * (1 / 3) / (1 / 3 + 1)),
        ("It's 1,983", "its 1983", 1.0),
        ("dog", "cat", 0.0),
        ("the", "a", 0.0),
        ("", "cat", 0.0),
        ("theory and another", "ory and other", 2 * 1 / (3 + 3)),
    ],
)
def test_token_f1(answer, truth, value):
    assert token_f1(answer, truth) == pytest.approx(value) == token_f1(truth, answer)


def test_any_yes_counts_and_unreadable_verdicts_are_no_answer():
    blank = outcome("q", answered=False)
    assert blank.judged("a", [False, True, None], 0.5).correct is True
    assert blank.judged("a", [False, None], 0.5).correct is None
    assert blank.judged("a", [False, False], 0.5).correct is False
    assert blank.values() == {} and blank.judged("a", [None], None).values() == {}
    assert blank.judged("a", [True], 0.5).values() == {"accuracy": 1.0, "F1": 0.5}
    assert blank.wrong(multiple_choice=False).values() == {"accuracy": 0.0, "F1": 0.0}
    assert blank.wrong(multiple_choice=True).values() == {"accuracy": 0.0}


def test_questions_without_a_verdict_are_counted_and_in_no_share():
    found = [
        outcome("1", True, f1=1.0),
        outcome("2", False, f1=0.5),
        outcome("3", True),
        outcome("4"),
        outcome("5", answered=False),
    ]
    scores = group("all", found)
    assert (scores["questions"], scores["unreadable"], scores["unanswered"], scores["correct"]) == (5, 1, 1, 2)
    assert scores["accuracy"] == pytest.approx(2 / 3) and scores["F1"] == 0.75
    assert scores["low"] < 2 / 3 < scores["high"]


def test_nothing_to_average():
    empty = group("all", [outcome("1", answered=False)])
    assert empty["accuracy"] is empty["low"] is empty["F1"] is None
    assert mean_of_sets({"a": [outcome("1", answered=False)]})["accuracy"] is None


def test_the_interval_is_that_of_resampled_questions():
    rng = np.random.default_rng(1)
    sets = [rng.random(200) < 0.6, rng.random(20) < 0.3]
    drawn = [np.mean([rng.choice(one, len(one)).mean() for one in sets]) for _ in range(4000)]
    assert interval(sets) == pytest.approx(tuple(np.percentile(drawn, [2.5, 97.5])), abs=0.01)
    assert interval([[True] * 9]) == (1.0, 1.0)


def test_means_over_questions_and_over_sets_differ():
    sets = {"long": [outcome(str(n), True, f1=0.2) for n in range(9)], "short": [outcome("1", False)]}
    means = mean_of_sets(sets)
    assert (means["accuracy"], means["F1"], means["sets"]) == (0.5, 0.2, 2)
    assert group("all", [*sets["long"], *sets["short"]])["accuracy"] == 0.9


def test_categories_and_lengths():
    found = [outcome("1", True, 0, "official"), outcome("2", False, 4_000, "creative"), outcome("3", True, 4_001, "official")]
    scores = summarize([*found, outcome("4", True, 300_000)])
    assert [(one["name"], one["questions"], one["accuracy"]) for one in scores["by_category"]] == [
        ("creative", 1, 0.0),
        ("official", 2, 1.0),
    ]
    assert [(one["name"], one["questions"]) for one in scores["by_length"]] == [
        ("up to 4,000 tokens", 2),
        ("4,001 to 8,000 tokens", 1),
        ("over 256,000 tokens", 1),
    ]
    assert by_length([]) == []
