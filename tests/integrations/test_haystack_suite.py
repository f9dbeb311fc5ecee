"""The suite that Haystack publishes for document stores, on ours."""

import pytest
from haystack import Document
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.testing import document_store_async as asynchronous
from haystack.testing.document_store import (
    CountDocumentsByFilterTest,
    DocumentStoreBaseExtendedTests,
)

from runnel.integrations.haystack import RunnelDocumentStore


class TestDocumentStore(DocumentStoreBaseExtendedTests, CountDocumentsByFilterTest):
    @pytest.fixture
    def document_store(self, tmp_path):
        return RunnelDocumentStore(tmp_path / "store")

    def test_write_documents(self, document_store):
        document = Document(content="test doc")
        assert document_store.write_documents([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([document])
        assert document_store.filter_documents() == [document]


@pytest.mark.anyio
class TestDocumentStoreAsync(
    asynchronous.CountDocumentsAsyncTest,
    asynchronous.CountDocumentsByFilterAsyncTest,
    asynchronous.DeleteAllAsyncTest,
    asynchronous.DeleteByFilterAsyncTest,
    asynchronous.DeleteDocumentsAsyncTest,
    asynchronous.FilterDocumentsAsyncTest,
    asynchronous.UpdateByFilterAsyncTest,
    asynchronous.WriteDocumentsAsyncTest,
):
    @pytest.fixture
    def document_store(self, tmp_path):
        return RunnelDocumentStore(tmp_path / "store")

    async def test_write_documents_async(self, document_store):
        document = Document(content="test doc")
        assert await document_store.write_documents_async([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            await document_store.write_documents_async([document])
        assert await document_store.filter_documents_async() == [document]
