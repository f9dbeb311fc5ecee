"""Checkpoints that the papers publish or compare with, as tiny folders of the same layout: read right, or refused by name."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny import write_tokenizer
from safetensors.torch import load_file, save_file

from runnel import Embedder, Reranker, SentenceRetriever
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.errors import CheckpointError

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


@pytest.mark.parametrize("load", [Embedder.load, Reranker.load])
def test_adapters_are_no_models(tmp_path: Path, load: object) -> None:
    """RankLlama and RepLlama are published as adapters."""
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "meta-llama/x"}))
    torch.save({"base_model.model.score.weight": torch.zeros(1, 4)}, tmp_path / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"holds an adapter \(adapter_config\.json\), not a whole model; merge it"):
        load(tmp_path)  # type: ignore[operator]


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
