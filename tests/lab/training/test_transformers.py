"""Recipes train transformers: BERT as an encoder, others as models of sentence-transformers, in the
same trainers.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny_examples import tiny_checkpoint, tiny_recipe
from helpers.tiny_training import render_document, stopped_after
from sentence_transformers import CrossEncoder, SentenceTransformer

from runnel import Embedder, Reranker
from runnel.backbones.library import Library
from runnel.lab.training.forward import unfreeze
from runnel.lab.training.run import run_recipe
from runnel.models.folder import load_model
from runnel.models.recurrent.graph import Long, vectors

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_thread", "bare"),
    pytest.mark.filterwarnings("ignore:::transformers"),
    pytest.mark.filterwarnings("ignore:::sentence_transformers"),
]
TEXTS = ["the cat sat on the mat", "dog", "a river runs to the sea"]


@pytest.mark.parametrize(
    ("architecture", "job", "changes"),
    [
        ("bert", "embed", ()),
        ("llama", "embed", ("lora.r=2", "lora.alpha=4")),
        ("bert", "rerank", ("long.recompute=true",)),
        ("opt", "rerank", ("model.template=ssm-rerankers",)),
    ],
)
def test_a_run_resumes_and_its_model_is_read_as_the_library_reads_it(
    tmp_path: Path, architecture: str, job: str, changes: tuple[str, ...]
) -> None:
    rate = ("train.learning_rate=1e-3", "train.max_steps=2", "train.checkpoints=2")
    rate += ("data.max_query_tokens=32", "data.max_document_tokens=32") if job == "embed" else ()
    recipe = tiny_recipe(job, f"model.name={tiny_checkpoint(architecture)}", *rate, *changes)
    with stopped_after(2):
        run_recipe(recipe, tmp_path / "run")
    summary = run_recipe(recipe, tmp_path / "run")
    assert summary.steps == 2 and np.isfinite(summary.last_loss) and summary.tokens > 0
    if "lora.r=2" not in changes:
        load_model(next((tmp_path / "run/checkpoints").iterdir()), "float32", job=job)
    loaded: Any = (Embedder if job == "embed" else Reranker).load(
        tmp_path / "run/model", "float32", "cpu"
    )
    assert isinstance(loaded.model.backbone, Library) == ((architecture, job) != ("bert", "embed"))
    if architecture == "llama":
        expected = SentenceTransformer(str(tmp_path / "run/model"), device="cpu").encode(
            TEXTS, normalize_embeddings=True
        )
        np.testing.assert_allclose(loaded.encode(TEXTS), expected, atol=1e-5)
    elif job == "rerank":
        scores = loaded.score("river", TEXTS)
        theirs = CrossEncoder(str(tmp_path / "run/model"), device="cpu")
        assert np.ptp(scores) > 0
        template = str(loaded.model.templates["rerank"])
        assert ("document: {document} ; query: {query} ;{end}" in template) == (
            architecture == "opt"
        )
        if architecture == "bert":
            expected = theirs.predict(
                [("river", text) for text in TEXTS], activation_fn=torch.nn.Identity()
            )
            np.testing.assert_allclose(scores, expected, atol=1e-5)


@pytest.mark.parametrize("architecture", ["electra", "bart", "gpt_neox"])
def test_recomputed_layers_give_the_same_gradients(architecture: str) -> None:
    """With dropout, as they are trained: the recomputed layers drop the same values."""
    model = load_model(tiny_checkpoint(architecture), "float64", "cpu")
    unfreeze(model)
    rows = [render_document(model, text) for text in TEXTS]
    found = []
    for long in (Long(), Long(recompute=True), Long()):
        torch.manual_seed(0)
        model.backbone.zero_grad()
        vectors(model, rows, long).pow(3).sum().backward()
        found.append(
            {
                name: one.grad.clone()
                for name, one in model.backbone.named_parameters()
                if one.grad is not None
            }
        )
    for other in found[1:]:
        assert other.keys() == found[0].keys() and len(other) > 20
        for name, gradient in other.items():
            torch.testing.assert_close(gradient, found[0][name], atol=1e-9, rtol=1e-9, msg=name)
