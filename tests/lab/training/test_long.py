"""Long inputs: segments with carried state give the full graph, truncated gradients are what they claim, memory is bounded."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny import byte_level_model, tiny_model
from helpers.tiny_backbones import tiny_backbone
from helpers.tiny_training import BACKBONES, DOCUMENTS, QUERY, LiveBytes, render_document, training_model
from torch import Tensor

from runnel import SentenceRetriever
from runnel.lab.training.forward import SegmentScores, make_item, sentence_scores, sentence_segments, trainable
from runnel.models.base import Model
from runnel.models.graph import Long, make_pair, pair_scores, vectors

LONG_TEXT = " ".join(DOCUMENTS * 2)
SEGMENT = 9
Gradients = tuple[float, dict[str, Tensor]]


def loss_of_all_jobs(model: Model, long: Long) -> Tensor:
    """Rows of several lengths, none a multiple of the segment, one shorter than it."""
    rows = [render_document(model, text) for text in (*DOCUMENTS, LONG_TEXT)]
    pairs = [make_pair(model, QUERY, text) for text in DOCUMENTS]
    items = [make_item(model, QUERY, text) for text in (LONG_TEXT, *DOCUMENTS)]
    found = vectors(model, rows, long), pair_scores(model, pairs, long), *sentence_scores(model, items, long)
    return torch.stack([value.pow(2).mean() + value.reshape(-1)[0] for value in found]).sum()


def gradients(model: Model, run: Callable[[], Tensor]) -> Gradients:
    """The loss that `run` gives and leaves with its backward pass still to do, or None where it has done it; all gradients."""
    named = [*model.backbone.named_parameters(), *model.heads.named_parameters()]
    model.backbone.zero_grad()
    model.heads.zero_grad()
    loss = run()
    if loss.requires_grad:
        loss.backward()
    return float(loss.detach()), {name: p.grad.clone() for name, p in named if p.grad is not None}


def assert_same(actual: Gradients, expected: Gradients, tolerance: float = 1e-9) -> None:
    assert actual[0] == pytest.approx(expected[0], rel=tolerance, abs=tolerance)
    assert actual[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        torch.testing.assert_close(actual[1][name], gradient, atol=tolerance, rtol=tolerance, msg=name)


@pytest.mark.parametrize(("architecture", "papers_heads"), [*((name, False) for name in BACKBONES), ("mamba2", True)])
def test_segments_give_the_full_graph(tmp_path: Path, architecture: str, papers_heads: bool) -> None:
    model = training_model(tmp_path, architecture, papers_heads=papers_heads, dtype=torch.float64)
    trainable(model)
    whole = gradients(model, lambda: loss_of_all_jobs(model, Long()))
    weights = sum(1 for module in (model.backbone, model.heads) for _ in module.parameters())
    assert len(whole[1]) == weights and all(bool(gradient.any()) for gradient in whole[1].values())
    for long in (Long(SEGMENT), Long(SEGMENT, recompute=True), Long(recompute=True), Long(SEGMENT, True, gradient_segments=99)):
        assert_same(gradients(model, lambda long=long: loss_of_all_jobs(model, long)), whole)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("architecture", BACKBONES)
def test_truncated_gradients(tmp_path: Path, architecture: str, recompute: bool) -> None:
    """Against segments written out by hand, with the state detached after every second one; the values do not change."""
    model = training_model(tmp_path, architecture, dtype=torch.float64)
    trainable(model)
    rows = [render_document(model, text) for text in (LONG_TEXT, DOCUMENTS[0])]
    direction = torch.linspace(-1, 1, 32, dtype=torch.float64)

    def by_hand() -> Tensor:
        means = []
        for row in rows:
            ids, state, sums = torch.from_numpy(row.astype(np.int64)), None, []
            weight = model.features.log_weight[ids].exp()  # type: ignore[union-attr]
            for number, start in enumerate(range(0, len(ids), SEGMENT)):
                if state is not None and number % 2 == 0:
                    state = state.detach()
                piece = slice(start, start + SEGMENT)
                hidden, state = model.backbone(ids[piece], None, state)
                sums.append(weight[piece] @ hidden)
            means.append(torch.stack(sums).sum(0) / weight.sum())
        return (model.heads["embed"](torch.stack(means)) @ direction).square().sum()

    def ours(long: Long) -> Tensor:
        return (vectors(model, rows, long) @ direction).square().sum()

    expected = gradients(model, by_hand)
    actual = gradients(model, lambda: ours(Long(SEGMENT, recompute, gradient_segments=2)))
    assert_same(actual, expected)
    exact = gradients(model, lambda: ours(Long(SEGMENT)))
    assert actual[0] == pytest.approx(exact[0], rel=1e-12)
    assert any(not torch.allclose(exact[1][name], gradient, rtol=1e-3) for name, gradient in actual[1].items())


def backward_by_segment(model: Model, items: list, loss: Callable[[SegmentScores], Tensor], long: Long) -> Tensor:
    total = torch.zeros(())
    for piece in sentence_segments(model, items, long):
        value = loss(piece)
        value.backward()
        total = total + value.detach()
    return total


@pytest.mark.parametrize(
    ("architecture", "papers_heads", "long"),
    [
        *((name, False, Long(SEGMENT, gradient_segments=1)) for name in BACKBONES),
        ("mamba2", True, Long(5, True, 3)),
        ("mamba2", False, Long(SEGMENT, True)),
    ],
)
def test_backward_by_segment(tmp_path: Path, architecture: str, papers_heads: bool, long: Long) -> None:
    """Sentences and queries that cross segments: the gradients of one backward pass over all scores."""
    model = training_model(tmp_path, architecture, papers_heads=papers_heads, dtype=torch.float64)
    trainable(model)
    items = [make_item(model, QUERY, text) for text in (LONG_TEXT, DOCUMENTS[0], "", "dog")]
    generator = torch.Generator().manual_seed(0)
    weights = [torch.rand(len(item.full), generator=generator, dtype=torch.float64) for item in items]

    def at_once() -> Tensor:
        return torch.cat([w * s.square() for w, s in zip(weights, sentence_scores(model, items, long), strict=True)]).sum()

    def of_piece(piece: SegmentScores) -> Tensor:
        chosen = [weights[i][s] for i, s in zip(piece.item, piece.sentence, strict=True)]
        return (torch.stack(chosen) * piece.scores.square()).sum()

    expected = gradients(model, at_once)
    actual = gradients(model, lambda: backward_by_segment(model, items, of_piece, long))
    assert_same(actual, expected)
    seen = [(i, s) for piece in sentence_segments(model, items, long) for i, s in zip(piece.item, piece.sentence, strict=True)]
    assert sorted(seen) == [(i, s) for i, item in enumerate(items) for s in range(len(item.full))]


@pytest.mark.parametrize("papers_heads", [False, True])
@pytest.mark.parametrize("segment", [1, 3, 1000])
def test_sentences_that_end_before_their_line_does(tmp_path: Path, papers_heads: bool, segment: int) -> None:
    """Line ends are tokens of their own here: a sentence's position may be segments before its last token."""
    model = byte_level_model(tmp_path, papers_heads=papers_heads)
    text = "the dog.\n\n\n\nThe fox runs.\n\n\n\n\nA sea."
    expected = [s.score for s in SentenceRetriever(model).score(QUERY, text)]
    trainable(model)
    items = [make_item(model, QUERY, text), make_item(model, QUERY, "dog")]
    scores = sentence_scores(model, items, Long(segment))[0]
    np.testing.assert_allclose(scores.detach(), expected, atol=1e-4)
    found = np.full(3, np.nan)
    for piece in sentence_segments(model, items, Long(segment, gradient_segments=1 if segment < 10 else None)):
        mine = piece.item == 0
        found[piece.sentence[mine]] = piece.scores.detach()[mine]
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("architecture", BACKBONES)
def test_bf16(tmp_path: Path, architecture: str) -> None:
    """Close to fp32, with and without recomputing alike; what comes out is fp32, and the weights stay fp32."""
    model = training_model(tmp_path, architecture)
    trainable(model)
    exact = gradients(model, lambda: loss_of_all_jobs(model, Long()))
    plain = gradients(model, lambda: loss_of_all_jobs(model, Long(SEGMENT, bf16=True)))
    again = gradients(model, lambda: loss_of_all_jobs(model, Long(SEGMENT, recompute=True, bf16=True)))
    assert_same(again, plain, tolerance=1e-6)
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
    trainable(model)
    few, many, segment = 3, 16, 32
    row = np.random.default_rng(0).integers(4, 128, many * segment).astype(np.int32)

    def held(segments: int, long: Long) -> int:
        return peak(model, lambda: vectors(model, [row[: segments * segment]], long)[0, 0].backward())

    def for_each_segment(long: Long) -> float:
        return (held(many, long) - held(few, long)) / (many - few)

    state = 4 * sum(np.prod(shape) for shape in model.backbone.state_shapes().values())
    sums = 4 * 2 * model.backbone.hidden_size
    index = 8 * 4 * segment  # ids and the owners of tokens
    # A longer text costs the states before its segments, and what is wanted of it; without recomputing, its activations.
    assert state < for_each_segment(Long(segment, recompute=True)) < 1.1 * (state + sums + index)
    assert for_each_segment(Long(segment)) > 5 * (state + sums + index)

    def run(times: int) -> Callable[[], object]:
        items, long = [make_item(model, QUERY, LONG_TEXT * times)], Long(32, gradient_segments=2)
        return lambda: backward_by_segment(model, items, lambda piece: piece.scores.square().sum(), long)

    shorter, longer = peak(model, run(4)), peak(model, run(16))
    assert longer < 1.01 * shorter, "sentences of a truncated document: 4 times the length in the same memory"
    built, config = BACKBONES[architecture]
    deep = tiny_model(tmp_path, papers_heads=True, backbone=tiny_backbone(built, replace(config, num_layers=8)))
    trainable(deep)
    longs = [Long(), Long(recompute=True)]
    plain, recomputed = (peak(deep, lambda long=long: vectors(deep, [row[:400]], long)[0, 0].backward()) for long in longs)
    assert recomputed < 0.4 * plain, "of eight layers an eighth is alive in the backward pass, beside what each layer takes in"
