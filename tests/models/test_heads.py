"""`VectorScore`: what it starts as, what it cannot see, and odd sizes."""

import itertools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers.tiny import tiny_model

from runnel.errors import CheckpointError
from runnel.models.heads import PARTS, MatchScore, VectorScore, known
from runnel.models.lexical import FEATURES

D = 16


def drawn(sentences: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(seed)
    query, vectors = torch.randn(D, generator=make), torch.randn(sentences, D, generator=make)
    features = torch.rand(sentences, FEATURES, generator=make)
    return F.normalize(query, dim=0).to(dtype), F.normalize(vectors, dim=-1).to(dtype), features.to(dtype)


def stirred() -> VectorScore:
    torch.manual_seed(3)
    head = VectorScore(D, size=8)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    return head.eval()


def test_starts_as_the_sum_of_the_z_scores_of_cosine_and_bm25():
    query, vectors, features = drawn(9)
    columns = torch.stack([vectors @ query, features[:, 0]])
    wanted = ((columns - columns.mean(1, keepdim=True)) / columns.std(1, correction=0, keepdim=True)).sum(0)
    torch.testing.assert_close(VectorScore(D).eval()(query, vectors, features), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("sentences", [0, 1, 2, 7, 30])
def test_scores_of_documents_of_any_size_agree_with_fp64(sentences: int):
    head = stirred()
    with torch.no_grad():
        narrow = head(*drawn(sentences))
        exact = head.double()(*drawn(sentences, dtype=torch.float64))
    assert narrow.shape == (sentences,) and bool(torch.isfinite(narrow).all())
    torch.testing.assert_close(narrow.double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sentences", [1, 2, 3, 4])
def test_sentences_with_the_same_neighborhood_have_the_same_column(sentences: int):
    """Rounding would otherwise be all that its z-score shows."""
    vectors, query = F.normalize(torch.randn(sentences, 384), dim=-1), F.normalize(torch.randn(384), dim=0)
    assert known(query, vectors, torch.zeros(sentences, FEATURES))[:, 6].tolist() == [0] * sentences


def test_a_head_that_matches_needs_token_features(tmp_path: Path):
    model = tiny_model(tmp_path, papers_heads=True)
    model.heads["sentences"] = MatchScore(32, 2, 8)
    with pytest.raises(CheckpointError, match="tiny has no token features, which its 'sentences' head needs"):
        model.head("sentences")


def by_all_orders(head: VectorScore, inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], row: int) -> dict[str, float]:
    """The mean change of the score when a part becomes the sentence's, one order of the parts after another."""
    query, vectors, _ = inputs
    columns = known(*inputs)
    sums = dict.fromkeys(PARTS, 0.0)
    orders = list(itertools.permutations(PARTS))
    for order in orders:
        vector, mixed = vectors.mean(0), columns.mean(0)
        before = head.combine(head.query(query), vector[None], mixed[None])
        for name in order:
            mixed[list(PARTS[name])] = columns[row, list(PARTS[name])]
            vector = vectors[row] if name == "meaning" else vector
            after = head.combine(head.query(query), vector[None], mixed[None])
            sums[name] += float(after - before) / len(orders)
            before = after
    return {name: total * float(head.calibration[0]) for name, total in sums.items()}


@pytest.mark.parametrize("sentences", [1, 2, 6])
def test_a_part_is_its_mean_change_over_all_orders_and_they_sum_to_the_score(sentences: int):
    head, (query, vectors, features) = stirred(), drawn(sentences)
    features[:, [9, 10, 11, 13]] = features[:1, [9, 10, 11, 13]]  # of the whole document
    head.calibration.copy_(torch.tensor([0.5, -2.0]))
    with torch.no_grad():
        for row, score in enumerate(head(query, vectors, features).tolist()):
            parts = head.parts(query, vectors, features, row)
            assert sum(parts.values()) == pytest.approx(score, abs=1e-5)
            expected = by_all_orders(head, (query, vectors, features), row)
            assert {name: parts[name] for name in PARTS} == pytest.approx(expected, abs=1e-5)
            assert (sentences == 1) == all(abs(parts[name]) < 1e-5 for name in PARTS)  # one is the average sentence
