"""The documents of the index benchmark, its checks and its timings."""

from functools import partial

import pytest
from helpers.tiny import tiny_encoder, tiny_model

from benchmarks import searching
from benchmarks.searching import fill, queries, texts, time_searches
from runnel import Index
from runnel.search.encoding import remembers_sentences


@pytest.fixture(scope="module", params=[tiny_model, tiny_encoder, partial(tiny_encoder, sentence_layers=1)])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "model"
    request.param(folder.parent / "parts").save(folder)
    return str(folder)


def test_texts():
    found = texts(3)
    assert [len(text.split()) for text in found] == [1000] * 3
    assert found == texts(4)[:3] and len(set(found)) == 3
    assert texts(1, 7)[0].count(" ") == 6 and texts(0) == []
    made_up = [word for word in " ".join(found).split() if len(word) == 6 and set(word[1::2]) <= set("aeiou")]
    assert 30 < len(made_up) < 300 and len(set(made_up)) > 20
    for query in queries(found, 5):
        assert len(query.split()) == 8 and any(query in " ".join(text.split()) for text in found)


def test_an_index_is_filled_checked_and_timed(model, tmp_path, monkeypatch):
    monkeypatch.setattr(searching, "_COMMIT", 2)
    assert check_words(monkeypatch, 40) == 40
    facts = fill(str(tmp_path / "index"), model, 5, 2)
    index = Index.open(tmp_path / "index", model)
    assert facts["keeps_sentences"] == remembers_sentences(index.embedder)
    assert len(index) == 5 and facts["passages"] == index.store.last_commit().passages and facts["disk_bytes"] > 1000
    assert set(index.store.memories([f"d{i}" for i in range(5)])) == {f"d{i}" for i in range(5)}
    rows = index.store.documents([f"d{i}" for i in range(5)])
    assert [rows[f"d{i}"].text for i in range(5)] == texts(5, 40)
    found = time_searches(str(tmp_path / "index"), model, 5, 3)
    names = {"query", "dense", "lexical", "rerank", "fetch", "sentences", "first stage", "whole search", "without reranking"}
    assert set(found["seconds"]) == names and {len(values) for values in found["seconds"].values()} == {3}
    assert found["peak_bytes"] > 1 << 20
    for first, whole in zip(found["seconds"]["first stage"], found["seconds"]["whole search"], strict=True):
        assert 0 < first < whole


def check_words(monkeypatch, words):
    """Shorter documents."""
    monkeypatch.setattr(texts, "__defaults__", (words,))
    return words
