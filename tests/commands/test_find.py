"""`runnel find` with a stand-in for the model: what is read, shown, and said about files that cannot be read."""

import json
import re
from pathlib import Path

import docx
import pytest
from helpers.document_files import epub, pdf

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
    place = {"file", "id", "line", "page", "headings", "start", "end"}
    assert set(best) == place | {"text", "score", "index", "before", "after", "also"}
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
    assert set(found[0]["also"][0]) == {"file", "id", "line", "page", "headings", "start", "end"}
    shown = run("find", "the dog barked", *names, "-k", 2).out
    assert shown.count("»The dog barked.«") == 1
    assert "\n    also at a.txt:4; b.txt:3; c.html, characters 0-15\n" in shown
    (tmp_path / "d.txt").write_text("The dog barked.\n\n" * 12)
    assert "\n    also at d.txt:3; d.txt:5; d.txt:7 and 8 more places\n" in run("find", "the dog barked", "d.txt").out


def test_find_shows_a_heading_with_the_text_below(run, fake, tmp_path):
    text = "10.4 Client errors\n\n10.4.11 410 Gone\n\nThe resource is no\nlonger there. It will not be back.\n"
    (tmp_path / "a.txt").write_text(text)
    best = json.loads(run("find", "410 gone", "a.txt", "--json", "-k", 1, "-c", 0).out)["sentences"][0]
    assert text[best["start"] : best["end"]] == best["text"] == "10.4.11 410 Gone\n\n"
    assert best["after"].split() == "The resource is no longer there.".split() and best["before"] == ""
    shown = run("find", "410 gone", "a.txt", "-k", 1, "-c", 0).out
    assert "\n    »10.4.11 410 Gone«\n    The resource is no longer there.\n" in shown and "It will" not in shown
    (tmp_path / "a.html").write_text("<h1>Is it gone?</h1><h2>Yes: 410 gone!</h2><p>The resource is away. More.</p>")
    shown = run("find", "yes: 410 gone!", "a.html", "-k", 1, "-c", 0).out
    assert "\n    »Yes: 410 gone!«\n    The resource is away.\n" in shown


def test_find_context_zero_shows_the_sentence_alone(run, fake, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    assert "\n    »Nobody knew why the dog barked.«\n" in run("find", "why", "a.txt", "-k", 1, "-c", 0).out


def test_find_reads_standard_input(run, fake):
    done = run("find", "dog", "-", stdin="One dog. One cat.")
    assert " 1. (standard input):1  characters 0-" in done.out


def test_find_takes_a_unit(run, fake, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    best = json.loads(run("find", "the cat", "a.txt", "--unit", "paragraph", "--json").out)["sentences"][0]
    assert best["text"] == "The cat sat on the mat. It was\nwarm there. The dog barked all night.\n\n"
    assert run("find", "the cat", "a.txt", "--unit", "paragraph").out.endswith(" paragraphs (113 characters) in a.txt\n")
    fake.find.model.unit = "clauses"  # of the model, where none is asked for
    assert run("find", "the cat", "a.txt", "-k", 2).out.endswith("2 of 5 clauses (113 characters) in a.txt\n")
    done = run("find", "the cat", "a.txt", "--unit", "page")
    assert done.code == 2 and "'page' is not one of 'sentence'" in done.err


def test_find_neutralises_control_characters(run, fake, tmp_path):
    (tmp_path / "a.txt").write_text("A dog\x1b[31m barked.")
    assert "\x1b" not in run("find", "dog", "a.txt").out


def test_find_in_an_empty_document_is_an_empty_result(run, fake, tmp_path):
    (tmp_path / "a.txt").write_text(" \n")
    done = run("find", "dog", "a.txt", "--json")
    assert done.code == 1 and json.loads(done.out)["sentences"] == []
    assert done.err == "runnel: note: a.txt is empty\n"
    assert run("find", "dog", "a.txt").out == ""


def test_the_most_likely_mistakes_are_explained(run, tmp_path):
    (tmp_path / "a file.txt").write_text("One dog.")
    swapped = run("find", "a file.txt", "is it a dog?")
    assert (swapped.code, swapped.out) == (2, "")
    assert swapped.err == "runnel: error: the query comes before the files: runnel find 'is it a dog?' 'a file.txt'\n"
    address = run("find", "dog", "https://example.org/a.pdf")
    assert address.err == "runnel: error: https://example.org/a.pdf is an address; download it and give the file\n"
    misspelled = run("find", "dog", "a file.txt", "-m", "poket")
    assert misspelled.code == 2 and "check the spelling (built-in models: pocket, pocket-mamba2)" in misspelled.err
    assert run("find", "x" * 5000, "a file.txt", "-m", "poket").code == 2  # no name of a file


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "no file bad.txt"),
        (lambda p: p.write_bytes(b"\x7fELF\x00\x01\x02" * 50), "binary"),
        (lambda p: p.write_bytes("Не в UTF-8".encode("koi8-r")), "(?i)utf-8"),
        (lambda p: p.write_bytes(pdf([["secret"]], encrypted=True)), "encrypted PDF"),
        (lambda p: p.write_bytes(pdf([[]], image_only=True)), "a scan; run OCR"),
        (lambda p: p.write_bytes(b"PK\x03\x04 cut off"), "damaged or truncated zip"),
    ],
    ids=["missing", "binary", "undecodable", "encrypted", "scan", "zip"],
)
def test_find_names_a_file_it_cannot_read_and_goes_on(run, fake, tmp_path, make, message):
    make(tmp_path / "bad.txt")
    (tmp_path / "good.txt").write_text("One dog.")
    done = run("find", "dog", "bad.txt", "good.txt", "--json")
    found = json.loads(done.out)
    assert done.code == 2
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
    assert done.code == 2 and "latin-99" in done.err


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
    assert (
        shown.startswith(" 1. a.pdf, page 2  characters ") and "\n    Pets\n    One cat" in shown and "»The dog barked.«" in shown
    )


@pytest.mark.parametrize("name", ["a.docx", "a.html", "a.md", "a.epub"])
def test_find_has_the_path_of_headings(run, fake, tmp_path, name):
    document = docx.Document()
    for level, heading in ((1, "Animals"), (2, "Dogs")):
        document.add_heading(heading, level)
    document.add_paragraph("The dog barked.")
    document.save(tmp_path / "a.docx")
    page = "<h1>Animals</h1><h2>Dogs</h2><p>The <b>dog</b> barked.</p>"
    (tmp_path / "a.html").write_text(page)
    epub(tmp_path / "a.epub", [page])
    (tmp_path / "a.md").write_text("# Animals\n## Dogs\nThe dog barked.\n")
    found = best(run("find", "the dog barked", name, "--json"))
    assert found["text"].strip() == "The dog barked." and found["headings"] == ["Animals", "Dogs"] and found["page"] is None
    shown = run("find", "the dog barked", name, "-k", 1, "-c", 0).out
    place = "a.md:3" if name == "a.md" else name  # lines mean something in text only
    assert shown.startswith(f" 1. {place}  characters ") and "\n    Animals › Dogs\n    »The dog barked.«" in shown


def test_find_in_rows_names_them_and_counts_them_together(run, fake, tmp_path):
    rows = [{"id": "r1", "text": "One cat."}, {"id": "r2", "text": ""}, {"id": "r3", "text": "The dog barked."}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = run("find", "the dog barked", "a.jsonl", "--json")
    assert best(done)["id"] == "r3" and done.err == ""
    assert [(f["file"], f["kind"], f["characters"], f["sentences"]) for f in json.loads(done.out)["files"]] == [
        ("a.jsonl", "jsonl", 23, 2)
    ]
    assert run("find", "the dog barked", "a.jsonl", "-k", 1).out.startswith(" 1. a.jsonl, row r3  characters 0-15")


def test_find_tells_warnings_and_goes_on(run, fake, tmp_path):
    (tmp_path / "a.pdf").write_bytes(pdf([["The dog."], []]))
    (tmp_path / "b.txt").write_bytes(b"A caf\xe9 with a dog.")
    done = run("find", "dog", "a.pdf", "b.txt", "--json")
    first, second = done.err.splitlines()
    assert done.code == 0 and first == "runnel: note: a.pdf: page 2 without text (1 of 2 pages)"
    assert second.startswith("runnel: note: b.txt: not valid utf-8 (byte 0xe9 at offset 5, line 1), read as cp1252")
    assert [len(f["warnings"]) for f in json.loads(done.out)["files"]] == [1, 1]
    assert any("café" in s["text"] for s in json.loads(done.out)["sentences"])


def test_find_reads_a_pdf_from_standard_input(run, fake):
    assert best(run("find", "dog", "-", "--json", stdin=pdf([["A dog."]])))["page"] == 1


def test_find_reads_what_it_can_before_a_bad_row(run, fake, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "One dog."}\nnot json\n')
    done = run("find", "dog", "a.jsonl", "--json")
    assert done.code == 2 and "a.jsonl, line 2: not valid JSON" in done.err
    assert [s["text"] for s in json.loads(done.out)["sentences"]] == ["One dog."]


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file whose reading fails, which Linux has")
def test_a_file_whose_disk_fails_is_named_and_the_others_are_searched(run, fake, tmp_path):
    (tmp_path / "a.txt").write_text("One dog.")
    (tmp_path / "b.txt").write_text("Two dogs, one dog.")
    done = run("find", "dog", "a.txt", "/proc/self/mem", "b.txt", "--json")
    found = json.loads(done.out)
    assert (
        done.code == 2 and [s["file"] for s in found["sentences"]] and [f["file"] for f in found["files"]] == ["a.txt", "b.txt"]
    )
    assert done.err == "runnel: error: /proc/self/mem cannot be read: Input/output error; check the file and its disk\n"
    assert [f["file"] for f in found["skipped"]] == ["/proc/self/mem"]


def test_a_file_that_is_deleted_while_it_is_read(run, fake, tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text('{"text": "One dog."}\n')
    (tmp_path / "b.txt").write_text("One dog.")
    scan = fake.find.scan

    def deleting(query, documents, **options):
        for scored in scan(query, documents, **options):
            (tmp_path / "a.jsonl").unlink(missing_ok=True)
            yield scored

    monkeypatch.setattr(fake.find, "scan", deleting)
    done = run("find", "dog", "a.jsonl", "b.txt")
    assert (
        done.code == 2 and "error: a.jsonl cannot be read: No such file or directory; check" in done.err and "b.txt:1" in done.out
    )


def test_a_file_without_rows_is_noted(run, fake, tmp_path):
    (tmp_path / "a.csv").write_text("id,text\n")
    done = run("find", "dog", tmp_path / "a.csv")
    note = "no rows; the first line of a csv or tsv file contains the column names"
    assert (done.code, done.err) == (1, f"runnel: note: {tmp_path / 'a.csv'}: {note}\n")


def test_code_keeps_its_lines(run, fake, tmp_path):
    (tmp_path / "a.go").write_text("package dogs\n\nfunc bark(n int) {\n\tfor why := n {\n\t\tdog\n\t}\n}\n")
    shown = run("find", "why dog", "a.go", "-k", 1).out
    assert shown.startswith(" 1. a.go:3  characters ") and "\n    bark\n    package dogs\n" in shown
    assert "\n    »func bark(n int) {\n        for why := n {\n            dog\n        }\n    }«\n" in shown


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ("no/r.html", "no: no such directory; create it first"),
        (".", ".: is a directory; name a file"),
        ("/dev/stdout", "/dev/stdout: is not a regular file; name another one"),
    ],
)
def test_a_report_that_cannot_be_written_is_reported_before_files_are_read(run, fake, tmp_path, report, message):
    (tmp_path / "a.txt").write_text("One dog.")
    fake.find.scan = None
    done = run("find", "dog", "a.txt", "--html", report)
    assert (done.code, done.out, done.err) == (2, "", f"runnel: error: {message}\n")
