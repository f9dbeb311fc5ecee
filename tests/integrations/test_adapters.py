"""What the modules for LangChain, LlamaIndex and Haystack have in common: each call is one of runnel."""

from __future__ import annotations

import asyncio
import importlib
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.tiny import tiny_encoder, tiny_model

from runnel import Document, Embedder, Index, Reranker, SentenceRetriever
from runnel.errors import CheckpointError, InputError
from runnel.integrations.calls import best_sentences, loaded, name_of

TEXTS = {"a": "The cat sat on the mat.\nThe river runs to the sea.", "b": "A dog ran. A cat ran."}
META = {"page": 3}


def place(meta):
    return (meta.pop("start"), meta.pop("end")), meta


def langchain():
    library, ours = importlib.import_module("langchain_core.documents"), importlib.import_module("runnel.integrations.langchain")

    def documents(texts):
        return [library.Document(text, id=name, metadata=dict(META)) for name, text in texts.items()]

    def rerank(reranker, query, texts, top=None, cut=None):
        found = ours.RunnelReranker(model=reranker, top_n=top, max_tokens=cut).compress_documents(documents(texts), query)
        return [(one.id, one.metadata.pop("relevance_score"), one.metadata) for one in found]

    def answers(retriever, query, texts, top=10, least=None):
        compressor = ours.RunnelSentences(model=retriever, top_n=top, min_score=least)
        found = compressor.compress_documents(documents(texts), query)
        assert found == asyncio.run(compressor.acompress_documents(documents(texts), query))
        rows = [(one.metadata.pop("source"), one.page_content, one.metadata.pop("score"), one.metadata) for one in found]
        return [(*row[:3], *place(row[3])) for row in rows]

    def search(path, query, k=10, sentences=0, where=None):
        with Index.open(path) as index:
            retriever = ours.RunnelRetriever(index=index, k=k, sentences=sentences, where=where)
            found = retriever.invoke(query)
            assert found == asyncio.run(retriever.ainvoke(query))
        return [(one.id, one.page_content, one.metadata.pop("score"), one.metadata) for one in found]

    return SimpleNamespace(
        query=lambda model, text, cut=None: ours.RunnelEmbeddings(model, max_tokens=cut).embed_query(text),
        texts=lambda model, texts, cut=None: ours.RunnelEmbeddings(model, max_tokens=cut).embed_documents(texts),
        rerank=rerank, answers=answers, search=search,
    )  # fmt: skip


def llama_index():
    library = importlib.import_module("llama_index.core.schema")
    ours = importlib.import_module("runnel.integrations.llama_index")

    def nodes(texts, meta):
        made = (library.TextNode(text=text, id_=name, metadata=dict(meta)) for name, text in texts.items())
        return [library.NodeWithScore(node=node) for node in made]

    def rerank(reranker, query, texts, top=None, cut=None):
        processor = ours.RunnelRerank(reranker, top_n=top, max_tokens=cut)
        found = processor.postprocess_nodes(nodes(texts, {}), query_str=query)
        assert found == asyncio.run(processor.apostprocess_nodes(nodes(texts, {}), query_str=query))
        return [(one.node.node_id, one.score, META) for one in found]  # it reads metadata, so there is none here

    def answers(retriever, query, texts, top=10, least=None):
        found = ours.RunnelSentences(retriever, top, least).postprocess_nodes(nodes(texts, META), query_str=query)
        rows = [(one.node, one.score) for one in found]
        return [(n.ref_doc_id, n.text, score, (n.start_char_idx, n.end_char_idx), n.metadata) for n, score in rows]

    def search(path, query, k=10, sentences=0, where=None):
        with Index.open(path) as index:
            retriever = ours.RunnelRetriever(index, k, sentences, where)
            found = retriever.retrieve(query)
            assert [one.node.text for one in asyncio.run(retriever.aretrieve(query))] == [one.node.text for one in found]
        for node in (one.node for one in found if sentences):
            assert (node.start_char_idx, node.ref_doc_id) == (node.metadata["start"], node.metadata["source"])
        return [(None if sentences else one.node.node_id, one.node.text, one.score, one.node.metadata) for one in found]

    def texts(model, some, cut=None):
        embedding = ours.RunnelEmbedding(model, max_tokens=cut)
        vectors = embedding.get_text_embedding_batch(some)
        assert vectors == asyncio.run(embedding.aget_text_embedding_batch(some))
        return vectors

    return SimpleNamespace(
        query=lambda model, text, cut=None: ours.RunnelEmbedding(model, max_tokens=cut).get_query_embedding(text),
        texts=texts, rerank=rerank, answers=answers, search=search,
    )  # fmt: skip


def haystack():
    library, ours = importlib.import_module("haystack"), importlib.import_module("runnel.integrations.haystack")

    def documents(texts):
        return [library.Document(id=name, content=text, meta=dict(META)) for name, text in texts.items()]

    def rerank(reranker, query, texts, top=None, cut=None):
        found = ours.RunnelRanker(reranker, top_k=top, max_tokens=cut).run(query=query, documents=documents(texts))
        return [(one.id, one.score, one.meta) for one in found["documents"]]

    def answers(retriever, query, texts, top=10, least=None):
        found = ours.RunnelSentences(retriever, top, least).run(query=query, documents=documents(texts))["documents"]
        return [(one.meta.pop("source_id"), one.content, one.score, *place(one.meta)) for one in found]

    def search(path, query, k=10, sentences=0, where=None):
        found = ours.RunnelRetriever(path, k, sentences, where).run(query)["documents"]
        return [(None if sentences else one.id, one.content, one.score, one.meta) for one in found]

    def texts(model, some, cut=None):
        made = [library.Document(content=text) for text in some]
        return [one.embedding for one in ours.RunnelDocumentEmbedder(model, max_tokens=cut).run(made)["documents"]]

    return SimpleNamespace(
        query=lambda model, text, cut=None: ours.RunnelTextEmbedder(model, cut).run(text)["embedding"],
        texts=texts, rerank=rerank, answers=answers, search=search,
    )  # fmt: skip


@pytest.fixture(scope="module", params=[langchain, llama_index, haystack])
def adapter(request):
    return request.param()


@pytest.fixture(scope="module")
def place_of_index(tmp_path_factory):
    path = tmp_path_factory.mktemp("index") / "x"
    with Index.create(path, fields={"year": "int"}) as index:
        index.add([Document("a", TEXTS["a"], {"year": 2020}), Document("b", TEXTS["b"], {"year": 2024}, title="B")])
    return path


def test_vectors_are_those_of_the_embedder_with_its_prompts(adapter, tmp_path):
    embedder, long = Embedder(tiny_model(tmp_path)), "the cat sat on the mat " * 9  # has a prompt for queries
    np.testing.assert_array_equal(adapter.query(embedder, "a cat"), embedder.encode_query("a cat"))
    np.testing.assert_array_equal(adapter.texts(embedder, ["a cat", "a dog"]), embedder.encode_document(["a cat", "a dog"]))
    assert not np.array_equal(adapter.query(embedder, "a cat"), adapter.texts(embedder, ["a cat"])[0])
    assert adapter.texts(embedder, []) == []
    np.testing.assert_array_equal(adapter.query(embedder, long, 20), embedder.encode_query(long, max_tokens=20))
    np.testing.assert_array_equal(adapter.texts(embedder, [long], 20), embedder.encode_document([long], max_tokens=20))
    with pytest.raises(InputError, match="empty text"):
        adapter.texts(embedder, ["a cat", " "])


def test_texts_are_ranked_as_by_the_reranker(adapter, model, tmp_path):
    reranker, long = Reranker(model), {"long": "the cat sat on the mat " * 9}
    ranked = adapter.rerank(reranker, "dog", TEXTS)
    assert ranked == [(list(TEXTS)[int(hit.id)], hit.score, META) for hit in reranker.rank("dog", list(TEXTS.values()))]
    assert adapter.rerank(reranker, "dog", TEXTS, 1) == ranked[:1] and adapter.rerank(reranker, "dog", {}) == []
    assert adapter.rerank(reranker, "dog", {"none": "\u200b", **TEXTS}) == ranked, "a text without a token has no rank"
    whole = Reranker(tiny_model(tmp_path))
    ((_, score, _),) = adapter.rerank(whole, "a dog", long, None, 20)
    assert score == whole.score("a dog", list(long.values()), max_tokens=20)[0] != whole.score("a dog", list(long.values()))[0]


def test_sentences_have_their_places(adapter, model):
    retriever = SentenceRetriever(model)
    found = adapter.answers(retriever, "dog", TEXTS, 3)
    assert len(found) == 3 and {name for name, *_ in found} == {"a", "b"}
    assert all(TEXTS[name][start:end] == text and meta == META for name, text, _, (start, end), meta in found)
    scores = [score for _, _, score, *_ in found]
    assert scores == sorted(scores, reverse=True)
    assert adapter.answers(retriever, "dog", TEXTS, 10, scores[1]) == found[:2]
    assert adapter.answers(retriever, "dog", {"empty": ""}) == []


def test_an_index_is_searched(adapter, place_of_index):
    question = "What does the river do?"
    with Index.open(place_of_index) as index:
        hits, parts = index.search(question, sentences=0), index.search(question, sentences=1)
    found = adapter.search(place_of_index, question)
    assert [row[:3] for row in found] == [(hit.id, hit.text, hit.score) for hit in hits]
    assert {row[0]: row[3] for row in found} == {
        "a": {"year": 2020, "source": "a"}, "b": {"year": 2024, "source": "b", "title": "B"}
    }  # fmt: skip
    assert len(adapter.search(place_of_index, "river", 1)) == 1
    assert [row[0] for row in adapter.search(place_of_index, "river", where={"year": 2024})] == ["b"]
    sentences = adapter.search(place_of_index, question, sentences=1)
    assert [(text, score) for _, text, score, _ in sentences] == [(h.sentences[0].text.strip(), h.score) for h in parts]
    for (name, text, _, meta), hit in zip(sentences, parts, strict=True):
        assert name is None and meta["source"] == hit.id and TEXTS[hit.id][meta["start"] : meta["end"]] == text
        assert meta["sentence_score"] == hit.sentences[0].score
    with pytest.raises(InputError, match="color"):
        adapter.search(place_of_index, "dog", where={"color": "red"})


SCATTERED = ["  The cat sat.  A dog ran to\nthe sea. ", "", " \n ", "The river runs. A dog ran to the  sea.\n\nA mat."]


@pytest.fixture(scope="module", params=[tiny_encoder, tiny_model], ids=["vectors", "recurrent"])
def retriever(request, tmp_path_factory):
    return SentenceRetriever(request.param(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("top_k", [1, 3, 50])
def test_they_are_the_best_of_all_texts_once_each(retriever, top_k):
    everything = [one for sentences in retriever.score_many("a river", SCATTERED) for one in sentences if one.text.strip()]
    assert len({" ".join(one.text.split()) for one in everything}) == len(everything) - 1  # one is in two texts
    best = best_sentences(retriever, "a river", SCATTERED, top_k)
    words = [" ".join(one.text.split()) for _, one in best]
    expected = [" ".join(one.text.split()) for one in sorted(everything, key=lambda one: -one.score)]
    assert words == list(dict.fromkeys(expected))[:top_k]
    assert all(SCATTERED[position][one.start : one.end] == one.text == one.text.strip() != "" for position, one in best)
    assert best_sentences(retriever, "a river", ["", "\t"], top_k) == []


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
