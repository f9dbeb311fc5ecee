"""Cross-encoders of sentence-transformers with their classifier in modules, as Ettin's rerankers: scores, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny import write_tokenizer
from helpers.tiny_transformers import write_transformer
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, processors

from runnel import Reranker
from runnel.errors import CheckpointError

pytestmark = [pytest.mark.filterwarnings("ignore:::transformers"), pytest.mark.filterwarnings("ignore:::sentence_transformers")]
QUERY, TEXTS = "is the cat on the mat?", ["the cat sat on the mat", "dog", "a river runs to the sea"]


def write(folder: Path, pooling: str, outputs: int = 1, activation: Callable[..., Any] | None = None) -> Any:
    """Save a cross-encoder as that library does, and return it."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling

    base = folder / "base"
    write_transformer(base, "modernbert")
    write_tokenizer(base)
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(base / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    (base / "tokenizer_config.json").write_text(json.dumps(names))
    torch.manual_seed(1)
    modules = [
        Transformer(str(base)),
        Pooling(32, pooling_mode=pooling),
        Dense(32, 32, bias=False, activation_function=activation or torch.nn.GELU()),
        LayerNorm(32),
        Dense(32, outputs, activation_function=torch.nn.Identity(), module_output_name="scores"),
    ]
    with torch.no_grad():
        modules[3].norm.weight.add_(torch.randn(32) / 4)
        modules[3].norm.bias.add_(torch.randn(32) / 4)
    library = CrossEncoder(modules=modules, device="cpu")
    library.save_pretrained(str(folder / "model"))
    return library


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("cross-encoder")
    return folder / "model", write(folder, "cls")


def theirs(library: Any) -> np.ndarray:
    return library.predict([(QUERY, text) for text in TEXTS], activation_fn=torch.nn.Identity())


def test_scores_are_those_of_the_library(saved, tmp_path):
    folder, library = saved
    reranker = Reranker.load(folder, "float32", "cpu")
    scores = reranker.score(QUERY, TEXTS)
    np.testing.assert_allclose(scores, theirs(library), atol=1e-5)
    assert scores.std() > 1e-3
    reranker.save(tmp_path / "ours")
    np.testing.assert_array_equal(Reranker.load(tmp_path / "ours", "float32", "cpu").score(QUERY, TEXTS), scores)


def test_the_mean_and_two_outputs(tmp_path):
    library = write(tmp_path, "mean", outputs=2, activation=torch.nn.Tanh())
    logits = theirs(library)
    scores = Reranker.load(tmp_path / "model", "float32", "cpu").score(QUERY, TEXTS)
    np.testing.assert_allclose(scores, logits[:, 1] - logits[:, 0], atol=1e-5)


@pytest.mark.parametrize(
    ("module", "changes", "message"),
    [
        ("2_Dense", {"activation_function": "torch.nn.modules.activation.ReLU"}, "2_Dense: .*expected GELU or Tanh, 32 outputs"),
        ("2_Dense", {"use_residual": True}, "2_Dense: .*no residual connection"),
        ("3_LayerNorm", {"dimension": 16}, "3_LayerNorm: .*expected the dimension 32"),
        ("4_Dense", {"activation_function": "torch.nn.modules.activation.Sigmoid"}, "4_Dense: .*expected Identity"),
        ("4_Dense", {"out_features": 3}, "4_Dense: .*one or two outputs"),
        ("4_Dense", {"out_features": 2}, r"mis-shaped tensor 'linear.weight' is \(1, 32\)"),
        ("2_Dense", None, "2_Dense/config.json is not valid JSON"),
    ],
)
def test_other_classifiers_are_refused(saved, tmp_path, module, changes, message):
    shutil.copytree(saved[0], tmp_path, dirs_exist_ok=True)
    path = tmp_path / module / "config.json"
    path.write_text("{" if changes is None else json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CheckpointError, match=message):
        Reranker.load(tmp_path)


def test_a_missing_weight_is_named(saved, tmp_path):
    shutil.copytree(saved[0], tmp_path, dirs_exist_ok=True)
    path = tmp_path / "3_LayerNorm" / "model.safetensors"
    save_file({"norm.weight": load_file(path)["norm.weight"]}, path)
    with pytest.raises(CheckpointError, match=r"missing tensor 'norm.bias'"):
        Reranker.load(tmp_path)
