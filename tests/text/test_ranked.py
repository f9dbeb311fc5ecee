"""A document as it is ranked: what is left out, and where it leads back to."""

import numpy as np
import pytest
from helpers.tokenizers_for_tests import letters
from hypothesis import given
from hypothesis import strategies as st

from runnel.files import Decoded
from runnel.text.documents.document import Canonical, DocumentText, read_plain
from runnel.text.ranked import RankedText
from runnel.text.sentences import read_sentences


def units(document: DocumentText) -> list[tuple[str, str]]:
    """Return each unit as it is ranked and as it stands in the document."""
    ranked = RankedText.of(document)
    tokens = read_sentences(ranked, [letters(ranked.text)])
    assert tokens.text == document.text
    assert tokens.spans[0, 0] == 0 and tokens.spans[-1, 1] == len(document.text)
    assert (tokens.spans[1:, 0] == tokens.spans[:-1, 1]).all()
    read = [
        ranked.text[a:b].strip() for a, b in zip(tokens.bounds, tokens.bounds[1:], strict=False)
    ]
    return list(zip(read, [document.text[a:b].strip() for a, b in tokens.spans], strict=True))


def test_plain_text_is_ranked_as_it_is():
    document = read_plain(Decoded("One. Two.\n\nThree.", "utf-8"))
    assert RankedText.of(document).text == document.text
    assert (
        RankedText.of("One. Two.").origin(spans := np.array([[0, 5], [5, 9]])).tolist()
        == spans.tolist()
    )


def test_a_row_is_one_unit():
    canonical = Canonical()
    canonical.add("Dr. Smith. He left. | 12", "row", lead=("Staff", "Who", "Room"))
    canonical.add("It is so. It was.")
    assert units(canonical.finish("md")) == [
        ("Dr. Smith. He left. | 12", "Dr. Smith. He left. | 12"),
        ("It is so.", "It is so."),
        ("It was.", "It was."),
    ]


def test_what_is_unread_cuts_no_sentence():
    canonical = Canonical()
    text = "1 The witness said that\n2 it was late.\n3 He left."
    canonical.unread += [(0, 2), (24, 26), (39, 41)]
    canonical.mark(0, len(text), "paragraph")
    assert units(canonical.finish("txt", text=text)) == [
        ("The witness said that\nit was late.", "1 The witness said that\n2 it was late.\n3"),
        ("He left.", "He left."),
    ]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=6))
def test_units_tile_the_document_whatever_is_unread(lengths):
    text = "Before it. The end was near; it came. A | row of it | 7. Again and again. " * 4
    canonical = Canonical()
    at = 0
    for apart, length in lengths:
        start = min(at + apart + 1, len(text))
        at = min(start + length, len(text))
        if start < at:
            canonical.unread.append((start, at))
    half = text.index("Before", 10)
    canonical.mark(0, half - 1, "paragraph")
    canonical.mark(half, len(text) - 1, "row")
    units(canonical.finish("txt", text=text))


@pytest.mark.parametrize("spans", [[(0, 4)], [(0, 8)], [(3, 4), (8, 9)]])
def test_a_text_of_which_parts_are_unread(spans):
    canonical = Canonical()
    canonical.unread += spans
    canonical.mark(0, 9, "paragraph")
    ranked = RankedText.of(canonical.finish("txt", text="abc. def."))
    kept = [at for at in range(9) if not any(a <= at < b for a, b in spans)]
    assert ranked.text == "".join("abc. def."[at] for at in kept)
    origin = ranked.origin(np.stack([np.arange(len(kept)), np.arange(len(kept)) + 1], axis=1))
    assert origin[:, 0].tolist() == [0, *kept[1:]] and origin[-1, 1] == 9
