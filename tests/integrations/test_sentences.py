"""The best sentences of several texts."""

import pytest
from helpers.tiny import tiny_encoder, tiny_model

from runnel import SentenceRetriever
from runnel.errors import InputError
from runnel.integrations.sentences import best_sentences

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


def test_mistakes(retriever):
    with pytest.raises(InputError, match=r"top_k is 0; expected a whole number from 1"):
        best_sentences(retriever, "a river", TEXTS, 0)
    with pytest.raises(InputError, match="a document is None; expected text"):
        best_sentences(retriever, "a river", [None], 1)
