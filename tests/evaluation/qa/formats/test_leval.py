"""L-Eval: many questions for a document; letters, several letters, or the option itself as the answer."""

import pytest

from runnel.errors import InputError
from tests.helpers.qa_files import ATTIC, CELLAR, read_one, shown, write_rows

OPTIONS = "A. the cellar\nB. the attic\nC. the hall\nD. the yard"


def row(questions, answers, text=ATTIC):
    return {"instructions": questions, "outputs": answers, "input": text, "source": "made up", "evaluation": "exam"}


def test_letters(tmp_path):
    questions = [f"Question 1. A. Lovelace: where are the letters?\n{OPTIONS}", f"Where are\nno letters?\n{OPTIONS}"]
    one = read_one(write_rows(tmp_path / "coursera.jsonl", [row(questions, ["B", "AC"])]))
    assert [question.answers for question in one.questions] == [("B. the attic",), ("A. the cellar\nC. the hall",)]
    assert [question.choices for question in one.questions] == [tuple(OPTIONS.split("\n"))] * 2
    assert [question.question for question in one.questions] == questions
    assert [question.id for question in one.questions] == ["1-1", "1-2"] and len(one.documents) == 1


def test_options_as_answers(tmp_path):
    question = "Where are the letters?\n\n (A) In the cellar,\nwhere the wine is.\n (B) In the attic"
    one = read_one(write_rows(tmp_path / "quality.jsonl", [row([question], ["(A) In the cellar\n,where the wine is."])]))
    assert one.questions[0].answers == ("(A) In the cellar,\nwhere the wine is.",)
    assert one.questions[0].choices == ("(A) In the cellar,\nwhere the wine is.", "(B) In the attic")


@pytest.mark.parametrize(
    ("question", "answer", "message"),
    [
        (f"Where?\n{OPTIONS}", "E", "line 1, question 1: the right choice is 'E'; expected one or more of A, B, C, D"),
        (f"Where?\n{OPTIONS}", "", "line 1, question 1: the right choice is ''; expected"),
        (f"Where?\n{OPTIONS}", "the attic", "line 1, question 1: the right choice is 'the attic'; expected"),
        ("Where?", "A", "line 1, question 1: the right choice is 'A'; expected"),
        ("Where?\nB. the attic\nC. the hall", "B", "line 1, question 1: the right choice is 'B'; expected"),
    ],
)
def test_no_right_choice(tmp_path, question, answer, message):
    with pytest.raises(InputError, match=message):
        read_one(write_rows(tmp_path / "tpo.jsonl", [row([question], [answer])]))


def test_repeats_as_in_paper_e(tmp_path):
    rows = [row(["Where?", "Who?"], ["in the attic", "Ada"]), row(["Why?"], ["Nobody knows."], CELLAR)]
    rows += [row(["Where?", "Who?"], ["in the attic", "Ada L."])]
    free = read_one(write_rows(tmp_path / "financial_qa.jsonl", rows))
    assert len(free.questions) == 5 and len(free.documents) == 2
    once = read_one(write_rows(tmp_path / "scientific_qa.jsonl", rows))
    assert [one[0] for one in shown(once)] == ["1-1", "1-2", "2-1", "3-2"]
    place = tmp_path / "scientific_qa.jsonl"
    assert once.notes == (f"repeated questions: 1 left out, the first: {place}, line 3", "4 questions; paper E has 161")


def test_as_many_outputs_as_instructions(tmp_path):
    with pytest.raises(InputError, match="line 1: 2 instructions and 1 outputs; expected an output for each"):
        read_one(write_rows(tmp_path / "tpo.jsonl", [row(["a", "b"], ["c"])]))
