"""Answers to judge, and how a judge agrees with people."""

import json

import pytest

from runnel.evaluation.qa.judging import agreement, read_labels

ROW = {"set": "mills", "question": "d0-10", "answer": "It is red.", "verdicts": [True]}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_labels_are_rows_of_answers_with_a_judgment(tmp_path):
    path = write(tmp_path / "a.jsonl", ROW | {"right": True}, ROW | {"question": "d0-11"}, ROW | {"set": "x", "right": False})
    assert read_labels(path) == {("mills", "d0-10", "It is red."): True, ("x", "d0-10", "It is red."): False}


def test_agreement_with_labels():
    right = [True] * 6 + [False] * 4
    judged = [True] * 5 + [False] + [False] * 2 + [True] + [None]
    found = agreement(right, judged)
    yes = 2 * 5 / (6 + 6)  # of 6 labels and 6 verdicts 5 agree
    no = 2 * 2 / (4 + 3)  # of 4 labels and 3 verdicts 2 agree: a verdict that cannot be read agrees with nothing
    assert found["f1"] == {"yes": pytest.approx(yes), "no": pytest.approx(no)}
    assert found["macro_f1"] == pytest.approx((yes + no) / 2) and found["accuracy"] == 0.7 and found["unreadable"] == 1
