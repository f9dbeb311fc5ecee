"""--ocr of find, read, verify, ask and index."""

import shlex
import sys
from pathlib import Path

import pytest
from helpers.document_files import pdf

STUB = Path(__file__).parents[1] / "programs" / "ocr_stub.py"


@pytest.fixture
def ocr(tmp_path):
    (tmp_path / "scan.pdf").write_bytes(pdf([["A page of text."], None]))
    return shlex.join([sys.executable, str(STUB), str(tmp_path / "counts")]) + " {image}"


@pytest.mark.slow
def test_pages_are_recognized_once_if_they_are_remembered(run, ocr, tmp_path, caplog):
    done = run("read", "scan.pdf", "--pages", "2", "--ocr", ocr)
    assert (done.code, done.err) == (0, "") and done.out.startswith("Recognized text 0.")
    done = run("read", "scan.pdf")
    assert "note: scan.pdf: page 2 without text (1 of 2 pages, 1 of them pictures: scans need OCR (--ocr))" in done.err
    for extra, calls in (((), 2), (("--remember",), 3), ((), 3)):
        done = run("find", "recognized text", "scan.pdf", "--ocr", ocr, "-k", "1", *extra)
        assert (done.code, len((tmp_path / "counts").read_text())) == (0, calls)
        assert done.out.startswith("scan.pdf:page 2:Recognized text")
    assert "Recognized" not in run("find", "recognized text", "scan.pdf").out  # without the option: other content
    (tmp_path / "whole.pdf").write_bytes(pdf([None]))
    done = run("index", "scan.pdf", "whole.pdf")
    assert done.code == 1 and "whole.pdf: a PDF without text on its 1 pages" in caplog.text
    done = run("index", "--ocr", ocr)
    assert done.code == 0 and "1 added" in done.out
    assert "whole.pdf:page 1:Recognized text" in run("search", "recognized text").out
