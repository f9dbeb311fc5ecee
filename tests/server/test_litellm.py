"""LiteLLM, as its users call it, against the server: vectors and rankings in the shapes of the
services that it knows, with the numbers of the models, and their errors.
"""

import asyncio
import os

import numpy as np
import pytest

from runnel import Reranker

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise its import asks the network
import litellm

TEXTS = ["A tuple cannot be changed.", "Rain fell 🌧 on the roof."]
QUERY = "Who keeps the mill?"
DOCUMENTS = [
    "The museum opens at nine. Tickets cost two euros.",
    "The mill is old.  The keeper of the mill is Ada.",
    "Rain fell.",
]

# what its own code leaves to the garbage collector, and gives to pydantic
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def options(server):
    litellm.suppress_debug_info = True
    return {"api_key": "none", "num_retries": 0}


def vectors_of(answer):
    return np.array([one["embedding"] for one in answer.data], np.float32)


EMBEDDING = [
    ("openai", "/v1", {}),
    ("openai", "/v1", {"user": "someone"}),
    ("openai", "/v1", {"dimensions": 64, "allowed_openai_params": ["dimensions"]}),
    ("cohere", "/v2/embed", {}),
    ("cohere", "/v2/embed", {"input_type": "search_query"}),
    ("jina_ai", "/v1", {}),
    ("jina_ai", "/v1", {"dimensions": 64}),
    ("jina_ai", "/v1", {"task": "retrieval.query", "late_chunking": False}),
    ("voyage", "/v1", {}),
    ("voyage", "/v1/embeddings", {"dimensions": 64, "input_type": "document"}),
    ("infinity", "/v1", {}),
    ("hosted_vllm", "/v1", {}),
    ("openai_like", "/v1", {}),
]


@pytest.mark.parametrize(("service", "path", "fields"), EMBEDDING)
def test_vectors(server, embedder, options, service, path, fields):
    call = {"model": f"{service}/pocket", "input": TEXTS, "api_base": f"{server.base_url}{path}"}
    expected = embedder.encode(TEXTS, truncate_dim=fields.get("dimensions"))
    answer = litellm.embedding(**call, **options, **fields)
    waited = asyncio.run(litellm.aembedding(**call, **options, **fields))
    for one in (answer, waited):
        np.testing.assert_allclose(vectors_of(one), expected, atol=1e-5)
        assert one.usage.prompt_tokens > len(TEXTS)


RANKING = [
    ("cohere", "", {}),
    ("cohere", "/v1/rerank", {"max_chunks_per_doc": 3}),
    ("cohere", "/v2/rerank", {"max_tokens_per_doc": 512}),
    ("jina_ai", "", {}),
    ("jina_ai", "/v1/rerank", {}),
    ("huggingface", "", {}),
    ("huggingface", "/rerank", {}),
    ("voyage", "", {}),
    ("voyage", "/v1/rerank", {}),
    ("hosted_vllm", "/v1", {}),
]


@pytest.fixture(scope="module")
def shares():
    scores = Reranker.load("pocket").score(QUERY, DOCUMENTS).astype(float)
    return 1 / (1 + np.exp(-scores))


def check_ranking(answer, shares, count):
    order = np.argsort(-shares, kind="stable").tolist()[:count]
    assert [one["index"] for one in answer.results] == order
    found = [one["relevance_score"] for one in answer.results]
    np.testing.assert_allclose(found, shares[order], atol=1e-4)
    documents = [one.get("document") for one in answer.results]
    assert documents == [{"text": DOCUMENTS[place]} for place in order]
    assert answer.id and answer.meta


@pytest.mark.parametrize(("service", "path", "fields"), RANKING)
def test_rankings(server, shares, options, service, path, fields):
    call = {"model": f"{service}/pocket", "query": QUERY, "documents": DOCUMENTS}
    call |= {"api_base": f"{server.base_url}{path}", "return_documents": True}
    check_ranking(litellm.rerank(**call, **options, **fields), shares, 3)
    waited = asyncio.run(litellm.arerank(**call, **options, **fields, top_n=2))
    check_ranking(waited, shares, 2)


def test_documents_with_fields(server, shares, options):
    fields = [{"text": text} for text in DOCUMENTS]
    for service in ("cohere", "jina_ai"):
        call = {"model": f"{service}/pocket", "query": QUERY, "api_base": str(server.base_url)}
        check_ranking(litellm.rerank(**call, documents=fields, **options), shares, 3)


def test_an_answer_in_the_shape_of_together(server, shares):
    """LiteLLM has one address for this service, so its reader gets what the server answers."""
    from litellm.llms.together_ai.rerank.transformation import TogetherAIRerankConfig

    body = {"model": "pocket", "query": QUERY, "documents": DOCUMENTS, "return_documents": True}
    answer = server.post("/v1/rerank", json=body)
    check_ranking(TogetherAIRerankConfig()._transform_response(answer.json()), shares, 3)


@pytest.mark.parametrize(
    ("service", "path"),
    [("openai", "/v1"), ("cohere", "/v2/embed"), ("jina_ai", "/v1"), ("voyage", "/v1")],
)
def test_refused_vectors(server, options, service, path):
    base = {"api_base": f"{server.base_url}{path}"} | options
    for model, texts, words in (
        ("other-model", TEXTS, ("other-model", "use 'pocket'")),
        ("pocket", ["a", ""], ("[1]", "empty")),
    ):
        with pytest.raises(Exception, match="litellm") as error:
            litellm.embedding(model=f"{service}/{model}", input=texts, **base)
        assert all(word in str(error.value) for word in words)
        if service == "openai":
            kind = litellm.NotFoundError if model != "pocket" else litellm.BadRequestError
            assert isinstance(error.value, kind)


@pytest.mark.parametrize("service", ["cohere", "jina_ai", "huggingface", "voyage"])
def test_refused_rankings(server, options, service):
    base = {"api_base": str(server.base_url)} | options
    with pytest.raises(Exception, match="litellm") as error:
        litellm.rerank(model=f"{service}/pocket", query="", documents=DOCUMENTS, **base)
    assert "query" in str(error.value)
    with pytest.raises(Exception, match="litellm") as error:
        litellm.rerank(model=f"{service}/pocket", query=QUERY, documents=[], **base)
    assert "documents" in str(error.value) or "texts" in str(error.value)
