"""LongBench and LV-Eval: a row is a question with its document."""

import pytest

from runnel.errors import InputError, ReadError
from runnel.evaluation.qa.loading import read_qa_sets
from tests.helpers.qa_files import ATTIC, CELLAR, read_one, shown, write_rows

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


def test_parquet_of_the_hub(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for part, rows in enumerate((ROWS[:1], ROWS[1:])):
        path = tmp_path / "qasper" / f"test-0000{part}-of-00002.parquet"
        path.parent.mkdir(exist_ok=True)
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    assert [question.id for question in read_one(tmp_path).questions] == ["a1", "a2", "b1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": None}, r'line 2: expected a text or a list of texts as "answers", got NoneType \'None\''),
        ({"answers": [1]}, r'line 2: expected a text or a list of texts as "answers", got list \'\[1\]\''),
        ({"answers": []}, "line 2: question 'a1' has no answer; expected one at least"),
        ({"answers": [" "]}, "line 2: an answer of question 'a1' is empty"),
        ({"context": ""}, "line 2: document '[0-9a-f]{16}' is empty"),
        ({"context": 7}, r'line 2: expected a text as "context", got int \'7\''),
        ({"input": " "}, "line 2: question 'a1' is empty"),
        ({"_id": "b1"}, "qasper has two questions with the id 'b1'"),
    ],
)
def test_malformed_rows(tmp_path, change, message):
    path = write_rows(tmp_path / "qasper.jsonl", [ROWS[2], ROWS[0] | change])
    with pytest.raises(InputError, match=message):
        list(read_qa_sets(path))


def test_missing_fields_and_text_that_is_not_json(tmp_path):
    path = write_rows(tmp_path / "qasper.jsonl", [{"question": "Why?"}])
    with pytest.raises(InputError, match=r"line 1: expected a text or a list of texts as \"answers\", got the keys 'question'"):
        list(read_qa_sets(path))
    with pytest.raises(ReadError, match="line 2: not valid JSON"):
        list(read_qa_sets(write_rows(path, [ROWS[0], "{"])))
