"""Scores of units are the same wherever the stream of hidden vectors is cut."""

import numpy as np
import torch
from helpers.streams import WIDTH, data, mean, segments
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.models.heads import MatchScore
from runnel.models.items import UnitScores
from runnel.request import OpenRequest, Request


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 160), max_size=10),
    blank=st.lists(st.integers(0, 11), min_size=12, max_size=12),
)
def test_scores_of_sentences(lengths: list[int], cuts: list[int], blank: list[int]) -> None:
    bounds = np.cumsum([0, *lengths])
    ends = np.maximum(bounds[1:] - 1 - blank[: len(lengths)], np.minimum(bounds[:-1], bounds[1:] - 1))  # whitespace follows
    if not bounds[-1]:
        return
    ids, hidden, weight = data(int(bounds[-1]))
    torch.manual_seed(0)
    head, query = MatchScore(WIDTH, lexical=2, match_size=4).requires_grad_(False), torch.randn(1, WIDTH)
    full = np.diff(bounds) > 0
    reading = OpenRequest(Request(ids, ends[full], np.stack([bounds[:-1], bounds[1:]], axis=1)[full]), ids)
    lexical = np.random.default_rng(0).random((int(full.sum()), 2), dtype=np.float32)
    units = UnitScores(head, reading, lexical, query)
    got = []
    for start, part in segments(hidden, cuts):
        weights = weight[torch.from_numpy(ids[start : start + len(part)])]
        reading.add(len(part), *reading.part(start, part, weights))
        got += units.take_complete().tolist()
    for i, place in enumerate(np.flatnonzero(full)):
        a, b = bounds[place : place + 2]
        features = torch.from_numpy(lexical[i : i + 1])
        expected = head(mean(ids, hidden, weight, a, b)[None], hidden[ends[place]][None], query, features)
        np.testing.assert_allclose(got[i], float(expected[0]), rtol=1e-4, atol=1e-5)
    assert len(got) == full.sum()
