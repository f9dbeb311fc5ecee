"""The documents of the index benchmark, its checks and its timings."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from helpers.tiny import tiny_encoder, tiny_model

from benchmarks import searching
from benchmarks.searching import check, fill, queries, texts, time_indexing, time_searches
from runnel import Document, Embedder, Index
from runnel.errors import StateError
from runnel.models.sentence_vectors import SentenceVectors
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


def test_indexing_is_timed_next_to_the_engine(model, monkeypatch):
    check_words(monkeypatch, 20)
    found = time_indexing(model, 3, 2)
    assert {way: len(seconds) for way, seconds in found["seconds"].items()} == {"engine": 2, "index": 2, "remember": 2}
    assert found["tokens"] == sum(map(len, Embedder.load(model).render(texts(3, 20))))


def check_words(monkeypatch, words):
    monkeypatch.setattr(texts, "__defaults__", (words,))
    return words


def mirrored_memory(read):
    passages = None if read.passages is None else (read.passages[0][:, ::-1], read.passages[1])
    return replace(read, vectors=read.vectors[:, ::-1], passages=passages)


@pytest.mark.parametrize("fault", ["vectors", "nearest", "memories"])
def test_a_wrong_index_is_reported(model, tmp_path, monkeypatch, fault):
    check_words(monkeypatch, 30)
    documents = texts(8)
    with Index.create(tmp_path / "index", model, remember=True) as index:
        index.add(Document(f"d{i}", text) for i, text in enumerate(documents))
        assert check(index, documents) == ""
        store, real = index.store, {name: getattr(index.store, name) for name in ("passages", "nearest", "memories")}
        if fault == "vectors":

            def mirrored(names):
                return {name: replace(row, vector=row.vector[::-1]) for name, row in real["passages"](names).items()}

            monkeypatch.setattr(store, "passages", mirrored)
            assert "vectors of a document differ" in check(index, documents)
        elif fault == "nearest":
            monkeypatch.setattr(store, "nearest", lambda vector, count, where: real["nearest"](-vector, count, where))
            assert "nearest passages are not" in check(index, documents)
        else:

            def mixed(names):
                found = real["memories"](names)
                if remembers_sentences(index.embedder):
                    read = {name: SentenceVectors.from_bytes(found[name], documents[int(name[1:])]) for name in found}
                    return {name: mirrored_memory(one).to_bytes() for name, one in read.items()}
                return dict(zip(found, np.roll(np.array(list(found.values()), dtype=object), 1), strict=True))

            monkeypatch.setattr(store, "memories", mixed)
            if remembers_sentences(index.embedder):
                assert "agree with whole pairs by" in check(index, documents)
            else:
                with pytest.raises(StateError, match="belongs to another text"):
                    check(index, documents)
