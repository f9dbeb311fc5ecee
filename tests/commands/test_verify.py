"""`runnel verify`: the verdict, the places, and the exit code."""

import json

import pytest

from runnel.text.documents.reader import read_document

TEXT = (
    "# Animals\n\nThe dog barked\nall night. Nobody knew why.\n\n## Cats\n\nThe “old” cat slept.\n"
)


@pytest.fixture
def text(tmp_path):
    (tmp_path / "a.md").write_text(TEXT, encoding="utf-8")
    return "a.md"


def test_other_typography_changed_words_and_standard_input(run, text):
    done = run("verify", "the dog barked all night", text)
    said = (
        "word for word at one place, apart from typography\n 1. a.md:3  characters 11-35  differs"
        " in case\n"
    )
    assert done.code == 0 and done.out.startswith(said)
    assert "  typography differs\n    The “old” cat\n" in run("verify", 'The "old"  cat', text).out
    assert run("verify", "-", text, stdin="Nobody knew\nwhy.\n").code == 0
    assert run("verify", "all night", "-", stdin=TEXT).out.startswith(
        "word for word at one place\n 1. (standard input):4  "
    )
    done = run("verify", "The young cat slept.", text)
    assert done.code == 1 and done.out.splitlines() == [
        "not word for word; the nearest stretch has 69 % of its words",
        " 1. a.md:8  characters 64-84",
        "    The “old” cat slept.",
        "    quote: young  document: “old”",
    ]


def test_json(run, text, tmp_path):
    (tmp_path / "b.txt").write_text("nothing")
    done = json.loads(run("verify", "no penguins", text, "b.txt", "--json").out)
    expected = {
        "match": "absent",
        "word_for_word": False,
        "similarity": 0.0,
        "files": 2,
        "places": [],
        "skipped": [],
    }
    assert done == {"quote": "no penguins"} | expected
    done = json.loads(run("verify", "the old cat", text, "b.txt", "--json").out)
    [place] = done["places"]
    assert done["match"] == place["match"] == "changed" and done["similarity"] == 1.0
    assert (place["file"], place["line"], place["page"], place["headings"]) == (
        "a.md",
        8,
        None,
        ["Animals", "Cats"],
    )
    assert TEXT[place["start"] : place["end"]] == place["text"] == "The “old” cat"
    assert place["sha256"] == read_document(tmp_path / "a.md").sha256
    assert place["changes"] == [
        {"quote": "", "text": "“", "start": 68, "end": 69},
        {"quote": "", "text": "”", "start": 72, "end": 73},
    ]


@pytest.mark.usefixtures("parser_that_fails")
def test_no_verdict_on_what_was_not_read(run, tmp_path):
    (tmp_path / "a.html").write_text("<!-- a page -->busy")
    done = run("verify", "x", "a.html", "--parse-seconds", "1")
    assert (done.code, done.out) == (2, "") and "a.html was not parsed" in done.err
    (tmp_path / "empty").mkdir()
    assert run("verify", "x", "empty").code == 2
    done = run("verify", "x", "missing.txt", "--json")
    shown = json.loads(done.out)
    assert done.code == 2 and shown["skipped"][0]["file"] == "missing.txt"
    assert shown["match"] is shown["word_for_word"] is shown["similarity"] is None
