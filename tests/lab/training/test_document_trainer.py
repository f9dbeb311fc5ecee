"""Batches of rows of about equal length, and the losses of the sentences of a document."""

import math
from itertools import islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from runnel.lab.training.document_trainer import (
    TokenBatches,
    sentence_loss,
    span_loss,
    yes_or_no_loss,
)

lengths = st.lists(st.integers(1, 300), max_size=120)
budgets = st.integers(1, 400)


def all_batches(
    rows: list[int], budget: int, world: int = 1, epoch: int = 0, **options: object
) -> list[list[list[int]]]:
    batches = [
        TokenBatches(rows, budget, world=world, rank=rank, **options) for rank in range(world)
    ]
    for one in batches:
        one.set_epoch(epoch)
    return [list(one) for one in batches]


@settings(max_examples=60)
@given(
    lengths,
    budgets,
    st.integers(1, 5),
    st.integers(0, 3),
    st.sampled_from([None, 1, 3]),
    st.booleans(),
)
def test_each_row_once_within_the_budget_and_equally_many_batches(
    rows, budget, world, epoch, max_rows, shuffle
) -> None:
    by_rank = all_batches(rows, budget, world, epoch, max_rows=max_rows, shuffle=shuffle)
    assert sorted(row for batches in by_rank for batch in batches for row in batch) == list(
        range(len(rows))
    )
    assert len({len(batches) for batches in by_rank}) == 1
    assert {len(batches) for batches in by_rank} == {
        len(TokenBatches(rows, budget, world=world, max_rows=max_rows))
    }
    for batch in (batch for batches in by_rank for batch in batches):
        assert len(batch) <= (max_rows or len(rows))
        assert len(batch) <= 1 or sum(rows[row] for row in batch) <= budget
        # empty only where nothing can be split
        assert batch or all(len(other) <= 1 for batches in by_rank for other in batches)


def test_epochs_seeds_and_few_rows() -> None:
    rows = np.random.default_rng(0).integers(10, 60, 200).tolist()
    first = all_batches(rows, 120, epoch=0, seed=1)
    assert first == all_batches(rows, 120, epoch=0, seed=1)
    assert first != all_batches(rows, 120, epoch=1, seed=1)
    assert first != all_batches(rows, 120, epoch=0, seed=2)
    assert {frozenset(b) for b in first[0]} != {
        frozenset(b) for b in all_batches(rows, 120, epoch=1, seed=1)[0]
    }
    assert all_batches(rows, 120, epoch=0, shuffle=False) == all_batches(
        rows, 120, epoch=1, shuffle=False
    )
    batches = TokenBatches([7] * 50, 21, seed=3)
    again = TokenBatches([7] * 50, 21, seed=3)
    batches.set_epoch(4)
    again.set_epoch(4)
    whole = [batch.tolist() for batch in DataLoader(list(range(50)), batch_sampler=batches)]
    assert list(islice(again, 6, None)) == whole[6:]
    assert sorted(all_batches([3, 3], 10, 3)) == [[[]], [[0]], [[1]]]
    assert all_batches([], 10, 3) == [[], [], []]


def test_rows_of_a_batch_and_of_a_step_are_of_about_the_same_length() -> None:
    rows = np.random.default_rng(0).integers(100, 5000, 4000)
    by_rank = all_batches(rows.tolist(), 10000, 2)
    steps = [rows[np.concatenate(step)] for step in zip(*by_rank, strict=True)]
    spread = [step.max() / step.min() for step in steps]
    assert np.quantile(spread, 0.95) < 2  # the others hold what was left of shorter rows
    assert np.mean([rows[batch].sum() / 10000 for batches in by_rank for batch in batches]) > 0.7


documents = st.lists(st.tuples(st.floats(-30, 30), st.booleans()), min_size=1, max_size=40)


def by_hand(scores: list[float], labels: list[bool]) -> float:
    """Appendix F, sentence by sentence, in Python's numbers."""
    n = len(labels)
    positive = sum(labels)
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
    scores = [s for s, _ in document]
    labels = [r for _, r in document]
    assert float(sentence_loss(torch.tensor(scores), torch.tensor(labels))) == pytest.approx(
        by_hand(scores, labels), rel=1e-4, abs=1e-6
    )


@given(documents)
def test_the_loss_of_the_authors_code_is_a_mean_with_heavier_positives(
    document: list[tuple[float, bool]],
) -> None:
    scores = torch.tensor([s for s, _ in document])
    labels = torch.tensor([r for _, r in document])
    positives = labels.sum()
    expected = F.binary_cross_entropy_with_logits(
        scores, labels.float(), pos_weight=(len(labels) - positives) / positives.clamp(min=1)
    )
    assert float(sentence_loss(scores, labels, as_code=True)) == pytest.approx(
        float(expected), rel=1e-4, abs=1e-6
    )


@given(st.lists(st.floats(-9, 9), min_size=2, max_size=300), st.integers(1, 299))
def test_the_authors_loss_is_larger_by_twice_the_share_of_other_sentences(
    scores: list[float], positives: int
) -> None:
    """So less than twice as large: both weigh the two kinds of sentences alike."""
    count = len(scores)
    positives = min(positives, count - 1)
    labels = torch.arange(count) < positives
    paper, code = (
        float(sentence_loss(torch.tensor(scores), labels, as_code=way)) for way in (False, True)
    )
    assert code == pytest.approx(paper * 2 * (count - positives) / count, rel=1e-4)


def test_losses_in_bf16_of_extreme_scores_and_of_spans() -> None:
    loss = sentence_loss(
        torch.tensor([1.0, -1.0], dtype=torch.bfloat16), torch.tensor([True, False])
    )
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(math.log1p(math.exp(-1)))
    assert float(sentence_loss(torch.tensor([-1e4, 1e4]), torch.tensor([1, 0]))) == pytest.approx(
        1e4
    )
    score = torch.log(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert float(span_loss(score, ((1, 3), (3, 4)))) == pytest.approx(
        -(math.log(0.5) + math.log(0.4)) / 2
    )
    assert float(yes_or_no_loss(torch.zeros(4), torch.tensor([0.0, 1, 1, 0]))) == pytest.approx(
        4 * math.log(2) / 2
    )
