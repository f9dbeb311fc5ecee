"""The filled fields of forms in PDF, as lines of the text."""

import pytest
from helpers.document_checks import check
from helpers.document_files import Placed, drawn_pdf

from runnel.text.documents.document import Limits
from runnel.text.documents.pdf import read_pdf


def field(number, rectangle, entries):
    return f"<< /Type /Annot /Subtype /Widget /P 20 0 R /Rect {rectangle} /T (field{number}) {entries} >>"


def button(rectangle, entries, state, on="Yes"):
    look = f"/AP << /N << /{on} 6 0 R /Off 6 0 R >> >> /AS /{state}"
    return f"<< /Type /Annot /Subtype /Widget /Rect {rectangle} {look} {entries} >>"


@pytest.fixture
def read(tmp_path):
    def call(page, fields):
        numbers = " ".join(f"{10 + at} 0 R" for at in range(len(fields)))
        data = drawn_pdf(
            [page],
            entries=f"/Annots [{numbers}]",
            objects=fields,
            catalog=f"/AcroForm << /Fields [{numbers}] /DR << >> /DA (/F1 11 Tf) >>",
        )
        path = tmp_path / "form.pdf"
        path.write_bytes(data)
        return check(read_pdf(path, Limits())).text.split("\n\n")

    return call


def test_filled_fields_stand_with_their_labels(read):
    page = [
        Placed(60, 700, "Name of the tenant:"),
        Placed(60, 655, "Rent"),
        Placed(60, 500, "Far away"),
    ]
    lines = read(
        page,
        [
            field(1, "[200 695 400 715]", "/FT /Tx /V (Ingrid Solberg)"),
            field(2, "[60 630 200 650]", "/FT /Tx /V (11,400)"),
            field(3, "[300 300 400 320]", "/FT /Tx /V (Oslo)"),
            field(4, "[300 200 400 220]", "/FT /Tx /TU (Date of birth) /V (1 May)"),
            field(5, "[300 100 400 120]", "/FT /Ch /Ff 131072 /Opt [(red) (blue)] /V (blue)"),
            field(6, "[300 60 400 80]", "/FT /Tx"),
        ],
    )
    for line in (
        "Name of the tenant: Ingrid Solberg",
        "Rent: 11,400",
        "field3: Oslo",
        "Date of birth: 1 May",
        "field5: blue",
    ):
        assert line in lines
    assert "Name of the tenant:" not in lines, "the value stands beside its label"
    assert not any("field6" in line for line in lines)


def test_boxes_that_are_checked_stand_in_the_text(read):
    page = [
        Placed(80, 700, "Pets"),
        Placed(80, 680, "Smoking"),
        Placed(60, 640, "Paid by"),
        Placed(140, 640, "card"),
        Placed(220, 640, "cash"),
    ]
    lines = read(
        page,
        [
            button("[60 698 72 710]", "/FT /Btn /T (a) /V /Yes", "Yes"),
            button("[60 678 72 690]", "/FT /Btn /T (b)", "Off"),
            "<< /FT /Btn /Ff 49152 /T (payment) /V /cash /Kids [13 0 R 14 0 R] >>",
            button("[120 638 132 650]", "/Parent 12 0 R", "Off", "card"),
            button("[200 638 212 650]", "/Parent 12 0 R", "cash", "cash"),
        ],
    )
    assert "Pets: yes" in lines and "payment: cash" in lines
    assert not any(line.startswith(("Smoking:", "payment: card")) for line in lines)
