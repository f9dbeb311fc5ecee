"""LangChain: embeddings, a retriever over an index, and compressors that rerank or find sentences
(docs/integrations.md).

Names of arguments (`k`, `top_n`) and of metadata (`relevance_score`) are LangChain's. A `model` is
a loaded one or what its class's `load` takes; `max_tokens` cuts longer texts, with a warning (None:
nothing is cut).
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from runnel.errors import needing
from runnel.integrations.calls import best_sentences, loaded, ranked, search_results
from runnel.models.embedder import Embedder
from runnel.models.reranker import Reranker
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.search.filters import Filter
from runnel.search.index import Index

with needing("this needs langchain-core", "langchain"):
    from langchain_core.callbacks import CallbackManagerForRetrieverRun, Callbacks
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.retrievers import BaseRetriever
    from pydantic import BeforeValidator, ConfigDict, Field

_STRICT = ConfigDict(arbitrary_types_allowed=True, extra="forbid")


class RunnelEmbeddings(Embeddings):
    """An embedder, with its own prompts for queries and documents if it has some. Vectors have unit
    length.
    """

    def __init__(
        self, model: Embedder | str | Path = "pocket", *, max_tokens: int | None = None
    ) -> None:
        self.model = loaded(Embedder, model)
        self.max_tokens = max_tokens

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.model.encode_document(texts, max_tokens=self.max_tokens).tolist()

    def embed_query(self, text: str) -> list[float]:
        return self.model.encode_query(text, max_tokens=self.max_tokens).tolist()


class RunnelRetriever(BaseRetriever):
    """A search of an index: whole documents, or the sentences of documents that answer.

    Each result has the metadata of its document and `source` (its file, else its id), `title` if it
    has one, and `score`, of the document. A sentence also has its `start` and `end` in the
    document's text, its `sentence_score`, and `page` and `headings` if the document has some.

    Attributes:
        index: an open index.
        k: documents to find.
        sentences: results per document, best first; 0: the whole document.
        where: a filter by metadata (`Index.search`).
        options: further arguments of `Index.search`.
    """

    model_config = _STRICT

    index: Index
    k: int = Field(default=10, ge=1)
    sentences: int = Field(default=0, ge=0)
    where: Filter | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        results = search_results(
            self.index, query, self.k, self.sentences, self.where, self.options
        )
        return [
            Document(
                id=None if self.sentences else hit.id,
                page_content=place.text,
                metadata=metadata | {"score": hit.score},
            )
            for hit, place, metadata in results
        ]


class RunnelReranker(BaseDocumentCompressor):
    """A reranker as a compressor: the best documents, best first, each with its `relevance_score`
    (a logit) in its metadata.

    Attributes:
        top_n: documents to return; None: all.
    """

    model_config = _STRICT

    model: Annotated[Reranker, BeforeValidator(partial(loaded, Reranker))] = Field(
        default="pocket", validate_default=True
    )
    top_n: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """Return copies of the best documents, without documents that have no token."""
        texts = [document.page_content for document in documents]
        results = []
        for position, score in ranked(self.model, query, texts, self.top_n, self.max_tokens):
            metadata = {**documents[position].metadata, "relevance_score": score}
            results.append(documents[position].model_copy(update={"metadata": metadata}))
        return results


class RunnelSentences(BaseDocumentCompressor):
    """A sentence retriever as a compressor: the sentences of all documents that answer the query,
    best first.

    Each has the metadata of its document, `source` (the document's id, if the metadata names none),
    its `start` and `end` in the document's `page_content`, and its `score`. Equal sentences are
    returned once.

    Attributes:
        top_n: sentences to return, of all documents together.
        min_score: omit sentences with lower scores; None: none.
    """

    model_config = _STRICT

    model: Annotated[SentenceRetriever, BeforeValidator(partial(loaded, SentenceRetriever))] = (
        Field(default="pocket", validate_default=True)
    )
    top_n: int = Field(default=10, ge=1)
    min_score: float | None = None

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        texts = [document.page_content for document in documents]
        results = []
        for position, sentence in best_sentences(
            self.model, query, texts, self.top_n, self.min_score
        ):
            document = documents[position]
            source = {} if document.id is None else {"source": document.id}
            place = {"start": sentence.start, "end": sentence.end, "score": sentence.score}
            results.append(
                Document(
                    page_content=sentence.text, metadata={**source, **document.metadata, **place}
                )
            )
        return results
