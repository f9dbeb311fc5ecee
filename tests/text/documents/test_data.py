"""JSON and XML: strings and numbers in order, with the names that they need."""

import json

import pytest
from helpers.document_checks import check, paths, shown
from helpers.texts import repeat

from runnel.files import Decoded
from runnel.text.documents.data import read_json, read_xml
from runnel.text.documents.document import recognize

LONG = "Never store the pump outside in winter, because the water in it freezes and breaks it."
ENCODED = repeat("iVBORw0KGgoAAAANSUhEUg9x", 20)


def read(value):
    text = value if isinstance(value, str) else json.dumps(value)
    return check(read_json(Decoded(text, "utf-8")))


def xml(text):
    return check(read_xml(Decoded(text, "utf-8")))


def test_json_values_with_their_names():
    document = read(
        '{"title": "Guide", "version": 1.10, "active": true, "none": null, "tags": ["a", "b"],'
        ' "server": {"host": "x", "port": 5432}, "parts": [{"id": 1, "part": "valve"}, {"id": 2,'
        f' "part": "seal"}}], "storage": "{LONG}", "page": "<p>Read <b>all</b>.</p><p>Act.</p>",'
        f' "chapters": [{{"name": "Start", "text": "{LONG}"}}], "png": "{ENCODED}"}}'
    )
    assert shown(document) == [
        ("heading", "Guide"),
        ("line", "version: 1.10"),
        ("line", "active: true"),
        ("line", "tags: a, b"),
        ("heading", "server"),
        ("line", "host: x"),
        ("line", "port: 5432"),
        ("heading", "parts"),
        ("line", "id: 1\npart: valve"),
        ("line", "id: 2\npart: seal"),
        ("heading", "storage"),
        ("paragraph", LONG),
        ("paragraph", "Read all."),
        ("paragraph", "Act."),
        ("heading", "Start"),
        ("paragraph", LONG),
    ]
    assert paths(document)["port: 5432"] == ("Guide", "server")
    assert paths(document)["Read all."] == ("Guide",)
    assert len(document.warnings) == 1 and document.kind == "json"


def test_json_of_other_forms():
    assert shown(read([])) == [] == shown(read({}))
    assert shown(read(7)) == [("line", "7")] and shown(read("words")) != []
    assert shown(read('{"a": 1, "a": 2}')) == [("line", "a: 1"), ("line", "a: 2")]
    assert shown(read([[["deep"]]])) == [("line", "deep")]
    assert shown(read([f"{LONG}\n\n{LONG}"])) == [("paragraph", LONG)] * 2


@pytest.mark.parametrize(
    "text", ["", '{"a": 1,', '{"a": 1}\n{"a": 2}', repeat("[", 10**5), repeat("9", 5000) + "x"]
)
def test_broken_json_is_plain_text(text):
    document = read(text)
    assert (document.kind, document.text) == ("txt", text) and document.warnings


def test_xml_is_read_like_json_and_elements_in_a_sentence_belong_to_it():
    document = xml(
        '<?xml version="1.0"?><library xmlns:a="b"><!-- no --><book id="b1" a:x="n"><author>Ana'
        '</author><price currency="EUR">12.50</price></book><book id="b2"><author>Bob</author>'
        "</book><section><title>Use</title><p>Open the <b>valve</b>\n first.</p><p>Then &lt; it.</p>"
        "<empty/></section><note><![CDATA[<p>A <i>note</i>.</p>]]></note></library>"
    )
    assert shown(document) == [
        ("heading", "book"),
        ("line", "id: b1\nauthor: Ana\nprice: 12.50"),
        ("line", "id: b2\nauthor: Bob"),
        ("heading", "Use"),
        ("line", "Open the valve first."),
        ("line", "Then < it."),
        ("paragraph", "A note."),
    ]
    assert document.kind == "xml" and document.warnings == ()


@pytest.mark.parametrize(
    "text",
    [
        "<a><b></a>",
        "<a>&nbsp;</a>",
        '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
        repeat("<a>", 3000) + repeat("</a>", 3000),
        "",
    ],
)
def test_xml_that_cannot_be_parsed_is_plain_text(text):
    document = xml(text)
    assert (document.kind, document.text) == ("txt", text) and document.warnings


def test_xml_is_recognized():
    assert recognize(b'<?xml version="1.0"?><rss>', "feed") == "xml"
    assert recognize(b"<rss>", "a.xml") == "xml" and recognize(b"{}", "a.json") == "json"
    assert recognize(b'<?xml version="1.0"?>\n<?xml-stylesheet x?><html>', "a.html") == "html"


def test_breaks_of_lines_in_xml_separate_words():
    text = "<a><p>The key is<br/>with <b>us</b>.</p><p>in the<lb/>annex</p></a>"
    assert check(read_xml(Decoded(text, "utf-8"))).text.split("\n\n")[-2:] == [
        *("The key is with us.", "in the annex")
    ]
