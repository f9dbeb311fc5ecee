"""Pages of PDF files as pictures: the text inside the boxes must be the part that was asked for."""

import io
import re
from contextlib import closing
from dataclasses import replace

import pypdfium2
import pytest
from helpers.document_files import pdf
from PIL import Image

from runnel.errors import ReadError
from runnel.text.documents.pdf_picture import page_part
from runnel.text.documents.reader import DocumentReader

NOTE = [(0, 11, 0, "Water is H"), (None, 7, -3, "2"), (None, 11, 0, "O, as the note says."), (None, 6, 4, "7")]
FIRST = [
    "Chapter one of the book", None,
    "The harbor was quiet. Ships came at noon, and the long rou-", "te ended there. Nobody counted them.", None,
    "The harbor was quiet. A storm came in the night.", None, "It took ten days.", None, NOTE,
]  # fmt: skip
SECOND = [
    "Chapter one of the book", None, "Second page text is here.", None,
    [(0, 11, 0, "Name"), (200, 11, 0, "Price")], [(0, 11, 0, "Rope"), (200, 11, 0, "12 coins")],
    [(0, 11, 0, "Sail"), (200, 11, 0, "90 coins")], None, "The sentence begins here and it",
]  # fmt: skip
THIRD = ["Chapter one of the book", None, "ends on the third page. The end."]


@pytest.fixture(scope="module")
def reader():
    with DocumentReader() as reader:
        yield reader


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("pictures") / "book.pdf"
    path.write_bytes(pdf([FIRST, SECOND, THIRD]))
    return path


def ask(reader, path, wanted, nth=0):
    """Return the picture for a part of the text, and the page's text inside its boxes."""
    document = next(reader.read(path))
    start = [found.start() for found in re.finditer(re.escape(wanted), document.text)][nth]
    picture = reader.picture(path, page_part(document.text, document.places(), start, start + len(wanted)))
    return picture, inside(path, picture)


def inside(path, picture):
    with pypdfium2.PdfDocument(path) as file, closing(file[picture.page - 1]) as page, closing(page.get_textpage()) as layer:
        texts = []
        for box in picture.boxes:
            xs, ys = (sorted(point) for point in zip(*(_on_page(page, *corner) for corner in (box[:2], box[2:])), strict=True))
            texts.append(layer.get_text_bounded(xs[0] - 0.5, ys[0] - 0.5, xs[1] + 0.5, ys[1] + 0.5))
        return " ".join(texts)


def _on_page(page, x, y):
    """Return a point of the picture in the page's own coordinates: the inverse, written for the rotations of these tests."""
    left, bottom, right, top = page.get_cropbox()
    if page.get_rotation() == 90:
        return left + y * (right - left), bottom + x * (top - bottom)
    return left + x * (right - left), top - y * (top - bottom)


def letters(text):
    return re.sub(r"\W", "", text.replace("\ufffe", ""))


@pytest.mark.parametrize(
    ("wanted", "page", "lines"),
    [
        ("Ships came at noon, and the long route ended there.", 1, 2),
        ("Second page text is here.", 2, 1),
        ("The sentence begins here and it\nends on the third page.", 2, 1),  # its first part is marked
        ("Rope | 12 coins", 2, 1),
    ],
)
def test_the_boxes_hold_the_part(reader, book, wanted, page, lines):
    picture, inner = ask(reader, book, wanted)
    assert picture.page == page and letters(inner) == letters(wanted.partition("\n")[0])
    assert len(picture.boxes) == lines
    assert all(0 <= left < right <= 1 and 0 <= top < bottom <= 1 for left, top, right, bottom in picture.boxes)


def test_a_repeated_sentence_is_marked_where_it_is_meant(reader, book):
    first, _ = ask(reader, book, "The harbor was quiet.", nth=0)
    second, _ = ask(reader, book, "The harbor was quiet.", nth=1)
    assert second.boxes[0][1] - first.boxes[0][1] == pytest.approx(3 * 13 / 800, abs=0.005)  # three lines of 13 points below


def test_raised_numbers_are_found(reader, book):
    text = next(reader.read(book)).text
    _, inner = ask(reader, book, next(line for line in text.split("\n") if line.startswith("Water")))
    assert letters(inner).startswith("WaterisH2O")


@pytest.mark.parametrize("entry", [b"/Rotate 90", b"/CropBox [30 100 500 790]"])
def test_turned_cropped_and_huge_pages(reader, tmp_path, entry):
    path = tmp_path / "book.pdf"
    path.write_bytes(pdf([FIRST, SECOND, THIRD]).replace(b"/MediaBox", entry + b" /MediaBox"))
    for wanted in ("Nobody counted them.", "A storm came in the night."):
        picture, found = ask(reader, path, wanted)
        assert letters(found) == letters(wanted)
        image = Image.open(io.BytesIO(picture.png)).convert("L")
        marked = image.crop([round(share * size) for share, size in zip(picture.boxes[0], 2 * image.size, strict=True)])
        assert marked.getextrema()[0] < 100  # the letters are there
    assert (image.width > image.height) == (entry == b"/Rotate 90")
    path.write_bytes(pdf([FIRST]).replace(b"[0 0 600 800]", b"[0 0 9999 14000]"))
    image = Image.open(io.BytesIO(ask(reader, path, "Nobody counted them.")[0].png))
    assert image.width * image.height <= 2_510_000


def test_what_is_on_no_page(reader, tmp_path, book):
    document = next(reader.read(book))
    part = page_part(document.text, document.places(), 0, 5)
    assert reader.picture(book, replace(part, text="Something else entirely")).boxes == ()
    assert reader.picture(book, replace(part, text=" \n")).boxes == ()
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.pdf").write_bytes(b"%PDF-1.4 nothing")
    for path, page, named in (
        (book, 9, r"book\.pdf: .* page 9"),
        (tmp_path / "a.txt", 1, "a.txt "),
        (tmp_path / "b.pdf", 1, "b.pdf: "),
    ):
        with pytest.raises(ReadError, match=named):
            reader.picture(path, replace(part, page=page))
    assert reader.picture(book, part).boxes  # the reader still works
    plain = next(reader.read(tmp_path / "a.txt"))
    assert page_part(plain.text, plain.places(), 0, 4) is None
