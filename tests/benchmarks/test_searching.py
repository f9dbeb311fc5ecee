"""The documents of the index benchmark, its checks and its timings."""

from dataclasses import replace
from functools import partial

import pytest
from helpers.tiny import tiny_encoder, tiny_model

from benchmarks import searching
from benchmarks.searching import check, fill, queries, texts, time_indexing, time_searches
from runnel import Document, Embedder, Index
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.search.encoding import remembers_sentences


@pytest.fixture(scope="module", params=[tiny_model, partial(tiny_encoder, sentence_layers=1)])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "model"
    request.param(folder.parent / "parts").save(folder)
    return str(folder)


def test_texts():
    found = texts(3)
    assert [len(text.split()) for text in found] == [1000] * 3
    assert found == texts(4)[:3] and len(set(found)) == 3
    assert texts(1, 7)[0].count(" ") == 6 and texts(0) == []
    for query in queries(found, 5):
        assert len(query.split()) == 8 and any(query in " ".join(text.split()) for text in found)


def test_an_index_is_filled_checked_and_timed(model, tmp_path, monkeypatch):
    monkeypatch.setattr(searching, "_COMMIT", 2)
    monkeypatch.setattr(texts, "__defaults__", (40,))  # words
    facts = fill(str(tmp_path / "index"), model, 5, 2)
    index = Index.open(tmp_path / "index", model)
    assert facts["keeps_sentences"] == remembers_sentences(index.embedder)
    assert (
        len(index) == 5
        and facts["passages"] == index.store.last_commit().passages
        and facts["disk_bytes"] > 1000
    )
    names = [f"d{i}" for i in range(5)]
    assert set(index.store.memories(names)) == set(names)
    assert [index.store.documents(names)[name].text for name in names] == texts(5, 40)
    found = time_searches(str(tmp_path / "index"), model, 5, 3)
    names = {
        "query",
        "dense",
        "lexical",
        "rerank",
        "fetch",
        "sentences",
        "first stage",
        "whole search",
        "without reranking",
    }
    assert set(found["seconds"]) == names and {
        len(values) for values in found["seconds"].values()
    } == {3}
    assert found["peak_bytes"] > 1 << 20
    for first, whole in zip(
        found["seconds"]["first stage"], found["seconds"]["whole search"], strict=True
    ):
        assert 0 < first < whole
    found = time_indexing(model, 3, 2)
    assert {way: len(seconds) for way, seconds in found["seconds"].items()} == {
        "engine": 2,
        "index": 2,
        "remember": 2,
    }
    assert found["tokens"] == sum(map(len, Embedder.load(model).render(texts(3))))


def test_a_wrong_index_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "__defaults__", (30,))
    documents = texts(8)
    embedder = Embedder(tiny_encoder(tmp_path / "model", sentence_layers=1))
    with Index.create(tmp_path / "index", embedder, remember=True) as index:
        index.add(Document(f"d{i}", text) for i, text in enumerate(documents))
        assert check(index, documents) == ""
        store = index.store
        memories, scan, nearest = store.memories, store.scan, store.nearest

        def turned():
            return ([replace(row, vector=row.vector[::-1]) for row in rows] for rows in scan())

        def mirrored(names):
            read = {
                name: SentenceVectors.from_bytes(one, documents[int(name[1:])])
                for name, one in memories(names).items()
            }
            return {
                name: replace(
                    one, vectors=-one.vectors, passages=(-one.passages[0], one.passages[1])
                ).to_bytes()
                for name, one in read.items()
            }

        for fault, wrong, message in [
            ("scan", turned, "vectors of a document differ"),
            (
                "nearest",
                lambda vector, count, where: nearest(-vector, count, where),
                "nearest passages are not",
            ),
            ("memories", mirrored, "agree with whole pairs by"),
        ]:
            with monkeypatch.context() as patch:
                patch.setattr(store, fault, wrong)
                assert message in check(index, documents)
