"""`pocket` behind HTTP, for files without a server of their own."""

import openai
import pytest
from helpers.serving import serving

from runnel.models.embedder import Embedder


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
