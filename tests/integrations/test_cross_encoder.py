"""Rerankers that do not score one vector of a pair, as a `CrossEncoder`: scored as by runnel, not trained."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.tiny import tiny_encoder, tiny_model
from helpers.tiny_backbones import tiny_backbone
from sentence_transformers import CrossEncoder

from runnel import Reranker
from runnel.backbones.rwkv7.model import Rwkv7, Rwkv7Config
from runnel.errors import InputError
from runnel.integrations.sentence_transformers import cross_encoder
from runnel.models.embedding_rwkv import StateScore

TEXTS = ["The cat sat on the mat. " * 20, "A dog ran to the sea.", "The river runs.", "A dog ran to the sea."]
PAIRS = [(query, text) for query in ("a dog", "the river") for text in TEXTS]


@pytest.fixture(params=["vectors", "states"])
def model(request, tmp_path):
    if request.param == "vectors":
        return tiny_encoder(tmp_path / "tiny")
    sizes = {"hidden_size": 32, "head_size": 16}
    backbone = tiny_backbone(Rwkv7, Rwkv7Config(vocab_size=128, num_layers=2, **sizes))
    model = tiny_model(tmp_path / "tiny", papers_heads=True, backbone=backbone)
    reader = tiny_backbone(Rwkv7, Rwkv7Config(vocab_size=1, num_layers=1, **sizes))
    model.heads["rerank"] = StateScore(backbone.state_shapes(), reader.config, (1,))
    model.heads["rerank"].reader.load_state_dict(reader.state_dict())
    model.heads.requires_grad_(False)
    return model


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_scores_are_those_of_the_reranker(model, batch_size):
    there, here = cross_encoder(model), Reranker(model)
    expected = np.concatenate([here.score(query, TEXTS) for query in ("a dog", "the river")])
    assert len(set(expected.round(6).tolist())) > 4
    np.testing.assert_allclose(there.predict(PAIRS, batch_size=batch_size), expected, atol=1e-5)
    ranked = there.rank("a dog", TEXTS, batch_size=batch_size)
    assert [one["corpus_id"] for one in ranked] == [int(hit.id) for hit in here.rank("a dog", TEXTS)]
    prompted = there.predict([("dog", TEXTS[1])], prompt="a ")
    np.testing.assert_allclose(prompted, expected[1:2], atol=1e-5)


def test_a_saved_folder_loads_in_the_library(model, tmp_path):
    Reranker(model).save(tmp_path / "folder")
    again = CrossEncoder(str(tmp_path / "folder"), trust_remote_code=True, local_files_only=True)
    np.testing.assert_allclose(again.predict(PAIRS), cross_encoder(model).predict(PAIRS), atol=1e-5)


def test_it_cannot_be_trained_or_cut(model, tmp_path):
    there = cross_encoder(model)
    with pytest.raises(
        InputError, match=r"scores (stored vectors|a state.*), which cannot be trained here; train a model that scores one vector"
    ):
        there[0].train().preprocess(PAIRS)
    if model.head("rerank").inputs == "vectors":
        with pytest.raises(InputError, match="reads documents of any length, in passages; do not give max_tokens"):
            cross_encoder(model, max_seq_length=8).predict(PAIRS)


def test_pocket_ranks():
    ranked = cross_encoder("pocket").rank("when does the train leave", ["Tuples are immutable.", "The train leaves at noon."])
    assert [one["corpus_id"] for one in ranked] == [1, 0]
