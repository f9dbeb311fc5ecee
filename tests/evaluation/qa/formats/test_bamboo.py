"""BAMBOO: parts of one text, the last words of meetings, and the faults of the published options."""

import pytest

from runnel.errors import InputError, ReadError
from tests.helpers.qa_files import ATTIC, read_one, shown, write_rows

TASK = "Answer with a number, from the document given below.\n\n"
OPTIONS = ["A. the cellar", "B. the attic", "C. the hall", "D. the yard"]
CHOICE = {"question": "Where are the letters?", "evidence": "...", "options": OPTIONS, "answer": "B", "content": ATTIC}


def test_numbers(tmp_path):
    before = {"content": f"{TASK}Document:\n{ATTIC}\n\nQuestion:\nwhen were they found\n", "answer": "1912"}
    after = {"content": f"{TASK}Question:\nwhen were they found\n\nDocument:\n{ATTIC}\n", "answer": "1912"}
    one = read_one(write_rows(tmp_path / "altqa_4k.jsonl", [before, after]))
    question = "when were they found\nThe answer is a number."
    assert shown(one) == [("1", ATTIC, question, ("1912",)), ("2", ATTIC, question, ("1912",))]


@pytest.mark.parametrize("content", [ATTIC, f"Document:\n{ATTIC}", f"Document:\n{ATTIC}\nQuestion:\na\nQuestion:\nb"])
def test_a_text_without_its_parts(tmp_path, content):
    with pytest.raises(InputError, match='line 1: expected one line "Document:" and one line "Question:" in "content"'):
        read_one(write_rows(tmp_path / "altqa_4k.jsonl", [{"content": content, "answer": "1"}]))


def test_speakers(tmp_path):
    meeting = '"Shall we begin?" said by Ada\n"Yes. I am ready." said by '
    one = read_one(write_rows(tmp_path / "meetingpred_4k.jsonl", [{"content": meeting, "answer": "Ben"}]))
    asked = 'Which of the speakers says this at the end of the meeting: "Yes. I am ready."'
    assert shown(one) == [("1", meeting, asked, ("Ben",))]
    with pytest.raises(InputError, match='line 1: expected "content" to end in "said by", got'):
        read_one(write_rows(tmp_path / "meetingpred_4k.jsonl", [{"content": ATTIC, "answer": "Ben"}]))


def test_faults_of_options(tmp_path):
    rows = [
        CHOICE,
        CHOICE | {"options": [*OPTIONS, "The letters are in the attic."]},
        CHOICE | {"options": ["The letters are in the attic."]},
        CHOICE | {"options": ["the cellar", *OPTIONS[1:]]},
        CHOICE | {"answer": "E"},
        CHOICE | {"options": [option.replace(".", ":") for option in OPTIONS], "answer": "D"},
    ]
    path = write_rows(tmp_path / "meetingqa_4k.jsonl", rows)
    one = read_one(path)
    assert [question.answers for question in one.questions] == [("B. the attic",), ("B. the attic",), ("D: the yard",)]
    assert one.questions[1].choices == tuple(OPTIONS) and one.multiple_choice
    assert one.questions[1].question == "\n".join(["Where are the letters?", *OPTIONS])
    assert one.notes == (
        f"texts after the options: 1 left out, the first: {path}, line 2",
        f"questions without usable options: 3 left out, the first: {path}, line 3",
        "3 questions; paper E has 86",
    )


def test_faults_of_lines(tmp_path):
    tab = '{"question": "Where\tto?", "options": ["A. up", "B. down"], "answer": "A", "content": "Up."}'
    path = write_rows(tmp_path / "paperqa_16k.jsonl", [tab, '{"question": "a "b"}', CHOICE])
    one = read_one(path)
    assert one.questions[0].question == "Where\tto?\nA. up\nB. down"
    assert one.notes[0] == f"lines that are not JSON: 1 left out, the first: {path}, line 2"
    with pytest.raises(ReadError, match="line 1: expected an object in braces, got list"):
        read_one(write_rows(path, ["[]", CHOICE]))
    with pytest.raises(InputError, match="paperqa_16k has no questions"):
        read_one(write_rows(path, ["no JSON"]))
