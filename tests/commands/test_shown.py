"""Equal sentences are shown once; a heading is shown with the text below it."""

import pytest

from runnel.commands.display import end_of_text_below
from runnel.records import Sentence, group_repeats, normalize
from runnel.text.sentences import split_sentences


def sentences(*texts):
    return [Sentence(text, 0, len(text), -float(i), i) for i, text in enumerate(texts)]


def grouped(*texts, count, also=()):
    return [[s.index for s in group] for group in group_repeats(sentences(*texts), count, also)]


def test_equal_but_for_whitespace_is_one_group():
    assert grouped("A  cat\nsat. ", "A dog.", "A cat sat.", "a cat sat.", count=9) == [[0, 2], [1], [3]]
    assert grouped("A.", "B.", "A.", "C.", "B.", count=2) == [[0, 2], [1, 4]]
    assert grouped(count=2) == []


def test_texts_that_are_known_are_grouped_wherever_they_rank():
    assert grouped("A.", "B.", "C.", "B.", count=1, also={"B."}) == [[0], [1, 3]]
    assert normalize(" a \n b ") == "a b"


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
        ("What is this?\n\nMore text.", "What", ""),
        ("- an item\n- another item", "an item", ""),
        ("404\n\nMore text.", "404", ""),
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
