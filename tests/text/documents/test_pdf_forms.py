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
    assert lines == ["\u2612 Pets", "\u2610 Smoking", "Paid by \u2610 card \u2612 cash"]


def test_a_box_without_text_beside_it_is_read_if_it_is_checked(read):
    yes = button("[60 398 72 410]", "/FT /Btn /T (a) /TU (Pets) /V /Yes", "Yes")
    no = button("[60 378 72 390]", "/FT /Btn /T (b) /TU (Smoking)", "Off")
    assert read([Placed(80, 700, "House rules")], [yes, no]) == ["House rules", "Pets: yes"]
    group = [
        "<< /FT /Btn /Ff 49152 /T (payment) /V /cash /Kids [11 0 R 12 0 R] >>",
        button("[120 638 132 650]", "/Parent 10 0 R", "Off", "card"),
        button("[200 638 212 650]", "/Parent 10 0 R", "cash", "cash"),
    ]
    assert read([Placed(80, 700, "House rules")], group) == ["House rules", "payment: cash"]
    answers = [button("[160 698 172 710]", "/T (c) /FT /Btn", "Off")]
    answers.append(button("[220 698 232 710]", "/T (d) /FT /Btn /V /Yes", "Yes"))
    page = [Placed(60, 700, "Any pets?"), Placed(176, 700, "Yes"), Placed(236, 700, "No")]
    assert read(page, answers) == ["Any pets? \u2610 Yes \u2612 No"]


def test_values_stand_in_sentences_and_in_tables(read):
    page = [Placed(60, 700, "I,"), Placed(180, 700, "of"), Placed(300, 700, "Rent: ________")]
    fields = [
        field(1, "[72 696 178 712]", "/FT /Tx /V (Ann Lee)"),
        field(2, "[196 696 296 712]", "/FT /Tx /V (Oslo)"),
        field(3, "[330 696 400 712]", "/FT /Tx /V (900)"),
    ]
    assert read(page, fields) == ["I, Ann Lee of Oslo Rent: 900"]
    grid = [f"{x} 720 m {x} 648 l S" for x in (60, 180, 300)]
    grid += [f"60 {y} m 300 {y} l S" for y in (720, 696, 672, 648)]
    grid += [Placed(66, 704, "Item"), Placed(186, 704, "Pieces"), Placed(66, 680, "Chairs")]
    fields = [
        field(1, "[182 674 296 694]", "/FT /Tx /V (12)"),
        field(2, "[182 650 296 670]", "/FT /Tx /V (3)"),
    ]
    assert read([*grid, Placed(66, 656, "Tables")], fields) == [
        "Item | Pieces",
        "Chairs | 12",
        "Tables | 3",
    ]


@pytest.mark.parametrize(
    ("entries", "shown"),
    [
        ("/FT /Ch /Ff 131072 /Opt [[(47) (Norway)] [(46) (Sweden)]] /V (46)", "Sweden"),
        ("/FT /Ch /Ff 2097152 /Opt [(a) (b) (c)] /V [(a) (c)] /I [0 2]", "a, c"),
        ("/FT /Tx /Ff 8192 /V (secret)", "******"),
        ("/FT /Sig /V << /Type /Sig /Filter /X >>", "signed"),
    ],
    ids=["display value", "several", "password", "signature"],
)
def test_what_a_field_shows_is_its_value(read, entries, shown):
    page = [Placed(60, 686, "Below it")]
    assert f"Below it: {shown}" in read(page, [field(1, "[60 700 200 716]", entries)])


def test_hidden_fields_are_left_out_and_typed_text_is_read(read):
    typed = "/Type /Annot /Subtype /FreeText /Contents (Ann Lee)"
    hidden = field(1, "[120 676 220 692]", "/FT /Tx /V (accept 50) /F 2")
    lines = read([Placed(60, 700, "Name:")], [f"<< {typed} /Rect [120 696 220 712] >>", hidden])
    assert lines == ["Name: Ann Lee"]


def test_fields_of_a_turned_page_and_a_form_of_another_kind(tmp_path):
    path = tmp_path / "form.pdf"
    widget = field(1, "[88 420 104 600]", "/FT /Tx /V (Ann Lee)")
    path.write_bytes(
        drawn_pdf(
            [[Placed(100, 300, "Name of the tenant:", angle=90)]],
            entries="/Rotate 90 /Annots [10 0 R]",
            objects=[widget],
            catalog="/AcroForm << /Fields [10 0 R] /XFA 10 0 R >> /NeedsRendering true",
        )
    )
    document = check(read_pdf(path, Limits()))
    assert document.text == "Name of the tenant: Ann Lee"
    assert ["XFA" in warning for warning in document.warnings] == [True]


def test_signs_beside_a_value_have_no_space_before_them(read):
    page = [Placed(60, 700, "I,"), Placed(180, 700, ", paid ("), Placed(300, 700, ") today.")]
    fields = [
        field(1, "[72 696 178 712]", "/FT /Tx /V (Ann Lee)"),
        field(2, "[222 696 298 712]", "/FT /Tx /V (by card)"),
    ]
    assert read(page, fields) == ["I, Ann Lee, paid (by card) today."]


@pytest.mark.parametrize("needs", [True, False])
def test_a_form_whose_fields_are_in_xfa_alone_is_reported_and_nothing_is_logged(
    tmp_path, caplog, needs
):
    path = tmp_path / "form.pdf"
    rendering = f"/NeedsRendering {str(needs).lower()}"
    form = "<< /Length 6 >>\nstream\n<xdp/>\nendstream"
    page = [Placed(60, 700, "Please wait. If this is not replaced, your viewer cannot show it.")]
    path.write_bytes(
        drawn_pdf(
            [page], objects=[form], catalog=f"/AcroForm << /Fields [] /XFA 10 0 R >> {rendering}"
        )
    )
    document = check(read_pdf(path, Limits()))
    assert ["XFA" in warning for warning in document.warnings] == [True]
    assert not caplog.records
