"""`runnel find` with a stand-in for the model: what is read, shown, and said about files that cannot be read."""

import json
import re
from pathlib import Path

import pytest
from helpers.document_files import pdf

from runnel.records import probability

pytestmark = pytest.mark.usefixtures("terminal")

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
    facts = {"kind": "txt", "pages": None, "encoding": "utf-8", "warnings": []}
    assert found["files"] == [{"file": "a.txt", **facts, "characters": len(TEXT), "sentences": 5}]
    best = found["sentences"][0]
    place = {"file", "id", "line", "page", "headings", "start", "end", "text", "kind", "sha256"}
    assert set(best) == place | {"score", "index", "answers", "before", "after", "also", "parts"}
    assert best["also"] == [] and best["before"] == "The dog barked all night.\n\n" and best["after"] == ""
    assert best["line"] == 6 and best["page"] is None and best["headings"] == [] and best["id"] is None
    assert best["score"] == 4.0 and best["index"] == 4
    for sentence in found["sentences"]:
        assert TEXT[sentence["start"] : sentence["end"]] == sentence["text"]


def test_find_ranks_files_together(run, fake, tmp_path):
    (tmp_path / "a.txt").write_text("The dog slept. A cat ran.")
    (tmp_path / "b.txt").write_text("Nothing here. The dog barked.")
    found = json.loads(run("find", "the dog barked", "a.txt", "b.txt", "--json", "-k", 3).out)["sentences"]
    assert [(s["file"], s["score"]) for s in found] == [("b.txt", 3.0), ("a.txt", 2.0), ("a.txt", 0.0)]
    done = run("find", "the dog barked", "a.txt", "b.txt", "-k", 1)
    assert done.out.endswith("1 of 4 sentences (54 characters) in 2 files\n")


def test_find_shows_equal_sentences_once_with_their_places(run, fake, tmp_path):
    (tmp_path / "a.txt").write_text("The dog\nbarked. A cat.\n\nThe dog barked. A bird sang.\n")
    (tmp_path / "b.txt").write_text("Nothing.\n\nThe  dog barked.\n")
    (tmp_path / "c.html").write_text("<p>The dog barked.</p>")
    names = ["a.txt", "b.txt", "c.html"]
    found = json.loads(run("find", "the dog barked", *names, "--json", "-k", 2).out)["sentences"]
    assert [s["score"] for s in found] == [3.0, 0.0] and found[0]["text"] == "The dog\nbarked. "
    assert [(p["file"], p["line"], p["start"], p["end"]) for p in found[0]["also"]] == [
        ("a.txt", 4, 24, 40),
        ("b.txt", 3, 10, 27),
        ("c.html", 1, 0, 15),
    ]
    shown = run("find", "the dog barked", *names, "-k", 2).out
    assert shown.count("»The dog barked.«") == 1
    assert "\n    also at a.txt:4; b.txt:3; c.html, characters 0-15\n" in shown


def test_find_shows_a_heading_with_the_text_below(run, fake, tmp_path):
    text = "10.4 Client errors\n\n10.4.11 410 Gone\n\nThe resource is no\nlonger there. It will not be back.\n"
    (tmp_path / "a.txt").write_text(text)
    best = json.loads(run("find", "410 gone", "a.txt", "--json", "-k", 1, "-c", 0).out)["sentences"][0]
    assert text[best["start"] : best["end"]] == best["text"] == "10.4.11 410 Gone\n\n"
    assert best["after"].split() == "The resource is no longer there.".split() and best["before"] == ""
    shown = run("find", "410 gone", "a.txt", "-k", 1, "-c", 0).out
    assert "\n    »10.4.11 410 Gone«\n    The resource is no longer there.\n" in shown and "It will" not in shown


def test_find_takes_a_unit(run, fake, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    best = json.loads(run("find", "the cat", "a.txt", "--unit", "paragraph", "--json").out)["sentences"][0]
    assert best["text"] == "The cat sat on the mat. It was\nwarm there. The dog barked all night.\n\n"
    assert run("find", "the cat", "a.txt", "--unit", "paragraph").out.endswith(" paragraphs (113 characters) in a.txt\n")
    fake.find.model.unit = "clauses"  # of the model, where none is asked for
    assert run("find", "the cat", "a.txt", "-k", 2).out.endswith("2 of 5 clauses (113 characters) in a.txt\n")


def test_find_in_an_empty_document_is_an_empty_result(run, fake, tmp_path):
    (tmp_path / "a.txt").write_text(" \n")
    done = run("find", "dog", "a.txt", "--json")
    assert done.code == 1 and json.loads(done.out)["sentences"] == []
    assert done.err == "runnel: note: a.txt is empty\n"
    assert run("find", "dog", "a.txt").out == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no file bad.txt"),
        (b"\x7fELF\x00\x01\x02" * 50, "binary"),
        (pdf([["secret"]], encrypted=True), "encrypted PDF"),
        (b"PK\x03\x04 cut off", "zip archive that is damaged"),
    ],
    ids=["missing", "binary", "encrypted", "zip"],
)
def test_find_names_a_file_it_cannot_read_and_goes_on(run, fake, tmp_path, content, message):
    if content is not None:
        (tmp_path / "bad.txt").write_bytes(content)
    (tmp_path / "good.txt").write_text("One dog.")
    done = run("find", "dog", "bad.txt", "good.txt", "--json")
    found = json.loads(done.out)
    assert done.code == 2
    assert [s["file"] for s in found["sentences"]] == ["good.txt"]
    assert [s["file"] for s in found["skipped"]] == ["bad.txt"]
    assert done.err.count("\n") == 1
    assert done.err.startswith("runnel: error: ") and "bad.txt" in done.err
    assert re.search(message, done.err, re.IGNORECASE), done.err


# ---- documents of other kinds ----------------------------------------------------------------------------------------


def best(done):
    assert done.code == 0, done.err
    return json.loads(done.out)["sentences"][0]


def test_find_in_a_pdf_has_page_and_heading(run, fake, tmp_path):
    pages = [["Contents"], ["Pets", None, None, "One cat slept. The dog", "barked."], ["Nothing."]]
    (tmp_path / "a.pdf").write_bytes(pdf(pages, outline=[("Pets", 1)]))
    found = best(run("find", "the dog barked", "a.pdf", "--json"))
    assert found["page"] == 2 and found["headings"] == ["Pets"] and found["text"].split() == ["The", "dog", "barked."]
    shown = run("find", "the dog barked", "a.pdf", "-k", 1).out
    assert shown.startswith(" 1. a.pdf, page 2  characters ") and "\n    Pets\n    One cat" in shown


@pytest.mark.parametrize("name", ["a.html", "a.md"])
def test_find_has_the_path_of_headings(run, fake, tmp_path, name):
    (tmp_path / "a.html").write_text("<h1>Animals</h1><h2>Dogs</h2><p>The <b>dog</b> barked.</p>")
    (tmp_path / "a.md").write_text("# Animals\n## Dogs\nThe dog barked.\n")
    found = best(run("find", "the dog barked", name, "--json"))
    assert found["text"].strip() == "The dog barked." and found["headings"] == ["Animals", "Dogs"] and found["page"] is None
    shown = run("find", "the dog barked", name, "-k", 1, "-c", 0).out
    place = "a.md:3" if name == "a.md" else name  # lines mean something in text only
    assert shown.startswith(f" 1. {place}  characters ") and "\n    Animals › Dogs\n    »The dog barked.«" in shown


def test_find_tells_warnings_and_goes_on(run, fake, tmp_path):
    (tmp_path / "a.pdf").write_bytes(pdf([["The dog."], []]))
    (tmp_path / "b.txt").write_bytes(b"A caf\xe9 with a dog.")
    done = run("find", "dog", "a.pdf", "b.txt", "--json")
    first, second = done.err.splitlines()
    assert done.code == 0 and "a.pdf: page 2" in first and "b.txt: not valid utf-8" in second and "cp1252" in second
    assert [len(f["warnings"]) for f in json.loads(done.out)["files"]] == [1, 1]
    assert any("café" in s["text"] for s in json.loads(done.out)["sentences"])


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file whose reading fails, which Linux has")
def test_a_file_whose_disk_fails_is_named_and_the_others_are_searched(run, fake, tmp_path):
    (tmp_path / "a.txt").write_text("One dog.")
    (tmp_path / "b.txt").write_text("Two dogs, one dog.")
    done = run("find", "dog", "a.txt", "/proc/self/mem", "b.txt", "--json")
    found = json.loads(done.out)
    assert done.code == 2 and [f["file"] for f in found["files"]] == ["a.txt", "b.txt"]
    assert done.err.startswith("runnel: error: /proc/self/mem cannot be read") and "Input/output error" in done.err
    assert [f["file"] for f in found["skipped"]] == ["/proc/self/mem"]


def test_a_file_that_is_deleted_while_it_is_read(run, fake, tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text('{"text": "One dog."}\n')
    (tmp_path / "b.txt").write_text("One dog.")
    first_look = fake.find.first_look

    def deleting(query, documents, **options):
        for scored in first_look(query, documents, **options):
            (tmp_path / "a.jsonl").unlink(missing_ok=True)
            yield scored

    monkeypatch.setattr(fake.find, "first_look", deleting)
    done = run("find", "dog", "a.jsonl", "b.txt")
    assert done.code == 2 and "error: a.jsonl cannot be read" in done.err and "b.txt:1" in done.out


def test_code_keeps_its_lines(run, fake, tmp_path):
    (tmp_path / "a.go").write_text("package dogs\n\nfunc bark(n int) {\n\tfor why := n {\n\t\tdog\n\t}\n}\n")
    shown = run("find", "why dog", "a.go", "-k", 1).out
    assert shown.startswith(" 1. a.go:3  characters ") and "\n    bark\n    package dogs\n" in shown
    assert "\n    »func bark(n int) {\n        for why := n {\n            dog\n        }\n    }«\n" in shown


def test_nothing_here_seems_to_answer(run, fake, tmp_path):
    (tmp_path / "a.txt").write_text("One dog. Two cats.")
    for answers, percent in ((-3.0, "5 %"), (-9.0, "under 1 %"), (-1.5, ""), (None, "")):
        fake.find.answers = answers
        done = run("find", "dog", "a.txt")
        said = f"runnel: nothing here seems to answer this ({percent}); what comes nearest:\n" if percent else ""
        assert (done.code, done.err) == (0, said) and done.out.startswith(" 1. a.txt:1")
        whole = run("find", "dog", "a.txt", "--json")
        assert whole.err == "" and json.loads(whole.out)["answers"] == (None if answers is None else probability(answers))
    fake.find.answers = -3.0
    assert run("find", "dog", "a.txt", "--min-score", 9).err == "", "nothing is shown"
