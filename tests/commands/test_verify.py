"""`runnel verify`: the verdict, the places, and the exit code."""

import json
import sys

import pytest
from helpers.children import PROGRAMS
from helpers.document_files import pdf

from runnel.text.documents import reader
from runnel.text.documents.reader import read_document

TEXT = "# Animals\n\nThe dog barked\nall night. Nobody knew why.\n\n## Cats\n\nThe “old” cat slept.\n"


@pytest.fixture
def text(tmp_path):
    (tmp_path / "a.md").write_text(TEXT, encoding="utf-8")
    return "a.md"


def test_word_for_word(run, text):
    done = run("verify", "Nobody knew why.", text)
    assert (done.code, done.err) == (0, "")
    assert done.out == "word for word at one place\n 1. a.md:4  characters 37-53\n    Nobody knew why.\n"


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


def test_absent(run, text):
    done = run("verify", "penguins huddle for warmth", text)
    assert (done.code, done.out) == (1, "not found; the nearest stretch has 0 % of its words\n")


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


def test_places_in_several_files_and_pages(run, tmp_path):
    (tmp_path / "a.txt").write_text("A cat ran. The dog barked loudly.")
    (tmp_path / "b.pdf").write_bytes(pdf([["A first page."], ["Here the dog", "barked, and the dog barked."]]))
    (tmp_path / "c.jsonl").write_text('{"id": "r1", "text": "nothing"}\n{"id": "r2", "text": "the dog barked"}\n')
    done = run("verify", "the dog barked", "a.txt", "b.pdf", "c.jsonl")
    assert done.code == 0
    shown = [line.split("  ")[0] for line in done.out.splitlines() if not line.startswith("    ")]
    assert shown == ["word for word at 4 places", " 1. a.txt:1", " 2. b.pdf, page 2", " 3. b.pdf, page 2", " 4. c.jsonl, row r2"]


def test_only_the_nearest_of_all_files_is_shown(run, tmp_path):
    (tmp_path / "a.txt").write_text("The small dog barked all day at cats.")
    (tmp_path / "b.txt").write_text("The dog barked all night at cats.")
    (tmp_path / "c.txt").write_text("The dog slept all night at home.")
    done = json.loads(run("verify", "the dog sang all night at cats", "a.txt", "b.txt", "c.txt", "--json").out)
    assert [place["file"] for place in done["places"]] == ["b.txt"]


def test_the_quote_from_standard_input(run, text):
    assert run("verify", "-", text, stdin="Nobody knew\nwhy.\n").code == 0
    done = run("verify", "-", "-", stdin="x")
    assert done.code == 2 and done.err == "runnel: error: standard input can be the quote or a file, not both\n"
    assert run("verify", "all night", "-", stdin=TEXT).out.startswith("word for word at one place\n 1. (standard input):4  ")


def test_unreadable_files(run, text):
    done = run("verify", "Nobody knew why.", "missing.txt", text)
    assert done.code == 2 and "missing.txt" in done.err and done.out.startswith("word for word at one place; 1 file not read\n")


def test_no_verdict_on_what_was_not_read(run, tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_COMMAND", (sys.executable, "-P", str(PROGRAMS / "worker_that_fails.py")))
    (tmp_path / "a.html").write_text("<!-- a page -->busy")
    done = run("verify", "x", "a.html", "--parse-seconds", "1")
    assert (done.code, done.out) == (2, "") and "a.html was not parsed in 1 s of processor time" in done.err
    (tmp_path / "empty").mkdir()
    assert run("verify", "x", "empty").code == 2
    done = run("verify", "x", "missing.txt", "--json")
    shown = json.loads(done.out)
    assert done.code == 2 and shown["skipped"][0]["file"] == "missing.txt"
    assert shown["match"] is shown["word_for_word"] is shown["similarity"] is None


def test_an_empty_quote(run, text):
    done = run("verify", " ", text)
    assert (done.code, done.err) == (2, "runnel: error: the quote is empty; give the words to verify\n")


def test_control_characters_are_not_printed(run, tmp_path):
    (tmp_path / "a.txt").write_text("Red \x1b[31malert\x1b[0m now. Calm again.")
    shown = run("verify", "Red \x1b[31malert\x1b[0m now.", "a.txt").out
    assert "\x1b" not in shown and "Red \ufffd[31malert" in shown
