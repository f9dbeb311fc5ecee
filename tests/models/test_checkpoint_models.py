"""Models made from other people's folders: bare checkpoints, single-pass scanners, sentence-transformers folders."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from helpers.tiny import write_tokenizer
from safetensors.torch import save_file

from runnel import SentenceRetriever
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config

os.environ["HF_HUB_OFFLINE"] = "1"


def test_a_single_pass_scanner_retrieves_sentences(tmp_path: Path) -> None:
    torch.manual_seed(0)
    backbone = Mamba2(Mamba2Config(vocab_size=128, hidden_size=32, num_layers=2, state_size=16, head_size=16))
    tensors = {f"backbone.{k}": v for k, v in backbone.state_dict().items()}
    tensors |= {"binary_head.weight": torch.randn(1, 32), "binary_head.bias": torch.randn(1)}
    save_file(tensors, tmp_path / "model.safetensors")
    write_tokenizer(tmp_path)
    retriever = SentenceRetriever.load(tmp_path, dtype="float32")
    document = "The cat sat on the mat. A river runs to the sea."
    assert len(retriever.score("cat", document)) == 1, "the released weights score groups of clauses"
    first, second = retriever.score("cat", document, unit="sentence")
    ids = [*retriever.model.tokenizer.encode("cat").ids, *retriever.model.tokenizer.encode(document).ids]
    hidden = backbone(torch.tensor(ids))[0][[-8, -1]]
    expected = hidden @ tensors["binary_head.weight"][0] + tensors["binary_head.bias"]
    np.testing.assert_allclose([first.score, second.score], expected.detach().numpy(), atol=1e-4)
