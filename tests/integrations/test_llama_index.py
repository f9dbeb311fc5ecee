"""LlamaIndex's own interfaces, pipelines and indexes, around models of runnel."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from helpers.tiny import tiny_encoder, tiny_model

from runnel import Document as Stored
from runnel import Embedder, Index, Reranker, SentenceRetriever
from runnel.errors import InputError

pytest.importorskip("llama_index.core")
pytest.importorskip("lancedb")

from llama_index.core import VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import Document, NodeWithScore, TextNode
from pydantic import ValidationError

from runnel.integrations.llama_index import RunnelEmbedding, RunnelNodeParser, RunnelRerank, RunnelRetriever, RunnelSentences

TEXT = "  A cat ran to the sea. A cat ran. \n\nThe river runs.\n\nA cat ran. The dog sat on the mat.\n"
OTHER = "The dog sat. The mat is executed."


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_encoder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def parser(model):
    return RunnelNodeParser(Embedder(model), max_tokens=6)


def scored(*texts, **fields):
    return [NodeWithScore(node=TextNode(text=text, id_=str(i), **fields)) for i, text in enumerate(texts)]


def test_vectors_are_those_of_the_embedder_with_its_prompts(tmp_path):
    embedder = Embedder(tiny_model(tmp_path))  # has a prompt for queries
    embedding = RunnelEmbedding(embedder)
    query, texts = embedder.encode_query("a cat"), embedder.encode_document(["a cat", "a dog"])
    np.testing.assert_array_equal(embedding.get_query_embedding("a cat"), query)
    np.testing.assert_array_equal(embedding.get_text_embedding_batch(["a cat", "a dog"]), texts)
    np.testing.assert_allclose(embedding.get_text_embedding("a cat"), texts[0], atol=1e-6)
    np.testing.assert_array_equal(asyncio.run(embedding.aget_query_embedding("a cat")), query)
    np.testing.assert_array_equal(asyncio.run(embedding.aget_text_embedding_batch(["a cat", "a dog"])), texts)
    assert not np.array_equal(query, texts[0])
    assert embedding.get_text_embedding_batch([]) == []
    with pytest.raises(InputError, match="cannot embed an empty text"):
        embedding.get_text_embedding(" ")


def test_a_batch_is_one_call(model, monkeypatch):
    embedding, calls = RunnelEmbedding(Embedder(model)), []
    encode = Embedder.encode
    monkeypatch.setattr(Embedder, "encode", lambda self, texts, **options: calls.append(texts) or encode(self, texts, **options))
    embedding.get_text_embedding_batch(["a cat"] * 100)
    assert [len(texts) for texts in calls] == [100]


def test_a_pipeline_fills_an_index_that_finds(model, parser):
    embedding = RunnelEmbedding(Embedder(model))
    documents = [Document(text=text, metadata={"file": name}) for name, text in (("t", TEXT), ("o", OTHER))]
    nodes = IngestionPipeline(transformations=[parser, embedding], disable_cache=True).run(documents=documents)
    assert len(nodes) > 3 and all(len(node.embedding) == 32 and node.metadata["file"] in "to" for node in nodes)
    retriever = VectorStoreIndex(nodes, embed_model=embedding).as_retriever(similarity_top_k=1)
    wanted = nodes[2]
    (result,) = retriever.retrieve(wanted.get_content(metadata_mode="embed"))
    assert result.node.node_id == wanted.node_id


def test_nodes_have_their_exact_places(parser):
    document = Document(text=TEXT, metadata={"file": "t"})
    nodes = parser.get_nodes_from_documents([document, Document(text=" \n")])
    assert [node.text for node in nodes].count("A cat ran.") == 2
    end = 0
    for node in nodes:
        assert TEXT[node.start_char_idx : node.end_char_idx] == node.text == node.text.strip() != ""
        assert not TEXT[end : node.start_char_idx].strip(), "text between nodes"
        assert node.metadata == {"file": "t"} and node.ref_doc_id == document.id_
        end = node.end_char_idx
    assert not TEXT[end:].strip()
    assert nodes[0].next_node.node_id == nodes[1].node_id and nodes[1].prev_node.node_id == nodes[0].node_id
    repeated = parser.get_nodes_from_documents([Document(text="It is a cat on a mat. a mat.")])
    assert [(node.start_char_idx, node.text) for node in repeated][-1] == (22, "a mat."), "a search for the text finds 15"
    assert asyncio.run(parser.aget_nodes_from_documents([document]))[0].text == nodes[0].text


def test_nodes_hold_whole_sentences_up_to_a_size(model):
    embedder = Embedder(model)
    assert [n.text for n in RunnelNodeParser(embedder, 1000).get_nodes_from_documents([Document(text=TEXT)])] == [TEXT.strip()]
    sentences = RunnelNodeParser(embedder, 1).get_nodes_from_documents([Document(text=TEXT)])
    assert [node.text for node in sentences][:2] == ["A cat ran to the sea.", "A cat ran."] and len(sentences) == 5


def test_parts_of_parts_have_places_in_the_document(model, parser):
    document = Document(text="The river runs. " + TEXT)
    coarse = RunnelNodeParser(Embedder(model), 20).get_nodes_from_documents([document])
    assert len(coarse) > 1
    for node in parser(coarse):
        assert document.text[node.start_char_idx : node.end_char_idx] == node.text and node.ref_doc_id == document.id_


def test_the_reranker_orders_nodes(model):
    reranker, nodes = Reranker(model), scored(TEXT, OTHER)
    ranked = RunnelRerank(reranker).postprocess_nodes(nodes, query_str="dog")
    hits = reranker.rank("dog", [TEXT, OTHER])
    assert [(one.node.node_id, one.score) for one in ranked] == [(hit.id, hit.score) for hit in hits]
    assert [one.score for one in nodes] == [None, None]
    assert RunnelRerank(reranker, top_n=1).postprocess_nodes(nodes, query_str="dog") == ranked[:1]
    assert RunnelRerank(reranker).postprocess_nodes([], query_str="dog") == []
    assert asyncio.run(RunnelRerank(reranker).apostprocess_nodes(nodes, query_str="dog")) == ranked
    titled = scored(OTHER, metadata={"title": "river"})
    (one,) = RunnelRerank(reranker).postprocess_nodes(titled, query_str="dog")
    assert one.score == reranker.score("dog", ["title: river\n\n" + OTHER])[0]


def test_an_index_of_runnel_is_searched(model, tmp_path):
    with Index.create(tmp_path / "x", Embedder(model), fields={"year": "int"}) as index:
        index.add([Stored("t", TEXT, {"year": 2020}), Stored("o", OTHER, {"year": 2024}, title="Other")])
        hits = index.search("the dog", sentences=2)
        whole = RunnelRetriever(index).retrieve("the dog")
        found = [(one.node.node_id, one.node.text, one.score) for one in whole]
        assert found == [(hit.id, hit.text, hit.score) for hit in hits] and len(hits) == 2
        assert [one.node.metadata for one in RunnelRetriever(index, where={"year": 2024}).retrieve("the dog")] == [
            {"year": 2024, "source": "o", "title": "Other"}
        ]
        parts = RunnelRetriever(index, similarity_top_k=1, sentences=2).retrieve("the dog")
        assert [one.node.text for one in parts] == [one.text.strip() for one in hits[0].sentences]
        for one, sentence in zip(parts, hits[0].sentences, strict=True):
            text = {"t": TEXT, "o": OTHER}[one.node.ref_doc_id]
            assert text[one.node.start_char_idx : one.node.end_char_idx] == one.node.text
            assert one.score == hits[0].score and one.node.metadata["sentence_score"] == sentence.score
        again = asyncio.run(RunnelRetriever(index).aretrieve("the dog"))
        assert [one.node.node_id for one in again] == [hit.id for hit in hits]
        with pytest.raises(InputError, match="similarity_top_k is 0; expected a whole number from 1"):
            RunnelRetriever(index, similarity_top_k=0)


def test_sentences_have_their_places(model, parser):
    retriever = SentenceRetriever(model)
    found = RunnelSentences(retriever, top_n=3).postprocess_nodes(scored(TEXT, OTHER, metadata={"file": "f"}), query_str="dog")
    assert len(found) == 3 and [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    for one in found:
        source = (TEXT, OTHER)[int(one.node.ref_doc_id)]
        assert source[one.node.start_char_idx : one.node.end_char_idx] == one.node.text and one.node.metadata == {"file": "f"}
    best = RunnelSentences(retriever, min_score=found[0].score).postprocess_nodes(scored(TEXT, OTHER), query_str="dog")
    assert [one.node.text for one in best] == [found[0].node.text]
    document = Document(text="The river runs. " + TEXT)
    nodes = [NodeWithScore(node=node) for node in RunnelNodeParser(Embedder(model), 20).get_nodes_from_documents([document])]
    for one in RunnelSentences(retriever).postprocess_nodes(nodes, query_str="dog"):
        assert document.text[one.node.start_char_idx : one.node.end_char_idx] == one.node.text
        assert one.node.ref_doc_id == document.id_ and one.node.parent_node.node_id in {node.node_id for node in nodes}


def test_components_are_stored_by_name_and_loaded_again():
    sentences = RunnelSentences.from_json(RunnelSentences(top_n=2, min_score=-1.0).to_json())
    assert (sentences.model, sentences.top_n, sentences.min_score) == ("pocket", 2, -1.0)
    embedding = RunnelEmbedding.from_dict(RunnelEmbedding(embed_batch_size=7, max_tokens=64).to_dict())
    assert embedding.model_name == "pocket" and (embedding.embed_batch_size, embedding.max_tokens) == (7, 64)
    assert embedding.get_query_embedding("a") == RunnelEmbedding().get_query_embedding("a")


def test_texts_are_cut_on_request(tmp_path):
    model, long = tiny_model(tmp_path), "the cat sat on the mat " * 9
    embedder, reranker = Embedder(model), Reranker(model)
    cut = RunnelEmbedding(embedder, max_tokens=20)
    np.testing.assert_array_equal(cut.get_text_embedding(long), embedder.encode_document(long, max_tokens=20))
    np.testing.assert_array_equal(cut.get_query_embedding(long), embedder.encode_query(long, max_tokens=20))
    (one,) = RunnelRerank(reranker, max_tokens=20).postprocess_nodes(scored(long), query_str="a dog")
    assert one.score == reranker.score("a dog", [long], max_tokens=20)[0] != reranker.score("a dog", [long])[0]


def test_mistakes(model):
    with pytest.raises(InputError, match="there is no query to rank nodes for; pass query_str or query_bundle"):
        RunnelRerank(Reranker(model)).postprocess_nodes(scored(TEXT))
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        RunnelSentences(SentenceRetriever(model), top_n=0)
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        RunnelNodeParser(Embedder(model), max_tokens=0)
