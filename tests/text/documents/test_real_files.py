"""Documents that other programs wrote, where this machine has some; and one PDF as large as users have them."""

import re
import sys
from pathlib import Path

import pytest
from helpers.document_checks import check
from helpers.document_files import pdf

from runnel.text.documents.reader import DocumentReader

pytestmark = pytest.mark.slow

ROOTS = ("/usr/share/doc", "/usr/share/texmf", "/usr/lib/python3/dist-packages", str(Path(sys.prefix) / "share"))


def some(suffix, count):
    """The smallest few files with this ending that have a page or so."""
    found = (path for root in ROOTS if Path(root).is_dir() for path in Path(root).rglob(f"*{suffix}"))
    sized = sorted((path.stat().st_size, path) for path in found if path.is_file())
    return [path for size, path in sized if 4_000 < size < 5_000_000][:count]


@pytest.mark.parametrize("suffix", [".pdf", ".html", ".docx", ".pptx", ".xlsx", ".odt", ".epub", ".md", ".txt", ".txt.gz"])
def test_real_files(suffix):
    paths = some(suffix, 8)
    if not paths:
        pytest.skip(f"no {suffix} files in {', '.join(ROOTS)}")
    with DocumentReader() as reader:
        for path in paths:
            (document,) = reader.read(path)
            check(document)
            assert len(document.text) > 500, path
            spaces = len(re.findall(r"\s", document.text)) / len(document.text)
            assert 0.05 < spaces < 0.6, path  # words are neither glued nor torn


def test_a_pdf_has_the_words_of_the_same_book_as_html():
    """Two renderings by other programs, read by two independent parsers."""
    manual = Path("/usr/share/doc/shared-mime-info/shared-mime-info-spec.pdf")
    if not manual.exists():
        pytest.skip(f"no {manual}")
    pages = sorted(manual.with_suffix(".html").rglob("*.html"))
    with DocumentReader() as reader:
        found, expected = (
            re.findall(r"[a-z]{4,}", " ".join(document.text.lower() for path in paths for document in reader.read(path)))
            for paths in ([manual], pages)
        )
    assert len(set(found) & set(expected)) > 0.93 * len(set(expected))  # the tables are not in the PDF
    assert set(found) - set(expected) <= {"aers"}  # no word is glued or torn but one, which has a letter without a meaning


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, which Linux has")
def test_two_thousand_pages(tmp_path):
    lines = [f"Line {line} of a page with about as many words as a page of a report has." for line in range(45)]
    (tmp_path / "a.pdf").write_bytes(pdf([[f"Page {page} begins.", *lines] for page in range(2000)]))
    with DocumentReader() as reader:
        (document,) = reader.read(tmp_path / "a.pdf")
        facts = Path(f"/proc/{reader._worker.pid}/status").read_text()
    assert int(re.search(r"VmHWM:\s*(\d+) kB", facts)[1]) < 200_000
    assert document.pages == 2000 and document.blocks[-1].page == 2000
    assert document.text.count("begins.") == 2000
