"""Training a model that reads passages: the numbers of inference, and gradients from every passage of a long text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny import tiny_encoder

from runnel import Embedder
from runnel.errors import InputError
from runnel.lab.training.forward import make_item, make_pair, render_document, trainable, vectors
from runnel.lab.training.segments import Long

TEXTS = ["A river runs to the sea.", "The cat sat on the mat. A dog ran. " * 4, "The " + "cat dog river sea mat " * 12 + "sat."]


@pytest.mark.parametrize("long", [Long(), Long(recompute=True)])
def test_long_texts_have_the_vectors_of_inference_and_gradients(tmp_path: Path, long: Long) -> None:
    model = tiny_encoder(tmp_path)
    expected = Embedder(model).encode(TEXTS)
    rows = [render_document(model, text) for text in TEXTS]
    assert [len(model.backbone.block_ends(row)) > 1 for row in rows] == [False, True, True]  # type: ignore[arg-type]
    trainable(model)
    found = vectors(model, rows, long)
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-5)
    (found * torch.randn(found.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
    used = model.backbone.embeddings.weight.grad.abs().sum(1) > 0  # type: ignore[union-attr]
    assert set(used.nonzero()[:, 0].tolist()) == set(np.concatenate(rows).tolist()), "every token of every passage"


def test_jobs_that_are_not_trained_so_say_so(tmp_path: Path) -> None:
    model = tiny_encoder(tmp_path)
    with pytest.raises(InputError, match="does not read documents after a query"):
        make_item(model, "the river", TEXTS[0])
    with pytest.raises(InputError, match="scores stored vectors, which cannot be trained here"):
        make_pair(model, "the river", TEXTS[0])
    with pytest.raises(InputError, match="segment_tokens = 7 cannot be used"):
        vectors(model, [render_document(model, TEXTS[1])], Long(segment_tokens=7))
