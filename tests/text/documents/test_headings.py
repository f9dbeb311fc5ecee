"""A heading is shown with the text below it."""

import pytest

from runnel.records import normalize
from runnel.search.finding import end_of_text_below
from runnel.text.sentences import split_sentences


def below(text, heading, kind=None):
    """The text that is shown below a sentence of `text`."""
    start, end = next((a, b) for a, b in split_sentences(text).tolist() if heading in text[a:b])
    return normalize(text[end : end_of_text_below(text, start, end, lambda offset: kind)])


@pytest.mark.parametrize(
    ("text", "heading", "shown"),
    [
        ("10.4.11 410 Gone\n\n   The resource is\n   gone. It will not be back.", "410", "The resource is gone."),
        ("Calls\n*****\n\nA call runs it. More.", "Calls", "A call runs it."),
        ("# Calls\nA call runs it. More.", "Calls", "A call runs it."),
        ("1. Scope\n\n1.1 Purpose\n\nThis says why. More.", "Scope", "1.1 Purpose This says why."),
        ("Before it.\n\nOptions:\n\n-v is loud. More.", "Options", "-v is loud."),
        # no headings
        ("A short sentence.\n\nMore text.", "short", ""),
        ("- an item\n- another item", "an item", ""),
        ("word " * 30 + "\n\nMore text.", "word", ""),
        ("two lines\nwithout an end\n\nMore text.", "two", ""),
        # no text below
        ("The end", "end", ""),
        ("Part\n\nA\n\nB\n\nC\n\nD\n\nE\n\nText.", "Part", ""),
    ],
)
def test_a_heading_is_followed_by_the_first_sentence_below(text, heading, shown):
    assert below(text, heading) == shown
    assert below(text, heading, "paragraph") == shown


def test_the_kind_of_a_block_decides():
    text = "Is this a heading?\n\nYes."

    def kinds(offset):
        return "heading" if offset < 5 else "paragraph"

    start, end = split_sentences(text)[0].tolist()
    assert text[end : end_of_text_below(text, start, end, kinds)] == "Yes."
    assert below("name | size\n\nMore.", "name", "row") == below("a + b\n\nMore.", "a", "code") == ""
