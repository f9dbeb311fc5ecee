"""InfiniteBench: free answers, options with their answer as text or text and letter, and masked names."""

import pytest

from runnel.errors import InputError
from tests.helpers.qa_files import ATTIC, read_one, shown, write_rows

OPTIONS = ["the cellar", "the attic", "the hall", "the yard"]


def test_choices(tmp_path):
    row = {"id": 0, "context": ATTIC, "input": "Where are the letters?", "options": OPTIONS}
    rows = [row | {"answer": ["the attic"]}, row | {"id": 1, "answer": ["the yard", "D"]}, row | {"id": 2, "answer": "the hall"}]
    one = read_one(write_rows(tmp_path / "longbook_choice_eng.jsonl", rows))
    assert one.multiple_choice and one.suite == "InfiniteBench" and len(one.documents) == 1
    assert [question.answers for question in one.questions] == [("B. the attic",), ("D. the yard",), ("C. the hall",)]
    assert one.questions[0].choices == ("A. the cellar", "B. the attic", "C. the hall", "D. the yard")
    asked = "Where are the letters?\nA. the cellar\nB. the attic\nC. the hall\nD. the yard"
    assert {question.question for question in one.questions} == {asked}


def test_an_answer_that_is_no_option(tmp_path):
    row = {"id": 0, "context": ATTIC, "input": "Where?", "options": OPTIONS, "answer": ["the roof"]}
    with pytest.raises(InputError, match=r"line 1: the answer is \['the roof'\]; expected one of the options \['the cellar'"):
        read_one(write_rows(tmp_path / "longbook_choice_eng.jsonl", [row]))


def test_free_answers(tmp_path):
    row = {"id": 3, "context": ATTIC, "input": "Who found the letters?", "answer": ["Ada", "ADA"], "options": []}
    assert shown(read_one(write_rows(tmp_path / "longbook_qa_eng.jsonl", [row]))) == [
        ("3", ATTIC, "Who found the letters?", ("Ada", "ADA"))
    ]


def test_masked_names(tmp_path):
    row = {"id": 0, "context": "$$MASK$$: Who is there?\nBEN: It is me.", "input": "", "answer": ["ADA"], "options": []}
    rows = [row, row | {"id": 1, "input": "Which name is masked?"}]
    one = read_one(write_rows(tmp_path / "longdialogue_qa_eng.jsonl", rows))
    assert "replaced by $$MASK$$. Which character is it?" in one.questions[0].question
    assert one.questions[1].question == "Which name is masked?"
    assert {question.category for question in one.questions} == {"conversational"}
