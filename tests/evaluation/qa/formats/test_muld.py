"""MuLD: the question is before the script, and the classes are the choices."""

import pytest

from runnel.errors import InputError
from tests.helpers.qa_files import read_one, shown, write_rows

ROWS = [
    {"input": "Is Ada a hero or a villain? INT. HOUSE - DAY\nADA: Who?", "output": ["Hero"], "metadata": ""},
    {"input": "Is Ben a hero or a villain?\nEXT. YARD\nBEN: Me!", "output": "Villain/Antagonist"},
]


def test_rows(tmp_path):
    one = read_one(write_rows(tmp_path / "character_id_test.json", ROWS))
    choices = "A. Hero\nB. Villain/Antagonist"
    assert shown(one) == [
        ("1", "INT. HOUSE - DAY\nADA: Who?", f"Is Ada a hero or a villain?\n{choices}", ("A. Hero",)),
        ("2", "EXT. YARD\nBEN: Me!", f"Is Ben a hero or a villain?\n{choices}", ("B. Villain/Antagonist",)),
    ]
    assert one.multiple_choice and (one.name, one.license) == ("muld_CAC", "")


def test_parquet_of_the_hub(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "muld_Character_Archetype_Classification" / "data"
    folder.mkdir(parents=True)
    rows = [ROWS[0], ROWS[1] | {"output": ["Villain/Antagonist"]}]
    for split in ("train", "test"):
        parquet.write_table(arrow.Table.from_pylist(rows[: 1 + (split == "test")]), folder / f"{split}-00000-of-00001.parquet")
    assert len(read_one(tmp_path).questions) == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"input": "INT. HOUSE\nADA: Who?", "output": ["Hero"]},
            'line 2: expected "input" to begin with a question that ends in',
        ),
        ({"input": "Who? ", "output": ["Hero"]}, "line 2: document '[0-9a-f]{16}' is empty"),
        (
            {"input": "Who? ...", "output": ["Villain/Antagonist"]},
            "every output is 'Villain/Antagonist'; expected several classes",
        ),
    ],
)
def test_malformed(tmp_path, row, message):
    with pytest.raises(InputError, match=message):
        read_one(write_rows(tmp_path / "character_id_test.json", [ROWS[1], row]))
