import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runnel.errors import InputError
from runnel.training.losses import sentence_loss, sentence_weights

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


@given(documents)
def test_the_classes_weigh_half_each(document: list[tuple[float, bool]]) -> None:
    labels = torch.tensor([r for _, r in document])
    weights = sentence_weights(labels)
    for one in (labels, ~labels):
        assert float(weights[one].sum()) == pytest.approx(0.5 if one.any() else 0.0)
        assert len(weights[one].unique()) <= 1


def test_more_negatives_of_the_same_score_change_nothing() -> None:
    short = sentence_loss(torch.tensor([2.0, -1.0]), torch.tensor([1, 0]))
    long = sentence_loss(torch.tensor([2.0] + [-1.0] * 500), torch.tensor([1] + [0] * 500))
    torch.testing.assert_close(short, long)


def test_scores_of_zero_give_ln_2_and_half_of_it_with_one_class() -> None:
    assert float(sentence_loss(torch.zeros(5), torch.tensor([0, 1, 0, 0, 1]))) == pytest.approx(math.log(2))
    for label in (0.0, 1.0):
        assert float(sentence_loss(torch.zeros(5), torch.full((5,), label))) == pytest.approx(math.log(2) / 2)


def test_the_gradient_pulls_each_score_to_its_label_and_both_classes_alike() -> None:
    scores = torch.zeros(4, requires_grad=True)
    sentence_loss(scores, torch.tensor([1, 0, 0, 0])).backward()
    assert scores.grad is not None
    torch.testing.assert_close(scores.grad, torch.tensor([-0.25, 0.25 / 3, 0.25 / 3, 0.25 / 3]))


def test_scores_in_bf16_give_a_loss_in_fp32() -> None:
    loss = sentence_loss(torch.tensor([1.0, -1.0], dtype=torch.bfloat16), torch.tensor([True, False]))
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(math.log1p(math.exp(-1)))


def test_extreme_scores_stay_finite() -> None:
    assert float(sentence_loss(torch.tensor([-1e4, 1e4]), torch.tensor([1, 0]))) == pytest.approx(1e4)


def test_documents_without_sentences_and_lists_that_differ_in_length_are_errors() -> None:
    with pytest.raises(InputError, match="at least one sentence"):
        sentence_loss(torch.zeros(0), torch.zeros(0))
    with pytest.raises(InputError, match="one label per score"):
        sentence_loss(torch.zeros(3), torch.zeros(2))
