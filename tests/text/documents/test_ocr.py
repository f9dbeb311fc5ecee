"""Scanned pages of PDF files, read by a command."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import pytest
from helpers.document_checks import check
from helpers.document_files import pdf

from runnel.errors import InputError, ReadError, ScannedPdf
from runnel.text.documents.ocr import Ocr
from runnel.text.documents.reader import DocumentReader

STUB = Path(__file__).parents[2] / "programs" / "ocr_stub.py"
MIXED = [["First page."], None, ["Third page."], None, []]


@pytest.fixture
def command(tmp_path):
    """Of the stub, which notes its calls in "counts"; quoted, because the folder's name may have
    spaces.
    """
    return shlex.join([sys.executable, str(STUB), str(tmp_path / "counts")]) + " {image}"


def read(tmp_path, pages, ocr=None, limits=None):
    path = tmp_path / "a b.pdf"
    path.write_bytes(pdf(pages))
    with DocumentReader(limits, ocr=ocr) as reader:
        (document,) = reader.read(path, name="a.pdf")
    return check(document)


def texts(document):
    return [(block.page, document.text[block.start : block.end]) for block in document.blocks]


def test_only_scanned_pages_are_read_by_the_command_or_named(tmp_path, command):
    document = read(tmp_path, MIXED)
    assert document.scanned == (2, 4)
    assert document.warnings == (
        "pages 2, 4-5 without text (3 of 5 pages, 2 of them pictures: scans need OCR (--ocr))",
    )
    with pytest.raises(ScannedPdf, match=r"a\.pdf: .* 2 pages") as error:
        read(tmp_path, [None, []])
    assert error.value.pages == (1,)
    document = read(tmp_path, MIXED, Ocr(command))
    picture = "A picture of 2400 x 3200 dots."  # 288 dots per inch
    scans = [
        (2, "Recognized text 0."),
        (2, picture),
        (3, "Third page."),
        (4, "Recognized text 1."),
        (4, picture),
    ]
    assert texts(document) == [(1, "First page."), *scans] and document.scanned == ()
    assert document.warnings == ("page 5 without text (1 of 5 pages)",)
    assert texts(read(tmp_path, [["Text."]], Ocr(command))) == [(1, "Text.")]
    assert (tmp_path / "counts").read_text() == "xx"


def test_a_page_that_fails_is_reported_and_the_others_are_read(tmp_path, command):
    document = read(tmp_path, MIXED, Ocr(f"{command} fail 0"))
    assert [page for page, _ in texts(document)] == [1, 3, 4, 4] and document.scanned == (2,)
    assert document.warnings == (
        "pages 2, 5 without text (2 of 5 pages, 1 of them pictures: OCR found no text on them)",
        "page 2 was not read by the OCR command: it failed: exit code 3: no letters found",
    )
    assert "OCR found no text on them" in read(tmp_path, MIXED, Ocr("false {image}")).warnings[0]
    (tmp_path / "counts").unlink()
    with pytest.raises(ReadError, match=r"a\.pdf: .*page 1 .*exit code 3: no letters found"):
        read(tmp_path, [None], Ocr(f"{command} fail 0"))
    with pytest.raises(ReadError, match=r"a\.pdf: .* 1 pages$"):
        read(tmp_path, [None], Ocr("true {image}"))


def test_commands_that_fail_cannot_be_used_or_hang_which_end_with_their_children(tmp_path):
    for script, reason in (
        ("sys.stdout.buffer.write(b'\\xff')", "utf-8"),
        ("os.kill(os.getpid(), 9)", "exit code -9"),
    ):
        with pytest.raises(ReadError, match=reason):
            Ocr(shlex.join([sys.executable, "-c", f"import os, sys; {script}", "{image}"])).read(
                b"png"
            )
    bad = {
        "": r"\{image\}",
        "echo '{image}": "parsed",
        "no-such-program {image}": "'no-such-program'",
    }
    for command, named in bad.items():
        with pytest.raises(InputError, match=named):
            Ocr(command)
    child = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time;"
        " time.sleep(600)'])"
    )
    start = time.monotonic()
    with pytest.raises(ReadError, match=r"timed out after 0\.5 s"):
        Ocr(shlex.join([sys.executable, "-c", child, "{image}"]), seconds=0.5).read(b"png")
    assert time.monotonic() - start < 300  # its child does not hold it up


def test_no_shell_reads_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = Ocr("echo {image}; touch made $(touch made) > made | 'two words'").read(b"png")
    assert (
        out.endswith("page.png; touch made $(touch made) > made | two words\n")
        and not (tmp_path / "made").exists()
    )
