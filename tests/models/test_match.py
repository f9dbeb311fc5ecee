"""What a `MatchScore` head is given: the same wherever the stream of hidden vectors is cut."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from helpers.streams import VOCABULARY, WIDTH, data, mean, segments
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.models.heads import MatchScore
from runnel.models.match import SentenceScores, lexical_features
from runnel.text.sentences import SentenceTokens


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 160), max_size=10),
    blank=st.lists(st.integers(0, 11), min_size=12, max_size=12),
)
def test_sentence_scores(lengths: list[int], cuts: list[int], blank: list[int]) -> None:
    bounds = np.cumsum([0, *lengths])
    ends = np.maximum(bounds[1:] - 1 - blank[: len(lengths)], np.minimum(bounds[:-1], bounds[1:] - 1))  # whitespace follows
    if not bounds[-1]:
        return
    ids, hidden, weight = data(int(bounds[-1]))
    torch.manual_seed(0)
    head, query = MatchScore(WIDTH, lexical=2, match_size=4).requires_grad_(False), torch.randn(WIDTH)
    spans, kinds = np.zeros((len(lengths), 2), np.int64), np.zeros(len(lengths), np.uint8)
    tokens = SentenceTokens("", spans, ids, bounds, ends, kinds)
    scores = SentenceScores(tokens, weight[torch.from_numpy(ids)], query, head)
    for start, part in segments(hidden, cuts):
        scores.take(start, part)
    got = scores.result(np.array([VOCABULARY]), np.ones(VOCABULARY + 1, np.float32))  # a word that no sentence has
    for i, (a, b) in enumerate(pairwise(bounds)):
        if a == b:
            assert got[i] == -math.inf
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
