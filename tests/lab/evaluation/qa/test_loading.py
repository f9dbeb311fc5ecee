"""Sets are found by their files in folders, one by one, what is missing or ambiguous is named; plain rows become questions."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runnel.errors import InputError, ReadError
from runnel.lab.evaluation.qa.loading import QaDocument, read_qa_sets
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


def test_links_of_the_hubs_cache(tmp_path):
    blob = write_rows(tmp_path / "blobs" / "0a1b", [ROW])
    (tmp_path / "snapshots" / "1").mkdir(parents=True)
    (tmp_path / "snapshots" / "1" / "qasper.jsonl").symlink_to(blob)
    assert names(tmp_path / "snapshots" / "1") == ["qasper"]


def test_what_is_missing_or_ambiguous(tmp_path):
    with pytest.raises(InputError, match="has no files of LongBench, InfiniteBench"):
        names(tmp_path)
    path = write_rows(tmp_path / "qasper.jsonl", [ROW])
    for place in (tmp_path, path):
        with pytest.raises(InputError, match="'qaspr'; expected one of qasper"):
            names(place, "qaspr")
    for place in (tmp_path / "none.jsonl", "THUDM/LongBench"):
        with pytest.raises(InputError, match=f"no file .*{place}"):
            names(place)
    with pytest.raises(InputError, match=r"mine.jsonl, line 1: a field is 'input'"):
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


def test_lv_eval_has_no_ids_and_several_categories(tmp_path):
    row = {"input": "Where is the wine?", "context": CELLAR, "answers": ["in the cellar"], "answer_keywords": "cellar"}
    one = read_one(write_rows(tmp_path / "loogle_CR_mixup" / "loogle_CR_mixup_16k.jsonl", [row]))
    assert (one.name, one.suite) == ("loogle_CR_mixup_16k", "LV-Eval")
    assert [(question.id, question.category) for question in one.questions] == [("1", None)]


def test_longbench_parquet_of_the_hub(tmp_path):
    for part, rows in enumerate((ROWS[:1], ROWS[1:])):
        path = tmp_path / "qasper" / f"test-0000{part}-of-00002.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), path)
    assert [question.id for question in read_one(tmp_path).questions] == ["a1", "a2", "b1"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"answers": None}, 'line 2: .*"answers", got NoneType'),
        ({"answers": []}, "line 2: the answer is empty"),
        ({"context": 7}, 'line 2: .*"context", got int'),
        ({"_id": "b1"}, "questions of qasper: two have the id 'b1'"),
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
        ([], "there are none"),
    ):
        path.write_text(json.dumps(wrong))
        with pytest.raises(InputError, match=named):
            read_one(path)


OWN = {"question": "Where are the letters?", "document": ATTIC, "answers": "in the attic"}


def test_own_free_answers(tmp_path):
    rows = [OWN, OWN | {"id": "who", "question": "Who found them?", "answers": ["Ada"], "answer_type": "paragraph"}]
    one = read_one(write_rows(tmp_path / "house.jsonl", [rows[0], rows[1] | {"category": "creative"}]))
    assert (one.name, one.suite, one.license, one.notes, one.multiple_choice) == ("house", "", "", (), False)
    assert shown(one) == [("1", ATTIC, "Where are the letters?", ("in the attic",)), ("who", ATTIC, "Who found them?", ("Ada",))]
    assert (one.questions[1].answer_type, one.questions[1].category) == ("paragraph", "creative")


def test_own_choices(tmp_path):
    one = read_one(write_rows(tmp_path / "house.jsonl", [OWN | {"choices": ["in the hall", "in the attic"]}]))
    assert one.multiple_choice and one.questions[0].answers == ("B. in the attic",)
    assert one.questions[0].question == "Where are the letters?\nA. in the hall\nB. in the attic"


@pytest.mark.parametrize(
    ("row", "named"),
    [
        (OWN | {"answer": "x"}, "line 2: a field is 'answer'"),
        (OWN | {"choices": ["a", "b"]}, "1 of 2 questions have choices"),
        (OWN | {"category": "legal"}, "line 2: the category is 'legal'"),
        (OWN | {"document": None}, 'line 2: .*"document", got NoneType'),
        (OWN | {"document": " \n"}, "line 2: the document is empty"),
        (OWN | {"question": "a \ud83d"}, "line 2 .*D83D"),
        (OWN | {"id": "1"}, "the questions of house: two have the id '1'"),
    ],
)
def test_own_malformed(tmp_path, row, named):
    with pytest.raises((InputError, ReadError), match=named):
        read_one(write_rows(tmp_path / "house.jsonl", [OWN, row]))


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


def test_released_categories_of_the_second_file(tmp_path):
    path = tmp_path / "mambaretriever_test.json.gz"
    path.write_bytes(gzip.compress(json.dumps(DATA).encode()))
    points = DATA["multifieldqa_en"]
    second = write_points(tmp_path, {"Official": {"a": points["a"]}}, "mambaretriever_test_per_category.json")
    (one,) = read_qa_sets(path, ["multifieldqa_en"])
    assert [question.category for question in one.questions] == ["official", None]
    with pytest.raises(InputError, match=r"give mambaretriever_test\.json"):
        list(read_qa_sets(second))
    write_points(tmp_path, {"legal": {}, "books": {"a": points["a"]}}, second.name)
    with pytest.raises(InputError, match=r"multifieldqa_en, 'a': .*'books'"):
        list(read_qa_sets(path))


def test_released_malformed(tmp_path):
    path = write_points(tmp_path, DATA | {"quality": {"c": DATA["quality"]["c"] | {"full_text_sentences": None}}})
    sets = read_qa_sets(path)
    assert next(sets).name == "multifieldqa_en"
    with pytest.raises(InputError, match=r"json, quality, 'c': .*\"full_text_sentences\", got NoneType"):
        next(sets)
    with pytest.raises(InputError, match=r"json, quality, 'c': .*got list"):
        list(read_qa_sets(write_points(tmp_path, {"quality": {"c": []}})))
