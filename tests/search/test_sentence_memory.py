"""Indexes that remember the sentences of documents: no question reads a document again, and the answers are the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.tiny import tiny_encoder, tiny_model

from runnel import Document, Embedder, Reranker, SentenceRetriever
from runnel.errors import InputError, StoreError
from runnel.search.check import check
from runnel.search.encoding import new_settings
from runnel.search.index import Index
from runnel.search.pipeline import _with_first_stage
from runnel.search.stores import create_store

RNG = np.random.default_rng(4)
WORDS = "the a of finally clause is executed cat dog sat on mat river runs to sea".split()
QUERY = "the river of the cat"


def text_of(sentences: int) -> str:
    return " ".join(" ".join(RNG.choice(WORDS, 7)).capitalize() + "." for _ in range(sentences))


TEXTS = {f"d{i}": text_of(count) for i, count in enumerate((1, 2, 3, 5, 9, 14, 1, 30))}


@pytest.fixture(scope="module", params=[0, 1], ids=["one form", "layers of its own"])
def embedder(request, tmp_path_factory):
    return Embedder(tiny_encoder(tmp_path_factory.mktemp("tiny"), sentence_layers=request.param))


def documents(**changed: str):
    return [Document(name, text) for name, text in (TEXTS | changed).items()]


@pytest.fixture(params=["lance", "qdrant"])
def index(request, place_of, embedder):
    place = place_of(request.param)
    store = place.create(new_settings(embedder))
    with Index(store, embedder) as made:
        made.add(documents())
        yield made


@pytest.fixture
def local(embedder, tmp_path):
    with Index.create(tmp_path / "local", embedder) as made:
        made.add(documents())
        yield made


def shown(hits):
    return [(hit.id, [(s.text, s.start, s.end, s.index, round(s.score, 4)) for s in hit.sentences]) for hit in hits]


def read_tokens(model, monkeypatch):
    """The tokens of each request to the engine from now on."""
    read: list[int] = []

    def counting(run):
        def counted(requests):
            for request in requests:
                read.append(len(request.ids))
                yield request

        return lambda requests, *more: run(counted(requests), *more)

    for engine in {model.engine, model.sentence_engine(texts=False), model.sentence_engine(texts=True)}:
        monkeypatch.setattr(engine, "map", counting(engine.map))
    return read


def test_sentences_are_remembered_without_being_asked_for(embedder, local):
    settings = new_settings(embedder)
    assert (settings.passage_tokens, settings.remember) == (12, True)
    assert new_settings(embedder, None, 12, True) == settings  # these say what is so anyhow
    assert set(local.store.memories(list(TEXTS))) == set(TEXTS)
    assert local.check() == []
    with pytest.raises(InputError, match="passage_tokens=20"):
        new_settings(embedder, passage_tokens=20)


def test_recurrent_models_keep_their_defaults(tmp_path):
    settings = new_settings(Embedder(tiny_model(tmp_path)))
    assert (settings.passage_tokens, settings.remember) == (256, False)


def test_sentences_from_memory_are_those_found_by_reading(index, embedder):
    hits = index.search(QUERY, top_k=20, rerank=0)
    assert len(hits) == len(TEXTS) and all(hit.sentences for hit in hits)  # of every document, not of five
    retriever = SentenceRetriever(embedder.model)
    for hit in hits:
        scores = {s.start: s.score for s in retriever.score(QUERY, hit.text)}
        best = sorted(scores.values(), reverse=True)
        assert all(abs(scores[s.start] - s.score) < 0.05 for s in hit.sentences)  # other steps, other rounding
        assert max(s.score for s in hit.sentences) == pytest.approx(best[0], abs=0.05)
    assert [bool(hit.sentences) for hit in index.search(QUERY, top_k=3, read=1)] == [True, False, False]


def test_no_document_is_read_to_search(index, embedder, monkeypatch):
    read = read_tokens(embedder.model, monkeypatch)
    assert index.search(QUERY, top_k=20, rerank=8)[0].sentences
    query = len(embedder.model.tokenizer.encode(QUERY).ids) + 2
    assert read and set(read) == {query}


def first_stage(index, dense_weight=1.0):
    """The cosine of each document's best passage, and its BM25 score."""
    dense, lexical = {}, {}
    for one in index.store.nearest(index.embedder.encode_query([QUERY])[0], 200, []) if dense_weight else []:
        dense[one.document] = max(one.score, dense.get(one.document, -1.0))
    for one in index.store.lexical(QUERY, 200, []):
        lexical[one.document] = max(one.score, lexical.get(one.document, 0.0))
    return dense, lexical


@pytest.mark.parametrize("dense_weight", [1.0, 0.0])
def test_relevance_adds_the_cosine_and_the_share_of_words_to_the_rerankers_score(index, embedder, dense_weight):
    (dense, lexical), reranker = first_stage(index, dense_weight), Reranker(embedder.model)
    scores = dict(zip(TEXTS, reranker.score(QUERY, reranker.remember(TEXTS)).tolist(), strict=True))
    expected = {
        name: score + 16 * dense.get(name, 0.0) + 4 * lexical.get(name, 0.0) / max(lexical.values())
        for name, score in scores.items()
        if name in dense or name in lexical
    }
    hits = index.search(QUERY, top_k=20, dense_weight=dense_weight)
    relevance = {hit.id: hit.explanation.relevance for hit in hits}
    assert relevance == pytest.approx(expected, abs=0.05)  # other steps, other rounding
    by_rank = [hit.explanation.relevance for hit in sorted(hits, key=lambda hit: hit.explanation.reranked.rank)]
    assert by_rank == sorted(by_rank, reverse=True) and len(by_rank) == len(hits)
    assert len(set(lexical.values())) > 2 and len(set(np.round(list(scores.values()), 2))) > 2


def test_documents_beyond_a_list_have_its_lowest_cosine_and_no_words():
    relevance = _with_first_stage({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 0.9, "b": -0.1}, {"a": 5.0, "x": 10.0})
    assert relevance == {"a": 1 + 16 * 0.9 + 4 * 0.5, "b": 2 - 16 * 0.1, "c": 3 - 16 * 0.1}
    assert _with_first_stage({"a": 1.0}, {}, {}) == {"a": 1.0} and _with_first_stage({}, {"a": 1.0}, {"a": 1.0}) == {}


def test_an_index_without_memories_is_read(local, embedder, tmp_path):
    plain = replace(new_settings(embedder), remember=False)
    with Index(create_store(tmp_path / "plain", plain), embedder) as made:
        made.add(documents())
        assert made.store.memories(list(TEXTS)) == {} and made.check() == []
        hits = made.search(QUERY, top_k=20)
        assert [bool(hit.sentences) for hit in hits] == [True] * 5 + [False] * 3
        assert len(made.search(QUERY, top_k=20, rerank=4)) == 8
        by_name = dict(shown(local.search(QUERY, top_k=20, rerank=0)))
        for name, sentences in shown(hits)[:5]:
            assert [s[0] for s in sentences] == [s[0] for s in by_name[name]]


def test_a_model_with_other_layers_for_sentences_alone_is_another_model(tmp_path):
    embedder = Embedder(tiny_encoder(tmp_path / "tiny", sentence_layers=1))
    Index.create(tmp_path / "made", embedder).close()
    vectors = embedder.encode(QUERY)
    with torch.no_grad():
        for block in embedder.model.backbone.sentence_layers:
            for parameter in block.parameters():
                parameter.add_(torch.randn(parameter.shape))
    embedder.model.save(tmp_path / "trained")
    trained = Embedder.load(tmp_path / "trained", "float32")
    trained.model.source = "tiny encoder"
    assert np.array_equal(trained.encode(QUERY), vectors)
    with pytest.raises(StoreError, match="made with the model 'tiny encoder'; 'tiny encoder', as it is now"):
        Index.open(tmp_path / "made", trained)


def test_documents_with_and_without_memory_side_by_side(local, monkeypatch, embedder):
    whole = shown(local.search(QUERY, top_k=20))
    memories = local.store.memories
    monkeypatch.setattr(
        local.store, "memories", lambda ids: {name: m for name, m in memories(ids).items() if name not in ("d1", "d4")}
    )
    read = read_tokens(embedder.model, monkeypatch)
    mixed = shown(local.search(QUERY, top_k=20))
    assert [(name, [s[0] for s in found]) for name, found in mixed] == [(name, [s[0] for s in found]) for name, found in whole]
    assert len([count for count in read if count > len(QUERY.split()) + 2]) == 4  # two documents, to rerank and for sentences


@pytest.mark.parametrize(
    "change",
    [lambda own, other: own[:-5] + bytes([own[-5] ^ 16]) + own[-4:], lambda own, other: own[:40], lambda own, other: other],
    ids=["flipped", "cut", "of another text"],
)
def test_a_damaged_memory_is_damage_of_the_index(index, change):
    rows = index.store.documents(["d5"])
    passages = [row for rows in index.store.scan() for row in rows if row.document == "d5"]
    memories = index.store.memories(["d4", "d5"])
    index.store.commit([replace(rows["d5"], memory=change(memories["d5"], memories["d4"]))], passages, [])
    for rerank in (0, 8):
        with pytest.raises(StoreError, match="is damaged: document 'd5'"):
            index.search(QUERY, top_k=20, rerank=rerank)
    [found] = check(index.store)
    assert found.document == "d5" and "what is remembered of it is damaged" in found.reason


def test_a_document_that_is_replaced_during_a_search_is_read(local, monkeypatch):
    """Where reads are live (Qdrant), texts and memories may be of two versions."""
    documents = local.store.documents
    old = {name: replace(row, text="The cat sat. " + row.text) for name, row in documents(["d2"]).items()}
    calls: list[object] = []

    def first_old(ids, **more):
        calls.append(ids)
        return documents(ids, **more) | (old if len(calls) == 1 else {})

    monkeypatch.setattr(local.store, "documents", first_old)
    hits = {hit.id: hit for hit in local.search(QUERY, top_k=20, rerank=0, sentences=20)}
    assert len(calls) == 2 and hits["d2"].text == old["d2"].text
    assert "".join(s.text for s in hits["d2"].sentences) == old["d2"].text


def test_text_that_goes_on_is_remembered_anew(index):
    before = index.store.memories(["d2", "d3"])
    changes = index.add(documents(d2=TEXTS["d2"] + " The river of the cat runs to the sea."))
    assert changes.updated == ["d2"] and changes.tokens_read == changes.tokens
    after = index.store.memories(["d2", "d3"])
    assert after["d3"] == before["d3"] and after["d2"] != before["d2"]
    found = dict(shown(index.search(QUERY, top_k=20, sentences=9)))
    assert found["d2"][-1][0] == "The river of the cat runs to the sea."
    assert index.check() == []
