"""The table of the papers' training sets: all files of the recipes, read from rows with the columns
that it names.
"""

import re
from pathlib import Path

import pytest
from helpers.files import write_rows

from runnel.errors import InputError
from runnel.lab.training import recipes
from runnel.lab.training.triples import read_triples

DOCS = Path(__file__).parents[3] / "docs" / "data.md"
SECTIONS = {"section_name": ["One", None, "Two"], "paragraphs": [["a b.", "c."], ["d."], []]}
SAMPLES = {
    "id": "7",
    "pid": "7_0",
    "instruction": "Find it.",
    "query": "who lives",
    "positive": "Herons live.",
    "negative": "Fish swim.",
    "input": "a meeting",
    "output": "its summary",
    "title": "On herons",
    "abstract": "Herons are studied.",
    "full_text": SECTIONS,
}


def table() -> dict[str, list[str]]:
    """The columns of each file."""
    section = DOCS.read_text(encoding="utf-8").split("## The papers' training sets")[1]
    rows = re.findall(
        r"^\| `(\S+)` \| .+? \| (.+?) \| .+? \| .+? \|$", section.split("\n## ")[0], re.M
    )
    return {name: columns.split(", ") for name, columns in rows}


def test_the_table_has_the_files_of_the_recipes():
    wanted = [
        Path(one.path).name
        for recipe in ("linear-time-embeddings", "mamba-retriever-locov0")
        for one in recipes.read(recipe).data.sets
    ]
    assert len(wanted) == 22 and sorted(table()) == sorted(wanted)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", table())
def test_sample_rows_of_each_set_are_read(tmp_path, name, kind):
    row = {column: SAMPLES[column] for column in table()[name]}
    path = write_rows((tmp_path / name).with_suffix(f".{kind}"), [row, row])
    triple, _ = read_triples(path)
    if name.startswith("qasper"):
        part = path.stem.removeprefix("qasper_")
        assert (triple.query, triple.positives) == (SAMPLES[part], ("One\na b. c.\nd.\nTwo",))
        assert triple.negatives == () and triple.id == "7"
    elif "output" in row:
        assert (triple.query, triple.positives) == ("its summary", ("a meeting",))
    else:
        assert (triple.query, triple.positives) == ("who lives", ("Herons live.",))
        assert triple.negatives == ("Fish swim.",)
        assert triple.instruction == ("Find it." if name.startswith("synthetic") else "")


def test_papers_under_another_name_and_without_sections(tmp_path):
    row = {column: SAMPLES[column] for column in ("id", "title", "abstract", "full_text")}
    with pytest.raises(InputError, match="'papers'"):
        list(read_triples(write_rows(tmp_path / "papers.jsonl", [row])))
    row["full_text"] = {"paragraphs": []}
    with pytest.raises(InputError, match="section_name"):
        list(read_triples(write_rows(tmp_path / "qasper_title.jsonl", [row])))
