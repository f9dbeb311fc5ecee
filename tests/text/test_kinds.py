"""Kinds of sentences: what leads to an answer, and what never is one."""

import time
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.errors import InputError
from runnel.files import Decoded
from runnel.text.documents.document import DocumentText, read_plain
from runnel.text.documents.html import read_html
from runnel.text.documents.markdown import read_markdown
from runnel.text.kinds import (
    ASIDE,
    HEADING,
    INTRODUCED,
    LABEL,
    QUESTION,
    TEXT,
    sentence_kinds,
    text_of,
)
from runnel.text.sentences import split_sentences

BELOW = "\n\nThe cap keeps the ink wet. Without it the tip dries."
CONTENTS = "1. Caps\n\n2. Ink\n\n3. Is it safe?\n\n"
CHAPTERS = "".join(
    f"{title}\n\nThis is about pens. A pen writes.\n\nIt can run dry. Do not shake it.\n\nThe tip"
    " is small.\n\n"
    for title in ("1. Caps", "2. Ink", "3. Is it safe?")
)


def kinds_of(document: str | DocumentText) -> dict[str, int]:
    text = text_of(document)
    spans = split_sentences(text)
    kinds = sentence_kinds(text, spans, None if isinstance(document, str) else document.kind_at)
    assert kinds.shape == (len(spans),) and kinds.dtype == np.uint8
    return {
        " ".join(text[a:b].split()): kind
        for (a, b), kind in zip(spans.tolist(), kinds.tolist(), strict=True)
    }


def html(markup: str) -> DocumentText:
    return read_html(Decoded(markup, "utf-8", None))


TITLES = (
    'Why does the pen leak?|Why does the pen leak? \u2014 when flying?|Q: "Does the pen leak?"|12.'
    " Can I fly with it?|# Where is the cap?|Where is the"
    " cap?\n-----------------|\u4e3a\u4ec0\u4e48\u6f0f\u58a8\uff1f|My pen leaks. What can I do?|-"
    " What leaks?"
)


@pytest.mark.parametrize("title", TITLES.split("|"))
def test_a_question_with_a_place_of_its_own_is_a_title(title: str) -> None:
    kinds = list(kinds_of(title + BELOW).values())
    assert set(kinds[:-2]) == {QUESTION} and kinds[-2:] == [TEXT, TEXT]


def test_a_question_in_running_text_is_text() -> None:
    running = "The ink runs. Why is that so? Nobody can tell, but it does."
    assert set(kinds_of(running + BELOW).values()) == {TEXT}
    assert set(kinds_of("It is new, isn't it? Then keep it." + BELOW).values()) == {TEXT}
    first = kinds_of("How do I open it? Turn the cap." + BELOW)
    assert first["How do I open it?"] == QUESTION and first["Turn the cap."] == TEXT
    lines = kinds_of("Q: Is it safe?\nA: It is. We tested it.\nQ: Is it cheap?\nA: It is not.\n")
    assert [sentence for sentence, kind in lines.items() if kind == QUESTION] == [
        "Q: Is it safe?",
        "Q: Is it cheap?",
    ]


@pytest.mark.parametrize(
    "title", ["Caps and tips", "3.1 Caps", "# Caps", "Caps\n====", "CAPS", "Chapter 2: Caps"]
)
def test_headings_of_plain_text(title: str) -> None:
    assert next(iter(kinds_of(title + BELOW).values())) == HEADING
    assert (
        list(kinds_of("It writes." + BELOW + "\n\n" + title + BELOW).values()).count(HEADING) == 1
    )


def test_lines_that_are_no_headings_and_those_of_documents() -> None:
    lines = [
        "To remove the cap, run this:",
        "pen --open cap",
        "x = 3",
        "while (wet) {",
        "Figure 3. A cap",
        "The cap is wet.",
        "Weight: 12 g without ink",
    ]
    for line in lines:
        assert HEADING not in kinds_of("It writes. Often." + BELOW + f"\n\n{line}" + BELOW).values()
    table = "\n\n".join(f"pen {letter} and ink" for letter in "abcdefg")
    assert list(kinds_of("It writes. Often.\n\n" + table + BELOW).values()).count(HEADING) == 1, (
        "rows of a table"
    )
    kinds = kinds_of(
        html(
            "<h2>Tips and caps.</h2><p>The cap is wet. It is.</p><h2>Is it"
            " wet?</h2><pre>wet?</pre><p>Yes. It is."
        )
    )
    assert [kinds[one] for one in ("Tips and caps.", "Is it wet?", "wet?", "Yes.")] == [
        HEADING,
        QUESTION,
        TEXT,
        TEXT,
    ]
    marked = read_markdown(
        Decoded(
            "Pens\n====\n\nA pen writes. It does.\n\n## Why caps?\nIt dries. At once.",
            "utf-8",
            None,
        )
    )
    assert list(kinds_of(marked).values()) == [HEADING, TEXT, TEXT, QUESTION, TEXT, TEXT]


def numbers(text: str) -> list[int]:
    return sentence_kinds(text, split_sentences(text)).tolist()


def test_contents_repeat_the_headings_below_also_in_html() -> None:
    kinds = numbers("Pens\n\n" + CONTENTS + CHAPTERS)
    assert kinds[:4] == [HEADING, ASIDE, ASIDE, ASIDE] and kinds.count(ASIDE) == 3
    assert numbers(CONTENTS.replace("\n\n", "  7\n\n") + CHAPTERS)[:3] == [ASIDE] * 3, "with pages"
    assert ASIDE not in numbers(CHAPTERS + CONTENTS)[:-3], "the headings themselves"
    steps = "Open the cap\n\nWrite a line\n\nClose the cap\n\n"
    assert ASIDE not in numbers(steps + "Do it again. Then stop.\n\n" + steps), (
        "steps that are repeated"
    )
    sections = "".join(
        f"<h2 id='s{n}'>{title}</h2><p>It is so. It is.</p>"
        for n, title in enumerate(["Caps", "Ink", "Tips"])
    )
    links = "".join(
        f"<li><a href='#s{n}'>{title}</a></li>"
        for n, title in enumerate(["On caps", "On ink", "On tips"])
    )
    document = html(f"<nav><a href='/'>All pens</a></nav><h1>Pens</h1><ul>{links}</ul>{sections}")
    assert [block.kind for block in document.blocks][:5] == [
        "heading",
        "contents",
        "contents",
        "contents",
        "heading",
    ]
    kinds = [HEADING, ASIDE, ASIDE, ASIDE, HEADING, TEXT]
    assert list(kinds_of(document).items())[:6] == list(
        zip(["Pens", "On caps", "On ink", "On tips", "Caps", "It is so."], kinds, strict=True)
    )
    lone = html(
        "<p><a href='#s1'>Ink</a></p><p>See <a href='#s2'>tips</a></p><p><a href='#s0'>On"
        f" caps</a></p>{sections}"
    )
    assert [block.kind for block in lone.blocks][:3] == [
        "contents",
        "paragraph",
        "paragraph",
    ], "the words of a heading"
    away = html(f"<ul>{links.replace('#s', 'other.html#t')}</ul>")
    assert {block.kind for block in away.blocks} == {"item"}, "parts of another page"


def test_rows_with_dots_page_numbers_rules_and_running_heads() -> None:
    rows = "Caps ......... 1\nInk of all\n  colors ...... 4\nTips . . . . . 12\n"
    kinds = kinds_of(f"Pens\n\n{rows}\nA cap is a lid. It fits.")
    assert {kind for sentence, kind in kinds.items() if "..." in sentence} == {ASIDE} and kinds[
        "A cap is a lid."
    ] == TEXT
    assert (
        ASIDE
        not in kinds_of("Length ....... 140\nWeight ....... 12\nPens in a box ....... 6\n").values()
    ), "a data sheet"
    pages = "".join(
        f"Pens and Ink   {n}\n\nA pen writes {n} lines. It can.\n\n- {n} -\n\f" for n in range(3, 7)
    )
    kinds = kinds_of(pages + "\n\n----------\n\n42")
    asides = {one for one, kind in kinds.items() if kind == ASIDE}
    assert asides >= {"Pens and Ink 4", "Pens and Ink 6", "- 5 -", "----------"} and not any(
        "writes" in one for one in asides
    )
    assert kinds_of("How many pens are there?\n\n42\n\nThat is all. Go.")["42"] == TEXT, "an answer"
    flags = "".join(
        f"{1 << n}\n\nThe flag is set for pens of kind {n}. It is.\n\n" for n in range(8)
    )
    assert ASIDE not in kinds_of(flags).values(), "they do not count pages"


PARTS = "Why?| |\n|\n\n|A pen writes. |Caps|1. |\f|12|....... 3|---|\x00|\u3002|\U0001f58a".split(
    "|"
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(PARTS), max_size=40).map("".join))
def test_every_text_has_kinds(text: str) -> None:
    spans = split_sentences(text)
    kinds = sentence_kinds(text, spans)
    assert kinds.shape == (len(spans),) and set(kinds.tolist()) <= {TEXT, QUESTION, HEADING, ASIDE}
    with patch("runnel.text.kinds._PIECE_CHARS", 7):
        # whatever is looked at together
        np.testing.assert_array_equal(sentence_kinds(text, spans), kinds)
    document = read_plain(Decoded(text, "utf-8", None))
    assert (
        sentence_kinds(document.text, spans, document.kind_at).shape == (len(spans),)
        and text_of(document) == text
    )
    with pytest.raises(InputError, match="3"):
        text_of(3)


@pytest.mark.parametrize(
    "unit",
    [
        "word ",
        "a:\n\n",
        "a:\n\nb\n\n",
        "Why? ",
        "A\n\n",
        "- a\n",
        ". . ",
        "\f",
        "12\n\n",
        "a ....... 3\n",
    ],
)
def test_time_is_linear(unit: str) -> None:
    def seconds(count: int) -> float:
        text = unit * (count // len(unit))
        spans = split_sentences(text[:100_000]) if unit == ". . " else split_sentences(text)
        start = time.process_time()
        sentence_kinds(text[: int(spans[-1, 1])], spans)
        return time.process_time() - start

    assert seconds(200_000) < 24 * seconds(25_000) + 0.1


def test_what_text_introduces() -> None:
    listed = (
        "Pens need care. For a trip every guest must bring:\n\n"
        "- a towel\n- soap. Not much of it.\n\nWe eat at 8."
    )
    assert numbers(listed) == [TEXT, TEXT, INTRODUCED, INTRODUCED, INTRODUCED, TEXT]
    assert numbers(listed.replace(":", ".")) == [TEXT] * 6
    lines = (
        "Life expectancy at birth:\n\nfor men:\n81.8 years\n\nfor women:\n86.3 years\n\n"
        "It rises each year."
    )
    assert numbers(lines) == [TEXT, INTRODUCED, INTRODUCED, TEXT]
    again = html("<p>Every guest must bring:</p><ul><li>a towel<li>soap</ul><p>We eat at 8.</p>")
    assert list(kinds_of(again).values()) == [TEXT, INTRODUCED, INTRODUCED, TEXT]


def test_a_label_is_a_title_of_the_lines_below_it_alone() -> None:
    ages = "Age:\n\nmen: 37 years\n\nwomen: 39 years\n\n\nBirths: 12 a year\n\n\n"
    assert numbers(ages) == [LABEL, INTRODUCED, INTRODUCED, TEXT]
    # "of people": as many words as an introduction has
    assert numbers(ages.replace("Age", "The age of people")) == numbers(ages)
    evenly = ages.replace("\n\n\n", "\n\n")
    assert numbers(evenly) == [HEADING, TEXT, TEXT, TEXT]
    prose = ages.replace("women: 39 years", "Women are older than men.")
    assert numbers(prose)[0] == LABEL and numbers(prose)[2] == TEXT
