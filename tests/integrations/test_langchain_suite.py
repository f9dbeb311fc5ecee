"""The suite that LangChain publishes for its integrations, langchain-tests, on embeddings,
retriever and vector store.
"""

import pytest
from langchain_tests.integration_tests import (
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)
from langchain_tests.unit_tests import EmbeddingsUnitTests

from runnel import Document, Index
from runnel.integrations.langchain import RunnelEmbeddings, RunnelRetriever, RunnelVectorStore

pytestmark = pytest.mark.anyio


class TestEmbeddingsAlone(EmbeddingsUnitTests):
    embeddings_class = RunnelEmbeddings


class TestEmbeddings(EmbeddingsIntegrationTests):
    embeddings_class = RunnelEmbeddings


@pytest.fixture(scope="module", autouse=True)
def index(tmp_path_factory):
    with Index.create(tmp_path_factory.mktemp("index") / "x") as index:
        index.add([Document(str(i), f"The cat sat on mat {i}.") for i in range(12)])
        TestRetriever.retriever_constructor_params = {"index": index}
        yield


class TestRetriever(RetrieversIntegrationTests):
    retriever_constructor = RunnelRetriever
    retriever_query_example = "the cat"


class TestVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture(params=["folder", "temporary"])
    def vectorstore(self, request, tmp_path):
        return RunnelVectorStore(tmp_path / "store" if request.param == "folder" else None)
