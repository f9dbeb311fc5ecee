"""`runnel read`: parts of a document, exactly."""

import json

import pytest
from helpers.document_files import pdf

from runnel.text.documents.reader import read_document

TEXT = "# One\n\nFirst line.\nSecond line.\n"


@pytest.fixture
def text(tmp_path):
    (tmp_path / "a.md").write_text(TEXT)
    return "a.md"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], TEXT),
        (["--lines", "3"], "First line.\n"),
        (["--lines", "3:4"], "First line.\nSecond line.\n"),
        (["--lines", ":1"], "# One\n"),
        (["--lines", "4:"], "Second line.\n"),
        (["--characters", "7:12"], "First\n"),
    ],
)
def test_parts(run, text, options, expected):
    done = run("read", text, *options)
    assert (done.code, done.err, done.out) == (0, "", expected)


def test_json_and_pages(run, text, tmp_path):
    (tmp_path / "b.pdf").write_bytes(pdf([["A first page."], ["A second page."]]))
    assert run("read", "b.pdf", "--pages", "2").out == "A second page.\n"
    done = json.loads(run("read", "a.md", "--lines", "2:3", "--json").out)
    assert TEXT[done["start"] : done["end"]] == done["text"] == "\nFirst line.\n"
    assert (done["file"], done["line"], done["page"], done["headings"]) == ("a.md", 2, None, ["One"])
    assert (done["sha256"], done["characters"], done["pages"]) == (read_document(tmp_path / "a.md").sha256, len(TEXT), None)


def test_rows_and_standard_input(run, tmp_path):
    (tmp_path / "c.jsonl").write_text('{"id": "r1", "text": "one"}\n{"id": "r2", "text": "two"}\n')
    assert run("read", "c.jsonl", "--row", "r2").out == "two\n"
    assert run("read", "-", "--lines", "2", stdin="a\nb\nc").out == "b\n"


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["a.md", "--lines", "1:2", "--pages", "1"], 2, "--lines, --pages and --characters exclude each other"),
        (["a.md", "--lines", "x"], 1, "--lines is 'x'; expected FIRST:LAST or one number"),
        (["a.md", "--lines", ""], 1, "--lines is ''; expected FIRST:LAST or one number"),
        (["a.md", "--characters", "3"], 1, "--characters is '3'; expected START:END"),
        (["a.md", "--lines", "9"], 1, "lines 9 to 9 are outside of a.md, which has lines 1 to 5"),
        (["a.md", "--pages", "1"], 1, "a.md has no pages; read it by line or character"),
        (["missing.txt"], 1, "missing.txt"),
    ],
)
def test_errors(run, text, options, code, message):
    done = run("read", *options)
    assert done.code == code and message in " ".join(done.err.replace("│", " ").split()) and done.out == ""


def test_control_characters_are_not_printed(run, tmp_path):
    (tmp_path / "a.txt").write_text("Red \x1b[31malert\n")
    assert run("read", "a.txt").out == "Red \ufffd[31malert\n"
