"""Autocast around a loss of sentence-transformers."""

from pathlib import Path

import pytest
import torch
from helpers.tiny import tiny_model
from sentence_transformers.sentence_transformer import losses

from runnel.errors import InputError
from runnel.integrations.sentence_transformers import sentence_transformer

DOCUMENTS = ["the cat is on the mat", "a river runs to the sea", "finally " * 9]
COLUMNS = ["where is the cat", "a river", "sea"], DOCUMENTS, DOCUMENTS[1:] + DOCUMENTS[:1]


def test_autocast_to_bf16_changes_little_and_to_half_precision_is_refused(tmp_path: Path) -> None:
    there = sentence_transformer(tiny_model(tmp_path / "tiny", papers_heads=True)).train()
    loss = losses.MultipleNegativesRankingLoss(there)
    plain = loss([there.preprocess(texts) for texts in COLUMNS], None).item()
    with torch.autocast("cpu", torch.bfloat16):
        near = loss([there.preprocess(texts) for texts in COLUMNS], None).item()
    assert near == pytest.approx(plain, abs=0.05) and near != plain
    with (
        torch.autocast("cpu", torch.float16),
        pytest.raises(InputError, match="recurrent states overflow; use bf16=True"),
    ):
        there(there.preprocess(["cat"]))
