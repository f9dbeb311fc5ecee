"""Answers to judge, and how a judge agrees with people."""

import json

import pytest

from runnel.errors import InputError
from runnel.lab.evaluation.qa.judging import agreement, any_yes, read_labels

ROW = {"set": "mills", "question": "d0-10", "answer": "It is red.", "verdicts": [True]}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_labels_are_rows_of_answers_with_a_judgment(tmp_path):
    path = write(tmp_path / "a.jsonl", ROW | {"right": True}, ROW | {"question": "d0-11"}, ROW | {"set": "x", "right": False})
    assert read_labels(path) == {("mills", "d0-10", "It is red."): True, ("x", "d0-10", "It is red."): False}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW | {"right": 1}, "a.jsonl, line 1: 'right' is 1"),
        (ROW | {"right": True, "answer": None}, "a.jsonl, line 1: 'answer' is None"),
        (ROW, 'a.jsonl has no row with "right"'),
    ],
)
def test_rows_of_another_form(tmp_path, row, message):
    with pytest.raises(InputError, match=message):
        read_labels(write(tmp_path / "a.jsonl", row))


def test_agreement_with_labels():
    right = [True] * 6 + [False] * 4
    judged = [True] * 5 + [False] + [False] * 2 + [True] + [None]
    found = agreement(right, judged)
    yes = 2 * 5 / (6 + 6)  # of 6 labels and 6 verdicts 5 agree
    no = 2 * 2 / (4 + 3)  # of 4 labels and 3 verdicts 2 agree: a verdict that cannot be read agrees with nothing
    assert found["f1"] == {"yes": pytest.approx(yes), "no": pytest.approx(no)}
    assert found["macro_f1"] == pytest.approx((yes + no) / 2) and found["accuracy"] == 0.7 and found["unreadable"] == 1


def test_agreement_is_that_of_scikit_learn():
    from sklearn import metrics

    right = [True, True, False, True, False, False, True]
    judged = [True, False, False, True, True, False, True]
    assert agreement(right, judged)["macro_f1"] == pytest.approx(metrics.f1_score(right, judged, average="macro"))


def test_agreement_with_labels_of_one_kind():
    found = agreement([True, True], [True, True])
    assert found["f1"] == {"yes": 1.0, "no": None} and found["macro_f1"] == 1.0
    assert any_yes([]) is False and any_yes([None, True]) is True and any_yes([None, False]) is None
