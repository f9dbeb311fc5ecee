"""Answers and verdicts that are read, how a judge agrees with people, and the scores of answers."""

import numpy as np
import pytest
from helpers.files import write_rows

from runnel.errors import InputError
from runnel.generation.endpoint import Reply
from runnel.lab.evaluation.qa import judging


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("It says so.\nANSWER: in the attic", "in the attic"),
        ("**ANSWER: in the attic**", "in the attic"),
        ("ANSWER: first\nNo, wait.\nANSWER: second", "second"),
        ("ANSWER:\ntwo years\nSome trailing note", "two years"),
        ("ANSWER: **two** years.", "two years."),
        ("ANSWER: 2**3", "2**3"),
        ("Two lines,\n**both** of them", "Two lines,\nboth of them"),
        ("in the attic", "in the attic"),
        ("The answer: in the attic", "The answer: in the attic"),
        ("ANSWER:  ", None),
        ("", None),
    ],
)
def test_answers_that_are_read(text, answer):
    assert judging.read_answer(Reply(text, "stop")) == answer
    assert judging.has_mark(Reply(text, "stop")) == ("ANSWER" in text)
    assert judging.read_answer(Reply(text, "length")) == (answer if "ANSWER" in text else None), (
        "cut before its answer"
    )


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("They agree.\nDECISION: YES", True),
        ("**DECISION: YES**", True),
        ("**Decision:** no", False),
        ("DECISION:: YES, it is", True),
        ('DECISION: "NO"', False),
        ("DECISION: NO\nOn second thought\nDECISION: YES", True),
        ("I write DECISION: YES or DECISION: NO.\nDECISION: unclear", None),
        ("DECISION: YES/NO", None),
        ("DECISION: NOT SURE", None),
        ("DECISION: YESTERDAY", None),
        ("YES", None),
        ("", None),
    ],
)
def test_verdicts_are_read_or_not_but_never_guessed(text, verdict):
    assert judging.read_verdict(Reply(text, "stop")) is verdict
    assert judging.read_verdict(Reply(text, "length")) is None


ROW = {"set": "mills", "question": "d0-10", "answer": "It is red.", "verdicts": [True]}


def test_labels_are_rows_of_answers_with_a_judgment(tmp_path):
    rows = [ROW | {"right": True}, ROW | {"question": "d0-11"}, ROW | {"set": "x", "right": False}]
    path = write_rows(tmp_path / "a.jsonl", rows)
    assert judging.read_labels(path) == {
        ("mills", "d0-10", "It is red."): True,
        ("x", "d0-10", "It is red."): False,
    }
    for change, message in (
        ({"right": 1}, "line 1: 'right' is 1"),
        ({}, 'a.jsonl has no row with "right"'),
    ):
        with pytest.raises(InputError, match=message):
            judging.read_labels(write_rows(path, [ROW | change]))


def test_agreement_with_labels():
    right = [True] * 6 + [False] * 4
    found = judging.agreement(right, [True] * 5 + [False] + [False] * 2 + [True] + [None])
    yes = 2 * 5 / (6 + 6)  # of 6 labels and 6 verdicts 5 agree
    # of 4 labels and 3 verdicts 2 agree: a verdict that cannot be read agrees with nothing
    no = 2 * 2 / (4 + 3)
    assert found["f1"] == {"yes": pytest.approx(yes), "no": pytest.approx(no)}
    assert (
        found["macro_f1"] == pytest.approx((yes + no) / 2)
        and found["accuracy"] == 0.7
        and found["unreadable"] == 1
    )
    found = judging.agreement([True, True], [True, True])
    assert found["f1"] == {"yes": 1.0, "no": None} and found["macro_f1"] == 1.0


def outcome(name, correct=None, tokens=100, category=None, f1=None, answered=True):
    return judging.Outcome(
        name, category, tokens, answered, "answer" if answered else None, (correct,), correct, f1
    )


@pytest.mark.parametrize(
    ("answer", "truth", "value"),
    [
        ("The cat sat on a mat.", "Cat on mat!", 2 * (3 / 4) * 1 / (3 / 4 + 1)),
        ("cat cat cat", "cat", 2 * (1 / 3) / (1 / 3 + 1)),
        ("It's 1,983", "its 1983", 1.0),
        ("the", "a", 0.0),
        ("", "cat", 0.0),
        ("theory and another", "ory and other", 2 * 1 / (3 + 3)),
    ],
)
def test_token_f1(answer, truth, value):
    assert (
        judging.token_f1(answer, truth) == pytest.approx(value) == judging.token_f1(truth, answer)
    )


def test_means():
    open_question = outcome("5", answered=False)
    assert open_question.values() == {} and outcome("6", True, f1=0.5).values() == {
        "accuracy": 1.0,
        "F1": 0.5,
    }
    found = [
        outcome("1", True, f1=1.0),
        outcome("2", False, f1=0.5),
        outcome("3", True),
        outcome("4"),
        open_question,
    ]
    scores = judging.scores_of("all", found)
    assert (scores["questions"], scores["unreadable"], scores["unanswered"], scores["correct"]) == (
        5,
        1,
        1,
        2,
    )
    assert scores["accuracy"] == pytest.approx(2 / 3) and scores["F1"] == 0.75
    assert scores["low"] < 2 / 3 < scores["high"]
    empty = judging.scores_of("all", [open_question])
    assert (
        empty["accuracy"]
        is empty["low"]
        is empty["F1"]
        is judging.mean_of_sets([[open_question]])["accuracy"]
        is None
    )
    means = judging.mean_of_sets(
        [[outcome(str(n), True, f1=0.2) for n in range(9)], [outcome("1", False)]]
    )
    assert (means["accuracy"], means["F1"], means["sets"]) == (0.5, 0.2, 2)


def test_the_interval_is_that_of_resampled_questions():
    rng = np.random.default_rng(1)
    sets = [rng.random(200) < 0.6, rng.random(20) < 0.3]
    drawn = [np.mean([rng.choice(one, len(one)).mean() for one in sets]) for _ in range(4000)]
    assert judging.interval(sets) == pytest.approx(
        tuple(np.percentile(drawn, [2.5, 97.5])), abs=0.01
    )
    assert judging.interval([[True] * 9]) == (1.0, 1.0)


def test_categories_and_lengths():
    found = [
        outcome("1", True, 0, "official"),
        outcome("2", False, 4_000, "creative"),
        outcome("3", True, 4_001, "official"),
    ]
    scores = judging.summarize([*found, outcome("4", True, 300_000)])
    assert [
        (one["name"], one["questions"], one["accuracy"])
        for one in scores["by_category"] + scores["by_length"]
    ] == [
        ("creative", 1, 0.0),
        ("official", 2, 1.0),
        ("up to 4,000 tokens", 2, 0.5),
        ("4,001 to 8,000 tokens", 1, 1.0),
        ("over 256,000 tokens", 1, 1.0),
    ]
    assert judging.summarize([])["by_length"] == []
