"""The text that is read for a question: excerpts in document order, and windows that leave nothing out."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.errors import InputError
from runnel.evaluation.qa.context import fit, join, merge, windows
from runnel.text.dialogue import GAP

TEXT = "One is first. Two is second. Three is third. Four is fourth. Five is fifth."
ONE, TWO, THREE, FOUR, FIVE = [(0, 13), (14, 28), (29, 44), (45, 60), (61, 75)]


def words(text):
    return len(text.split())


@pytest.mark.parametrize(
    ("spans", "text"),
    [
        ([], ""),
        ([THREE], "Three is third."),
        ([TWO, ONE], "One is first. Two is second."),
        ([FIVE, ONE], f"One is first.\n{GAP}\nFive is fifth."),
        ([FOUR, ONE, FIVE], f"One is first.\n{GAP}\nFour is fourth. Five is fifth."),
        ([(0, 28), (14, 44), ONE], "One is first. Two is second. Three is third."),
    ],
)
def test_excerpts_are_in_document_order_with_their_gaps_marked(spans, text):
    assert join(TEXT, spans) == text


@given(st.lists(st.tuples(st.integers(0, 74), st.integers(1, 30)), max_size=8))
def test_merged_spans_have_the_characters_of_the_spans_and_no_others_but_white_space(places):
    spans = [(start, min(75, start + length)) for start, length in places]
    merged = merge(TEXT, spans)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(merged))
    covered = {i for a, b in spans for i in range(a, b)}
    extra = {i for a, b in merged for i in range(a, b)} - covered
    assert covered <= {i for a, b in merged for i in range(a, b)} and all(TEXT[i] == " " for i in extra)
    assert all(part in TEXT for part in join(TEXT, spans).split(f"\n{GAP}\n"))


@given(st.permutations([ONE, TWO, THREE, FOUR, FIVE]), st.integers(3, 20))
def test_the_budget_is_kept_and_nothing_that_fits_is_left_out(ranked, budget):
    chosen = fit(TEXT, ranked, budget, words)
    assert words(join(TEXT, chosen)) <= budget and chosen[0] == ranked[0]
    for at, span in enumerate(ranked):
        before = [one for one in ranked[:at] if one in chosen]
        assert span in chosen or words(join(TEXT, [*before, span])) > budget


def test_a_budget_for_nothing():
    with pytest.raises(InputError, match="the best excerpt has 3 tokens; the budget of 2 has room for none: raise it"):
        fit(TEXT, [ONE, TWO], 2, words)
    assert fit(TEXT, [], 2, words) == []


def test_windows_of_the_paper():
    sentences = np.arange(451)
    assert windows(sentences, 200, 100) == [(0, 200), (100, 300), (200, 400), (300, 450)]
    assert windows(sentences, 450, 100) == [(0, 450)] and windows(np.arange(1), 200, 100) == []


@given(st.lists(st.integers(0, 12), min_size=1, max_size=40), st.integers(1, 20), st.data())
def test_windows_have_every_unit_and_fit(lengths, size, data):
    stride = data.draw(st.integers(1, size))
    bounds = np.cumsum([0, *lengths])
    cuts = windows(bounds, size, stride)
    assert cuts[0][0] == 0 and cuts[-1][1] == len(lengths)
    for first, last in cuts:
        assert last == first + 1 or bounds[last] - bounds[first] <= size
    for (a, b), (c, d) in itertools.pairwise(cuts):
        assert a < c <= b < d, "each window goes on where or before the last one ended, and adds something"
        assert c == b or bounds[c] - bounds[a] >= stride


@pytest.mark.parametrize("stride", [0, 11])
def test_a_stride_that_leaves_something_out(stride):
    with pytest.raises(InputError, match=f"the stride is {stride}; expected 1 to the window's size, 10"):
        windows(np.arange(20), 10, stride)
