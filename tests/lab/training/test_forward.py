"""The training forward gives the numbers of inference, and its gradients reach every weight."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.texts import repeat
from helpers.tiny import tiny_encoder
from helpers.tiny_training import (
    BACKBONES,
    DOCUMENTS,
    QUERY,
    make_item,
    render_document,
    training_model,
)
from torch import Tensor, nn

from runnel import Embedder, Reranker, SentenceRetriever
from runnel.errors import InputError
from runnel.lab.training.forward import sentence_scores, unfreeze
from runnel.models.folder import load_model
from runnel.models.model import Model
from runnel.models.recurrent.graph import Long, make_pair, pair_scores, vectors
from runnel.models.recurrent.heads import EndScore, vector_head

LONGS = [Long(), Long(segment_tokens=7), Long(segment_tokens=7, recompute=True)]
# its middle sentence is nothing that the tokenizer sees
NO_TOKENS = "The cat. \x00\x01\nA dog ran."


def assert_as_inference(model: Model) -> None:
    tolerance = 1e-5
    wanted = (
        Embedder(model).encode(DOCUMENTS, prompt="query: "),
        Reranker(model).score(QUERY, DOCUMENTS),
    )
    of_sentences = [
        [s.score for s in found] for found in SentenceRetriever(model).score_many(QUERY, DOCUMENTS)
    ]
    unfreeze(model)
    rows = [render_document(model, text, "query: ") for text in DOCUMENTS]
    pairs, items = (
        [make(model, QUERY, text) for text in DOCUMENTS] for make in (make_pair, make_item)
    )
    for long in LONGS:
        np.testing.assert_allclose(vectors(model, rows, long).detach(), wanted[0], atol=tolerance)
        np.testing.assert_allclose(
            pair_scores(model, pairs, long).detach(), wanted[1], atol=tolerance, rtol=tolerance
        )
        for ours, theirs in zip(sentence_scores(model, items, long), of_sentences, strict=True):
            np.testing.assert_allclose(ours.detach(), theirs, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("papers_heads", [False, True], ids=["match", "papers"])
@pytest.mark.parametrize("architecture", BACKBONES)
def test_the_numbers_of_inference(tmp_path: Path, architecture: str, papers_heads: bool) -> None:
    assert_as_inference(training_model(tmp_path, architecture, papers_heads=papers_heads))


def test_the_numbers_of_pocket_and_of_other_heads(tmp_path: Path) -> None:
    assert_as_inference(load_model("pocket-mamba2", dtype="float32"))
    model = training_model(tmp_path, "mamba2", papers_heads=True)
    model.heads["embed"] = vector_head("mean")
    model.heads["rerank"] = EndScore(32, pooling="cls")
    assert_as_inference(model)


def losses(model: Model) -> Tensor:
    """(3,): a smooth number for each job that depends on every output."""
    text = "A river runs. The dog sat."
    weights = torch.linspace(-1, 1, 32, dtype=torch.float64)
    of_text = vectors(model, [render_document(model, text)]) @ weights
    of_pair = pair_scores(model, [make_pair(model, "the river", text)])
    of_sentences = sentence_scores(model, [make_item(model, "the river", text)])[0]
    return torch.stack(
        [of_text.square().sum(), of_pair.square().sum(), of_sentences.square().sum()]
    )


@pytest.mark.parametrize("papers_heads", [False, True], ids=["match", "papers"])
def test_gradients_are_differences(tmp_path: Path, papers_heads: bool) -> None:
    """In fp64, along a random direction of each parameter of the heads, and of those of the same
    name in all layers.
    """
    model = training_model(tmp_path, "mamba2", papers_heads=papers_heads, dtype=torch.float64)
    unfreeze(model)
    groups: dict[str, list[nn.Parameter]] = {
        name: [p] for name, p in model.heads.named_parameters()
    }
    for name, parameter in model.backbone.named_parameters():
        groups.setdefault(
            name.split(".", 2)[-1] if name.startswith("layers.") else name, []
        ).append(parameter)
    generator = torch.Generator().manual_seed(1)
    every = [parameter for parameters in groups.values() for parameter in parameters]
    options = {"retain_graph": True, "materialize_grads": True, "allow_unused": True}
    gradients = [
        dict(zip(every, torch.autograd.grad(loss, every, **options), strict=True))
        for loss in losses(model)
    ]
    for name, parameters in groups.items():
        along = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
        values = []
        with torch.no_grad():
            for move in (1e-5, -2e-5, 1e-5):
                for parameter, direction in zip(parameters, along, strict=True):
                    parameter += move * direction
                values.append(losses(model))
        reached = False
        for job in range(3):
            ours = sum(
                float((gradients[job][p] * d).sum()) for p, d in zip(parameters, along, strict=True)
            )
            assert ours == pytest.approx(
                float(values[0][job] - values[1][job]) / 2e-5, rel=1e-4, abs=1e-6
            ), (job, name)
            reached |= abs(ours) > 1e-6
        assert reached, name


def test_sentences_without_tokens(tmp_path: Path) -> None:
    model = training_model(tmp_path, "mamba2")
    spans = np.array([[0, 9], [9, 12], [12, len(NO_TOKENS)]])
    unfreeze(model)
    item = make_item(model, QUERY, NO_TOKENS, spans, [0, 1, 0])
    empty = make_item(model, QUERY, "")
    assert item.full.tolist() == [True, False, True]
    assert item.labels is not None and item.labels.tolist() == [0, 1, 0]
    found, nothing = sentence_scores(model, [item, empty])
    assert nothing.shape == (0,)
    assert found.isinf().tolist() == [False, True, False] and found[1] < 0
    found[1].backward()
    assert not any(bool(p.grad.any()) for p in model.backbone.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("recurrent", "call", "message"),
    [
        (True, lambda model: make_pair(model, " ", "a dog"), "query"),
        (
            False,
            lambda model: make_item(model, "the river", "a dog"),
            "does not read documents after a query",
        ),
        (
            False,
            lambda model: make_pair(model, "the river", "a dog"),
            "scores stored vectors, which cannot be trained here",
        ),
    ],
)
def test_bad_input(
    tmp_path: Path, recurrent: bool, call: Callable[[Model], object], message: str
) -> None:
    model = training_model(tmp_path, "mamba2") if recurrent else tiny_encoder(tmp_path)
    with pytest.raises(InputError, match=message):
        call(model)


TEXTS = [
    "A river runs to the sea.",
    repeat("The cat sat on the mat. A dog ran. ", 4),
    "The " + repeat("cat dog river sea mat ", 12) + "sat.",
]


@pytest.mark.parametrize("long", [Long(), Long(recompute=True)])
def test_long_texts_have_the_vectors_of_inference_and_gradients(tmp_path: Path, long: Long) -> None:
    model = tiny_encoder(tmp_path)
    expected = Embedder(model).encode(TEXTS)
    rows = [render_document(model, text) for text in TEXTS]
    assert [len(model.backbone.block_ends(row)) > 1 for row in rows] == [False, True, True]
    unfreeze(model)
    found = vectors(model, rows, long)
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-5)
    (found * torch.randn(found.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
    used = model.backbone.embeddings.weight.grad.abs().sum(1) > 0
    assert set(used.nonzero()[:, 0].tolist()) == set(np.concatenate(rows).tolist()), (
        "every token of every passage"
    )
