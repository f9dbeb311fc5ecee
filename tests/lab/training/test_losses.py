import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runnel.lab.training.document_trainer import sentence_loss, span_loss, yes_or_no_loss

documents = st.lists(st.tuples(st.floats(-30, 30), st.booleans()), min_size=1, max_size=40)


def by_hand(scores: list[float], labels: list[bool]) -> float:
    """Appendix F, sentence by sentence, in Python's numbers."""
    n, positive = len(labels), sum(labels)
    total = 0.0
    for score, label in zip(scores, labels, strict=True):
        probability = 1 / (1 + math.exp(-score))
        if label:
            total -= math.log(probability) / (2 * positive)
        else:
            total -= math.log(max(1 - probability, 1e-30)) / (2 * n - 2 * positive)
    return total


@given(documents)
def test_equals_the_papers_formula(document: list[tuple[float, bool]]) -> None:
    scores, labels = [s for s, _ in document], [r for _, r in document]
    assert float(sentence_loss(torch.tensor(scores), torch.tensor(labels))) == pytest.approx(
        by_hand(scores, labels), rel=1e-4, abs=1e-6
    )


def test_scores_in_bf16_give_a_loss_in_fp32() -> None:
    loss = sentence_loss(torch.tensor([1.0, -1.0], dtype=torch.bfloat16), torch.tensor([True, False]))
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(math.log1p(math.exp(-1)))


def test_extreme_scores_stay_finite() -> None:
    assert float(sentence_loss(torch.tensor([-1e4, 1e4]), torch.tensor([1, 0]))) == pytest.approx(1e4)


def test_spans_and_yes_or_no() -> None:
    score = torch.log(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert float(span_loss(score, ((1, 3), (3, 4)))) == pytest.approx(-(math.log(0.5) + math.log(0.4)) / 2)
    assert float(yes_or_no_loss(torch.zeros(4), torch.tensor([0.0, 1, 1, 0]))) == pytest.approx(4 * math.log(2) / 2)
