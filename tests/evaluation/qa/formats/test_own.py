"""A user's own questions: strict rows."""

import pytest

from runnel.errors import InputError
from tests.helpers.qa_files import ATTIC, read_one, shown, write_rows

ROW = {"question": "Where are the letters?", "document": ATTIC, "answers": "in the attic"}


def test_free_answers(tmp_path):
    rows = [ROW, ROW | {"id": "who", "question": "Who found them?", "answers": ["Ada"], "answer_type": "paragraph"}]
    one = read_one(write_rows(tmp_path / "house.jsonl", [rows[0], rows[1] | {"category": "creative"}]))
    assert (one.name, one.suite, one.license, one.notes, one.multiple_choice) == ("house", "", "", (), False)
    assert shown(one) == [
        ("1", ATTIC, "Where are the letters?", ("in the attic",)),
        ("who", ATTIC, "Who found them?", ("Ada",)),
    ]
    assert (one.questions[1].answer_type, one.questions[1].category) == ("paragraph", "creative")


def test_choices(tmp_path):
    one = read_one(write_rows(tmp_path / "house.jsonl", [ROW | {"choices": ["in the hall", "in the attic"]}]))
    assert one.multiple_choice and one.questions[0].answers == ("B. in the attic",)
    assert one.questions[0].question == "Where are the letters?\nA. in the hall\nB. in the attic"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW | {"answer": "x"}, "line 2: unknown field 'answer'; expected id, question, document, answers, choices"),
        (ROW | {"choices": ["a", "b"]}, "1 of 2 questions have choices; expected all or none, in two files"),
        (ROW | {"category": "legal"}, "line 2: the category of question '2' is 'legal'; expected one of educational"),
        (ROW | {"document": None}, 'line 2: expected a text as "document", got NoneType'),
        (ROW | {"id": "1"}, "house has two questions with the id '1'"),
    ],
)
def test_malformed(tmp_path, row, message):
    with pytest.raises(InputError, match=message):
        read_one(write_rows(tmp_path / "house.jsonl", [ROW, row]))


def test_an_answer_that_is_no_choice(tmp_path):
    with pytest.raises(
        InputError, match=r"line 1: the answers are \['in the attic'\]; expected some of the choices \['a', 'b'\]"
    ):
        read_one(write_rows(tmp_path / "house.jsonl", [ROW | {"choices": ["a", "b"]}]))
