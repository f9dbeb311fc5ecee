"""ELITR-Bench: questions and transcripts are in different files."""

import json

import pytest

from runnel.errors import InputError, ReadError
from runnel.evaluation.qa.loading import read_qa_sets
from tests.helpers.qa_files import read_one, shown

QUESTION = {"id": "1", "question-type": "who", "answer-position": "B", "question": "Who speaks?", "groundtruth-answer": "PERSON2"}


def write(folder, meetings):
    folder.mkdir(exist_ok=True)
    path = folder / "elitr-bench-qa_test2.json"
    path.write_text(json.dumps({"split": "test2", "meetings": meetings}))
    return path


def test_transcripts_of_both_layouts(tmp_path):
    meetings = [{"id": f"meeting_en_test2_00{i}", "questions": [QUESTION, QUESTION | {"id": "2"}]} for i in (1, 2)]
    path = write(tmp_path / "data", meetings)
    (tmp_path / "data" / "meeting_en_test2_001.txt").write_text("(PERSON2) Hello.")
    corpus = tmp_path / "ELITR-minuting-corpus" / "test2" / "meeting_en_test2_002"
    corpus.mkdir(parents=True)
    (corpus / "transcript_MAN2_annot.txt").write_text("(PERSON2) Good-bye.")
    (corpus / "minutes.txt").write_text("nothing")
    one = read_one(tmp_path)
    assert shown(one)[::2] == [
        ("meeting_en_test2_001-1", "(PERSON2) Hello.", "Who speaks?", ("PERSON2",)),
        ("meeting_en_test2_002-1", "(PERSON2) Good-bye.", "Who speaks?", ("PERSON2",)),
    ]
    assert (one.name, one.license, len(one.documents)) == ("ELITR_Bench_QA", "CC-BY-4.0", 2)
    with pytest.raises(ReadError, match=r"data has no transcript meeting_en_test2_002.txt or .*; put the ELITR Minuting Corpus"):
        list(read_qa_sets(path))


@pytest.mark.parametrize(
    ("meetings", "message"),
    [
        ({}, 'expected a list of objects as "meetings"'),
        ([{"id": "../m", "questions": []}], "the id of a meeting is '../m'; expected letters, digits, _, - and ."),
        ([{"id": "m", "questions": "?"}], 'json, m: expected a list of objects as "questions"'),
        ([{"id": "m", "questions": [QUESTION | {"id": 1}]}], 'json, m: expected a text as "id", got int'),
        (
            [{"id": "m", "questions": [{"id": "1"}]}],
            "json, m, question 1: expected a text as \"groundtruth-answer\", got the keys 'id'",
        ),
    ],
)
def test_malformed(tmp_path, meetings, message):
    (tmp_path / "m.txt").write_text("text")
    write(tmp_path, meetings)
    with pytest.raises(InputError, match=message):
        list(read_qa_sets(tmp_path))


def test_not_json(tmp_path):
    (tmp_path / "elitr-bench-qa_test2.json").write_text("{")
    with pytest.raises(ReadError, match=r"elitr-bench-qa_test2.json is not valid JSON"):
        list(read_qa_sets(tmp_path))
