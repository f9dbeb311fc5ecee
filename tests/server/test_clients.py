"""The official clients of OpenAI, Cohere and huggingface_hub, and the request shapes of LiteLLM,
Jina's and Voyage's clients, get what these services answer, with the numbers of the models.
"""

import base64
from functools import partial

import cohere
import huggingface_hub
import numpy as np
import openai
import pytest
from helpers.texts import repeat

from runnel import Reranker, SentenceRetriever
from runnel.models.precision import quantize

TEXTS = [
    "A tuple cannot be changed.",
    "Rain fell 🌧 on the roof.",
    repeat("The train leaves at noon. ", 90),
]
QUERY = "Who keeps the mill?"
DOCUMENTS = [
    "The museum opens at nine. Tickets cost two euros.",
    "The mill is old.  The keeper of the mill is Ada. \n\nIts wheel was mended in spring.",
    "Rain fell.",
]
TOLERANCE = 1e-5  # other texts in a step change the order of sums


def post(server, path, body, ignored=""):
    """Post; check which fields the answer's header names."""
    done = server.post(path, json=body)
    assert done.status_code == 200, done.text
    assert done.headers.get("x-runnel-ignored", "") == ignored
    return done.json()


def vectors_of(answer):
    return [one["embedding"] for one in answer["data"]]


def close(found, expected, **options):
    np.testing.assert_allclose(found, expected, **({"atol": TOLERANCE} | options))


# openai


def test_openai_models(openai_client):
    model = openai_client.models.retrieve("pocket")
    assert (model.id, model.object, model.owned_by) == ("pocket", "model", "runnel")
    assert [one.id for one in openai_client.models.list()] == ["pocket"]
    embed = partial(openai_client.embeddings.create, input="a")
    for name in ("text-embedding-3-small", "BAAI/bge-m3", "a b"):
        for call in (openai_client.models.retrieve, embed):
            with pytest.raises(openai.NotFoundError, match=rf"'{name}' .* 'pocket'") as error:
                call(model=name)
            assert (error.value.code, error.value.param) == ("model_not_found", "model")


def test_openai_client_sees_which_fields_have_no_effect(openai_client):
    raw = openai_client.embeddings.with_raw_response.create(
        model="pocket", input="a", user="someone", extra_body={"late_chunking": True}
    )
    assert raw.headers["x-runnel-ignored"] == "user, late_chunking"
    raw = openai_client.embeddings.with_raw_response.create(model="pocket", input="a")
    assert "x-runnel-ignored" not in raw.headers
    with pytest.raises(openai.BadRequestError, match="no such field") as error:
        openai_client.embeddings.create(model="pocket", input="a", extra_body={"usr": "x"})
    assert error.value.param == "usr"


# Jina and Voyage, as their clients and LiteLLM send


def test_fields_of_jina(server, embedder):
    body = {
        "model": "pocket",
        "input": [{"text": TEXTS[0]}, *TEXTS[1:]],
        "task": "retrieval.passage",
        "normalized": True,
        "embedding_type": "float",
        "late_chunking": False,
        "truncate": False,
        "return_multivector": False,
    }
    expected = embedder.encode(TEXTS)
    close(vectors_of(post(server, "/v1/embeddings", body, "task")), expected)
    late = post(server, "/v1/embeddings", body | {"late_chunking": True}, "late_chunking, task")
    close(vectors_of(late), expected)
    plain = vectors_of(post(server, "/v1/embeddings", body | {"normalized": False}, "task"))
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    assert (np.abs(lengths - 1) > 0.01).all()
    close(plain / lengths, expected)
    for kind in ("binary", "ubinary"):
        found = vectors_of(post(server, "/v1/embeddings", body | {"embedding_type": kind}, "task"))
        assert found == quantize(expected, kind).tolist()
    found = post(server, "/v1/embeddings", body | {"embedding_type": "base64"}, "task")
    decoded = [np.frombuffer(base64.b64decode(one), "<f4") for one in vectors_of(found)]
    close(decoded, expected)
    done = server.post("/v1/embeddings", json=body | {"return_multivector": True})
    assert done.status_code == 400 and done.json()["error"]["param"] == "return_multivector"


@pytest.mark.parametrize("input_type", [None, "query", "document"])
@pytest.mark.parametrize("dtype", ["float", "binary", "ubinary"])
def test_fields_of_voyage(server, embedder, input_type, dtype):
    """Voyage's client sends all its fields, and asks for base64."""
    body = {
        "model": "pocket",
        "input": TEXTS,
        "input_type": input_type,
        "truncation": True,
        "output_dimension": 64,
        "output_dtype": dtype,
        "encoding_format": "base64",
    }
    answer = post(server, "/v1/embeddings", body, "input_type" if input_type else "")
    whole = embedder.encode(TEXTS, truncate_dim=64)
    kind = {"float": "<f4", "binary": "i1", "ubinary": "u1"}[dtype]
    found = [np.frombuffer(base64.b64decode(one), kind) for one in vectors_of(answer)]
    if dtype == "float":
        close(found, whole)
    else:
        np.testing.assert_array_equal(found, quantize(whole, dtype))
    assert answer["object"] == "list" and answer["usage"]["total_tokens"] > 0


def test_two_values_for_one_wish_and_what_is_not_there_are_refused(server):
    for wrong, named in (
        ({"dimensions": 3, "output_dimension": 4}, ("dimensions is 3", "output_dimension is 4")),
        ({"task": "retrieval.query", "input_type": "document"}, ("task", "input_type")),
        ({"output_dtype": "int4"}, ("output_dtype", "int8", "ubinary")),
        ({"output_dtype": "int8", "normalized": False}, ("int8", "unit length")),
        ({"embedding_type": "binary", "output_dtype": "ubinary"}, ("embedding_type", "ubinary")),
        ({"output_dimension": 385}, ("output_dimension", "385")),
        ({"embedding_type": ["float", "binary"]}, ("embedding_type",)),
        ({"dimensions": 385}, ("dimensions is 385; ", "384")),
    ):
        done = server.post("/v1/embeddings", json={"input": "a"} | wrong)
        assert done.status_code == 400
        assert all(name in done.json()["error"]["message"] for name in named), done.text
    same = {"dimensions": 3, "output_dimension": 3}
    assert len(vectors_of(post(server, "/v1/embeddings", {"input": "a"} | same))[0]) == 3


def test_errors_have_what_clients_of_jina_and_voyage_read(server):
    """Both clients report `detail`, and say that an answer without it is invalid."""
    embed = {"input": ["a", ""]}
    rank = {"query": "a", "documents": []}
    for path, body, named in (
        ("/v1/embeddings", embed, "input[1]"),
        ("/v1/embeddings", embed | {"model": "voyage-3"}, "voyage-3"),
        ("/v1/rerank", rank, "documents"),
        ("/v1/multimodalembeddings", {}, "multimodal"),
        ("/v1/contextualizedembeddings", {}, "contextualized"),
    ):
        refused = server.post(path, json=body).json()
        assert named in refused["detail"]
        assert refused["detail"] == (refused.get("message") or refused["error"]["message"])


def test_one_text_of_jina_may_be_an_object(server, embedder):
    found = vectors_of(post(server, "/v1/embeddings", {"input": {"text": TEXTS[0]}}))
    close(found, embedder.encode(TEXTS[:1]))
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        plain, other = (
            post(server, path, {"query": query, "documents": DOCUMENTS})["results"]
            for query in (QUERY, {"text": QUERY})
        )
        assert plain == other
    for wrong in ({"input": {"text": ""}}, {"input": {"image": "a"}}, {"input": {}}):
        assert "input" in server.post("/v1/embeddings", json=wrong).json()["detail"]
    for query in ({"text": ""}, {"text": 3}, {"words": "a"}, {"text": "a", "id": "b"}):
        done = server.post("/v1/rerank", json={"query": query, "documents": DOCUMENTS})
        assert done.status_code == 400 and done.json()["detail"].startswith("query")


def order_of(results):
    return [one["index"] for one in results]


def test_rerank_as_voyage_jina_and_litellm_send_it(server):
    scores = 1 / (1 + np.exp(-Reranker.load("pocket").score(QUERY, DOCUMENTS).astype(float)))
    order = np.argsort(-scores, kind="stable").tolist()
    body = {"model": "pocket", "query": QUERY, "documents": DOCUMENTS}
    voyage = body | {"top_k": 2, "truncation": True, "return_documents": True}
    answer = post(server, "/v1/rerank", voyage, "truncation")
    assert answer["object"] == "list" and answer["usage"]["total_tokens"] > 0
    assert order_of(answer["data"]) == order[:2]
    assert [one["document"] for one in answer["data"]] == [DOCUMENTS[place] for place in order[:2]]
    close([one["relevance_score"] for one in answer["data"]], scores[order[:2]], atol=1e-4)
    # LiteLLM sends no field of Voyage's own, but reads `data`
    assert order_of(post(server, "/v1/rerank", body)["data"]) == order
    assert "data" not in post(server, "/v2/rerank", body)
    jina = {"truncate": True, "max_doc_length": 512, "return_embeddings": False, "top_n": 1}
    answer = post(server, "/v1/rerank", body | jina, "max_doc_length, truncate")
    assert order_of(answer["results"]) == order[:1]
    assert "max_doc_length" in answer["meta"]["warnings"][0]
    for wrong in ({"top_n": 1, "top_k": 2}, {"return_embeddings": True}, {"model": "rerank-2.5"}):
        done = server.post("/v1/rerank", json=body | wrong)
        assert done.status_code in (400, 404) and set(done.json()) == {"message", "detail"}
        assert next(iter(wrong)) in done.text
    tei = {"query": QUERY, "texts": DOCUMENTS, "top_n": 2, "return_text": True}
    tei |= {"raw_scores": False, "truncate": False, "truncation_direction": "Right"}
    found = post(server, "/rerank", tei, "truncation_direction")
    assert order_of(found) == order[:2]


# cohere


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")  # of cohere
@pytest.mark.parametrize("kinds", [None, ["float"], ["float", "base64", "binary", "ubinary"]])
def test_cohere_clients_embed(server, embedder, kinds):
    expected = embedder.encode(TEXTS)
    options = {} if kinds is None else {"embedding_types": kinds}
    with cohere.Client("none", base_url=str(server.base_url)) as one:
        v1 = one.embed(texts=TEXTS, model="pocket", input_type="search_document", **options)
    assert v1.texts == TEXTS and v1.meta.billed_units.input_tokens > 0
    assert v1.response_type == ("embeddings_by_type" if kinds else "embeddings_floats")
    with cohere.ClientV2("none", base_url=str(server.base_url)) as two:
        v2 = two.embed(texts=TEXTS, model="pocket", input_type="search_query", **options)
        short = two.embed(
            model="pocket",
            input_type="clustering",
            output_dimension=8,
            truncate="NONE",
            inputs=[{"content": [{"type": "text", "text": text}]} for text in TEXTS],
        )
    close(short.embeddings.float_, embedder.encode(TEXTS, truncate_dim=8))
    assert v2.meta.warnings == ["input_type has no effect: the model has no prompt for it"]
    if kinds is None:
        close(v1.embeddings, expected)
    for found in (v1.embeddings if kinds else v2.embeddings, v2.embeddings):
        assert set(found.dict(by_alias=True, exclude_none=True)) == set(kinds or ["float"])
        close(found.float_, expected)
        for kind in {"binary", "ubinary"}.intersection(kinds or ()):
            assert getattr(found, kind) == quantize(expected, kind).tolist()
        for text, vector in zip(found.base64 or (), expected, strict=bool(found.base64)):
            close(np.frombuffer(base64.b64decode(text), "<f4"), vector)


def test_cohere_clients_are_refused_in_their_shape(server):
    with (
        cohere.ClientV2("none", base_url=str(server.base_url)) as two,
        cohere.Client("none", base_url=str(server.base_url)) as one,
    ):
        for client in (one, two):
            with pytest.raises(cohere.NotFoundError) as missing:
                client.embed(texts=["a"], model="embed-v4.0", input_type="search_query")
            assert "embed-v4.0" in missing.value.body["message"]
            with pytest.raises(cohere.BadRequestError) as blank:
                client.embed(texts=["a", ""], model="pocket", input_type="search_query")
            assert (
                set(blank.value.body) == {"message"} and "texts[1]" in blank.value.body["message"]
            )
        for options in (
            {},
            {"texts": ["a"], "inputs": [{"content": [{"type": "text", "text": "a"}]}]},
        ):
            with pytest.raises(cohere.BadRequestError, match="either texts or inputs"):
                two.embed(model="pocket", input_type="search_query", **options)
        with pytest.raises(cohere.BadRequestError, match="images"):
            one.embed(images=["data:image/png;base64,"], model="pocket", input_type="image")


def test_cohere_client_tokenizes(server, embedder):
    with cohere.Client("none", base_url=str(server.base_url)) as client:
        found = client.tokenize(text=TEXTS[1], model="pocket", offline=False)
    encoded = embedder.model.tokenizer.encode(TEXTS[1])
    assert found.tokens == encoded.ids.tolist()
    assert "".join(found.token_strings) == "".join(TEXTS[1].split())


# huggingface_hub and TEI


def test_huggingface_client(server, embedder):
    expected = embedder.encode(TEXTS)
    for address in (str(server.base_url), f"{server.base_url}/similarity"):
        client = huggingface_hub.InferenceClient(model=address)
        close(client.sentence_similarity(TEXTS[0], TEXTS), expected @ expected[0])
    client = huggingface_hub.InferenceClient(model=str(server.base_url))
    found = client.feature_extraction(
        TEXTS[0], normalize=False, prompt_name="query", truncate=True, truncation_direction="left"
    )[0]
    assert abs(np.linalg.norm(found) - 1) > 0.01
    close(found / np.linalg.norm(found), expected[0])
    close(client.feature_extraction(TEXTS, encoding_format="float", dimensions=384), expected)
    with pytest.raises(huggingface_hub.errors.HfHubHTTPError, match="it is 'base64'"):
        client.feature_extraction(TEXTS, encoding_format="base64")
    score = post(server, "/rerank", {"query": QUERY, "texts": [DOCUMENTS[1]]})[0]["score"]
    for address in (str(server.base_url), f"{server.base_url}/predict"):
        client = huggingface_hub.InferenceClient(model=address)
        found = client.text_classification([QUERY, DOCUMENTS[1]], top_k=10_000)
        assert found.label == "LABEL_0" and found.score == pytest.approx(score, abs=1e-5)
        with pytest.raises(huggingface_hub.errors.HfHubHTTPError) as error:
            client.text_classification("I like you")
        refused = error.value.response
        assert refused.status_code == 422 and "pair [query, text]" in refused.json()["error"]


def test_the_vectors_of_tokens_pool_to_the_vector_of_the_text(server, embedder):
    found = post(server, "/embed_all", {"inputs": TEXTS, "truncate": True, "prompt_name": None})
    rows = list(embedder.render(TEXTS))
    assert [np.shape(one) for one in found] == [(len(row), 384) for row in rows]
    means = np.array([np.mean(one, axis=0) for one in found])
    close(means / np.linalg.norm(means, axis=1, keepdims=True), embedder.encode(TEXTS))
    (single,) = post(server, "/embed_all", {"inputs": TEXTS[0]})
    close(single, found[0])
    done = server.post("/embed_all", json={"inputs": repeat("noon ", 4096)})
    assert done.status_code == 422 and "4,096" in done.json()["error"]


def test_tokens_are_those_that_the_model_reads(server, embedder):
    found = post(server, "/tokenize", {"inputs": TEXTS[:2]})
    for text, tokens, row in zip(TEXTS, found, embedder.render(TEXTS[:2]), strict=False):
        assert [one["id"] for one in tokens] == row.tolist()
        assert [one["special"] for one in tokens] == [True] + [False] * (len(row) - 2) + [True]
        assert tokens[0]["text"] == "[CLS]" and tokens[0]["start"] is None
        assert all(text[one["start"] : one["stop"]] == one["text"] for one in tokens[1:-1])
    plain = post(server, "/tokenize", {"inputs": TEXTS[0], "add_special_tokens": False})
    assert plain == [found[0][1:-1]]
    assert post(server, "/tokenize", {"inputs": "", "prompt_name": "query"}, "prompt_name")
    done = server.post("/tokenize", json={"inputs": [repeat("a ", 100_001)] * 2})
    assert done.status_code == 422 and "200,000" in done.json()["error"]


def test_pairs_have_the_scores_of_the_reranker(server):
    queries = [QUERY, "When does the museum open?"]
    pairs = [[query, text] for text in DOCUMENTS for query in queries]
    reranker = Reranker.load("pocket")
    logits = [float(reranker.score(query, [text])[0]) for query, text in pairs]
    found = post(server, "/predict", {"inputs": pairs, "raw_scores": True})
    assert all(len(one) == 1 and one[0]["label"] == "LABEL_0" for one in found)
    close([one[0]["score"] for one in found], logits, atol=1e-4)
    none = {"function_to_apply": "none", "top_k": 1}
    close(
        [
            one[0]["score"]
            for one in post(server, "/predict", {"inputs": pairs, "parameters": none})
        ],
        logits,
        atol=1e-4,
    )
    shares = post(server, "/predict", {"inputs": pairs[0], "truncate": True}, "truncate")
    assert shares[0]["score"] == pytest.approx(1 / (1 + np.exp(-logits[0])), abs=1e-5)
    for wrong in ("a", ["a"], ["a", "b", "c"], [["a", "b"], ["a"]], [], [[]], [["", "a"]]):
        done = server.post("/predict", json={"inputs": wrong})
        assert done.status_code == 422 and done.json()["error"].startswith("inputs"), wrong


def test_pruned_texts_are_the_sentences_that_answer(server):
    body = {"query": QUERY, "texts": DOCUMENTS}
    found = post(server, "/rerank", body | {"return_text": True})
    ranked = SentenceRetriever.load("pocket").rank(QUERY, DOCUMENTS)
    for one in found:
        kept = [s for s in ranked[one["index"]].sentences() if s.score > np.log(0.2 / 0.8)]
        assert one["pruned_text"] == " ".join(s.text.strip() for s in kept)
        assert one["text"] == DOCUMENTS[one["index"]]
    assert found[0]["pruned_text"].endswith("The keeper of the mill is Ada.")
    assert found[-1]["pruned_text"] == ""
    assert set(post(server, "/rerank", body)[0]) == {"index", "score"}
    only = post(server, "/rerank", body | {"pruned_text": True})
    assert [set(one) for one in only] == [{"index", "score", "pruned_text"}] * 3
    without = post(server, "/rerank", body | {"pruned_text": False, "return_text": True})
    assert [set(one) for one in without] == [{"index", "score", "text"}] * 3


def test_info_is_what_the_model_does(server):
    facts = server.get("/info").json()
    longest = facts["max_input_length"]
    assert longest == 256 and facts["auto_truncate"] is False
    text = repeat("noon ", 2 * longest)  # neither cut nor refused
    tokens = post(server, "/tokenize", {"inputs": text})[0]
    assert len(tokens) > longest
    read = post(server, "/v1/embeddings", {"input": text, "truncate": False})["usage"]
    assert read["prompt_tokens"] >= len(tokens)
    assert facts["max_text_length"] == facts["max_batch_tokens"] == 2_000_000


def test_what_services_do_not_have_is_refused_in_their_shape(server):
    tei = {"error", "error_type"}
    for path, shape in (
        ("/embed_sparse", tei),
        ("/decode", tei),
        ("/v1/nothing", {"error"}),
        ("/v1/detokenize", {"message"}),
        ("/v1/datasets", {"message"}),
        ("/v2/chat", {"message"}),
    ):
        done = server.post(path, json={"inputs": "a"})
        assert done.status_code == 404 and set(done.json()) == shape and path in done.text
    assert "sparse" in server.post("/embed_sparse", json={"inputs": "a"}).json()["error"]


# Variants of the services' fields


def restored(stored):
    """Return the numbers that int8 stands for."""
    return np.array(stored, np.float32) / 127


@pytest.mark.parametrize("width", [384, 64])
def test_vectors_of_eight_bits_are_127_times_the_numbers(server, embedder, width):
    """They need no ranges of documents: the same number has the same byte in every request."""
    vectors = embedder.encode(TEXTS, truncate_dim=width)
    body = {"input": TEXTS, "dimensions": width}
    small = vectors_of(post(server, "/v1/embeddings", body | {"output_dtype": "int8"}))
    assert np.abs(np.array(small) - 127 * vectors).max() <= 0.5 + 1e-3
    positive = vectors_of(post(server, "/v1/embeddings", body | {"embedding_type": "uint8"}))
    assert np.array_equal(np.array(positive) - 128, small)
    coded = {"output_dtype": "int8", "encoding_format": "base64"}
    encoded = vectors_of(post(server, "/v1/embeddings", body | coded))
    assert [np.frombuffer(base64.b64decode(one), np.int8).tolist() for one in encoded] == small
    lengths = np.linalg.norm(restored(small), axis=1)
    cosines = restored(small) @ restored(small).T / np.outer(lengths, lengths)
    close(cosines, vectors @ vectors.T, atol=0.01)
    for path in ("/v1/embed", "/v2/embed"):
        types = {"embedding_types": ["int8", "uint8"], "output_dimension": width}
        found = post(server, path, {"texts": TEXTS} | types)["embeddings"]
        assert found == {"int8": small, "uint8": positive}


def test_a_form_of_jina_outlasts_the_default_of_openais_client(openai_client, embedder):
    """The client asks for base64 by itself, and would read bits as floats."""
    found = openai_client.embeddings.create(
        model="pocket", input=TEXTS, extra_body={"embedding_type": "ubinary"}
    )
    bits = quantize(embedder.encode(TEXTS), "ubinary").tolist()
    assert [one.embedding for one in found.data] == bits


def test_a_body_without_a_type_is_json(server, embedder):
    """LiteLLM sends Voyage's requests so. Another type, and another site's page, are refused."""
    content = b'{"input": ["a"], "model": "pocket"}'
    done = server.post("/v1/embeddings", content=content)
    close(vectors_of(done.json()), embedder.encode(["a"]))
    typed = server.post("/v1/embeddings", content=content, headers={"content-type": "text/plain"})
    assert typed.status_code == 400 and "text/plain" in typed.text
    foreign = server.post("/v1/embeddings", content=content, headers={"origin": "http://a.example"})
    assert foreign.status_code == 403


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_with_fields_are_ranked_by_those_named(server, path):
    others = {"url": "a", "id": 3, "rating": 0.5, "seen": True, "by": None}
    fields = [{"title": text, "text": "Rain fell."} | others for text in DOCUMENTS]
    body = {"query": QUERY, "return_documents": True}
    plain = post(server, path, body | {"documents": DOCUMENTS})["results"]
    named = post(server, path, body | {"documents": fields, "rank_fields": ["title"]})["results"]
    assert order_of(named) == order_of(plain)
    assert [one["document"] for one in named] == [fields[place] for place in order_of(named)]
    both = {"documents": [*fields, "Rain fell."], "rank_fields": ["title", "text"]}
    joined = [f"{text}\nRain fell." for text in DOCUMENTS] + ["Rain fell."]
    found = post(server, path, body | both)["results"]
    expected = post(server, path, body | {"documents": joined})["results"]
    assert [one["relevance_score"] for one in found] == [one["relevance_score"] for one in expected]
    texts = post(server, path, body | {"documents": fields})["results"]
    assert len({one["relevance_score"] for one in texts}) == 1
    for wrong in (
        {"documents": [{"title": "a"}]},
        {"documents": [{"text": 3}]},
        {"documents": fields, "rank_fields": ["body"]},
        {"documents": fields, "rank_fields": ["title", "id"]},
    ):
        done = server.post(path, json=body | wrong)
        assert done.status_code in (400, 422) and "documents[0]" in done.json()["message"]
    for wrong in ('["a"]', '{"a": 1}', "NaN", "1e999", '"\\ud800"'):  # what no answer can repeat
        content = f'{{"query": "a", "documents": [{{"text": "a", "more": {wrong}}}]}}'
        done = server.post(path, content=content, headers={"Content-Type": "application/json"})
        assert done.status_code in (400, 422) and "documents.0.more: " in done.json()["message"]


def test_ids_outside_of_the_vocabulary_are_named_with_their_place(server):
    for given, place in (([[1], [30_522]], "input[1]"), ([30_522], "input"), ([10**9], "input")):
        done = server.post("/v1/embeddings", json={"input": given}).json()["error"]
        assert done["param"] == "input" and done["message"].startswith(f"{place} has the token id")
        assert "the ids of this model are 0 to 30521" in done["message"]


def test_a_head_is_answered_as_a_get(server):
    for path in ("/health", "/ready", "/", "/v1/models", "/v1/models/pocket", "/docs", "/nothing"):
        head = server.head(path)
        get = server.get(path)
        assert (head.status_code, head.content) == (get.status_code, b"")
        assert head.headers["content-length"] == get.headers["content-length"]
