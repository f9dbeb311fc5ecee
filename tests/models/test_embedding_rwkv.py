"""EmbeddingRWKV: vectors and scores of its authors' code, remembered documents, saving, and what is
refused.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny import write_embedding_rwkv
from helpers.tokenizers_for_tests import build
from safetensors.torch import load_file
from torch import Tensor

from runnel import Embedder, Reranker
from runnel.errors import CheckpointError, InputError
from runnel.models.foreign.embedding_rwkv import PROMPTS, TEMPLATES
from runnel.models.items import Item
from runnel.models.recurrent.graph import make_pair

GOLDEN = Path(__file__).parents[1] / "golden" / "embedding-rwkv-tiny"
EMBEDDER, RERANKER = "rwkv0b0-emb-curriculum.pth", "rwkv0b0-reranker.pth"
END = 319
DOCUMENTS = [
    "The cat sat on the mat.",
    "A river runs to the sea",
    "Dogs bark. Cats do not, as a rule; some do.",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embedding_rwkv(tmp_path_factory.mktemp("embedding-rwkv"))


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    return load_file(GOLDEN / "expected.safetensors")


def load(kind: type, folder: Path):
    return kind.load(folder, dtype="float32", device="cpu")


def test_vectors_are_those_of_the_authors_code(folder, expected):
    for source in (folder, folder / EMBEDDER):  # with and without the reranker
        (vector,) = load(Embedder, source).encode_rows([expected["input_ids"].numpy()])
        np.testing.assert_allclose(vector, expected["vector"], atol=2e-6)


def test_scores_are_those_of_the_authors_code(folder, expected):
    reranker = load(Reranker, folder)
    head = reranker.model.head("rerank")
    items = [Item(head.request(expected[name].numpy()), 0) for name in ("pair_0", "pair_1")]
    np.testing.assert_allclose(reranker.score_pairs(items), expected["scores"], atol=2e-5)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_remembered_documents_have_the_scores_of_whole_pairs(folder, tmp_path, count):
    reranker = load(Reranker, folder)
    whole = reranker.score("who barks?", DOCUMENTS[:count])
    for path in (None, tmp_path / "memory"):
        memory = reranker.remember(DOCUMENTS[:count], path, "fp32")
        np.testing.assert_allclose(reranker.score("who barks?", memory), whole, atol=2e-5)
        # states in it are not changed
        np.testing.assert_allclose(reranker.score("who barks?", memory), whole, atol=2e-5)
    assert count < 2 or whole.std() > 0.01


def test_texts_are_written_as_in_the_authors_readme(folder):
    """With the published vocabulary the ids are those of the whole string."""
    embedder = load(Embedder, folder)
    world = build("rwkv_world")
    query, document = "What ends a line: \\n?", "The end of a line. It says: no more"
    pair = (
        "Instruct: Given a query, retrieve documents that answer the query\nDocument:"
        f" {document}\nQuery: {query}"
    )
    template = TEMPLATES["rerank"]
    parts = {}
    for name, text in (("query", query), ("document", document)):
        parts[name] = template.encode(world, name, text).ids
    assert template.render(world, **parts).ids.tolist() == [*world.encode(pair).ids, 0]
    own = embedder.model.tokenizer
    (row,) = embedder.render(["ab"], prompt="query")
    text = "Instruct: Given a query, retrieve documents that answer the query\nQuery: ab"
    assert row.tolist() == [*own.encode(text).ids, END]
    assert embedder.model.prompts == PROMPTS and (own.begin_id, own.end_id) == (None, END)


def test_a_saved_folder_gives_the_same(folder, tmp_path):
    embedder = load(Embedder, folder)
    reranker = load(Reranker, folder)
    reranker.save(tmp_path)
    np.testing.assert_array_equal(
        load(Embedder, tmp_path).encode(DOCUMENTS), embedder.encode(DOCUMENTS)
    )
    again = load(Reranker, tmp_path)
    np.testing.assert_array_equal(
        again.score("a cat", DOCUMENTS), reranker.score("a cat", DOCUMENTS)
    )
    assert again.model.fingerprint() == reranker.model.fingerprint()


def test_one_half_does_not_do_the_other_s_job(folder):
    with pytest.raises(CheckpointError, match="has no 'rerank' head"):
        load(Reranker, folder / EMBEDDER)
    with pytest.raises(CheckpointError, match="without the embedder"):
        load(Reranker, folder / RERANKER)
    with pytest.raises(InputError, match="cannot be trained here"):
        make_pair(load(Reranker, folder).model, "a", "b")


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        (
            EMBEDDER,
            {"vit.embeddings.weight": torch.zeros(1)},
            "unexpected tensor 'vit.embeddings.weight'",
        ),
        (
            EMBEDDER,
            {"head.new_head.fc1.weight": torch.zeros(1)},
            "unexpected tensor 'new_head.fc1.weight'",
        ),
        (EMBEDDER, {"head.retr_head.fc2.weight": None}, "missing tensor 'fc2.weight'"),
        (RERANKER, {"reranker.head.2.weight": None}, "missing tensor 'linear.weight'"),
        (RERANKER, {"reranker_layer_idx": [0, 3]}, r"reads the layers \[0, 3\] of 3"),
        (RERANKER, {"reranker_layer_idx": [0]}, r"reads the layers \[0\] of 3"),
    ],
)
def test_other_checkpoints_are_refused(folder, tmp_path, file, changes, message):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    tensors = torch.load(tmp_path / file, weights_only=True) | changes
    torch.save(
        {name: tensor for name, tensor in tensors.items() if tensor is not None}, tmp_path / file
    )
    with pytest.raises(CheckpointError, match=message):
        load(Reranker, tmp_path)
