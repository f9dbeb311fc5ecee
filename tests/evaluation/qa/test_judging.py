"""Answers to judge, and how a judge agrees with people."""

import json

import pytest

from runnel.errors import InputError
from runnel.evaluation.qa.judging import Attempt, agreement, any_yes, read_attempts

ROW = {"question": "Which color?", "answers": ["red", "scarlet"], "attempt": "It is red."}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows(tmp_path):
    path = write(
        tmp_path / "a.jsonl", ROW, ROW | {"id": "x", "answers": "red", "right": False, "multiple_choice": True, "more": 1}
    )
    assert read_attempts(path) == [
        Attempt("1", "Which color?", ("red", "scarlet"), "It is red."),
        Attempt("x", "Which color?", ("red",), "It is red.", True, False),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": []}, r'a.jsonl, line 1: expected texts as "question", "answers" and "attempt", got'),
        ({"answers": ["red", 3]}, "expected texts"),
        ({"attempt": " "}, "expected texts"),
        ({"question": None}, "expected texts"),
        ({"right": "yes"}, 'expected true or false as "multiple_choice" and "right", got False and \'yes\''),
        ({"multiple_choice": 1}, "got 1 and None"),
    ],
)
def test_rows_of_another_form(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        read_attempts(write(tmp_path / "a.jsonl", ROW | change))


def test_a_file_without_rows_or_with_one_id_twice(tmp_path):
    with pytest.raises(InputError, match="is empty; expected answers to judge"):
        read_attempts(write(tmp_path / "a.jsonl"))
    with pytest.raises(InputError, match="line 2: the id '1' is that of an earlier row"):
        read_attempts(write(tmp_path / "a.jsonl", ROW, ROW | {"id": 1}))


def test_agreement_with_labels():
    right = [True] * 6 + [False] * 4
    judged = [True] * 5 + [False] + [False] * 2 + [True] + [None]
    found = agreement(right, judged)
    yes = 2 * 5 / (6 + 6)  # of 6 labels and 6 verdicts 5 agree
    no = 2 * 2 / (4 + 3)  # of 4 labels and 3 verdicts 2 agree: a verdict that cannot be read agrees with nothing
    assert found["f1"] == {"yes": pytest.approx(yes), "no": pytest.approx(no)}
    assert found["macro_f1"] == pytest.approx((yes + no) / 2) and found["accuracy"] == 0.7 and found["unreadable"] == 1


def test_agreement_is_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    right = [True, True, False, True, False, False, True]
    judged = [True, False, False, True, True, False, True]
    assert agreement(right, judged)["macro_f1"] == pytest.approx(metrics.f1_score(right, judged, average="macro"))


def test_agreement_with_labels_of_one_kind():
    found = agreement([True, True], [True, True])
    assert found["f1"] == {"yes": 1.0, "no": None} and found["macro_f1"] == 1.0
    assert any_yes([]) is False and any_yes([None, True]) is True and any_yes([None, False]) is None
