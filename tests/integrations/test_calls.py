"""What the modules for other libraries share: models by object or name, and the best sentences of several texts."""

import numpy as np
import pytest
from helpers.tiny import tiny_encoder, tiny_model

from runnel import Embedder, Reranker, SentenceRetriever
from runnel.errors import CheckpointError, InputError
from runnel.integrations.calls import best_sentences, loaded, name_of

TEXTS = ["  The cat sat.  A dog ran to\nthe sea. ", "", " \n ", "The river runs. A dog ran to the  sea.\n\nA mat."]


@pytest.fixture(scope="module", params=[tiny_encoder, tiny_model], ids=["vectors", "recurrent"])
def retriever(request, tmp_path_factory):
    return SentenceRetriever(request.param(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("top_k", [1, 3, 50])
def test_they_are_the_best_of_all_texts_once_each(retriever, top_k):
    everything = [one for sentences in retriever.score_many("a river", TEXTS) for one in sentences if one.text.strip()]
    assert len({" ".join(one.text.split()) for one in everything}) == len(everything) - 1  # one is in two texts
    best = best_sentences(retriever, "a river", TEXTS, top_k)
    words = [" ".join(one.text.split()) for _, one in best]
    expected = [" ".join(one.text.split()) for one in sorted(everything, key=lambda one: -one.score)]
    assert words == list(dict.fromkeys(expected))[:top_k]
    scores = [one.score for _, one in best]
    assert scores == sorted(scores, reverse=True)


def test_their_places_have_no_whitespace_around_them(retriever):
    best = best_sentences(retriever, "a river", TEXTS, 10)
    assert len(best) == 4
    for position, one in best:
        assert TEXTS[position][one.start : one.end] == one.text == one.text.strip() != ""


def test_a_lowest_score(retriever):
    best = best_sentences(retriever, "a river", TEXTS, 10)
    middle = best[1][1].score
    assert best_sentences(retriever, "a river", TEXTS, 10, min_score=middle) == [one for one in best if one[1].score >= middle]
    assert best_sentences(retriever, "a river", TEXTS, 10, min_score=best[0][1].score + 1) == []


@pytest.mark.parametrize("texts", [[], [""], ["\t"]])
def test_nothing_to_find(retriever, texts):
    assert best_sentences(retriever, "a river", texts, 5) == []


def test_an_object_is_used_and_a_name_is_loaded(tmp_path):
    embedder = Embedder(tiny_encoder(tmp_path / "tiny"))
    embedder.save(tmp_path / "saved")
    assert loaded(Embedder, embedder) is embedder and name_of(Embedder, embedder) == "tiny encoder"
    again = loaded(Embedder, tmp_path / "saved")
    np.testing.assert_allclose(again.encode("a cat"), embedder.encode("a cat"), atol=0.02)  # the tiny model is in fp32
    assert name_of(Embedder, again) == name_of(Embedder, tmp_path / "saved") == str(tmp_path / "saved")


def test_mistakes(tmp_path):
    embedder = Embedder(tiny_encoder(tmp_path / "tiny"))
    for function in (loaded, name_of):
        with pytest.raises(InputError, match="the model is of type Embedder; expected Reranker, or a name, folder or hub id"):
            function(Reranker, embedder)
    with pytest.raises(CheckpointError, match="no-such-model"):
        loaded(Reranker, "no-such-model")
