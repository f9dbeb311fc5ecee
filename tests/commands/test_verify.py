"""`runnel verify`: the verdict, the places, and the exit code."""

import json

import pytest

from runnel.text.documents.reader import read_document

TEXT = "# Animals\n\nThe dog barked\nall night. Nobody knew why.\n\n## Cats\n\nThe “old” cat slept.\n"


@pytest.fixture
def text(tmp_path):
    (tmp_path / "a.md").write_text(TEXT, encoding="utf-8")
    return "a.md"


def test_other_typography(run, text):
    done = run("verify", "the dog barked all night", text)
    assert done.code == 0
    assert done.out.startswith(
        "word for word at one place, apart from typography\n 1. a.md:3  characters 11-35  differs in case\n"
    )
    assert "  typography differs\n    The “old” cat\n" in run("verify", 'The "old"  cat', text).out


def test_changed_words(run, text):
    done = run("verify", "The young cat slept.", text)
    assert done.code == 1
    assert done.out.splitlines() == [
        "not word for word; the nearest stretch has 69 % of its words",
        " 1. a.md:8  characters 64-84",
        "    The “old” cat slept.",
        "    quote: young  document: “old”",
    ]


def test_json(run, text, tmp_path):
    (tmp_path / "b.txt").write_text("nothing")
    done = json.loads(run("verify", "no penguins", text, "b.txt", "--json").out)
    expected = {"match": "absent", "word_for_word": False, "similarity": 0.0, "files": 2, "places": [], "skipped": []}
    assert done == {"quote": "no penguins"} | expected
    done = json.loads(run("verify", "the old cat", text, "b.txt", "--json").out)
    [place] = done["places"]
    assert done["match"] == place["match"] == "changed" and done["similarity"] == 1.0
    assert (place["file"], place["line"], place["page"], place["headings"]) == ("a.md", 8, None, ["Animals", "Cats"])
    assert TEXT[place["start"] : place["end"]] == place["text"] == "The “old” cat"
    assert place["sha256"] == read_document(tmp_path / "a.md").sha256
    assert place["changes"] == [
        {"quote": "", "text": "“", "start": 68, "end": 69},
        {"quote": "", "text": "”", "start": 72, "end": 73},
    ]
