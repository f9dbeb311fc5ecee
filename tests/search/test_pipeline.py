"""The stages of a search: what the reranker changes, what is read for sentences, what each costs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.tiny import tiny_model

from runnel import Document, Embedder, Reranker, SentenceRetriever
from runnel.errors import InputError
from runnel.models.memory import DocumentState, Memory
from runnel.request import TokenCount
from runnel.search.index import Index
from runnel.search.pipeline import fuse
from runnel.text.templates import Template

RNG = np.random.default_rng(3)
WORDS = "the a of finally clause is executed cat dog sat on mat river runs to sea".split()
TEXTS = {f"d{i}": " ".join(RNG.choice(WORDS, 12)) + ". " + " ".join(RNG.choice(WORDS, 9)) + "." for i in range(12)}
QUERY = "the river of the cat"


@pytest.fixture(scope="module")
def index(embedder, tmp_path_factory):
    with Index.create(tmp_path_factory.mktemp("index"), embedder, remember=True) as made:
        made.add(Document(name, text) for name, text in TEXTS.items())
        yield made


@pytest.fixture(scope="module")
def plain(embedder, tmp_path_factory):
    """Not remembered."""
    with Index.create(tmp_path_factory.mktemp("plain"), embedder) as made:
        made.add(Document(name, text) for name, text in TEXTS.items())
        yield made


def reranked(index, texts, first):
    """Names of `first` in the order of the reranker's scores of whole pairs."""
    scores = Reranker(index.embedder.model).score(QUERY, [texts[name] for name in first])
    return [first[i] for i in np.argsort(-scores, kind="stable")]


def test_the_rerankers_order_is_a_third_list(plain):
    vector = plain.embedder.encode_query([QUERY])[0]
    lists = [[f.document for f in found] for found in (plain.store.nearest(vector, 200, []), plain.store.lexical(QUERY, 200, []))]
    lists = [list(dict.fromkeys(names)) for names in lists]
    first = [hit.id for hit in plain.search(QUERY, top_k=12)]
    assert first == [name for name, _ in fuse(lists, (0.2, 1))]  # without memory nothing is reranked unless asked for

    hits = plain.search(QUERY, top_k=12, rerank=5)
    expected = fuse([*lists, reranked(plain, TEXTS, first[:5])], (0.2, 1, 1))
    assert [(hit.id, hit.score) for hit in hits] == expected
    assert {hit.id for hit in hits[:5]} == set(first[:5]) and [hit.id for hit in hits[5:]] == first[5:]
    assert [hit.id for hit in plain.search(QUERY, top_k=12, dense_weight=0)] == lists[1]  # and no others
    assert [hit.id for hit in plain.search(QUERY, top_k=12, dense_weight=math.inf)] == lists[0]
    assert plain.search("zebra", dense_weight=0) == []


def test_the_parts_of_an_explanation_add_up_to_the_score(index, plain):
    reranked = plain.search(QUERY, top_k=12, rerank=5)
    for hit in [*reranked, *index.search(QUERY), *plain.search(QUERY), *plain.search(QUERY, dense_weight=math.inf)]:
        why = hit.explanation
        assert why.meaning.score + why.words.score + why.reranked.score == pytest.approx(hit.score)
        for part, weight in ((why.meaning, (0.2, 1.0)), (why.words, (1,)), (why.reranked, (1,))):
            assert part.score in (0 if part.rank is None else weight / (60 + part.rank) for weight in weight)
        assert (why.relevance is None) == (why.reranked.rank is None)
    assert [hit.explanation.reranked.rank is not None for hit in reranked] == [True] * 5 + [False] * 7
    by_relevance = sorted((hit.explanation for hit in reranked[:5]), key=lambda why: -why.relevance)
    assert [why.reranked.rank for why in by_relevance] == [1, 2, 3, 4, 5]


def test_remembered_documents_rank_as_whole_pairs_do(index, plain):
    timings: dict[str, float] = {}
    remembered = index.search(QUERY, top_k=12, timings=timings)
    assert list(timings) == ["query", "dense", "lexical", "rerank", "fetch", "sentences"]
    assert index.search(QUERY, top_k=12, rerank=0) != remembered
    pieces = index.store.memories(["d3", "nothing", "d1"])
    assert set(pieces) == {"d1", "d3"} and plain.store.memories(["d3"]) == {}
    from_memory = index._pipeline._rerank(QUERY, list(TEXTS), TokenCount(None))
    scores = dict(zip(TEXTS, Reranker(index.embedder.model).score(QUERY, list(TEXTS.values())).tolist(), strict=True))
    assert from_memory == pytest.approx(scores, abs=2e-2)  # int8
    assert max(scores.values()) - min(scores.values()) > 0.1


def test_no_text_is_read_to_rerank_what_is_remembered(index, monkeypatch):
    read = []
    engine_map = index.embedder.model.engine.map

    def counting(requests, on_tokens=None):
        requests = list(requests)
        read.append(sum(len(request.ids) for request in requests))
        return engine_map(requests, on_tokens)

    monkeypatch.setattr(index.embedder.model.engine, "map", counting)
    index.search(QUERY, sentences=0)
    query = len(index.embedder.model.tokenizer.encode(QUERY).ids)
    assert sum(read) <= (len(TEXTS) + 1) * (query + 2)


def test_remembered_documents_are_read_once(embedder, tmp_path):
    steps: list[int] = []
    with Index.create(tmp_path / "index", embedder, remember=True) as index:
        changes = index.add(
            [Document(name, text) for name, text in TEXTS.items()], progress=lambda done, total: steps.append(done)
        )
        assert steps[-1] == changes.tokens_read > 0
        expected = Reranker(embedder.model).remember(TEXTS.values())
        scores = [Reranker(embedder.model).score(QUERY, memory) for memory in (expected, of_index(index))]
    np.testing.assert_allclose(scores[1], scores[0], atol=2e-2)


def of_index(index):
    pieces = index.store.memories(list(TEXTS)).items()
    return Memory(index.embedder.model.backbone, {name: DocumentState.from_bytes(piece, TEXTS[name]) for name, piece in pieces})


def test_a_reranker_that_reads_documents_otherwise_reads_them_again(tmp_path):
    model = tiny_model(tmp_path / "tiny")
    model.templates["document"] = Template.parse("{document}{end}")
    with Index.create(tmp_path / "index", Embedder(model), remember=True) as index:
        index.add([Document(name, text) for name, text in TEXTS.items()])
        expected = Reranker(model).score(QUERY, list(TEXTS.values()))
        np.testing.assert_allclose(Reranker(model).score(QUERY, of_index(index)), expected, atol=2e-2)


def test_memory_follows_its_document(embedder, tmp_path):
    with Index.create(tmp_path / "index", embedder, remember=True) as index:
        index.add([Document("a", "The cat sat."), Document("b", "A river runs.")])
        before = index.store.memories(["a", "b"])
        index.add([Document("a", "The dog sat on the mat."), Document("b", "A river runs.")])
        after = index.store.memories(["a", "b"])
        assert after["b"] == before["b"] and after["a"] != before["a"]
        index.delete(["a"])
        assert set(index.store.memories(["a", "b"])) == {"b"}
        index.optimize()
    with Index.open(tmp_path / "index", embedder) as again:
        assert again.store.settings.remember and again.store.memories(["b"]) == {"b": before["b"]}


def test_sentences_are_those_of_one_pass_over_each_of_the_best_documents(plain):
    hits = plain.search(QUERY, top_k=4, read=2, sentences=1)
    retriever = SentenceRetriever(plain.embedder.model)
    for hit in hits[:2]:
        (best,) = retriever.retrieve(QUERY, hit.text, 1)
        (shown,) = hit.sentences
        assert (shown.text, shown.start) == (best.text, best.start)
    assert [hit.sentences for hit in hits[2:]] == [(), ()]
    assert all(hit.sentences == () for hit in plain.search(QUERY, read=0))


def test_a_model_that_cannot_rerank_is_told(tmp_path):
    model = tiny_model(tmp_path / "tiny")
    del model.heads["rerank"]
    embedder = Embedder(model)
    with pytest.raises(InputError, match="cannot remember documents"):
        Index.create(tmp_path / "index", embedder, remember=True)
    with Index.create(tmp_path / "index", embedder) as index:
        index.add([Document("a", "The cat sat.")])
        assert index.search("cat")[0].id == "a"
        with pytest.raises(InputError, match="no rerank head"):
            index.search("cat", rerank=3)
