"""A quote is found word for word, found in another typography, called changed with the words that
differ, or called absent.
"""

import time
import unicodedata

import pytest
from helpers.texts import repeat
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from runnel.errors import InputError
from runnel.text import quotes
from runnel.text.quotes import LONGEST_QUOTE, Change, QuotePlace, Verification, verify_quote

TEXT = """The "finally" clause always executes. It was -5 degrees in the well-
known valley – a hyphen-
ated word. Café prices fell by 3 %; the emperor’s new clothes were ﬁne."""
ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def only(verification):
    (place,) = verification.places
    return place


def test_exact_normalized_changed_and_absent():
    exact = verify_quote("always executes.", TEXT)
    assert (
        exact == Verification("exact", (QuotePlace("always executes.", 21, 37, "exact"),), 1.0)
        and exact.word_for_word
    )
    normalized = verify_quote("the emperor's new\nclothes", TEXT)
    assert (
        normalized.match == "normalized"
        and normalized.word_for_word
        and not only(normalized).case_differs
    )
    assert TEXT[only(normalized).start : only(normalized).end] == "the emperor’s new clothes"
    changed = verify_quote("the emperor’s old clothes were fine", TEXT)
    assert changed.match == "changed" and not changed.word_for_word and 0.8 < changed.similarity < 1
    at = TEXT.index("new")
    assert only(changed).changes == (Change("old", "new", at, at + 3),)
    absent = verify_quote("penguins huddle for warmth", TEXT)
    assert (
        absent.match == "absent"
        and not absent.places
        and not absent.word_for_word
        and absent.similarity < 0.6
    )


@settings(max_examples=150, deadline=None)
@given(ANY, ANY, ANY)
def test_any_substring_is_found_exactly_at_its_place(before, quote, after):
    assume(quote.strip())
    text = before + quote + after
    verified = verify_quote(quote, text)
    assert verified.match == "exact" and verified.similarity == 1
    exact = [place.start for place in verified.places if place.match == "exact"]
    assert exact[0] == text.index(quote) and all(
        text[at : at + len(quote)] == quote for at in exact
    )
    assert all(a.end <= b.start for a, b in zip(verified.places, verified.places[1:], strict=False))


@pytest.mark.parametrize(
    ("quote", "stretch"),
    [
        ("it was −5 degrees", "It was -5 degrees"),
        ("the “finally” clause", 'The "finally" clause'),
        ("well-known valley", "well-\nknown valley"),
        ("wellknown valley", "well-\nknown valley"),  # a hyphen at a line end may be the layout's
        ("a hyphen- ated word", "a hyphen-\nated word"),
        ("valley—a", "valley – a"),
        ("CAFÉ PRICES", "Café prices"),
        ("Cafe\u0301 prices", "Café prices"),
        ("were fine", "were ﬁne"),
        ("we\u00adre fi\u200bne", "were ﬁne"),
        ("3\u202f%", "3 %"),
        ("5 degrees", "5 degrees"),
        ("−5 degrees", "-5 degrees"),
        ("Café  prices\n\tfell\u00a0by", "Café prices fell by"),
    ],
)
def test_typography(quote, stretch):
    verified = verify_quote(quote, TEXT)
    assert verified.match == ("exact" if stretch == quote else "normalized")
    assert TEXT[only(verified).start : only(verified).end] == stretch


def test_other_words_signs_and_accents_are_no_typography_but_a_line_break_in_chinese_is():
    quotes = "the 'finally' clause|well known valley|valley a|Cafe prices|3%|-3 %|was 5 degrees"
    for quote in quotes.split("|"):  # single marks are not double ones
        verified = verify_quote(quote, TEXT)
        assert not verified.word_for_word and (not verified.places or only(verified).changes)
    # also a Korean syllable that begins with the same two letters
    for quote, text in (("Cafe", "a cafe\u0301"), ("f", "a ﬁsh"), ("\uac00", "x \uac01 y")):
        assert verify_quote(quote, text).match == "absent", quote
    assert only(verify_quote("some  words of कम", "some words of कमि")).changes == (
        Change("कम", "कमि", 14, 17),
    )
    assert verify_quote("ﬁsh", "a fish").match == "normalized"
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert verify_quote(
            unicodedata.normalize(form, "äéîõůñçﬁﬂ ½①Ａ ガ각힣"), "x. äéîõůñçﬁﬂ ½①Ａ ガ각힣. y"
        ).word_for_word
    text = "第一章\n人工智能正在改变\n世界。"
    verified = verify_quote("人工智能正在改变世界", text)
    assert (
        verified.match == "normalized"
        and text[only(verified).start : only(verified).end] == "人工智能正在改变\n世界"
    )
    changed = verify_quote("人工智能正在毁灭世界", text)
    assert changed.match == "changed" and [(c.quote, c.text) for c in only(changed).changes] == [
        ("毁灭", "改变")
    ]


def test_all_places_are_returned_in_order_and_texts_without_words_have_none():
    verified = verify_quote("The dog barked", "The dog barked. The  dog\nbarked. the dog barked.")
    assert [
        (place.start, place.end, place.match, place.case_differs) for place in verified.places
    ] == [
        (0, 14, "exact", False),
        (16, 31, "normalized", False),
        (33, 47, "normalized", True),
    ]
    assert [place.start for place in verify_quote("aa", "aaaaa").places] == [0, 2]
    for text in ("", "\n", "-", "\u00ad"):
        assert verify_quote("a quote", text) == Verification("absent", (), 0.0)
    assert verify_quote("–", "a – b").match == "exact"
    assert verify_quote("–", "a - b").match == "absent"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 999), min_size=8, max_size=30, unique=True), st.data())
def test_a_changed_word_is_reported_at_its_place(numbers, data):
    words = [f"word{number}" for number in numbers]
    text = "Some text before. " + "\n".join(words) + " and after it."
    at = data.draw(st.integers(0, len(words) - 1))
    verified = verify_quote(" ".join([*words[:at], "other", *words[at + 1 :]]), text)
    start = text.index(words[at] + ("\n" if at < len(words) - 1 else " "))
    assert verified.match == "changed"
    assert only(verified).changes == (Change("other", words[at], start, start + len(words[at])),)
    assert text[only(verified).start : only(verified).end] == "\n".join(words)


@pytest.mark.parametrize(
    ("quote", "change"),
    [
        ("the exception is always raised again", ("always", "")),
        ("otherwise it is lost", ("", "not")),
        ("the exception is raised again, otherwise it is", (",", ";")),
        ("the clause - ends, the exception", ("-", "")),
        ("this clause ends, the exception is", ("this", "the")),
    ],
)
def test_added_and_omitted_words_and_marks(quote, change):
    text = "When the clause ends, the exception is raised again; otherwise it is not lost."
    verified = verify_quote(quote, text)
    [found] = only(verified).changes
    assert verified.match == "changed" and (found.quote, found.text) == change
    assert text[found.start : found.end] == found.text


MARKS = st.text("ab -.\n’'\u00ad世か\u3099é\u0301ﬁकि", max_size=14)


@settings(max_examples=150, deadline=None)
@example("a.", "a ")
@given(MARKS.filter(str.strip) | ANY.filter(str.strip), MARKS | ANY)
def test_what_differs_is_always_said(quote, text):
    verified = verify_quote(quote, text)
    assert (verified.match == "absent") == (not verified.places)
    if verified.match == "changed":
        assert only(verified).changes and 0.6 <= verified.similarity <= 1
        assert all(
            only(verified).start <= c.start <= c.end <= only(verified).end
            for c in only(verified).changes
        )
        assert all(text[c.start : c.end] == c.text for c in only(verified).changes)


@pytest.mark.parametrize(
    ("quote", "text", "named"),
    [
        (" \n", "a", "empty"),
        (repeat("a", LONGEST_QUOTE + 1), "a", "20,001"),
        (None, "a", "quote is None"),
        ("a", b"a", "b'a'"),
        (repeat("a", 150) + "-a", repeat("a", 10_000), "too repetitive"),
    ],
    ids=["empty", "long", "none", "bytes", "repetitive"],
)
def test_refused(quote, text, named, monkeypatch):
    monkeypatch.setattr(quotes, "_WORK", 1 << 20)
    with pytest.raises(InputError, match=named):
        verify_quote(quote, text)


@pytest.mark.parametrize(
    "quote",
    [
        "emperor penguins breed in winter",
        repeat("line 15555: the quick brown fox ", 600),
        repeat("x ", 9_999),
        repeat("ab", 9_999) + "-b",
    ],
    ids=["other words", "a line again and again", "a letter again and again", "one word"],
)
def test_the_time_is_bounded(quote):
    text = "".join(
        f"line {i}: the quick brown fox jumps over the lazy dog, x or ab\n" for i in range(16_000)
    )
    assert len(text) > 1_000_000
    start = time.process_time()
    verify_quote(quote, text)
    # two seconds are usual; comparing all pairs of words would take hours
    assert time.process_time() - start < 30
