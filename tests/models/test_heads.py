"""`VectorScore`: what it starts as, what it cannot see, and odd sizes."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from runnel.models.heads import PARTS, VectorScore, apply, known
from runnel.models.lexical import FEATURES

D = 16


def drawn(
    sentences: int, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(seed)
    query, vectors = torch.randn(D, generator=make), torch.randn(sentences, D, generator=make)
    features = torch.rand(sentences, FEATURES, generator=make)
    return (
        F.normalize(query, dim=0).to(dtype),
        F.normalize(vectors, dim=-1).to(dtype),
        features.to(dtype),
    )


def stirred() -> VectorScore:
    torch.manual_seed(3)
    head = VectorScore.module(D, size=8)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    return head.eval()


def as_arrays(head: Any) -> VectorScore:
    """The same head without torch."""
    same = VectorScore(D, size=8)
    same.load({name: tensor.numpy().copy() for name, tensor in head.state_dict().items()})
    return same


def test_starts_as_the_sum_of_the_z_scores_of_cosine_and_bm25():
    query, vectors, features = drawn(9)
    columns = torch.stack([vectors @ query, features[:, 0]])
    wanted = (
        (columns - columns.mean(1, keepdim=True)) / columns.std(1, correction=0, keepdim=True)
    ).sum(0)
    torch.testing.assert_close(
        VectorScore.module(D).eval()(query, vectors, features), wanted, atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("sentences", [0, 1, 2, 7, 30])
def test_scores_of_documents_of_any_size_agree_with_fp64(sentences: int):
    head = stirred()
    with torch.no_grad():
        narrow = head(*drawn(sentences))
        without_torch = as_arrays(head)(*(tensor.numpy() for tensor in drawn(sentences)))
        exact = head.double()(*drawn(sentences, dtype=torch.float64))
    assert narrow.shape == (sentences,) and bool(torch.isfinite(narrow).all())
    for found in (narrow, torch.from_numpy(without_torch)):
        torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sentences", [1, 2, 3, 4])
def test_sentences_with_the_same_neighborhood_have_the_same_column(sentences: int):
    """Rounding would otherwise be all that its z-score shows."""
    vectors, query = (
        F.normalize(torch.randn(sentences, 384), dim=-1),
        F.normalize(torch.randn(384), dim=0),
    )
    drawn = query, vectors, torch.zeros(sentences, FEATURES)
    for inputs in (drawn, [tensor.numpy() for tensor in drawn]):
        assert known(*inputs)[:, 6].tolist() == [0] * sentences


def by_all_orders(
    head: VectorScore, inputs: tuple[np.ndarray, np.ndarray, np.ndarray], row: int
) -> dict[str, float]:
    """The mean change of the score when a part becomes the sentence's, one order of the parts after
    another.
    """
    query, vectors, _ = inputs
    columns, asked = known(*inputs), apply(head.query, query)
    sums = dict.fromkeys(PARTS, 0.0)
    orders = list(itertools.permutations(PARTS))
    for order in orders:
        vector, mixed = vectors.mean(0), columns.mean(0)
        before = head.combine(asked, vector[None], mixed[None])
        for name in order:
            mixed[list(PARTS[name])] = columns[row, list(PARTS[name])]
            vector = vectors[row] if name == "meaning" else vector
            after = head.combine(asked, vector[None], mixed[None])
            sums[name] += float((after - before)[0]) / len(orders)
            before = after
    return {name: total * float(head.calibration[0]) for name, total in sums.items()}


@pytest.mark.parametrize("sentences", [1, 2, 6])
def test_a_part_is_its_mean_change_over_all_orders_and_they_sum_to_the_score(sentences: int):
    head, (query, vectors, features) = stirred(), (tensor.numpy() for tensor in drawn(sentences))
    features[:, [9, 10, 11, 13]] = features[:1, [9, 10, 11, 13]]  # of the whole document
    head.calibration.copy_(torch.tensor([0.5, -2.0]))
    for row, score in enumerate(head(query, vectors, features).tolist()):
        parts = head.parts(query, vectors, features, row)
        assert sum(parts.values()) == pytest.approx(score, abs=1e-5)
        expected = by_all_orders(head, (query, vectors, features), row)
        assert {name: parts[name] for name in PARTS} == pytest.approx(expected, abs=1e-5)
        # one is the average sentence
        assert (sentences == 1) == all(abs(parts[name]) < 1e-5 for name in PARTS)
