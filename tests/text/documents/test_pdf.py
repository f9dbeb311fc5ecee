"""PDF: pages, paragraphs, hyphens, outline; and what is said of files without text."""

import io
import re
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pypdfium2
import pytest
from helpers.document_checks import check, paths, shown
from helpers.document_files import Placed, drawn_pdf, pdf
from PIL import Image

from runnel.errors import ReadError
from runnel.text.documents import pdf as module
from runnel.text.documents.document import Limits
from runnel.text.documents.page_part import page_part
from runnel.text.documents.pdf import read_pdf
from runnel.text.documents.pdf_lines import PdfPart
from runnel.text.documents.reader import DocumentReader


@pytest.fixture
def read(tmp_path):
    def call(pages, limits=None, **options):
        path = tmp_path / "a.pdf"
        path.write_bytes(pages if isinstance(pages, bytes) else pdf(pages, **options))
        return check(read_pdf(path, limits or Limits()))

    return call


def test_pages_paragraphs_and_sentences_over_a_page_end(read):
    document = read(
        [
            ["First line", "and second.", None, None, "A new paragraph", "goes on."],
            ["Page two (café)."],
        ]
    )
    assert [text for _, text in shown(document)] == [
        "First line\nand second.",
        "A new paragraph\ngoes on.",
        "Page two (café).",
    ]
    assert [block.page for block in document.blocks] == [1, 1, 2]
    assert document.pages == 2 and document.warnings == () and document.kind == "pdf"
    whole = pdf([["Page one"], ["Page two"]])
    # found without the table of objects
    assert read(whole[: whole.rindex(b"startxref")]).text == "Page one\n\nPage two"
    document = read(
        [["This sentence goes"], ["over the page. An exam-"], ["ple of it."], ["New page."]]
    )
    sentences = ["This sentence goes\nover the page.", "An example of it.", "New page."]
    assert document.text == "\n\n".join(sentences)
    assert [block.page for block in document.blocks] == [1, 2, 4]


def test_hyphens_at_line_ends_and_ligatures_under_control_codes(read):
    lines = [
        "an exam-",
        "ple of a state-",
        "space model. It is",
        "a state-space model, or well-",
        "known. In 2020-",
        "2021.",
    ]
    text = " ".join(read([lines]).text.split())
    assert text.startswith(
        "an example of a state-space model. It is a state-space model, or wellknown."
    )
    assert "2020- 2021" in text or "2020-2021" in text
    lines = [
        "From February-",
        "March on, as Jean-",
        "Loup says, use --unw-stack-",
        "scan-frames, --",
        "xml or Fc-",
        "GetHome.",
    ]
    text = " ".join(read([lines]).text.split())
    assert (
        text == "From February-March on, as Jean-Loup says, use --unw-stack-scan-frames, --xml or"
        " FcGetHome."
    )
    document = read([["The \x1crst coe\x1ecient di\x1bers", "\x16 it is \x10\x1dexible\x11."]])
    assert document.text == "The first coefficient differs\n\u2014 it is \u201cflexible\u201d."


def test_pages_without_text_and_damage_are_told(read):
    document = read([["one"], [], [], ["four"], []])
    assert [block.page for block in document.blocks] == [1, 4]
    assert document.warnings == ("pages 2-3, 5 without text (3 of 5 pages)",)
    damaged = pdf([["one"], ["two"], ["three"]]).replace(b"[5 0 R 7 0 R", b"[5 0 R 8 0 R")
    document = read(damaged)
    assert document.text.split() == ["one", "three"] and "page 2 " in document.warnings[0]
    parts = [PdfPart(1, "paragraph", "office \ufffd\ufffd\ufffd")]
    document = module._build(parts, {}, module._Problems(), 1, title=None, advice="")
    assert "3 characters" in document.warnings[0]
    assert module._page_list(list(range(1, 101, 2))).endswith("and 38 more ranges")


# A page tree that contains itself.
LOOP = (
    b"2 0 obj <</Type /Pages /Count 1000000 /Kids ["
    + b"2 0 R " * 1000
    + b"]>> endobj\ntrailer << /Root 1 0 R >>"
)
LOOP = b"%PDF-1.4\n1 0 obj << /Type /Catalog /Pages 2 0 R >> endobj\n" + LOOP


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (pdf([None, None]), "2 pages, .* a scan"),
        (pdf([[]]), "1 pages$"),
        (pdf([["secret"]], encrypted=True), "password"),
        (b"%PDF-1.4\n", "damaged"),
        (pdf([["x"]])[:200], "damaged"),
        (LOOP, r"1,000,000 pages in 6,\d{3} b"),
        (pdf([["x" * 9000]]), "the text of the PDF has more than 8,000 bytes"),
    ],
    ids=["scan", "empty", "locked", "cut", "cut later", "loop", "long"],
)
def test_what_cannot_be_read(read, data, reason):
    with pytest.raises(ReadError, match=reason):
        read(data, Limits(unpacked_bytes=8000))


def test_outline_entries_are_headings(read):
    second = ["1 Getting started", None, None, "Some words."]
    third = ["More words.", None, None, "1.1 Tools", None, None, "End."]
    document = read(
        [["Contents"], second, third],
        outline=[("Getting  started", 1), ("Tools", 2), ("Not on its page", 2)],
    )
    path = paths(document)
    assert path["Contents"] == () and path["Some words."] == path["More words."] == (
        "Getting started",
    )
    assert path["End."] == ("Tools",)  # all entries of this writer are of one level
    assert ("heading", "1.1 Tools") in shown(document)


def cells(*pieces):
    return [(120 * number, 11, 0, piece) for number, piece in enumerate(pieces)]


def note(before, number, after):
    """A line with a raised number in it."""
    return [(0, 11, 0, before), (None, 7, 4, number), (None, 11, 0, after)]


def words(text):
    return re.findall(r"[a-z]+", text.lower())


def test_raised_numbers_are_not_glued_to_words_and_rows_of_a_table_are_blocks(read):
    shell = note("The shell may call exit", "77", ": it ends. A file")
    document = read([[shell, note("of 10", "6", " bytes and 5 m"), "md5 is old."]])
    assert (
        " ".join(document.text.split())
        == "The shell may call exit[77]: it ends. A file of 10⁶ bytes and 5 m md5 is old."
    )
    document = read(
        [[note("a field of 20 m", "2", ", and after a stop."), note("It ends.", "12", "")]]
    )
    assert document.text == "a field of 20 m², and after a stop.\nIt ends.[12]"
    rows = [cells("Flag", "Memory", "Time"), cells("-1", "1200k", "20"), cells("-2", "2000k", "25")]
    page = ["Sizes of all flags:", *rows, "And so on."]
    assert shown(read([page])) == [
        ("paragraph", "Sizes of all flags:"),
        ("heads", "Flag | Memory | Time"),
        ("row", "-1 | 1200k | 20"),
        ("row", "-2 | 2000k | 25"),
        ("paragraph", "And so on."),
    ]
    gap = read(
        [["Some words of a text.", cells("A signature", "[Function]"), "It does what it is for."]]
    )
    assert [kind for kind, _ in shown(gap)] == ["paragraph"]  # a wide gap alone is no table


def test_lines_of_a_table_of_contents_lead_to_pages_in_order_and_bullets_begin_items(read):
    entries = [
        "1 Scope . . . . . . . . . . 2",
        "1.1 Purpose .............. 2",
        "2 Use ......... iv",
        "3 End .............. 4",
    ]
    sheet = ["Cylinders ......... 4", "Doors .......... 3", "Seats ......... 2"]
    document = read([["Contents", *entries], ["1 Scope"], ["2 Use"], sheet])
    contents = [text for kind, text in shown(document) if kind == "contents"]
    assert contents == ["1 Scope | 2", "1.1 Purpose | 2", "2 Use | iv", "3 End | 4"]
    assert [text for kind, text in shown(document) if kind == "row"] == [
        "Cylinders | 4",
        "Doors | 3",
        "Seats | 2",
    ]
    document = read(
        [
            [
                "Contents",
                "1 Scope . . . . . . . . . . 3",
                "1.1 Purpose .............. iv",
                "Wait ......",
                "Text.",
            ]
        ]
    )
    assert shown(document)[1:] == [
        ("row", "1 Scope | 3"),
        ("row", "1.1 Purpose | iv"),
        ("paragraph", "Wait ......\nText."),
    ]
    document = read(
        [
            [
                "We have:",
                "• one thing",
                "and more of it",
                "• another",
                "•",
                "a third",
                None,
                None,
                "End.",
            ]
        ]
    )
    items = [("item", "one thing\nand more of it"), ("item", "another"), ("item", "a third")]
    assert shown(document) == [("paragraph", "We have:"), *items, ("paragraph", "End.")]


def book(pages=12, *, head="The Manual", foot="{number}"):
    """Pages with a running head and foot, whose body words are all different; a sentence goes over
    each page's end.
    """
    body = [
        [f"end{a}. Next{a} has line{a}", f"and then begin{a}"]
        for a in "abcdefghijklmnopqrstuvwxyz"[:pages]
    ]
    numbered = enumerate(body, start=7)
    return body, [
        [head.format(number=n), None, *lines, None, foot.format(number=n)] for n, lines in numbered
    ]


@pytest.mark.parametrize(
    ("head", "foot"),
    [
        ("The Manual", "{number}"),
        ("The Manual {number}", "draft"),
        ("Page {number} of 99", "- {number} -"),
        ("Issue #{number} of # The Times", "{number}"),
    ],
)
def test_running_heads_and_page_numbers_are_left_out_and_nothing_else(read, head, foot):
    body, pages = book(head=head, foot=foot)
    document = read(pages)
    expected = words(" ".join(line for lines in body for line in lines))
    said = f"{head} {foot}".replace("{number}", "").replace("Page  of 99", "")
    furniture = words(said)
    # what a head says stays once
    assert sorted(words(document.text)) == sorted(expected + furniture)
    assert "then begind\nende.\n\nNexte" in document.text  # sentences go on over pages
    assert not re.search(r"\b1[0-8]\b", document.text)


def test_heads_of_chapters_and_of_even_pages_are_left_out_and_what_only_looks_like_one_stays(read):
    _, pages = book(16, head="x", foot="x")
    for number, page in enumerate(pages):
        page[0] = f"Chapter {1 + number // 8}" if number % 2 else "Great Book"
        page[-1] = "i ii iii iv v vi vii viii ix x xi xii xiii xiv xv xvi".split()[number]
    text = read(pages).text
    assert [text.count(word) for word in ("Great Book", "Chapter 1", "Chapter 2")] == [1, 1, 1]
    assert not re.search(r"\b[ivx]+\b", text)
    text = read(
        [[f"The Book {n}", None, f"and {n}{n} is", "so."] for n in ("ii", "iii", "iv")]
    ).text
    assert text.count("The Book") == 1
    _, pages = book()
    pages[5].insert(3, "This is the manual of a program.")
    assert read(pages).text.count("The Manual") == 0
    text = read([["Summary", f"text {name}"] for name in ("a", "b")]).text
    assert text.count("Summary") == 2  # two pages are too few
    pages = [[f"PdfPart {name}", "text", "1999"] for name in ("one", "two", "three", "four")]
    assert [read(pages).text.count(word) for word in ("PdfPart", "1999")] == [4, 1]
    results = [["Results", None, None, f"text {i}", "more"] for i in "abcd"]
    titled = read(results, outline=[("Results", page) for page in range(4)])
    sentences = [["It is so.", f"text {i}", "It is not."] for i in "abcd"]
    assert [read(sentences).text.count(text) for text in ("It is so.", "It is not.")] == [4, 4]
    apart = [["All rights reserved.", None, None, f"text {i}", "more"] for i in "abcd"]
    assert read(apart).text.count("All rights reserved.") == 1
    # the outline says that these are titles
    assert shown(titled).count(("heading", "Results")) == 4


def test_heads_of_left_and_right_pages_of_a_short_document_are_no_titles(read):
    pages = [
        [f"{n} J. Lee and A. Berg" if n % 2 == 0 else f"Wells {n}", None, None, f"{word} was dug."]
        for n, word in enumerate(["Alpha", "Beta", "Gamma", "Delta"], start=1)
    ]
    document = read(pages)
    texts = [text for _, text in shown(document)]
    assert texts.count("4 J. Lee and A. Berg") == 0 and "Delta was dug." in texts
    assert not any(block.headings for block in document.blocks)


MARKED = "/Artifact <</Type /Pagination /Subtype /Header>> BDC"


def tagged(lines, *, head=(), foot=(), y=700):
    """A page of a tagged PDF: its lines, and running heads and feet that are marked."""
    text = [Placed(60, y - 14 * number, line) for number, line in enumerate(lines)]
    tops = [Placed(60 + 170 * number, 770, cell) for number, cell in enumerate(head)]
    feet = [Placed(60, 44 - 14 * number, line) for number, line in enumerate(foot)]
    return [MARKED, *tops, "EMC", "/P <</MCID 0>> BDC", *text, "EMC", "/Artifact BMC", *feet, "EMC"]


LONG = ["The permit for the east quarry", "expires in June and must be"]
REST = ["renewed by the operator before", "blasting can go on at all."]


@pytest.mark.parametrize("y", [700, 756])
@pytest.mark.parametrize("head", [["Report of May"], ["Acme", "Report of May"]])
def test_marked_heads_and_page_numbers_of_one_or_two_pages_are_no_text(tmp_path, y, head):
    path = tmp_path / "a.pdf"
    foot = ["Do not copy this. It is secret.", "Page 1 of 2"]
    path.write_bytes(drawn_pdf([tagged(LONG + REST, head=head, foot=foot, y=y)]))
    expected = [" ".join(head), "\n".join(LONG + REST), foot[0]]
    assert [text for _, text in shown(check(read_pdf(path, Limits())))] == expected

    second = tagged(REST, head=head, foot=[foot[0], "Page 2 of 2"], y=y)
    path.write_bytes(drawn_pdf([tagged(LONG, head=head, foot=foot, y=y), second]))
    assert [text for _, text in shown(check(read_pdf(path, Limits())))] == expected


def test_the_number_of_a_page_and_of_all_pages_is_no_text_and_ends_no_table(read):
    rows = [["Name", "Place", "Jobs"], ["Cisco", "Bergen", "192"], ["Maxim", "Oslo", "20"]]
    pages = [
        [*(cells(*row) for row in rows), None, None, foot]
        for foot in ("Page 1 of 2", "Page 2 of 2")
    ]
    found = [text for kind, text in shown(read(pages)) if kind == "row"]
    assert found == [" | ".join(row) for row in rows[1:]] * 2
    assert "Page" not in read(pages).text


def test_marked_names_of_columns_stay_with_their_table(tmp_path):
    names = ["Elements of the well", "Assessment", "Notes"]
    places = (60, 250, 400)
    pages = []
    for rows in (
        [["Pump", "Yes", "7"], ["Valve", "No", "9"]],
        [["Cover", "Yes", "4"], ["Filter", "No", "5"]],
    ):
        table = [
            Placed(x, 690 - 16 * number, cell)
            for number, row in enumerate(rows)
            for x, cell in zip(places, row, strict=True)
        ]
        heads = [Placed(x, 706, name, font="F2") for x, name in zip(places, names, strict=True)]
        pages.append([MARKED, Placed(60, 740, "Wells (continued)"), *heads, "EMC", *table])
    path = tmp_path / "a.pdf"
    path.write_bytes(drawn_pdf(pages))
    rows = [block for block in read_pdf(path, Limits()).blocks if block.kind == "row"]
    assert [row.lead[1:] for row in rows] == [tuple(names)] * 4


def test_marked_text_that_is_no_head_stays(tmp_path):
    path = tmp_path / "a.pdf"
    lines = [Placed(60, 700 - 14 * number, line) for number, line in enumerate(LONG + REST)]
    for page in (
        [MARKED, *lines, "EMC"],  # all of the text is marked
        [lines[0], MARKED, lines[1], "EMC", *lines[2:]],
    ):
        path.write_bytes(drawn_pdf([page]))
        text = " ".join(read_pdf(path, Limits()).text.split())
        assert text == " ".join(LONG + REST)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, which Linux has")
def test_two_thousand_pages(tmp_path):
    lines = [
        f"Line {line} of a page with about as many words as a page of a report has."
        for line in range(45)
    ]
    (tmp_path / "a.pdf").write_bytes(
        pdf([[f"Page {page} begins.", *lines] for page in range(2000)])
    )
    with DocumentReader() as reader:
        (document,) = reader.read(tmp_path / "a.pdf")
        peak = re.search(
            r"VmHWM:\s*(\d+) kB", Path(f"/proc/{reader._worker.pid}/status").read_text()
        )
    assert int(peak[1]) < 200_000
    assert (
        document.pages == 2000
        and document.blocks[-1].page == 2000
        and document.text.count("begins.") == 2000
    )


# ---- pages as pictures: the text inside the boxes must be the part that was asked for ------------


WATER = [
    (0, 11, 0, "Water is H"),
    (None, 7, -3, "2"),
    (None, 11, 0, "O, as the note says."),
    (None, 6, 4, "7"),
]
FIRST = [
    "Chapter one of the volume",
    None,
    "The harbor was quiet. Ships came at noon, and the long rou-",
    "te ended there. Nobody counted them.",
    None,
    "The harbor was quiet. A storm came in the night.",
    None,
    "It took ten days.",
    None,
    WATER,
]
SECOND = [
    "Chapter one of the volume", None, "Second page text is here.", None,
    [(0, 11, 0, "Name"), (200, 11, 0, "Price")], [(0, 11, 0, "Rope"), (200, 11, 0, "12 coins")],
    [(0, 11, 0, "Sail"), (200, 11, 0, "90 coins")], None, "The sentence begins here and it",
]  # fmt: skip
THIRD = ["Chapter one of the volume", None, "ends on the third page. The end."]


@pytest.fixture(scope="module")
def reader():
    with DocumentReader() as reader:
        yield reader


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    path = tmp_path_factory.mktemp("pictures") / "volume.pdf"
    path.write_bytes(pdf([FIRST, SECOND, THIRD]))
    return path


def ask(reader, path, wanted, nth=0):
    """Return the picture for a part of the text, and the page's text inside its boxes."""
    document = next(reader.read(path))
    start = [found.start() for found in re.finditer(re.escape(wanted), document.text)][nth]
    picture = reader.picture(
        path, page_part(document.text, document.places(), start, start + len(wanted))
    )
    return picture, inside(path, picture)


def inside(path, picture):
    with (
        pypdfium2.PdfDocument(path) as file,
        closing(file[picture.page - 1]) as page,
        closing(page.get_textpage()) as layer,
    ):
        texts = []
        for box in picture.boxes:
            xs, ys = (
                sorted(point)
                for point in zip(
                    *(_on_page(page, *corner) for corner in (box[:2], box[2:])), strict=True
                )
            )
            texts.append(layer.get_text_bounded(xs[0] - 0.5, ys[0] - 0.5, xs[1] + 0.5, ys[1] + 0.5))
        return " ".join(texts)


def _on_page(page, x, y):
    """Return a point of the picture in the page's own coordinates: the inverse, written for the
    rotations of these tests.
    """
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
        # its first part is marked
        ("The sentence begins here and it\nends on the third page.", 2, 1),
        ("Rope | 12 coins", 2, 1),
        ("Water is H2O, as the note says.[7]", 1, 1),
    ],
)
def test_the_boxes_hold_the_part(reader, volume, wanted, page, lines):
    picture, inner = ask(reader, volume, wanted)
    assert picture.page == page and letters(inner) == letters(wanted.partition("\n")[0])
    assert len(picture.boxes) == lines
    assert all(
        0 <= left < right <= 1 and 0 <= top < bottom <= 1
        for left, top, right, bottom in picture.boxes
    )


def test_repeated_sentences_are_told_apart(reader, volume):
    first, _ = ask(reader, volume, "The harbor was quiet.", nth=0)
    second, _ = ask(reader, volume, "The harbor was quiet.", nth=1)
    # three lines of 13 points below
    assert second.boxes[0][1] - first.boxes[0][1] == pytest.approx(3 * 13 / 800, abs=0.005)


@pytest.mark.parametrize("entry", [b"/Rotate 90", b"/CropBox [30 100 500 790]"])
def test_turned_cropped_and_huge_pages(reader, tmp_path, entry):
    path = tmp_path / "volume.pdf"
    path.write_bytes(pdf([FIRST, SECOND, THIRD]).replace(b"/MediaBox", entry + b" /MediaBox"))
    for wanted in ("Nobody counted them.", "A storm came in the night."):
        picture, found = ask(reader, path, wanted)
        assert letters(found) == letters(wanted)
        image = Image.open(io.BytesIO(picture.png)).convert("L")
        marked = image.crop(
            [
                round(share * size)
                for share, size in zip(picture.boxes[0], 2 * image.size, strict=True)
            ]
        )
        assert marked.getextrema()[0] < 100  # the letters are there
    assert (image.width > image.height) == (entry == b"/Rotate 90")
    path.write_bytes(pdf([FIRST]).replace(b"[0 0 600 800]", b"[0 0 9999 14000]"))
    image = Image.open(io.BytesIO(ask(reader, path, "Nobody counted them.")[0].png))
    assert image.width * image.height <= 2_510_000


def test_what_is_on_no_page(reader, tmp_path, volume):
    document = next(reader.read(volume))
    part = page_part(document.text, document.places(), 0, 5)
    assert reader.picture(volume, replace(part, text="Something else entirely")).boxes == ()
    assert reader.picture(volume, replace(part, text=" \n")).boxes == ()
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.pdf").write_bytes(b"%PDF-1.4 nothing")
    bad = (
        (volume, 9, r"volume\.pdf: .* page 9"),
        (tmp_path / "a.txt", 1, "a.txt "),
        (tmp_path / "b.pdf", 1, "b.pdf: "),
    )
    for path, page, named in bad:
        with pytest.raises(ReadError, match=named):
            reader.picture(path, replace(part, page=page))
    assert reader.picture(volume, part).boxes  # the reader still works
    plain = next(reader.read(tmp_path / "a.txt"))
    assert page_part(plain.text, plain.places(), 0, 4) is None
