"""`VectorScore`: what it starts as, what it cannot see, and odd sizes."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from runnel.lab.training import vector_scores
from runnel.lab.training.vector_scores import score
from runnel.models.pocket.heads import (
    PARTS,
    ArrayHead,
    Judge,
    PairJudge,
    VectorScore,
    known_columns,
)
from runnel.models.pocket.lexical import FEATURES
from runnel.models.recurrent.heads import HeldHead
from tools.train_pocket import late_interaction

D = 16


def drawn(
    sentences: int, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(seed)
    query = torch.randn(D, generator=make)
    vectors = torch.randn(sentences, D, generator=make)
    features = torch.rand(sentences, FEATURES, generator=make)
    return (
        F.normalize(query, dim=0).to(dtype),
        F.normalize(vectors, dim=-1).to(dtype),
        features.to(dtype),
    )


def stirred(head: ArrayHead) -> HeldHead:
    """A head with random weights."""
    torch.manual_seed(3)
    held = HeldHead(head)
    with torch.no_grad():
        for parameter in held.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    held.refresh()
    return held.eval()


def test_starts_as_the_sum_of_the_z_scores_of_cosine_and_bm25():
    query, vectors, features = drawn(9)
    columns = torch.stack([vectors @ query, features[:, 0]])
    wanted = (
        (columns - columns.mean(1, keepdim=True)) / columns.std(1, correction=0, keepdim=True)
    ).sum(0)
    torch.testing.assert_close(
        score(HeldHead(VectorScore(D)), query, vectors, features), wanted, atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("sentences", [0, 1, 2, 7, 30])
def test_scores_of_documents_of_any_size_agree_with_fp64(sentences: int):
    head = stirred(VectorScore(D, size=8))
    with torch.no_grad():
        narrow = score(head, *drawn(sentences))
        without_torch = head.for_inference(*(tensor.numpy() for tensor in drawn(sentences)))
        exact = score(head.double(), *drawn(sentences, dtype=torch.float64))
    assert narrow.shape == (sentences,) and bool(torch.isfinite(narrow).all())
    for found in (narrow, torch.from_numpy(without_torch)):
        torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sentences", [1, 2, 3, 4])
def test_sentences_with_the_same_neighborhood_have_the_same_column(sentences: int):
    """Rounding would otherwise be all that its z-score shows."""
    vectors = F.normalize(torch.randn(sentences, 384), dim=-1)
    query = F.normalize(torch.randn(384), dim=0)
    drawn = query, vectors, torch.zeros(sentences, FEATURES)
    arrays = [tensor.numpy() for tensor in drawn]
    for columns in (vector_scores.known_columns(*drawn), known_columns(*arrays)):
        assert columns[:, 6].tolist() == [0] * sentences


def by_all_orders(
    head: VectorScore, inputs: tuple[np.ndarray, np.ndarray, np.ndarray], row: int
) -> dict[str, float]:
    """The mean change of the score when a part becomes the sentence's, one order of the parts after
    another.
    """
    query, vectors, _ = inputs
    columns = known_columns(*inputs)
    asked = head.query(query)
    sums = dict.fromkeys(PARTS, 0.0)
    orders = list(itertools.permutations(PARTS))
    for order in orders:
        vector = vectors.mean(0)
        mixed = columns.mean(0)
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
    head = stirred(VectorScore(D, size=8)).for_inference
    query, vectors, features = (tensor.numpy() for tensor in drawn(sentences))
    features[:, [9, 10, 11, 13]] = features[:1, [9, 10, 11, 13]]  # of the whole document
    head.calibration = np.array([0.5, -2.0], np.float32)
    for row, whole in enumerate(head(query, vectors, features).tolist()):
        parts = head.parts(query, vectors, features, row)
        assert sum(parts.values()) == pytest.approx(whole, abs=1e-5)
        assert {name: parts[name] for name in PARTS} == pytest.approx(
            by_all_orders(head, (query, vectors, features), row), abs=1e-5
        )
        # one is the average sentence
        assert (sentences == 1) == all(abs(parts[name]) < 1e-5 for name in PARTS)


@pytest.mark.parametrize("kind", [Judge, PairJudge])
@pytest.mark.parametrize("around", [0, 5])
def test_late_interaction_of_arrays_is_that_of_tensors(kind: type, around: int):
    head = stirred(kind(D))
    hidden = torch.randn(4 + 6 + around, D)
    idf = torch.rand(4)
    others = torch.arange(len(hidden)) >= 10
    with torch.no_grad():
        if kind is Judge:
            weights = late_interaction.weigh(head, hidden[:4], idf)
            inputs = hidden[:4], weights, hidden[:4].mean(0), hidden[4:10], hidden[others]
            expected = late_interaction.interact(head, *inputs)
            found = head.for_inference(*(tensor.numpy() for tensor in inputs))
            same = head.for_inference.weigh(hidden[:4].numpy(), idf.numpy())
            np.testing.assert_allclose(same, weights.numpy(), rtol=1e-5)
        else:
            expected = late_interaction.look(head, hidden, idf[:3], 3, slice(4, 10), others)
            found = head.for_inference.look(
                hidden.numpy(), idf[:3].numpy(), 3, slice(4, 10), others.numpy()
            )
    assert float(found) == pytest.approx(float(expected), rel=1e-4, abs=1e-4)
