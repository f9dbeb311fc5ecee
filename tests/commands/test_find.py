"""`runnel find` with a stand-in for the model: what is read, shown, and said about files that cannot be read."""

import json
import re

import pytest

TEXT = """A heading

The cat sat on the mat. It was
warm there. The dog barked all night.

Nobody knew why the dog barked.
"""


def test_find_shows_place_score_and_sentence_in_context(run, fake, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    done = run("find", "why the dog barked", "a.txt", "--top-k", 2)
    assert done.code == 0
    first, second = done.out.split("\n 2. ")
    assert first.startswith(" 1. a.txt:6  characters ")
    assert "The dog barked all night." in first and "»Nobody knew why the dog barked.«" in first
    assert second.startswith("a.txt:4  characters ")
    assert "It was warm there. »The dog barked all night.«\n" in second  # the line break inside the sentence is gone
    assert done.out.endswith("2 of 5 sentences (113 characters) in a.txt\n")
    assert done.err == ""


def test_find_json_has_all_fields_and_exact_offsets(run, fake, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    done = run("find", "why the dog barked", "a.txt", "--json")
    found = json.loads(done.out)
    assert found["query"] == "why the dog barked" and found["model"] == "pocket" and found["skipped"] == []
    assert found["files"] == [{"file": "a.txt", "characters": len(TEXT), "sentences": 5}]
    best = found["sentences"][0]
    assert set(best) == {"file", "line", "text", "start", "end", "score", "index"}
    assert best["line"] == 6 and best["score"] == 4.0 and best["index"] == 4
    for sentence in found["sentences"]:
        assert TEXT[sentence["start"] : sentence["end"]] == sentence["text"]


def test_find_ranks_files_together(run, fake, tmp_path):
    (tmp_path / "a.txt").write_text("The dog slept. A cat ran.")
    (tmp_path / "b.txt").write_text("Nothing here. The dog barked.")
    found = json.loads(run("find", "the dog barked", "a.txt", "b.txt", "--json", "-k", 3).out)["sentences"]
    assert [(s["file"], s["score"]) for s in found] == [("b.txt", 3.0), ("a.txt", 2.0), ("a.txt", 0.0)]
    done = run("find", "the dog barked", "a.txt", "b.txt", "-k", 1)
    assert done.out.endswith("1 of 4 sentences (54 characters) in 2 files\n")


def test_find_context_zero_shows_the_sentence_alone(run, fake, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    assert "\n    »Nobody knew why the dog barked.«\n" in run("find", "why", "a.txt", "-k", 1, "-c", 0).out


def test_find_reads_standard_input(run, fake):
    done = run("find", "dog", "-", stdin="One dog. One cat.")
    assert " 1. (standard input):1  characters 0-" in done.out


def test_find_neutralises_control_characters(run, fake, tmp_path):
    (tmp_path / "a.txt").write_text("A dog\x1b[31m barked.")
    assert "\x1b" not in run("find", "dog", "a.txt").out


def test_find_in_an_empty_document_is_an_empty_result(run, fake, tmp_path):
    (tmp_path / "a.txt").write_text(" \n")
    done = run("find", "dog", "a.txt", "--json")
    assert done.code == 0 and json.loads(done.out)["sentences"] == []
    assert done.err == "runnel: note: a.txt is empty\n"
    assert run("find", "dog", "a.txt").out == ""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "no file bad.txt"),
        (lambda p: p.mkdir(), "is a (folder|directory)"),
        (lambda p: p.write_bytes(b"\x7fELF\x00\x01\x02" * 50), "binary"),
        (lambda p: p.write_bytes(b"caf\xe9 in Latin-1, not UTF-8, is what this says"), "(?i)utf-8"),
    ],
    ids=["missing", "folder", "binary", "undecodable"],
)
def test_find_names_a_file_it_cannot_read_and_goes_on(run, fake, tmp_path, make, message):
    make(tmp_path / "bad.txt")
    (tmp_path / "good.txt").write_text("One dog.")
    done = run("find", "dog", "bad.txt", "good.txt", "--json")
    found = json.loads(done.out)
    assert done.code == 1
    assert [s["file"] for s in found["sentences"]] == ["good.txt"]
    assert [s["file"] for s in found["skipped"]] == ["bad.txt"]
    assert done.err.count("\n") == 1
    assert done.err.startswith("runnel: error: ") and "bad.txt" in done.err
    assert re.search(message, done.err, re.IGNORECASE), done.err


def test_find_takes_an_encoding(run, fake, tmp_path):
    (tmp_path / "a.txt").write_bytes("One café.".encode("latin-1"))
    done = run("find", "café", "a.txt", "--encoding", "latin-1", "--json")
    assert json.loads(done.out)["sentences"][0]["text"] == "One café."
    done = run("find", "café", "a.txt", "--encoding", "latin-99")
    assert done.code == 1 and "latin-99" in done.err
