"""The losses of sentence-transformers, and autocast, on models of runnel."""

from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.tiny import tiny_model
from sentence_transformers.sentence_transformer import losses

from runnel.errors import InputError
from runnel.integrations.sentence_transformers import sentence_transformer

THINGS = ["cat", "dog", "mat", "river", "sea", "clause", "7", "42", "x", "queen", "of the", "zebra"]
QUERIES = [f"where is {thing}" for thing in THINGS]
DOCUMENTS = [f"the {thing} is on the mat" + " finally" * (i % 4) for i, thing in enumerate(THINGS)]
COLUMNS = QUERIES, DOCUMENTS, DOCUMENTS[1:] + DOCUMENTS[:1]


@pytest.mark.parametrize("papers_heads", [False, True])
def test_gradient_cache_gives_the_gradients_of_one_batch(tmp_path: Path, papers_heads: bool) -> None:
    cached = partial(losses.CachedMultipleNegativesRankingLoss, mini_batch_size=5)
    found = []
    for kind in (losses.MultipleNegativesRankingLoss, cached):
        there = sentence_transformer(tiny_model(tmp_path / "tiny", papers_heads=papers_heads)).double().train()
        loss = kind(there)([there.preprocess(texts) for texts in COLUMNS], None)
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in there.named_parameters() if parameter.grad is not None}
        found.append({"loss": loss.detach(), **gradients})
    assert len(found[0]) > 10
    torch.testing.assert_close(found[1], found[0], atol=1e-9, rtol=1e-7)


def test_autocast_to_bf16_changes_little_and_to_half_precision_is_refused(tmp_path: Path) -> None:
    there = sentence_transformer(tiny_model(tmp_path / "tiny", papers_heads=True)).train()
    loss = losses.MultipleNegativesRankingLoss(there)
    plain = loss([there.preprocess(texts) for texts in COLUMNS], None).item()
    with torch.autocast("cpu", torch.bfloat16):
        near = loss([there.preprocess(texts) for texts in COLUMNS], None).item()
    assert near == pytest.approx(plain, abs=0.05) and near != plain
    with torch.autocast("cpu", torch.float16), pytest.raises(InputError, match="recurrent states overflow; use bf16=True"):
        there(there.preprocess(["cat"]))
