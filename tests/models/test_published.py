"""Checkpoints that the papers publish or compare with, as tiny folders of the same layout: read right, or refused by name."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from helpers.tiny import write_tokenizer
from safetensors.torch import load_file

from runnel import Reranker

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")

ROOT = Path(__file__).parents[2]


def test_the_rerankers_of_paper_b_are_converted_as_the_docs_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "tests/golden/mamba1-tiny-hf", tmp_path / "base")
    write_tokenizer(tmp_path / "base")
    weights = load_file(tmp_path / "base/model.safetensors")
    (tmp_path / "base/model.safetensors").unlink()
    backbone = {name.removeprefix("backbone."): tensor for name, tensor in weights.items() if name.startswith("backbone.")}
    linear = {"weight": torch.randn(1, 64), "bias": torch.randn(1)}
    theirs = {f"base_model.{name}": tensor for name, tensor in backbone.items()}
    theirs |= {f"regressor.classifier.{name}": tensor for name, tensor in linear.items()}
    torch.save(theirs, tmp_path / "pytorch_model.bin")

    monkeypatch.chdir(tmp_path)
    docs = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    code = next(block for block in re.findall(r"(?:^    .*\n|^\n)+", docs, re.M) if "regressor.classifier" in block)
    exec("\n".join(line[4:] for line in code.splitlines()), {})

    reranker = Reranker.load(tmp_path / "rankmamba-130m", "float32", "cpu")
    assert str(reranker.model.templates["rerank"]) == "Document: {document}\n\nQuery: {query}{end}"
    encode = reranker.model.tokenizer.encode
    ids = [encode(text).ids.tolist() for text in ("Document: a dog runs", "Query: the river")]
    hidden = reranker.model.backbone(torch.tensor([*ids[0], *ids[1], 3]))[0][-1]
    expected = float(hidden @ linear["weight"][0] + linear["bias"])
    assert reranker.score("the river", ["a dog runs"])[0] == pytest.approx(expected, abs=1e-5)
