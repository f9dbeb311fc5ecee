"""LlamaIndex's own interfaces, pipelines and indexes, around models of runnel."""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core.schema import Document, NodeWithScore, TextNode
from pydantic import ValidationError

from runnel import Embedder, Reranker, SentenceRetriever
from runnel.errors import InputError
from runnel.integrations.llama_index import RunnelEmbedding, RunnelNodeParser, RunnelRerank, RunnelSentences

TEXT = "  A cat ran to the sea. A cat ran. \n\nThe river runs.\n\nA cat ran. The dog sat on the mat.\n"
OTHER = "The dog sat. The mat is executed."


@pytest.fixture(scope="module")
def parser(model):
    return RunnelNodeParser(Embedder(model), max_tokens=6)


def test_a_batch_is_one_call(model, monkeypatch):
    embedding, calls = RunnelEmbedding(Embedder(model)), []
    encode = Embedder.encode
    monkeypatch.setattr(Embedder, "encode", lambda self, texts, **options: calls.append(texts) or encode(self, texts, **options))
    embedding.get_text_embedding_batch(["a cat"] * 100)
    assert [len(texts) for texts in calls] == [100]


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


def test_sentences_of_nodes_have_places_in_the_document(model):
    retriever = SentenceRetriever(model)
    document = Document(text="The river runs. " + TEXT)
    coarse = RunnelNodeParser(Embedder(model), 20).get_nodes_from_documents([document])
    assert len(coarse) > 1
    for node in RunnelNodeParser(Embedder(model), 6)(coarse):  # parts of parts too
        assert document.text[node.start_char_idx : node.end_char_idx] == node.text and node.ref_doc_id == document.id_
    nodes = [NodeWithScore(node=node) for node in coarse]
    for one in RunnelSentences(retriever).postprocess_nodes(nodes, query_str="dog"):
        assert document.text[one.node.start_char_idx : one.node.end_char_idx] == one.node.text
        assert one.node.ref_doc_id == document.id_ and one.node.parent_node.node_id in {node.node_id for node in nodes}


def test_components_are_stored_by_name_and_loaded_again():
    sentences = RunnelSentences.from_json(RunnelSentences(top_n=2, min_score=-1.0).to_json())
    assert (sentences.model, sentences.top_n, sentences.min_score) == ("pocket", 2, -1.0)
    embedding = RunnelEmbedding.from_dict(RunnelEmbedding(embed_batch_size=7, max_tokens=64).to_dict())
    assert embedding.model_name == "pocket" and (embedding.embed_batch_size, embedding.max_tokens) == (7, 64)
    assert embedding.get_query_embedding("a") == RunnelEmbedding().get_query_embedding("a")


def test_the_reranker_reads_what_the_library_embeds(model):
    reranker, titled = Reranker(model), NodeWithScore(node=TextNode(text=OTHER, metadata={"title": "river"}))
    (one,) = RunnelRerank(reranker).postprocess_nodes([titled], query_str="dog")
    assert one.score == reranker.score("dog", ["title: river\n\n" + OTHER])[0]
    with pytest.raises(InputError, match="query_str or query_bundle"):
        RunnelRerank(reranker).postprocess_nodes([titled])
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        RunnelSentences(SentenceRetriever(model), top_n=0)
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        RunnelNodeParser(Embedder(model), max_tokens=0)
