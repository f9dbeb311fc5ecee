"""`pocket` and a tiny encoder behind HTTP, for tests without a server of their own."""

import openai
import pytest
from helpers.serving import serving
from helpers.tiny import tiny_encoder

from runnel import Document, Embedder, Index


@pytest.fixture(scope="module")
def embedder():
    return Embedder.load("pocket")


@pytest.fixture(scope="module")
def server(embedder):
    with serving(embedder.model) as client:
        yield client


@pytest.fixture(scope="module")
def openai_client(server):
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0) as one:
        yield one


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_encoder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tiny_server(tiny, tmp_path_factory):
    """With an index of one document, which has a field."""
    place = tmp_path_factory.mktemp("index") / "library"
    with Index.create(place, Embedder(tiny), fields={"year": "int"}) as index:
        index.add([Document("a", "a b c. d e f.", {"year": 2020})])
    with serving(tiny, name="tiny", index=place) as client:
        yield client
