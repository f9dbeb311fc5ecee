"""What a request wants is the same wherever the stream of hidden vectors is cut."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from helpers.toy import Toy
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.engine import Engine
from runnel.request import OpenRequest, RangeSums, Request, Result, TokenCount, growing

CUTS = st.lists(st.integers(0, 60), max_size=8)
WIDTH, VOCABULARY = 6, 30


def data(length: int) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
    """Ids, hidden vectors, and a weight for each id."""
    generator = torch.Generator().manual_seed(length)
    return (
        torch.randint(0, VOCABULARY, (length,), generator=generator).numpy(),
        torch.randn(length, WIDTH, generator=generator),
        torch.rand(VOCABULARY, generator=generator) + 0.1,
    )


def mean(
    ids: np.ndarray, hidden: torch.Tensor, weight: torch.Tensor, a: int, b: int
) -> torch.Tensor:
    """The weighted mean of tokens [a, b)."""
    w = weight[torch.from_numpy(ids[a:b])]
    return (w @ hidden[a:b]) / w.sum()


def segments(hidden: torch.Tensor, cuts: list[int]) -> Iterator[tuple[int, torch.Tensor]]:
    """Start and hidden vectors of each segment of a text that is cut at `cuts`."""
    for a, b in pairwise([0, *sorted({c % len(hidden) for c in cuts} - {0}), len(hidden)]):
        yield a, hidden[a:b]


def collected(
    request: Request, hidden: torch.Tensor, weight: torch.Tensor, cuts: list[int]
) -> Result:
    """What tensors give, which arrays give too."""
    reading = OpenRequest(request, request.ids)
    without_torch = OpenRequest(request, request.ids)
    for start, part in segments(hidden, cuts):
        weights = weight[torch.from_numpy(request.ids[start : start + len(part)])]
        reading.add(len(part), *reading.part(start, part, weights))
        without_torch.add(len(part), *without_torch.part(start, part.numpy(), weights.numpy()))
    result = reading.result()
    arrays = without_torch.result()
    for name in ("hidden", "means", "totals"):
        found = getattr(arrays, name)
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, np.asarray(getattr(result, name)), rtol=1e-4, atol=1e-5)
    return result


@settings(max_examples=50, deadline=None)
@given(
    length=st.integers(1, 60),
    cuts=CUTS,
    ends=st.lists(st.tuples(st.integers(0, 59), st.integers(1, 60)), min_size=1),
    at=st.lists(st.integers(0, 59), max_size=4),
)
def test_ranges_overlap_as_they_like_with_or_without_positions(
    length: int, cuts: list[int], ends: list[tuple[int, int]], at: list[int]
) -> None:
    ids, hidden, weight = data(length)
    spans = [(a % length, min(a % length + b, length)) for a, b in ends]
    places = [place % length for place in at]
    request = Request(ids, places or None, np.array([*spans, (length, length)]), tag="mine")
    got = collected(request, hidden, weight, cuts)
    expected = torch.stack([mean(ids, hidden, weight, a, b) for a, b in spans])
    torch.testing.assert_close(got.means[:-1], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.hidden, hidden[places])
    assert got.means[-1].tolist() == [0.0] * WIDTH and got.tag == "mine"


def test_a_small_sum_next_to_a_large_one_keeps_its_digits() -> None:
    """Weights of single tokens may differ by many orders of magnitude."""
    ids, hidden, weight = data(40)
    weight[ids[20]] = 1e-9
    ranges = np.array([[0, 20], [20, 21], [21, 40], [0, 40]])
    torch.testing.assert_close(
        collected(Request(ids, ranges=ranges), hidden, weight, [7, 20, 30]).means[1], hidden[20]
    )


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=9),
    cuts=CUTS,
)
def test_complete_ranges_are_taken_as_they_pass(
    lengths: list[tuple[int, int]], cuts: list[int]
) -> None:
    edges = np.cumsum(np.array(lengths).ravel())
    ids, hidden, weight = data(int(edges[-1]) + 2)
    ranges = edges.reshape(-1, 2)
    sums = RangeSums(ranges)
    taken = []
    for start, part in segments(hidden, cuts):
        weights = weight[torch.from_numpy(ids[start : start + len(part)])]
        sums.add(start + len(part), sums.part(start, part, weights))
        first, complete = sums.take_complete()
        assert first == len(taken)
        assert first + len(complete) == np.searchsorted(
            edges[1::2], start + len(part), side="right"
        )
        taken += list(complete)
    expected = [mean(ids, hidden, weight, a, b) for a, b in ranges]
    rows = torch.stack(taken)
    torch.testing.assert_close(
        (rows[:, :-1] / rows[:, -1:]).float(), torch.stack(expected), rtol=1e-4, atol=1e-5
    )


def test_tokens_are_counted_over_calls_and_parts() -> None:
    seen: list[tuple[int, int | None]] = []
    engine = Engine(Toy(), step_tokens=4)
    texts = [Request(np.arange(5)), Request(np.arange(3))]
    count = TokenCount(lambda done, total: seen.append((done, total)))
    list(engine.map(count.totaled(texts, lambda text: len(text.ids)), count.add))
    assert seen[-1] == (8, 8)
    seen.clear()
    count = TokenCount(lambda done, total: seen.append((done, total)), total=10)
    for progress in (count.part(), count.part()):
        engine.run(texts[:1], TokenCount(progress).add)
    assert seen == sorted(seen) and seen[0][0] < 5 and seen[-1] == (10, 10)
    engine.run(texts, TokenCount(None).add)


def test_reports_of_nothing_new_are_left_out_but_still_end_the_work() -> None:
    seen: list[tuple[int, int | None]] = []
    asked: list[None] = []
    progress = growing(lambda done, total: seen.append((done, total)), lambda: asked.append(None))
    reports = [(0, None), (0, 9), (4, 9), (4, 9), (3, 9), (9, 9), (9, 12)]
    for done, total in reports:
        progress(done, total)
    assert seen == [(4, 9), (9, 9)] and len(asked) == len(reports)
