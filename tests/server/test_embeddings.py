"""Vectors over HTTP equal those of `Embedder`, for OpenAI's own client and in TEI's shape."""

import json

import huggingface_hub
import numpy as np
import openai
import pytest
from helpers.serving import serving
from helpers.texts import repeat
from helpers.tiny import tiny_encoder, write_tokenizer
from helpers.tiny_transformers import write_transformer

from runnel.models.embedder import Embedder

TEXTS = [
    "A tuple cannot be changed.",
    "Rain fell 🌧 on the roof.",
    "x",
    repeat("The train leaves at noon. ", 200),
]
TOLERANCE = 1e-5  # other texts in a step change the order of sums


def test_openai_client(openai_client, embedder):
    """The client asks for base64 unless told otherwise."""
    found = openai_client.embeddings.create(model="pocket", input=TEXTS)
    assert [one.index for one in found.data] == [0, 1, 2, 3]
    np.testing.assert_allclose(
        [one.embedding for one in found.data], embedder.encode(TEXTS), atol=TOLERANCE
    )
    tokens = sum(map(len, embedder.render(TEXTS)))
    assert found.usage.prompt_tokens == found.usage.total_tokens == tokens
    assert found.model == "pocket" and found.object == "list"
    one = openai_client.embeddings.create(model="pocket", input=TEXTS[0], encoding_format="float")
    np.testing.assert_allclose([one.data[0].embedding], embedder.encode(TEXTS[:1]), atol=TOLERANCE)
    found = np.array(
        openai_client.embeddings.create(model="pocket", input=TEXTS[0], dimensions=7)
        .data[0]
        .embedding
    )
    whole = embedder.encode(TEXTS[0])[:7]
    np.testing.assert_allclose(found, whole / np.linalg.norm(whole), atol=TOLERANCE)


def test_token_ids_are_read_like_their_text(openai_client, embedder):
    tokenizer = embedder.model.tokenizer
    ids = [tokenizer.encode(text).ids.tolist() for text in TEXTS[:3]]
    found = [
        one.embedding for one in openai_client.embeddings.create(model="pocket", input=ids).data
    ]
    np.testing.assert_allclose(found, embedder.encode(TEXTS[:3]), atol=TOLERANCE)
    single = openai_client.embeddings.create(model="pocket", input=ids[0]).data
    np.testing.assert_allclose(single[0].embedding, found[0], atol=TOLERANCE)
    with pytest.raises(openai.BadRequestError, match="which ids do not show: send the text"):
        openai_client.embeddings.create(model="pocket", input=[2003] * 300)


def test_inputs_that_are_refused(server):
    for given in ([], "", [""], [[]], [["a"]], [1, "a"], None, {"a": 1}, [-1], [1.5], [True]):
        done = server.post("/v1/embeddings", json={"input": given, "model": "pocket"})
        error = done.json()["error"]
        assert (
            done.status_code == 400
            and error["type"] == "invalid_request_error"
            and error["param"] == "input"
        ), given
        assert error["message"].startswith("input") and len(error["message"]) < 300
    for one in ([1, "a"], ["a", [1]], [{"text": "a"}, {"image": "b"}]):
        message = server.post("/v1/embeddings", json={"input": one}).json()["error"]["message"]
        assert "input.1" in message and "input.0" not in message, "only the type that fits"


BLANK = ["", " ", "\u200b", "\u0301", "\n\t"]
ROUTES = {  # by route: a body with texts, how a text of it is named, and the status of a refusal
    "/v1/embeddings": (lambda texts: {"input": texts}, "input[{}]", 400),
    "/embed": (lambda texts: {"inputs": texts}, "inputs[{}]", 422),
    "/embed_all": (lambda texts: {"inputs": texts}, "inputs[{}]", 422),
    "/similarity": (
        lambda texts: {"inputs": {"source_sentence": "a", "sentences": texts}},
        "inputs.sentences[{}]",
        422,
    ),
    "/v1/embed": (lambda texts: {"texts": texts}, "texts[{}]", 400),
    "/v2/embed": (lambda texts: {"texts": texts}, "texts[{}]", 400),
}


@pytest.mark.parametrize("path", ROUTES)
def test_the_blank_text_of_a_batch_is_named(server, path):
    body, place, status = ROUTES[path]
    for blank in BLANK:
        done = server.post(path, json=body(["fine", "also fine", blank, "fine", blank]))
        assert done.status_code == status
        assert place.format(2) in done.text and place.format(4) not in done.text
    single = server.post("/v1/embeddings", json={"input": " "}).json()["error"]
    assert single["param"] == "input" and single["message"].startswith("input is ' '")
    broken = json.dumps(body(["fine", "\ud800"]))
    done = server.post(path, content=broken, headers={"content-type": "application/json"})
    assert done.status_code == status and "unicode" in done.text


def test_a_client_of_tei(server, embedder):
    for address in (str(server.base_url), f"{server.base_url}/embed"):
        client = huggingface_hub.InferenceClient(model=address)
        found = [client.feature_extraction(text, truncate=True)[0] for text in TEXTS[:2]]
        np.testing.assert_allclose(found, embedder.encode(TEXTS[:2]), atol=TOLERANCE)
        with pytest.raises(huggingface_hub.errors.HfHubHTTPError) as error:
            client.feature_extraction("a", dimensions=385)
        assert (
            error.value.response.status_code == 422
            and error.value.response.json()["error_type"] == "Validation"
        )
    for inputs, texts in (("one", ["one"]), (["one", "two"], ["one", "two"])):
        found = server.post(
            "/embed", json={"inputs": inputs, "truncate": False, "normalize": True}
        ).json()
        opinionless = server.post("/embed", json={"inputs": inputs, "truncate": None}).json()
        assert opinionless == found
        np.testing.assert_allclose(found, embedder.encode(texts), atol=TOLERANCE)
    short = server.post("/embed", json={"inputs": "one", "dimensions": 2}).json()
    assert np.linalg.norm(short[0]) == pytest.approx(1) and len(short[0]) == 2
    done = server.post("/embed", json={"inputs": []})
    assert done.status_code == 422 and done.json()["error_type"] == "Validation"
    assert done.json()["error"]


@pytest.mark.filterwarnings("ignore:::transformers")
def test_texts_longer_than_a_transformer_reads_are_cut_unless_the_request_says_no(tmp_path):
    write_transformer(tmp_path, "bert")
    write_tokenizer(tmp_path)
    embedder = Embedder.load(tmp_path, "float32", "cpu", pooling="mean")
    longest = embedder.model.backbone.longest_text
    texts = [repeat("the cat sat on the mat ", 20), "the dog"]
    cut = embedder.encode(texts, max_tokens=longest)
    with serving(embedder.model) as server:
        for body in ({}, {"truncate": True}, {"truncate": None}):
            found = server.post("/embed", json={"inputs": texts} | body).json()
            np.testing.assert_allclose(found, cut, atol=TOLERANCE)
        refused = server.post("/embed", json={"inputs": texts, "truncate": False})
        assert refused.status_code == 422
        assert str(longest) in refused.json()["error"]
        for path, body in (
            ("/embed", {"inputs": texts, "truncation_direction": "Left"}),
            ("/embed_all", {"inputs": texts, "truncate": False}),
            ("/v1/embeddings", {"input": texts, "truncate": False}),
            ("/v1/embeddings", {"input": texts, "truncation": False}),
            ("/v1/embed", {"texts": texts, "truncate": "NONE"}),
            ("/v2/embed", {"texts": texts, "truncate": "START"}),
        ):
            refused = server.post(path, json=body)
            assert refused.status_code in (400, 422) and str(longest) in refused.text, path
        facts = server.get("/info").json()
        assert facts["max_input_length"] == facts["max_text_length"] == longest
        assert facts["auto_truncate"] is True
        (whole, _) = server.post("/v2/embed", json={"texts": texts}).json()["embeddings"]["float"]
        np.testing.assert_allclose(whole, cut[0], atol=TOLERANCE)
        answer = server.post("/v1/embeddings", json={"input": texts}).json()
        assert answer["usage"]["prompt_tokens"] == longest + len(next(embedder.render(texts[1:])))


def test_uses_choose_the_prompts_of_a_model(tmp_path):
    model = tiny_encoder(tmp_path)
    model.prompts["query"] = "b c: "
    embedder = Embedder(model)
    plain, prompted = (embedder.encode("a", prompt=prompt) for prompt in (None, "query"))
    assert np.abs(plain - prompted).max() > 0.01
    with serving(model, name="tiny") as server:
        for path, body, found in (
            ("/v1/embeddings", {"input": "a", "task": "retrieval.query"}, prompted),
            ("/v1/embeddings", {"input": "a", "input_type": "query"}, prompted),
            ("/v1/embeddings", {"input": "a", "input_type": "document"}, plain),
            ("/v2/embed", {"texts": ["a"], "input_type": "search_query"}, prompted),
            ("/v2/embed", {"texts": ["a"], "input_type": "clustering"}, plain),
            ("/embed", {"inputs": "a", "prompt_name": "query"}, prompted),
            ("/embed", {"inputs": "a", "prompt_name": "passage"}, plain),
        ):
            done = server.post(path, json=body)
            named = done.headers.get("x-runnel-ignored")
            assert named == (None if found is prompted else list(body)[-1])
            answer = done.json()
            if isinstance(answer, dict):
                answer = answer.get("data") or answer["embeddings"]["float"]
            vector = answer[0]["embedding"] if isinstance(answer[0], dict) else answer[0]
            np.testing.assert_allclose(vector, found, atol=TOLERANCE)
        tokens = server.post("/tokenize", json={"inputs": "a", "prompt_name": "query"}).json()[0]
        assert "".join(one["text"] for one in tokens if not one["special"]) == "bc:a"
        for path, body in (
            ("/embed", {"inputs": "a", "prompt_name": "nothing"}),
            ("/embed", {"inputs": [1, 2], "prompt_name": "query"}),
        ):
            refused = server.post(path, json=body)
            assert refused.status_code == 422 and "prompt" in refused.json()["error"]


def test_a_head_with_weights_has_no_vectors_but_of_unit_length():
    with serving("pocket-mamba2", name="pocket-mamba2") as server:
        refused = server.post("/embed", json={"inputs": "a", "normalize": False})
        assert refused.status_code == 422 and "normalize" in refused.json()["error"]
        (vector,) = server.post("/embed", json={"inputs": "a", "normalize": True}).json()
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-4)
        (tokens,) = server.post("/embed_all", json={"inputs": "a tuple"}).json()
        facts = server.get("/info").json()
        assert np.shape(tokens)[1] == 384
        assert facts["max_input_length"] == facts["max_batch_tokens"]


def test_a_server_of_a_reranker_alone_says_so(tmp_path):
    model = tiny_encoder(tmp_path)
    del model.heads["embed"]
    with serving(model, name="tiny") as server:
        kind = server.get("/info").json()["model_type"]
        assert kind == {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}
        for path, status in (("/v1/embeddings", 400), ("/embed", 422), ("/v2/embed", 400)):
            text = {"/v1/embeddings": "input", "/embed": "inputs", "/v2/embed": "texts"}[path]
            done = server.post(path, json={text: ["a"]})
            assert done.status_code == status and "no 'embed' head" in done.text
