"""The text that is read for a question: excerpts in document order, and windows that leave nothing out."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.errors import InputError
from runnel.generation.asking import fit
from runnel.lab.evaluation.qa.examination import join, merge
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
    chosen = fit(ranked, lambda spans: words(join(TEXT, spans)), budget)
    assert words(join(TEXT, chosen)) <= budget and chosen[0] == ranked[0]
    for at, span in enumerate(ranked):
        before = [one for one in ranked[:at] if one in chosen]
        assert span in chosen or words(join(TEXT, [*before, span])) > budget


def test_a_budget_for_nothing():
    with pytest.raises(InputError, match="3 tokens in all; the budget is 2"):
        fit([ONE, TWO], lambda spans: words(join(TEXT, spans)), 2)
    assert fit([], words, 2) == []
