"""`runnel read`: parts of a document, exactly."""

import json

from helpers.document_files import pdf

from runnel.text.documents.reader import read_document

TEXT = "# One\n\nFirst line.\nSecond line.\n"


def test_parts_of_files_rows_and_standard_input(run, tmp_path):
    (tmp_path / "a.md").write_text(TEXT)
    lines = "First line.\nSecond line.\n"
    for options, expected in (([], TEXT), (["--lines", "3:4"], lines), (["--characters", "7:12"], "First\n")):
        done = run("read", "a.md", *options)
        assert (done.code, done.err, done.out) == (0, "", expected)
    (tmp_path / "b.pdf").write_bytes(pdf([["A first page."], ["A second page."]]))
    assert run("read", "b.pdf", "--pages", "2").out == "A second page.\n"
    (tmp_path / "c.jsonl").write_text('{"id": "r1", "text": "one"}\n{"id": "r2", "text": "two"}\n')
    assert run("read", "c.jsonl", "--row", "r2").out == "two\n"
    assert run("read", "-", "--lines", "2", stdin="a\nb\nc").out == "b\n"
    done = json.loads(run("read", "a.md", "--lines", "2:3", "--json").out)
    assert TEXT[done["start"] : done["end"]] == done["text"] == "\nFirst line.\n"
    assert (done["file"], done["line"], done["page"], done["headings"]) == ("a.md", 2, None, ["One"])
    assert (done["sha256"], done["characters"], done["pages"]) == (read_document(tmp_path / "a.md").sha256, len(TEXT), None)
