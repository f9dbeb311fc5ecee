"""Windows leave nothing out and fit; pieces are whole sentences; chunks tile."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.errors import InputError
from runnel.lab.evaluation.segments import cut_sentences, expect_stride, split_chunks, windows

TEXT = "One cat. Two dogs. Three birds. Four fish. "


def test_windows_of_the_paper():
    sentences = np.arange(451)
    assert windows(sentences, 200, 100) == [(0, 200), (100, 300), (200, 400), (300, 450)]
    assert windows(sentences, 450, 100) == [(0, 450)] and windows(np.arange(1), 200, 100) == []


@given(st.lists(st.integers(0, 12), min_size=1, max_size=40), st.integers(1, 20), st.data())
def test_windows_have_every_unit_and_fit(lengths, size, data):
    stride = data.draw(st.integers(1, size) | st.just(size))
    bounds = np.cumsum([0, *lengths])
    cuts = windows(bounds, size, stride)
    assert cuts[0][0] == 0 and cuts[-1][1] == len(lengths)
    for first, last in cuts:
        assert last == first + 1 or bounds[last] - bounds[first] <= size
    for (a, b), (c, d) in itertools.pairwise(cuts):
        assert a < c <= b < d, "each window goes on where or before the last one ended, and adds something"
        assert c == b or (stride < size and bounds[c] - bounds[a] >= stride), "as far as the size they tile"


@pytest.mark.parametrize("stride", [0, 11])
def test_a_stride_that_leaves_something_out(stride):
    with pytest.raises(InputError, match=f"the stride is {stride} .* 10"):
        expect_stride(stride, 10)


@pytest.mark.parametrize(
    ("size", "pieces"),
    [
        (1, ["One cat. ", "Two dogs. ", "Three birds. ", "Four fish. "]),
        (5, ["One cat. ", "Two dogs. ", "Three birds. ", "Four fish. "]),
        (6, ["One cat. Two dogs. ", "Three birds. Four fish. "]),
        (12, [TEXT]),
    ],
)
def test_pieces_are_whole_sentences(size, pieces):
    """Each sentence has three tokens: two words and the full stop."""
    starts = np.array([0, 4, 7, 9, 13, 17, 19, 25, 30, 32, 37, 41])
    assert [TEXT[start:end] for start, end in cut_sentences(TEXT, starts, size, size)] == pieces


def test_pieces_tile_white_space_and_the_empty_text():
    text = "\n\n  One cat.\n\n\n   \n\nTwo dogs.\n\n"
    pieces = cut_sentences(text, np.array([text.index("One"), text.index("Two")]), 1, 1)
    assert "".join(text[start:end] for start, end in pieces) == text and len(pieces) == 2
    assert cut_sentences("", np.zeros(0, int), 1, 1) == []


def test_chunks_tile_a_document():
    assert split_chunks("a b  c\nd e ", 2).tolist() == [[0, 5], [5, 9], [9, 11]]
    assert split_chunks("  one", 300).tolist() == [[0, 5]] and split_chunks("", 3).tolist() == [[0, 0]]
    text = "word " * 601
    assert [len(text[a:b].split()) for a, b in split_chunks(text, 300)] == [300, 300, 1]
    with pytest.raises(InputError, match="words of a chunk is 0"):
        split_chunks("a", 0)
