"""`runnel read`: parts of a document, exactly; and scanned pages, which all
commands read by --ocr.
"""

import json
import shlex
import sys

import pytest
from helpers.children import PROGRAMS
from helpers.document_files import pdf

from runnel.text.documents.reader import read_document

TEXT = "# One\n\nFirst line.\nSecond line.\n"


def test_parts_of_files_rows_and_standard_input(run, tmp_path):
    (tmp_path / "a.md").write_text(TEXT)
    lines = "First line.\nSecond line.\n"
    for options, expected in (
        ([], TEXT),
        (["--lines", "3:4"], lines),
        (["--characters", "7:12"], "First\n"),
    ):
        done = run("read", "a.md", *options)
        assert (done.code, done.err, done.out) == (0, "", expected)
    (tmp_path / "b.pdf").write_bytes(pdf([["A first page."], ["A second page."]]))
    assert run("read", "b.pdf", "--pages", "2").out == "A second page.\n"
    (tmp_path / "c.jsonl").write_text('{"id": "r1", "text": "one"}\n{"id": "r2", "text": "two"}\n')
    assert run("read", "c.jsonl", "--row", "r2").out == "two\n"
    assert run("read", "-", "--lines", "2", stdin="a\nb\nc").out == "b\n"
    done = json.loads(run("read", "a.md", "--lines", "2:3", "--json").out)
    assert TEXT[done["start"] : done["end"]] == done["text"] == "\nFirst line.\n"
    assert (done["file"], done["line"], done["page"], done["headings"]) == (
        "a.md",
        2,
        None,
        ["One"],
    )
    assert (done["sha256"], done["characters"], done["pages"]) == (
        read_document(tmp_path / "a.md").sha256,
        len(TEXT),
        None,
    )


@pytest.mark.slow
def test_pages_are_recognized_once_if_they_are_remembered(run, tmp_path, caplog):
    (tmp_path / "scan.pdf").write_bytes(pdf([["A page of text."], None]))
    ocr = (
        shlex.join([sys.executable, str(PROGRAMS / "ocr_stub.py"), str(tmp_path / "counts")])
        + " {image}"
    )
    done = run("read", "scan.pdf", "--pages", "2", "--ocr", ocr)
    assert (done.code, done.err) == (0, "") and done.out.startswith("Recognized text 0.")
    done = run("read", "scan.pdf")
    assert (
        "note: scan.pdf: page 2 without text (1 of 2 pages, 1 of them pictures: scans need OCR"
        " (--ocr))" in done.err
    )
    for extra, calls in (((), 2), (("--remember",), 3), ((), 3)):
        done = run("find", "recognized text", "scan.pdf", "--ocr", ocr, "-k", "1", *extra)
        assert (done.code, len((tmp_path / "counts").read_text())) == (0, calls)
        assert done.out.startswith("scan.pdf:page 2:Recognized text")
    # without the option: other content
    assert "Recognized" not in run("find", "recognized text", "scan.pdf").out
    (tmp_path / "whole.pdf").write_bytes(pdf([None]))
    done = run("index", "scan.pdf", "whole.pdf")
    assert done.code == 1 and "whole.pdf: a PDF without text on its 1 pages" in caplog.text
    done = run("index", "--ocr", ocr)
    assert done.code == 0 and "1 added" in done.out
    assert "whole.pdf:page 1:Recognized text" in run("search", "recognized text").out
