"""DocFinQA: one list of objects, read piece by piece."""

import json

import pytest

from runnel.errors import InputError
from runnel.evaluation.qa.loading import read_qa_sets
from tests.helpers.qa_files import read_one, shown

REPORT = "Revenue was 12 in 2007 and 15 in 2008."
ROWS = [
    {"Context": REPORT, "Question": f"What was revenue in {y}?", "Answer": a, "Program": "x"}
    for y, a in ((2007, "12"), (2008, "15"))
]


def write(folder, rows):
    path = folder / "DocFinQA" / "test.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(rows))
    (folder / "other").mkdir(exist_ok=True)
    (folder / "other" / "test.json").write_text("{}")  # of something else
    return path


def test_rows(tmp_path):
    path = write(tmp_path, ROWS)
    one = read_one(tmp_path)
    assert (one.name, one.suite, len(one.documents)) == ("docfinQA", "DocFinQA", 1)
    assert shown(one)[1] == ("2", REPORT, "What was revenue in 2008?", ("15",))
    assert shown(read_one(path)) == shown(one) == shown(read_one(path.parent))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([ROWS[0], "row"], "test.json, item 2: expected an object in braces, got str"),
        (
            [ROWS[0], {"Context": REPORT}],
            "test.json, item 2: expected a text or a list of texts as \"Answer\", got the keys 'Context'",
        ),
        ({"data": ROWS}, "test.json, item data: expected an object in braces, got list"),
        ([], "docfinQA has no questions"),
    ],
)
def test_malformed(tmp_path, rows, message):
    write(tmp_path, rows)
    with pytest.raises(InputError, match=message):
        list(read_qa_sets(tmp_path))
