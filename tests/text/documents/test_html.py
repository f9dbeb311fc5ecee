"""HTML: what is shown is read, what is not is not."""

import itertools
import time

import pytest
from helpers.document_checks import check, paths, shown
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.errors import ReadError
from runnel.files import Decoded
from runnel.text.documents.html import read_html

PAGE = """<!doctype html><html><head><title> A
 page</title><style>p {}</style><script>alert(1)</script></head>
<body><nav><ul><li>menu</li></ul></nav><header><h1>Big <i>words</i></h1></header>
<p>First <b>bold</b> para&shy;graph &amp; more,
over lines.<br>After a break.</p>loose text
<div>inside<div>deeper</div>after</div>
<ul><li>one<ul><li>nested</li></ul></li><li><p>two</p></li></ul>
<h2>Code</h2><pre>  def f():
    return "&lt;x&gt;"

f()
</pre><p hidden>unseen</p><p aria-hidden="true">unseen</p><!-- comment --><template>unseen</template>
<h2></h2><table><caption>Sizes</caption><tr><th>Name<th>Size</tr><tr><td><p>a</p><p>b</p><td>1</tr>
<tr><td></td><td> </td></tr></table>
<button>unseen</button><noscript>unseen</noscript><select><option>unseen</select>
<p>Kanji <ruby>漢<rt>kan</rt></ruby></p><svg><text>unseen</text></svg>
<h1>Next</h1><p>end</p></body></html>"""


def html(markup):
    return check(read_html(Decoded(markup, "utf-8")))


def test_a_page():
    document = html(PAGE)
    assert document.title == "A page"
    assert shown(document) == [
        ("heading", "Big words"),
        ("paragraph", "First bold paragraph & more, over lines.\nAfter a break."),
        ("paragraph", "loose text"),
        ("paragraph", "inside"),
        ("paragraph", "deeper"),
        ("paragraph", "after"),
        ("item", "one"),
        ("item", "nested"),
        ("item", "two"),
        ("heading", "Code"),
        ("code", 'def f():\n    return "<x>"\n\nf()'),
        ("paragraph", "Sizes"),
        ("row", "Name | Size"),
        ("row", "a b | 1"),
        ("paragraph", "Kanji 漢"),
        ("heading", "Next"),
        ("paragraph", "end"),
    ]
    path = paths(document)
    assert (
        path["a b | 1"] == ("Big words", "Code")
        and path["end"] == ("Next",)
        and path["one"] == ("Big words",)
    )


STYLED = '<p>seen</p><div style="{0}">un<b>seen</b></div><p>too <i style="{0}">unseen</i></p>'
HIDING = ("color: red; DISPLAY : none !important", "display:none;x:y", "x:y;visibility:collapse")
SHOWING = ("", "content:'display:none'", "--display:none", "display: nonesuch")
NAVIGATION = (
    '<p>[ <a href="x">&lt; Songs</a> ] [ <a href="y">Up</a> ]</p>',
    (
        '<div>&laquo; <a href="x">previous</a> | <a href="y">up</a> | <a href="z">next</a>'
        " &raquo;</div>"
    ),
    '<table><tr><td><a href="x">Home</a><td><a href="y">FAQ</a></table>',
    '<p><a href="x">Back to the table of contents</a>.</p>',
    '<div role="navigation"><ul><li>Songs</ul></div>',
    "<footer><p>Made by hand.</p></footer>",
)
LINKS = (
    '<p>The <a href="x">next</a> step.</p><p><a href="y">Songs</a></p><article><footer>By'
    " me</footer></article>"
)
RAISED = (
    "<p>2<sup>48</sup> bytes, m<sup>2</sup>, 10<sup>-3</sup>; exit<sup>7</sup>, the 4<sup>th</sup>,"
    " x<sup><a>[1]</a></sup>"
)


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        *((STYLED.format(style), "seen\n\ntoo") for style in HIDING),
        *((f'<p style="{style}">seen</p>', "seen") for style in SHOWING),
        *((f"<p>seen</p>{navigation}<p>too</p>", "seen\n\ntoo") for navigation in NAVIGATION),
        (LINKS, "The next step.\n\nSongs\n\nBy me"),
        ('<h2>Title<a class="headerlink" href="#t">\u00b6</a></h2><p>x</p>', "Title\n\nx"),
        (RAISED, "2\u2074\u2078 bytes, m\u00b2, 10\u207b\u00b3; exit[7], the 4th, x[1]"),
        ("just text", "just text"),
        ("a\0b&#0;&#xD800;<p>c\x07d\ufeff", "ab\ufffd\ufffd\n\ncd"),
        ("<div>" * 10_000 + "deep", "deep"),
        ("<b>" * 20_000 + "deep", "deep"),
        ("<table><tr><td>" * 300 + "deep", "deep"),
        ("<", "<"),
        *(
            (empty, "")
            for empty in (
                "",
                " ",
                "</p>",
                "<title>x",
                "<frameset><frame></frameset>",
                "<nav>x</nav>",
            )
        ),
    ],
    ids=itertools.count(),
)
def test_what_is_shown_is_read(markup, text):
    document = html(markup)
    assert document.text == text and bool(document.warnings) == (not text)


def test_cells_keep_their_column_tables_for_layout_are_no_rows_and_elements_may_close_themselves():
    table = (
        "<table><tr><th rowspan=2>Skill<th"
        " colspan=2>Needed<th>Role</tr><tr><td>now<td>later<td>a</tr><tr><td>SQL<td"
        " colspan='x'>yes<td>no<td rowspan=0>b</tr></table><table><tr><td>c<td>d</table>"
    )
    rows = ["Skill | Needed | | Role", "| now | later | a", "SQL | yes | no | b", "c | d"]
    assert shown(html(table)) == [("row", row) for row in rows]
    layout = "<table><tr><td><p>left</p><table><tr><td>a<td>b</table><td>right</table>"
    assert shown(html(layout)) == [("paragraph", "left"), ("row", "a | b"), ("paragraph", "right")]
    # end tags were often left out
    assert html("<table>" + "<tr><td><font>x</td>" * 20_000).text.startswith("x")
    head = '<?xml version="1.0"?><html><head><title/><script src="x"/></head>'
    body = shown(html(f'{head}<body><p>a<br/>b<a id="x"/> c</p><p/>d</body></html>'))
    assert body == [("paragraph", "a\nb c"), ("paragraph", "d")]


@pytest.mark.parametrize("markup", ["<div>", "<ul><li>", "<div></span>", "<span><p></p>"])
def test_nesting_that_would_take_minutes_is_refused_at_once(markup):
    start = time.process_time()
    with pytest.raises(ReadError, match=r"nested too deeply: \d\d,\d{3} are open at character"):
        html(markup * 500_000)
    assert time.process_time() - start < 10


TAGS = (
    "a|<p>|</p>|<div>|</div>|<table>|<tr>|<td>|</table>|<li>|<pre>|</pre>|<h2>|</h2>|\n |"
    " b|<br>|<nav>|</nav>".split("|")
)


@settings(max_examples=60)
@given(st.lists(st.sampled_from(TAGS)))
def test_any_markup(parts):
    document = html("".join(parts))
    assert document == html("".join(parts))
    assert not {"<", ">"} & set(document.text)
