"""Long inputs: segments with carried state give the full graph, and memory is bounded."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny import tiny_model
from helpers.tiny_backbones import tiny_backbone
from helpers.tiny_training import (
    BACKBONES,
    DOCUMENTS,
    QUERY,
    LiveBytes,
    make_item,
    render_document,
    training_model,
)
from torch import Tensor

from runnel.lab.training.forward import sentence_scores, unfreeze
from runnel.models.model import Model
from runnel.models.recurrent.graph import Long, make_pair, pair_scores, vectors

LONG_TEXT = " ".join(DOCUMENTS * 2)
SEGMENT = 9
Gradients = tuple[float, dict[str, Tensor]]


def loss_of_all_jobs(model: Model, long: Long) -> Tensor:
    """Rows of several lengths, none a multiple of the segment, one shorter than it."""
    rows = [render_document(model, text) for text in (*DOCUMENTS, LONG_TEXT)]
    pairs = [make_pair(model, QUERY, text) for text in DOCUMENTS]
    items = [make_item(model, QUERY, text) for text in (LONG_TEXT, *DOCUMENTS)]
    found = (
        vectors(model, rows, long),
        pair_scores(model, pairs, long),
        *sentence_scores(model, items, long),
    )
    return torch.stack([value.pow(2).mean() + value.reshape(-1)[0] for value in found]).sum()


def gradients(model: Model, long: Long) -> Gradients:
    """The loss of all jobs, and all gradients."""
    named = [*model.backbone.named_parameters(), *model.heads.named_parameters()]
    model.backbone.zero_grad()
    model.heads.zero_grad()
    loss = loss_of_all_jobs(model, long)
    loss.backward()
    return float(loss.detach()), {name: p.grad.clone() for name, p in named if p.grad is not None}


def assert_same(actual: Gradients, expected: Gradients, tolerance: float = 1e-9) -> None:
    assert actual[0] == pytest.approx(expected[0], rel=tolerance, abs=tolerance)
    assert actual[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        torch.testing.assert_close(
            actual[1][name], gradient, atol=tolerance, rtol=tolerance, msg=name
        )


@pytest.mark.parametrize(
    ("architecture", "papers_heads"), [*((name, False) for name in BACKBONES), ("mamba2", True)]
)
def test_segments_give_the_full_graph(
    tmp_path: Path, architecture: str, papers_heads: bool
) -> None:
    model = training_model(tmp_path, architecture, papers_heads=papers_heads, dtype=torch.float64)
    unfreeze(model)
    whole = gradients(model, Long())
    weights = sum(1 for module in (model.backbone, model.heads) for _ in module.parameters())
    assert len(whole[1]) == weights and all(bool(gradient.any()) for gradient in whole[1].values())
    for long in (Long(SEGMENT), Long(SEGMENT, recompute=True), Long(recompute=True)):
        assert_same(gradients(model, long), whole)


@pytest.mark.parametrize("architecture", BACKBONES)
def test_bf16(tmp_path: Path, architecture: str) -> None:
    """Close to fp32, with and without recomputing alike; what comes out is fp32, and the weights
    stay fp32.
    """
    model = training_model(tmp_path, architecture)
    unfreeze(model)
    exact = gradients(model, Long())
    plain = gradients(model, Long(SEGMENT, bf16=True))
    assert_same(gradients(model, Long(SEGMENT, recompute=True, bf16=True)), plain, tolerance=1e-6)
    assert 0 < abs(plain[0] - exact[0]) < 0.1 * abs(exact[0])
    assert all(gradient.dtype == torch.float32 for gradient in plain[1].values())
    assert vectors(model, [render_document(model, "a dog")], Long(bf16=True)).dtype == torch.float32


def peak(model: Model, run: Callable[[], object]) -> int:
    run()  # so that every weight has a gradient
    with LiveBytes() as live:
        run()
    return live.peak


@pytest.mark.slow
@pytest.mark.parametrize("architecture", BACKBONES)
def test_memory(tmp_path: Path, architecture: str) -> None:
    model = training_model(tmp_path, architecture)
    unfreeze(model)
    few, many, segment = 3, 16, 32
    row = np.random.default_rng(0).integers(4, 128, many * segment).astype(np.int32)

    def held(segments: int, long: Long) -> int:
        return peak(
            model, lambda: vectors(model, [row[: segments * segment]], long)[0, 0].backward()
        )

    def for_each_segment(long: Long) -> float:
        return (held(many, long) - held(few, long)) / (many - few)

    state = 4 * sum(np.prod(shape) for shape in model.backbone.state_shapes().values())
    sums = 4 * 2 * model.backbone.hidden_size
    index = 8 * 4 * segment  # ids and the owners of tokens
    # A longer text costs the states before its segments, and what is wanted of it; without
    # recomputing, its activations.
    assert state < for_each_segment(Long(segment, recompute=True)) < 1.1 * (state + sums + index)
    assert for_each_segment(Long(segment)) > 5 * (state + sums + index)

    built, config = BACKBONES[architecture]
    deep = tiny_model(
        tmp_path, papers_heads=True, backbone=tiny_backbone(built, replace(config, num_layers=8))
    )
    unfreeze(deep)
    longs = [Long(), Long(recompute=True)]
    plain, recomputed = (
        peak(deep, lambda long=long: vectors(deep, [row[:400]], long)[0, 0].backward())
        for long in longs
    )
    assert recomputed < 0.4 * plain, (
        "of eight layers an eighth is alive in the backward pass, beside what each layer takes in"
    )
