"""Sets are found by their files in folders, one by one, what is missing or ambiguous is named; plain rows become questions."""

import json

import pytest

from runnel.errors import InputError, ReadError
from runnel.evaluation.qa.loading import read_qa_sets
from runnel.evaluation.qa.records import QaDocument
from tests.helpers.qa_files import ATTIC, CELLAR, read_one, shown, write_rows

ROW = {"input": "Where?", "context": ATTIC, "answers": ["in the attic"]}


def names(path, *only):
    return [one.name for one in read_qa_sets(path, only)]


def test_a_folder_of_several_suites(tmp_path):
    write_rows(tmp_path / "LongBench" / "data" / "qasper.jsonl", [ROW])
    write_rows(tmp_path / "LongBench" / "data" / "qasper_e.jsonl", [ROW])  # of LongBench-E, which is not used
    write_rows(tmp_path / "LVEval" / "loogle_MIR_mixup_64k.jsonl", [ROW])
    write_rows(tmp_path / ".cache" / "qasper.jsonl", [ROW])
    write_rows(tmp_path / "LEval" / "tpo.jsonl", [{"damaged": 1}])
    assert names(tmp_path, "qasper") == ["qasper"] == names(tmp_path / "LongBench")
    sets = read_qa_sets(str(tmp_path))
    assert [next(sets).name, next(sets).name] == ["qasper", "loogle_MIR_mixup_64k"]  # read one by one
    with pytest.raises(InputError, match=r"tpo.jsonl, line 1: .*'damaged'"):
        next(sets)


def test_what_is_missing_or_ambiguous(tmp_path):
    with pytest.raises(InputError, match="has no files of LongBench, InfiniteBench"):
        names(tmp_path)
    path = write_rows(tmp_path / "qasper.jsonl", [ROW])
    for place in (tmp_path, path):
        with pytest.raises(InputError, match="no set 'qaspr'; expected one of qasper"):
            names(place, "qaspr")
    for place in (tmp_path / "none.jsonl", "THUDM/LongBench"):
        with pytest.raises(InputError, match=f"no file or folder {place}"):
            names(place)
    with pytest.raises(InputError, match=r"mine.jsonl, line 1: unknown field 'context'"):
        names(write_rows(tmp_path / "mine.jsonl", [ROW]))
    with pytest.raises(ReadError, match=r"mine.json is not valid JSON at character 0"):
        names(write_rows(tmp_path / "mine.json", ["text"]))
    write_rows(tmp_path / "two" / "qasper.jsonl", [ROW])
    with pytest.raises(InputError, match=r"qasper is in .*/qasper.jsonl and in .*two/qasper.jsonl"):
        names(tmp_path)


# ---- plain rows: LongBench and LV-Eval, DocFinQA, a user's own, the released file ---------------------------------------


EMPTY = {"length": 12, "dataset": "qasper", "language": "en", "all_classes": None}
ROWS = [
    {"_id": "a1", "input": "Where are the letters?", "context": ATTIC, "answers": ["in the attic", "attic", "attic"]} | EMPTY,
    {"_id": "a2", "input": "Who found them?", "context": ATTIC, "answers": ["Ada"]} | EMPTY,
    {"_id": "b1", "input": "Where is the wine?", "context": CELLAR, "answers": ["in the cellar"]} | EMPTY,
]


def test_longbench(tmp_path):
    one = read_one(write_rows(tmp_path / "data" / "qasper.jsonl", ROWS).parent)
    assert (one.name, one.suite, one.license, one.multiple_choice) == ("qasper", "LongBench", "MIT", False)
    assert one.notes == ("3 questions; paper E has 200",)
    assert len(one.documents) == 2 and {question.category for question in one.questions} == {"official"}
    assert shown(one) == [
        ("a1", ATTIC, "Where are the letters?", ("in the attic", "attic")),
        ("a2", ATTIC, "Who found them?", ("Ada",)),
        ("b1", CELLAR, "Where is the wine?", ("in the cellar",)),
    ]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"answers": None}, 'line 2: .*"answers", got NoneType'),
        ({"answers": []}, "line 2: question 'a1' has no answer"),
        ({"context": 7}, 'line 2: .*"context", got int'),
        ({"_id": "b1"}, "qasper has two questions with the id 'b1'"),
    ],
)
def test_rows_of_another_form(tmp_path, change, named):
    path = write_rows(tmp_path / "qasper.jsonl", [ROWS[2], ROWS[0] | change])
    with pytest.raises(InputError, match=named):
        list(read_qa_sets(path))


def test_docfinqa(tmp_path):
    report = "Revenue was 12 in 2007 and 15 in 2008."
    rows = [{"Context": report, "Question": f"What was revenue in {y}?", "Answer": a} for y, a in ((2007, "12"), (2008, "15"))]
    path = tmp_path / "DocFinQA" / "test.json"
    path.parent.mkdir()
    path.write_text(json.dumps(rows))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "test.json").write_text("{}")  # of something else
    one = read_one(tmp_path)
    assert (one.name, one.suite, len(one.documents)) == ("docfinQA", "DocFinQA", 1)
    assert shown(one)[1] == ("2", report, "What was revenue in 2008?", ("15",))
    assert shown(read_one(path)) == shown(one) == shown(read_one(path.parent))
    for wrong, named in (
        ([rows[0], "row"], "item 1: .*got str"),
        ({"data": rows}, "item data: .*got list"),
        ([], "no questions"),
    ):
        path.write_text(json.dumps(wrong))
        with pytest.raises(InputError, match=named):
            read_one(path)


OWN = {"question": "Where are the letters?", "document": ATTIC, "answers": "in the attic"}


def test_own_free_answers(tmp_path):
    rows = [OWN, OWN | {"id": "who", "question": "Who found them?", "answers": ["Ada"], "answer_type": "paragraph"}]
    one = read_one(write_rows(tmp_path / "house.jsonl", [rows[0], rows[1] | {"category": "creative"}]))
    assert (one.name, one.suite, one.license, one.notes, one.multiple_choice) == ("house", "", "", (), False)
    assert shown(one) == [
        ("1", ATTIC, "Where are the letters?", ("in the attic",)),
        ("who", ATTIC, "Who found them?", ("Ada",)),
    ]
    assert (one.questions[1].answer_type, one.questions[1].category) == ("paragraph", "creative")


def test_own_choices(tmp_path):
    one = read_one(write_rows(tmp_path / "house.jsonl", [OWN | {"choices": ["in the hall", "in the attic"]}]))
    assert one.multiple_choice and one.questions[0].answers == ("B. in the attic",)
    assert one.questions[0].question == "Where are the letters?\nA. in the hall\nB. in the attic"


def point(units, question="Where?", answer=("in the attic",), kind="sentence"):
    ids = list(range(50))
    return {"input_ids": ids, "full_text_sentences": units, "question": question, "answer": list(answer), "answer_type": kind,
            "sentence_indices": [24, 49]}  # fmt: skip


UNITS = ["The letters are in the attic. ", "Ada found them."]
DATA = {
    "multifieldqa_en": {"a": point(UNITS, answer=("in the attic", "attic")), "b": point(UNITS, "Who?", ("Ada",), "paragraph")},
    "quality": {"c": point(["Up.", "Down."], "Where?\n(A) up\n(B) down", ("(A) up",))},
}


def write_points(folder, data, name="mambaretriever_test.json"):
    path = folder / name
    path.write_text(json.dumps(data))
    return path


def test_released_points(tmp_path, caplog):
    path = write_points(tmp_path, DATA)
    first, second = read_qa_sets(tmp_path)
    assert (first.name, first.suite, first.license, first.multiple_choice) == ("multifieldqa_en", "LongBench", "CC-BY-NC", False)
    assert (second.name, second.multiple_choice) == ("quality", True)
    (document,) = first.documents.values()
    assert document == QaDocument(document.id, "".join(UNITS), ((0, 30), (30, 45)))
    assert [(q.id, q.question, q.answers, q.answer_type, q.category) for q in first.questions] == [
        ("a", "Where?", ("in the attic", "attic"), "sentence", None),
        ("b", "Who?", ("Ada",), "paragraph", None),
    ]
    assert second.questions[0].answers == ("(A) up",) and second.questions[0].category == "creative"
    assert caplog.messages == [f"{path}: released under CC-BY-NC, not for commercial use"]
