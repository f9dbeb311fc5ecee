"""Models made from other people's folders: bare checkpoints, single-pass scanners, sentence-transformers folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny import write_tokenizer
from safetensors.torch import save_file
from tokenizers import Tokenizer, processors

from runnel import Embedder, SentenceRetriever
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.errors import CheckpointError

os.environ["HF_HUB_OFFLINE"] = "1"


def transformers_folder(folder: Path) -> None:
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 16, "num_heads": 4, "head_dim": 16}
    config = transformers.Mamba2Config(**sizes, n_groups=1, pad_token_id=0, bos_token_id=2, eos_token_id=3)
    transformers.Mamba2ForCausalLM(config).save_pretrained(folder)
    write_tokenizer(folder)


def sentence_transformers_folder(folder: Path, pooling: str = "lasttoken", prompts: dict | None = None) -> None:
    transformers_folder(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 3)])
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "[SEP]", "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    module = "sentence_transformers.models."
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [{"idx": i, "name": str(i), "path": path, "type": module + kind} for i, (kind, path) in enumerate(paths.items())]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "2_Normalize").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 32, f"pooling_mode_{pooling}": True}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts or {}}))


@pytest.mark.filterwarnings("ignore")  # the other libraries' own
def test_a_sentence_transformers_folder_gives_the_same_vectors(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    sentence_transformers_folder(tmp_path, prompts={"query": "the river of "})
    theirs, ours = SentenceTransformer(str(tmp_path)), Embedder.load(tmp_path, dtype="float32")
    texts = ["the cat sat on the mat", "dog", "a river runs to the sea and the dog is executed finally"]
    np.testing.assert_allclose(ours.encode(texts), theirs.encode(texts), atol=1e-4)
    np.testing.assert_allclose(ours.encode_query(texts), theirs.encode(texts, prompt_name="query"), atol=1e-4)


def test_other_poolings_and_modules_are_refused(tmp_path: Path) -> None:
    sentence_transformers_folder(tmp_path / "mean", pooling="mean_tokens")
    with pytest.raises(CheckpointError, match="pools by 'pooling_mode_mean_tokens'"):
        Embedder.load(tmp_path / "mean")
    sentence_transformers_folder(tmp_path / "dense")
    modules = json.loads((tmp_path / "dense/modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.Dense"
    (tmp_path / "dense/modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="Dense"):
        Embedder.load(tmp_path / "dense")


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
