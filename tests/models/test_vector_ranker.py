"""Reranking by what is stored of a document."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.tiny import tiny_encoder, tiny_model

from runnel import Reranker
from runnel.backbones.encoder.model import lay_out
from runnel.errors import InputError
from runnel.models.lexical import static_bm25, word_table
from runnel.models.sentence_vectors import SentenceVectors

DOCUMENTS = ["The cat sat on the mat. A dog ran.", "A river runs to the sea.", "", "The river. " * 20, "A river runs to the sea."]
QUERY = "where does the river run"


@pytest.fixture(scope="module", params=[0, 1], ids=["one form", "layers of its own"])
def reranker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reranker:
    return Reranker(tiny_encoder(tmp_path_factory.mktemp("tiny"), sentence_layers=request.param))


def test_a_score_is_the_weighted_sum_of_its_features(reranker: Reranker) -> None:
    model = reranker.model
    linear = model.heads["rerank"].linear
    assert model.features is not None
    table = word_table(model.tokenizer.vocabulary, model.features.idf.numpy())
    text = f"{DOCUMENTS[0]} {DOCUMENTS[1]} " * 2
    ids = [model.tokenizer.encode(text).ids for text in (QUERY, text)]
    memory = reranker.remember([text])
    document = memory["0"]
    assert isinstance(document, SentenceVectors)
    ask = model.backbone(torch.tensor([2, *ids[0], 3]))[0].mean(0)

    row = lay_out(document.ids, document.bounds, model.backbone, model.tokenizer.markers())
    blocks = np.split(row.ids, row.edges[1:-1])
    sums = torch.stack([model.backbone(torch.from_numpy(block).long())[0][1:-1].sum(0) for block in blocks])
    assert len(sums) > 2
    nearest = float(F.cosine_similarity(sums, ask[None]).max())
    features = [nearest, float(F.cosine_similarity(sums.sum(0), ask, dim=0)), static_bm25(ids[1], ids[0], table)]
    expected = linear.weight[0] @ linear.weight.new_tensor(features) + linear.bias[0]
    assert reranker.score(QUERY, [text])[0] == pytest.approx(float(expected), abs=0.01)  # 8 bits


def test_a_score_does_not_depend_on_the_other_documents_or_on_being_remembered(reranker: Reranker) -> None:
    scores = reranker.score(QUERY, DOCUMENTS)
    assert scores.shape == (5,) and scores[1] == scores[4] and np.isfinite(scores).all()
    assert scores[2] == reranker.score(QUERY, ["\u200b"])[0] < scores[[0, 1, 3]].min() - 100, "without a token"
    memory = reranker.remember(DOCUMENTS)
    assert len(memory) == 5
    np.testing.assert_allclose(reranker.score(QUERY, memory), scores, atol=0.05)
    for text, score in zip(DOCUMENTS, scores, strict=True):
        np.testing.assert_allclose(reranker.score(QUERY, [text]), [score], atol=0.05)  # 8 bits of other steps
    hits = reranker.rank(QUERY, memory.select(["3", "0"]))
    assert {hit.id for hit in hits} == {"3", "0"} and hits[0].score >= hits[1].score
    assert [hit.rank for hit in reranker.rank(QUERY, {"a": DOCUMENTS[0], "b": DOCUMENTS[1]}, 1)] == [1]
    assert reranker.score(QUERY, []).shape == (0,)


def test_progress_counts_every_token_once(reranker: Reranker) -> None:
    seen: list[int] = []
    reranker.score(QUERY, DOCUMENTS[:2], progress=seen.append)
    assert sum(seen) == sum(len(reranker.model.tokenizer.encode(text).ids) + 2 for text in DOCUMENTS[:2])


def test_what_cannot_be_done_says_so(reranker: Reranker, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = Reranker(tiny_model(tmp_path_factory.mktemp("other")))
    memories = reranker.remember(DOCUMENTS[:1]), other.remember(DOCUMENTS[:1])
    for call, message in (
        (lambda: reranker.score(QUERY, DOCUMENTS, max_tokens=50), "do not give max_tokens"),
        (lambda: reranker.score(QUERY, memories[1]), "made by another model"),
        (lambda: other.score(QUERY, memories[0]), "made by another model"),
        (lambda: reranker.remember(DOCUMENTS[:1]).select(["7"]), "document '7' is not in this memory"),
        (lambda: other.remember(DOCUMENTS[:1]).select(["7"]), "document '7' is not in this memory"),
    ):
        with pytest.raises(InputError, match=message):
            call()
