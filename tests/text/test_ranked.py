"""A document as it is ranked: what is put in and left out, and where it leads back to."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.files import Decoded
from runnel.text.documents.document import Canonical, DocumentText, read_plain
from runnel.text.ranked import RankedText
from runnel.text.sentences import read_sentences
from runnel.text.tokenizer import Encoded


def letters(text: str) -> Encoded:
    """A token for each character."""
    starts = np.arange(len(text))
    return Encoded(starts.astype(np.int32), starts, starts + 1)


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
    ranked = RankedText.of(document)
    assert ranked.text == document.text
    assert (
        RankedText.of("One. Two.").origin(spans := np.array([[0, 5], [5, 9]])).tolist()
        == spans.tolist()
    )


def test_a_row_is_one_unit_with_its_lead():
    canonical = Canonical()
    canonical.add("Dr. Smith. He left. | 12", "row", lead=("Staff", "Who", "Room"))
    canonical.add("| a |  | c \\| d |", "row", lead=("", "", "A", "B", "C"))
    assert units(canonical.finish("md")) == [
        ("Staff; Who: Dr. Smith. He left.; Room: 12", "Dr. Smith. He left. | 12"),
        ("A: a; C: c \\| d", "| a |  | c \\| d |"),
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


@given(
    cells=st.lists(st.lists(st.sampled_from(["", "a", "b c", "7."]), max_size=4), max_size=5),
    lead=st.lists(st.sampled_from(["", "x", "y z"]), max_size=6),
)
def test_units_tile_the_document_whatever_is_put_in(cells, lead):
    canonical = Canonical()
    canonical.add("Before.")
    for row in cells:
        canonical.add(" | ".join(row), "row", lead=tuple(lead) or ())
        canonical.add("and then.")
    canonical.add("After it. The end.")
    units(canonical.finish("docx"))


@pytest.mark.parametrize("spans", [[(0, 4)], [(0, 8)], [(3, 4), (8, 9)]])
def test_a_text_of_which_parts_are_unread(spans):
    canonical = Canonical()
    canonical.unread += spans
    canonical.mark(0, 9, "paragraph")
    ranked = RankedText.of(canonical.finish("txt", text="abc. def."))
    kept = [at for at in range(9) if not any(a <= at < b for a, b in spans)]
    assert ranked.text == "".join("abc. def."[at] for at in kept)
    letters_apart = np.stack([np.arange(len(kept)), np.arange(len(kept)) + 1], axis=1)
    origin = ranked.origin(letters_apart)
    assert origin[:, 0].tolist() == [0, *kept[1:]] and origin[-1, 1] == 9
