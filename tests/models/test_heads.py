"""`VectorScore`: what it starts as, what it cannot see, and odd sizes."""

import pytest
import torch
import torch.nn.functional as F

from runnel.models.heads import HEADS, VectorScore
from runnel.models.lexical import FEATURES

D = 16


def drawn(sentences: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(seed)
    query, vectors = torch.randn(D, generator=make), torch.randn(sentences, D, generator=make)
    features = torch.rand(sentences, FEATURES, generator=make)
    return F.normalize(query, dim=0).to(dtype), F.normalize(vectors, dim=-1).to(dtype), features.to(dtype)


def stirred() -> VectorScore:
    """A head whose every part has a say."""
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


@pytest.mark.parametrize("sentences", [0, 1, 2, 7])
def test_a_score_for_each_sentence_of_documents_of_any_size(sentences: int):
    with torch.no_grad():
        score = stirred()(*drawn(sentences))
    assert score.shape == (sentences,) and bool(torch.isfinite(score).all())


def test_agrees_with_fp64():
    head = stirred()
    with torch.no_grad():
        narrow = head(*drawn(30)).double()
        torch.testing.assert_close(narrow, head.double()(*drawn(30, dtype=torch.float64)), atol=1e-5, rtol=1e-5)


def test_the_calibration_is_a_factor_and_a_summand():
    head = stirred()
    with torch.no_grad():
        before = head(*drawn(5))
        head.calibration.copy_(torch.tensor([0.5, -2.0]))
        torch.testing.assert_close(head(*drawn(5)), before * 0.5 - 2)


def test_is_made_again_from_its_options_and_weights():
    head = stirred()
    again = HEADS["vector_score"](D, **head.options)
    again.load_state_dict(head.state_dict())
    assert torch.equal(again(*drawn(4)), head(*drawn(4)))
    assert sum(p.numel() for p in VectorScore(384).parameters()) < 100_000


def test_every_part_learns():
    head = stirred().train()
    F.log_softmax(head(*drawn(6)), 0)[2].backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in head.parameters() if p is not head.out.bias)
