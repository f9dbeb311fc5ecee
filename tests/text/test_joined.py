"""Text as paper E's authors joined it: equal to their functions, whose sentences are given."""

import re

import numpy as np
import pytest
from helpers.texts import repeat
from helpers.tokenizers_for_tests import build
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.text.joined import as_read
from runnel.text.sentences import UNITS, read_sentences


def join_as_the_authors(sentences: list[str]) -> str:
    """`split_document` and the join of `process_one_chunk`, after `sent_tokenize`.

    Source: https://github.com/MambaRetriever/MambaRetriever (document_tokenization.py, MIT).
    """
    joined = ""
    for sentence in sentences:
        for piece in re.split(r"(?<=,|;)", sentence):
            lines = re.split(r"(?<=\n)", piece) if len(piece.split()) > 50 else [piece]
            for line in lines:
                words = line.split()
                if len(words) > 50:
                    line = "".join(" ".join(words[i : i + 50]) for i in range(0, len(words), 50))
                joined += line
    return joined.strip()


SENTENCES = [
    "The keeper saw the dog.",
    'Uh, I just like the quality; it is 1,000 times "good."',
    "Does it run\nto the sea?",
    "No! ",
    "A HEADING\n\nThe rivers (and the seas.)",
    "He said “Go.” Then he went.",
    "One\u00a0two,  three;\tfour.",
    " ".join(f"Word{n}" for n in range(50)) + ".",
    f"So, {'  '.join(f'word{n}' for n in range(120))}, and\n{repeat('on ', 49)}\nit went.",
    repeat("First line ", 25) + "\nsecond line\n" + repeat("third \t line ", 30) + ".",
]
GAPS = st.sampled_from([" ", "\n", "  \n", "\n\n", "\t"])


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(st.tuples(st.sampled_from(SENTENCES), GAPS), max_size=6),
    lead=st.sampled_from(["", " ", "\n\n"]),
)
def test_sentences_are_joined_as_by_the_authors_code(parts, lead):
    text = lead + "".join(sentence.strip() + gap for sentence, gap in parts)
    joined, kept = as_read(text, "clauses")
    assert kept is not None and len(kept) == len(joined)
    # nltk leaves the whitespace in a sentence, and leaves out what is between two
    assert joined == join_as_the_authors(
        [p for s, _ in parts for p in re.split(r"(?<=[?!])\s+", s.strip())]
    )
    for at, character in zip(kept.tolist(), joined, strict=True):
        assert text[at] == character or (character == " " and text[at].isspace())
    assert as_read(text, "sentence") == (text, None)


@settings(max_examples=100, deadline=None)
@given(
    text=st.text(alphabet="ab.,;?!\"') \n\t”。\u200b", max_size=200), unit=st.sampled_from(UNITS)
)
def test_units_of_a_joined_text_tile_the_document(text, unit):
    """Each token is in the unit of the document in which its first character is."""
    joined, kept = as_read(text, "clauses")
    assert "".join(joined.split()) == "".join(text.split())
    encoded = build("neox_like").encode(joined)
    tokens = read_sentences(text, [encoded], unit=unit, kept=kept)
    assert tokens.text == text and np.array_equal(tokens.ids, encoded.ids)
    assert "".join(text[a:b] for a, b in tokens.spans.tolist()) == text
    for (start, end), first, last in zip(
        tokens.spans.tolist(), tokens.bounds[:-1], tokens.bounds[1:], strict=True
    ):
        places = kept[encoded.starts[first:last]]
        assert ((places >= start) & (places < end)).all()


@pytest.mark.parametrize("text", ["", " \n", "."])
def test_texts_without_a_sentence(text):
    joined, kept = as_read(text, "clauses")
    assert joined == text.strip() and len(kept) == len(joined)
