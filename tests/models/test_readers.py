"""Readers: sums over a stream equal the same sums over the whole, wherever the stream is cut."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.models.heads import MatchScore
from runnel.models.readers import SentenceScores, SpanMeans, WeightedMean, lexical_features

WIDTH, VOCABULARY = 6, 30


def stream(reader, hidden: torch.Tensor, cuts: list[int]):
    edges = [0, *sorted({c % len(hidden) for c in cuts} - {0}), len(hidden)]
    for a, b in pairwise(edges):
        reader.read(a, hidden[a:b])
    return reader.result()


def data(length: int) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(0, VOCABULARY, (length,), generator=generator).numpy()
    return ids, torch.randn(length, WIDTH, generator=generator), torch.rand(VOCABULARY, generator=generator) + 0.1


def mean(ids: np.ndarray, hidden: torch.Tensor, weight: torch.Tensor, a: int, b: int) -> torch.Tensor:
    w = weight[torch.from_numpy(ids[a:b])]
    return (w @ hidden[a:b]) / w.sum()


@settings(max_examples=50, deadline=None)
@given(length=st.integers(2, 60), cuts=st.lists(st.integers(0, 60), max_size=8), at=st.integers(0, 59))
def test_weighted_mean(length: int, cuts: list[int], at: int) -> None:
    ids, hidden, weight = data(length)
    split = 1 + at % (length - 1)
    reader = stream(WeightedMean(ids, weight, [slice(0, split), slice(split, length)]), hidden, cuts)
    first, second = reader.mean(0), reader.mean(1)
    torch.testing.assert_close(first, mean(ids, hidden, weight, 0, split))
    torch.testing.assert_close(second, mean(ids, hidden, weight, split, length))
    torch.testing.assert_close(reader.end, hidden[-1])


def test_weighted_mean_of_an_empty_slice() -> None:
    ids, hidden, weight = data(4)
    assert stream(WeightedMean(ids, weight, [slice(2, 2)]), hidden, []).mean(0).tolist() == [0.0] * WIDTH


@settings(max_examples=50, deadline=None)
@given(
    length=st.integers(1, 60),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    ends=st.lists(st.tuples(st.integers(0, 59), st.integers(1, 60)), min_size=1),
)
def test_span_means_overlap_as_they_like(length: int, cuts: list[int], ends: list[tuple[int, int]]) -> None:
    ids, hidden, weight = data(length)
    spans = [(a % length, min(a % length + b, length)) for a, b in ends]
    starts, stops = np.array([a for a, _ in spans]), np.array([b for _, b in spans])
    got = stream(SpanMeans(ids, weight, starts, stops), hidden, cuts)
    expected = torch.stack([mean(ids, hidden, weight, a, b) for a, b in spans])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=12),
    prefix=st.integers(0, 5),
    suffix=st.integers(0, 5),
    cuts=st.lists(st.integers(0, 160), max_size=10),
    blank=st.lists(st.integers(0, 11), min_size=12, max_size=12),
)
def test_sentence_scores(lengths: list[int], prefix: int, suffix: int, cuts: list[int], blank: list[int]) -> None:
    bounds = np.cumsum([prefix, *lengths])
    ends = np.maximum(bounds[1:] - 1 - blank[: len(lengths)], np.minimum(bounds[:-1], bounds[1:] - 1))  # whitespace follows
    total = int(bounds[-1]) + suffix
    if total == 0:
        return
    ids, hidden, weight = data(total)
    torch.manual_seed(0)
    head, query = MatchScore(WIDTH, lexical=2, match_size=4).requires_grad_(False), torch.randn(WIDTH)
    got = stream(SentenceScores(ids, weight, bounds, ends, query, head), hidden, cuts)
    for i, (a, b) in enumerate(pairwise(bounds)):
        if a == b:
            assert math.isnan(got[i])
        else:
            expected = head(mean(ids, hidden, weight, a, b)[None], hidden[ends[i]][None], query[None], torch.zeros(1, 2))
            np.testing.assert_allclose(got[i], float(expected[0]), rtol=1e-4, atol=1e-5)


def test_lexical_features_against_the_formulas() -> None:
    rng = np.random.default_rng(3)
    bounds = np.array([2, 5, 5, 9, 14])
    ids, query, idf = rng.integers(0, 6, 16), np.array([1, 4, 4, 29]), rng.random(VOCABULARY).astype(np.float32)
    got = lexical_features(ids, bounds, query, idf)
    sentences = [ids[a:b].tolist() for a, b in pairwise(bounds)]
    terms = [1, 4, 29]
    df = {t: sum(t in s for s in sentences) for t in terms}
    dynamic = {t: math.log(1 + (4 - df[t] + 0.5) / (df[t] + 0.5)) for t in terms}
    average = sum(map(len, sentences)) / 4
    for row, sentence in zip(got, sentences, strict=True):
        share = sum(idf[t] for t in terms if t in sentence) / sum(idf[t] for t in terms)
        bm25 = sum(
            dynamic[t] * sentence.count(t) * 1.9 / (sentence.count(t) + 0.9 * (0.6 + 0.4 * len(sentence) / average))
            for t in terms
            if t in sentence
        ) / sum(dynamic.values())
        np.testing.assert_allclose(row, [share, bm25], rtol=1e-4, atol=1e-5)
