"""The modules for LangChain, LlamaIndex and Haystack: each call is one of runnel; then what one
library alone asks for, and what all say where their library is missing."""

import asyncio
import importlib
import sys
from types import SimpleNamespace

import haystack
import numpy as np
import pytest
from haystack.core.serialization import component_from_dict, component_to_dict
from helpers.texts import repeat
from helpers.tiny import tiny_encoder, tiny_model
from langchain_core import documents as langchain
from llama_index.core import schema as llama_index
from pydantic import ValidationError

from runnel import Document, Embedder, Index, Reranker, SentenceRetriever
from runnel.errors import CheckpointError, InputError, MissingDependency, StoreError
from runnel.integrations import haystack as for_haystack
from runnel.integrations import langchain as for_langchain
from runnel.integrations import llama_index as for_llama_index
from runnel.integrations.calls import loaded, name_of

TEXTS = {"a": "The cat sat on the mat.\nThe river runs to the sea.", "b": "A dog ran. A cat ran."}
META = {"page": 3}


def place(meta):
    return (meta.pop("start"), meta.pop("end")), meta


def of_langchain():
    ours = for_langchain

    def documents(texts):
        return [
            langchain.Document(text, id=name, metadata=dict(META)) for name, text in texts.items()
        ]

    def rerank(reranker, query, texts, top=None, cut=None):
        found = ours.RunnelReranker(model=reranker, top_n=top, max_tokens=cut).compress_documents(
            documents(texts), query
        )
        return [(one.id, one.metadata.pop("relevance_score"), one.metadata) for one in found]

    def answers(retriever, query, texts, top=10, least=None):
        compressor = ours.RunnelSentences(model=retriever, top_n=top, min_score=least)
        found = compressor.compress_documents(documents(texts), query)
        rows = [
            (one.metadata.pop("source"), one.page_content, one.metadata.pop("score"), one.metadata)
            for one in found
        ]
        return [(*row[:3], *place(row[3])) for row in rows]

    def search(index, query, k=10, sentences=0, where=None):
        found = ours.RunnelRetriever(index=index, k=k, sentences=sentences, where=where).invoke(
            query
        )
        return [
            (one.id, one.page_content, one.metadata.pop("score"), one.metadata) for one in found
        ]

    return SimpleNamespace(
        query=lambda model, text, cut=None: ours.RunnelEmbeddings(
            model, max_tokens=cut
        ).embed_query(text),
        texts=lambda model, texts, cut=None: ours.RunnelEmbeddings(
            model, max_tokens=cut
        ).embed_documents(texts),
        rerank=rerank,
        answers=answers,
        search=search,
    )


def of_llama_index():
    ours = for_llama_index

    def nodes(texts, meta):
        made = (
            llama_index.TextNode(text=text, id_=name, metadata=dict(meta))
            for name, text in texts.items()
        )
        return [llama_index.NodeWithScore(node=node) for node in made]

    def rerank(reranker, query, texts, top=None, cut=None):
        processor = ours.RunnelRerank(reranker, top_n=top, max_tokens=cut)
        found = processor.postprocess_nodes(nodes(texts, {}), query_str=query)
        # it reads metadata, so there is none here
        return [(one.node.node_id, one.score, META) for one in found]

    def answers(retriever, query, texts, top=10, least=None):
        found = ours.RunnelSentences(retriever, top_n=top, min_score=least).postprocess_nodes(
            nodes(texts, META), query_str=query
        )
        rows = [(one.node, one.score) for one in found]
        return [
            (n.ref_doc_id, n.text, score, (n.start_char_idx, n.end_char_idx), n.metadata)
            for n, score in rows
        ]

    def search(index, query, k=10, sentences=0, where=None):
        retriever = ours.RunnelRetriever(index, k, sentences, where)
        found = retriever.retrieve(query)
        assert [one.node.text for one in asyncio.run(retriever.aretrieve(query))] == [
            one.node.text for one in found
        ]
        for node in (one.node for one in found if sentences):
            assert (node.start_char_idx, node.ref_doc_id) == (
                node.metadata["start"],
                node.metadata["source"],
            )
        return [
            (None if sentences else one.node.node_id, one.node.text, one.score, one.node.metadata)
            for one in found
        ]

    def texts(model, some, cut=None):
        embedding = ours.RunnelEmbedding(model, max_tokens=cut)
        vectors = embedding.get_text_embedding_batch(some)
        assert vectors == asyncio.run(embedding.aget_text_embedding_batch(some))
        return vectors

    return SimpleNamespace(
        query=lambda model, text, cut=None: ours.RunnelEmbedding(
            model, max_tokens=cut
        ).get_query_embedding(text),
        texts=texts,
        rerank=rerank,
        answers=answers,
        search=search,
    )


def of_haystack():
    ours = for_haystack

    def documents(texts):
        return [
            haystack.Document(id=name, content=text, meta=dict(META))
            for name, text in texts.items()
        ]

    def rerank(reranker, query, texts, top=None, cut=None):
        found = ours.RunnelRanker(reranker, top_k=top, max_tokens=cut).run(
            query=query, documents=documents(texts)
        )
        return [(one.id, one.score, one.meta) for one in found["documents"]]

    def answers(retriever, query, texts, top=10, least=None):
        found = ours.RunnelSentences(retriever, top, least).run(
            query=query, documents=documents(texts)
        )["documents"]
        return [
            (one.meta.pop("source_id"), one.content, one.score, *place(one.meta)) for one in found
        ]

    def search(index, query, k=10, sentences=0, where=None):
        found = ours.RunnelRetriever(index.store.uri, k, sentences, where).run(query)["documents"]
        return [(None if sentences else one.id, one.content, one.score, one.meta) for one in found]

    def texts(model, some, cut=None):
        made = [haystack.Document(content=text) for text in some]
        return [
            one.embedding
            for one in ours.RunnelDocumentEmbedder(model, max_tokens=cut).run(made)["documents"]
        ]

    return SimpleNamespace(
        query=lambda model, text, cut=None: ours.RunnelTextEmbedder(model, cut).run(text)[
            "embedding"
        ],
        texts=texts,
        rerank=rerank,
        answers=answers,
        search=search,
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_encoder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module", params=[of_langchain, of_llama_index, of_haystack])
def adapter(request):
    return request.param()


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    with Index.create(tmp_path_factory.mktemp("index") / "x", fields={"year": "int"}) as made:
        made.add(
            [
                Document("a", TEXTS["a"], {"year": 2020}),
                Document("b", TEXTS["b"], {"year": 2024}, title="B"),
            ]
        )
        yield made


def test_vectors_are_those_of_the_embedder_with_its_prompts(adapter, tmp_path):
    # has a prompt for queries
    embedder = Embedder(tiny_model(tmp_path))
    long = repeat("the cat sat on the mat ", 9)
    np.testing.assert_array_equal(adapter.query(embedder, "a cat"), embedder.encode_query("a cat"))
    np.testing.assert_array_equal(
        adapter.texts(embedder, ["a cat", "a dog"]), embedder.encode_document(["a cat", "a dog"])
    )
    assert not np.array_equal(
        adapter.query(embedder, "a cat"), adapter.texts(embedder, ["a cat"])[0]
    )
    assert adapter.texts(embedder, []) == []
    np.testing.assert_array_equal(
        adapter.query(embedder, long, 20), embedder.encode_query(long, max_tokens=20)
    )
    np.testing.assert_array_equal(
        adapter.texts(embedder, [long], 20), embedder.encode_document([long], max_tokens=20)
    )
    with pytest.raises(InputError, match="empty text"):
        adapter.query(embedder, " ")


def test_a_blank_text_of_a_batch_has_a_vector_of_its_own_and_one_note(adapter, tmp_path, caplog):
    embedder = Embedder(tiny_model(tmp_path))
    found = np.array(adapter.texts(embedder, ["a cat", "", "a dog", " \n", "\u200b"]))
    blank = np.eye(1, embedder.dimension)[0]
    np.testing.assert_array_equal(found[[1, 3, 4]], [blank] * 3)
    np.testing.assert_array_equal(found[[0, 2]], embedder.encode_document(["a cat", "a dog"]))
    notes = {one.message for one in caplog.records}
    assert len(notes) == 1 and "3 of 5" in notes.pop()
    np.testing.assert_array_equal(adapter.texts(embedder, ["", " "]), [blank] * 2)
    assert np.abs(found @ embedder.encode_query("a cat"))[1] < 0.5


def test_texts_are_ranked_as_by_the_reranker(adapter, model, tmp_path):
    reranker = Reranker(model)
    long = {"long": repeat("the cat sat on the mat ", 9)}
    ranked = adapter.rerank(reranker, "dog", TEXTS)
    assert ranked == [
        (list(TEXTS)[int(hit.id)], hit.score, META)
        for hit in reranker.rank("dog", list(TEXTS.values()))
    ]
    assert (
        adapter.rerank(reranker, "dog", TEXTS, 1) == ranked[:1]
        and adapter.rerank(reranker, "dog", {}) == []
    )
    assert adapter.rerank(reranker, "dog", {"none": "\u200b", **TEXTS}) == ranked, (
        "a text without a token has no rank"
    )
    whole = Reranker(tiny_model(tmp_path))
    ((_, score, _),) = adapter.rerank(whole, "a dog", long, None, 20)
    assert (
        score
        == whole.score("a dog", list(long.values()), max_tokens=20)[0]
        != whole.score("a dog", list(long.values()))[0]
    )


SCATTERED = {
    "a": "  The cat sat.  A dog ran to\nthe sea. ",
    "b": " \n ",
    "c": "A river ran. A dog ran to the  sea.\n\nA mat.",
}


@pytest.mark.parametrize("make", [tiny_encoder, tiny_model], ids=["vectors", "recurrent"])
def test_sentences_are_the_best_of_all_texts_once_each_with_their_places(adapter, make, tmp_path):
    retriever = SentenceRetriever(make(tmp_path))
    scored = [
        one
        for sentences in retriever.score_many("a river", SCATTERED.values())
        for one in sentences
        if one.text.strip()
    ]
    best: dict[str, float] = {}
    for one in sorted(scored, key=lambda one: -one.score):
        best.setdefault(" ".join(one.text.split()), one.score)
    assert len(best) == len(scored) - 1  # one is in two texts
    for count in (1, 3, 50):
        found = adapter.answers(retriever, "a river", SCATTERED, count)
        assert [" ".join(text.split()) for _, text, *_ in found] == list(best)[:count]
        assert [score for _, _, score, *_ in found] == pytest.approx(
            list(best.values())[:count], abs=1e-5
        )
        assert all(
            SCATTERED[name][start:end] == text == text.strip() != ""
            for name, text, _, (start, end), _ in found
        )
        assert all(meta == META for *_, meta in found)
    assert adapter.answers(retriever, "a river", SCATTERED, 10, found[1][2]) == found[:2]
    assert adapter.answers(retriever, "a river", {"empty": "", "tab": "\t"}) == []


def test_an_index_is_searched(adapter, index):
    question = "What does the river do?"
    hits = index.search(question, sentences=0)
    parts = index.search(question, sentences=1)
    found = adapter.search(index, question)
    assert [row[:3] for row in found] == [(hit.id, hit.text, hit.score) for hit in hits]
    assert {row[0]: row[3] for row in found} == {
        "a": {"year": 2020, "source": "a"}, "b": {"year": 2024, "source": "b", "title": "B"}
    }  # fmt: skip
    assert len(adapter.search(index, "river", 1)) == 1
    assert [row[0] for row in adapter.search(index, "river", where={"year": 2024})] == ["b"]
    sentences = adapter.search(index, question, sentences=1)
    assert [(text, score) for _, text, score, _ in sentences] == [
        (h.sentences[0].text.strip(), h.score) for h in parts
    ]
    for (name, text, _, meta), hit in zip(sentences, parts, strict=True):
        assert (
            name is None
            and meta["source"] == hit.id
            and TEXTS[hit.id][meta["start"] : meta["end"]] == text
        )
        assert meta["sentence_score"] == hit.sentences[0].score
    with pytest.raises(InputError, match="color"):
        adapter.search(index, "dog", where={"color": "red"})


def test_an_object_is_used_and_a_name_is_loaded(model, tmp_path):
    embedder = Embedder(model)
    embedder.save(tmp_path / "saved")
    assert loaded(Embedder, embedder) is embedder and name_of(Embedder, embedder) == "tiny encoder"
    again = loaded(Embedder, tmp_path / "saved")
    # the tiny model is in fp32
    np.testing.assert_allclose(again.encode("a cat"), embedder.encode("a cat"), atol=0.02)
    assert (
        name_of(Embedder, again) == name_of(Embedder, tmp_path / "saved") == str(tmp_path / "saved")
    )


EMPTY = [haystack.Document(id="x")]
NODES = [
    llama_index.NodeWithScore(
        node=llama_index.TextNode(text="The dog sat.", metadata={"title": "river"})
    )
]
MISSING = "no-such-model"
ODD = "the model is of type Embedder; expected Reranker, or a name, folder or hub id"
MISTAKES = [
    (lambda model: loaded(Reranker, Embedder(model)), InputError, ODD),
    (lambda model: name_of(Reranker, Embedder(model)), InputError, ODD),
    (lambda _: loaded(Reranker, MISSING), CheckpointError, MISSING),
    (lambda _: for_langchain.RunnelEmbeddings(MISSING), CheckpointError, MISSING),
    (lambda _: for_langchain.RunnelReranker(model=MISSING), ValidationError, MISSING),
    (
        lambda _: for_langchain.RunnelSentences(top_n=0),
        ValidationError,
        "greater than or equal to 1",
    ),
    (lambda _: for_langchain.RunnelReranker(top_k=3), ValidationError, "top_k"),
    (
        lambda _: for_llama_index.RunnelRerank().postprocess_nodes(NODES),
        InputError,
        "query_str or query_bundle",
    ),
    (
        lambda _: for_llama_index.RunnelSentences(top_n=0),
        ValidationError,
        "greater than or equal to 1",
    ),
    (
        lambda _: for_llama_index.RunnelNodeParser(max_tokens=0),
        ValidationError,
        "greater than or equal to 1",
    ),
    (
        lambda model: for_haystack.RunnelTextEmbedder(Embedder(model)).run(["a"]),
        InputError,
        r"\['a'\]",
    ),
    (
        lambda model: for_haystack.RunnelDocumentEmbedder(Embedder(model)).run(EMPTY),
        InputError,
        "document 'x' is None",
    ),
    (
        lambda model: for_haystack.RunnelRanker(Reranker(model)).run("dog", EMPTY),
        InputError,
        "document 'x' is None",
    ),
    (lambda _: for_haystack.RunnelRanker(top_k=0), InputError, "top_k is 0"),
    (lambda _: for_haystack.RunnelSentences(top_k=0), InputError, "top_k is 0"),
    (lambda _: for_haystack.RunnelRetriever("some/index", top_k=0), InputError, "top_k is 0"),
    (lambda _: for_haystack.RunnelRanker(3), InputError, "type int; expected Reranker"),
]


@pytest.mark.parametrize(("call", "error", "message"), MISTAKES)
def test_mistakes(model, call, error, message):
    with pytest.raises(error, match=message):
        call(model)


def test_haystack_stores_components_by_name_and_loads_them_when_needed():
    for component in (
        for_haystack.RunnelTextEmbedder("some/model", 64),
        for_haystack.RunnelDocumentEmbedder("some/model", ["title"], " ", 64),
        for_haystack.RunnelRanker("some/model", top_k=3, max_tokens=64),
        for_haystack.RunnelSentences("some/model", top_k=3, min_score=-1.0),
        for_haystack.RunnelRetriever(
            "some/index", 3, sentences=2, where={"year": 2020}, options={"dense_weight": 0}
        ),
    ):
        data = component_to_dict(component, "component")
        assert next(iter(data["init_parameters"].values())).startswith("some/")
        assert (
            component_to_dict(component_from_dict(type(component), data, "component"), "component")
            == data
        )
        with pytest.raises((CheckpointError, StoreError), match="some/"):
            component.warm_up()


def test_haystack_puts_metadata_before_the_text(tmp_path):
    documents = [
        haystack.Document(id=name, content=text, meta={"title": name, "year": 2020})
        for name, text in TEXTS.items()
    ]
    embedder = Embedder(tiny_model(tmp_path))
    fields = ["title", "year", "none"]
    titled = for_haystack.RunnelDocumentEmbedder(embedder, fields, embedding_separator=" | ").run(
        documents
    )["documents"]
    whole = [f"{name} | 2020 | {text}" for name, text in TEXTS.items()]
    np.testing.assert_array_equal(
        [one.embedding for one in titled], embedder.encode_document(whole)
    )
    assert all(one.embedding is None for one in documents) and [one.id for one in titled] == [
        "a",
        "b",
    ]


def test_llama_index_components_are_stored_by_name_and_loaded_again():
    ours = for_llama_index
    sentences = ours.RunnelSentences.from_json(
        ours.RunnelSentences(top_n=2, min_score=-1.0).to_json()
    )
    assert (sentences.model, sentences.top_n, sentences.min_score) == ("pocket", 2, -1.0)
    embedding = ours.RunnelEmbedding.from_dict(
        ours.RunnelEmbedding(embed_batch_size=7, max_tokens=64).to_dict()
    )
    assert embedding.model_name == "pocket" and (
        embedding.embed_batch_size,
        embedding.max_tokens,
    ) == (7, 64)
    assert embedding.get_query_embedding("a") == ours.RunnelEmbedding().get_query_embedding("a")


def test_llama_index_gives_a_batch_in_one_call_and_metadata_to_the_reranker(model, monkeypatch):
    (one,) = for_llama_index.RunnelRerank(Reranker(model)).postprocess_nodes(NODES, query_str="dog")
    assert one.score == Reranker(model).score("dog", ["title: river\n\nThe dog sat."])[0]
    calls = []
    encode = Embedder.encode
    monkeypatch.setattr(
        Embedder,
        "encode",
        lambda self, texts, **options: calls.append(texts) or encode(self, texts, **options),
    )
    for_llama_index.RunnelEmbedding(Embedder(model)).get_text_embedding_batch(["a cat"] * 100)
    assert [len(texts) for texts in calls] == [100]


TEXT = (
    "  A cat ran to the sea. A cat ran. \n\nThe river runs.\n\nA cat ran. The dog sat on the mat.\n"
)


def parsed(model, max_tokens, *documents):
    return for_llama_index.RunnelNodeParser(
        Embedder(model), max_tokens=max_tokens
    ).get_nodes_from_documents(list(documents))


def test_nodes_of_llama_index_have_their_exact_places(model):
    document = llama_index.Document(text=TEXT, metadata={"file": "t"})
    blank = [llama_index.Document(text=text) for text in (" \n", "", "\u200b")]
    nodes = parsed(model, 6, document, *blank)
    assert [node.text for node in nodes].count("A cat ran.") == 2
    end = 0
    for node in nodes:
        assert TEXT[node.start_char_idx : node.end_char_idx] == node.text == node.text.strip() != ""
        assert not TEXT[end : node.start_char_idx].strip(), "text between nodes"
        assert node.metadata == {"file": "t"} and node.ref_doc_id == document.id_
        end = node.end_char_idx
    assert not TEXT[end:].strip()
    assert (
        nodes[0].next_node.node_id == nodes[1].node_id
        and nodes[1].prev_node.node_id == nodes[0].node_id
    )
    repeated = parsed(model, 6, llama_index.Document(text="It is a cat on a mat. a mat."))
    assert [(node.start_char_idx, node.text) for node in repeated][-1] == (22, "a mat."), (
        "a search for the text finds 15"
    )
    assert [node.text for node in parsed(model, 1000, document)] == [TEXT.strip()]
    sentences = [node.text for node in parsed(model, 1, document)]
    assert sentences[:2] == ["A cat ran to the sea.", "A cat ran."] and len(sentences) == 5


def test_sentences_of_nodes_have_places_in_the_document(model):
    document = llama_index.Document(text="The river runs. " + TEXT)
    coarse = parsed(model, 20, document)
    assert len(coarse) > 1
    parser = for_llama_index.RunnelNodeParser(Embedder(model), max_tokens=6)
    again = asyncio.run(parser.aget_nodes_from_documents([document]))
    assert [node.text for node in again] == [node.text for node in parsed(model, 6, document)]
    for node in parser(coarse):  # parts of parts too
        assert (
            document.text[node.start_char_idx : node.end_char_idx] == node.text
            and node.ref_doc_id == document.id_
        )
    nodes = [llama_index.NodeWithScore(node=node) for node in coarse]
    for one in for_llama_index.RunnelSentences(SentenceRetriever(model)).postprocess_nodes(
        nodes, query_str="dog"
    ):
        assert document.text[one.node.start_char_idx : one.node.end_char_idx] == one.node.text
        assert one.node.ref_doc_id == document.id_ and one.node.parent_node.node_id in {
            node.node_id for node in nodes
        }


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("integrations.haystack", "haystack", "haystack"),
        ("integrations.langchain", "langchain_core", "langchain"),
        ("integrations.llama_index", "llama_index", "llama-index"),
        ("integrations.mteb", "mteb", "lab"),
        ("integrations.sentence_transformers", "sentence_transformers", "lab"),
        ("search.qdrant", "qdrant_client", "qdrant"),
    ],
)
def test_the_extra_is_named(monkeypatch, module, library, extra):
    name = f"runnel.{module}"
    monkeypatch.setitem(sys.modules, name, None)  # so that it is restored
    monkeypatch.delitem(sys.modules, name)
    for part in [one for one in sys.modules if one.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, part)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependency, match=rf"{library}.*pip install .*\[{extra}\]"):
        importlib.import_module(name)
