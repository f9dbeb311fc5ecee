"""LangChain: embeddings, a vector store and a retriever over an index, and compressors that rerank
or find sentences (docs/integrations.md).

Names of arguments (`k`, `top_n`) and of metadata (`relevance_score`) are LangChain's. A `model` is
a loaded one or what its class's `load` takes; `max_tokens` cuts longer texts, with a warning (None:
nothing is cut). d is the width of the model's vectors.
"""

import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np

from runnel import records
from runnel.errors import InputError, needing
from runnel.integrations.calls import (
    IndexTexts,
    best_sentences,
    document_vectors,
    in_a_thread,
    loaded,
    ranked,
    search_results,
    shown,
)
from runnel.models.embedder import Embedder
from runnel.models.reranker import Reranker
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.search.filters import Filter, conditions, matches
from runnel.search.index import Index
from runnel.search.records import DocumentRow

with needing("this needs langchain-core", "langchain"):
    from langchain_core.callbacks import Callbacks
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.vectorstores import VectorStore
    from langchain_core.vectorstores.utils import maximal_marginal_relevance
    from pydantic import BeforeValidator, ConfigDict, Field

# a filter on metadata, as of `Index.search` but on any key, or a function of a document
DocumentFilter = Filter | Callable[[Document], bool]
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
        """Return the vectors of texts; for a text without a token (1, 0, ..., 0)."""
        return document_vectors(self.model, texts, self.max_tokens)

    def embed_query(self, text: str) -> list[float]:
        return self.model.encode_query(text, max_tokens=self.max_tokens).tolist()


class RunnelVectorStore(VectorStore):
    """A vector store over an index, whose model makes the vectors.

    A search is by vectors alone, and its score is the cosine of the query and the best passage of a
    text, or of the text. `RunnelRetriever(index=store.index)` also searches by words, reranks, and
    finds sentences.

    A `filter` is one of metadata, `{"year": {">=": 2020}, "kind": ["a", "b"]}`, on any key, or a
    function of a `Document`; all stored texts are read for it.

    Args:
        index: an open index, or the place of one, which is created if it does not exist; None: a
            temporary folder, removed with the store.
        model: an embedder, or what `Embedder.load` takes (default: the index's own; for a new index
            "pocket").
    """

    def __init__(
        self,
        index: Index | str | Path | None = None,
        model: Embedder | str | Path | None = None,
    ) -> None:
        self._texts = IndexTexts(index, model)

    @property
    def index(self) -> Index:
        return self._texts.index

    @property
    def embeddings(self) -> RunnelEmbeddings:
        return RunnelEmbeddings(self.index.embedder)

    @classmethod
    def from_texts(  # type: ignore[override]
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        index: Index | str | Path | None = None,
    ) -> Self:
        """Return a store of texts; `embedding`: a `RunnelEmbeddings`, whose model the index gets.

        Raises:
            InputError: another embedding, or as `add_documents`.
        """
        if not isinstance(embedding, RunnelEmbeddings | None):
            raise InputError(
                f"the embedding is of type {type(embedding).__name__}; expected RunnelEmbeddings,"
                " because an index makes its vectors itself"
            )
        store = cls(index, None if embedding is None else embedding.model)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def add_texts(  # type: ignore[override]
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
    ) -> list[str]:
        """Add texts, as `add_documents`. LangChain's own `add_texts` leaves out texts for which
        there are no ids, and all texts of an iterator.
        """
        given = list(texts)
        if ids is not None and len(ids) != len(given):
            raise InputError(f"there are {len(given)} texts, and {len(ids)} ids")
        return super().add_texts(given, metadatas, ids=ids)

    def add_documents(  # type: ignore[override]
        self,
        documents: list[Document],
        ids: Sequence[str | None] | None = None,
        *,
        batch_size: int | None = None,
    ) -> list[str]:
        """Add documents, replacing documents of the same ids, and return their ids: of `ids`, else
        their own, else new ones. `batch_size` has no effect.

        Raises:
            InputError: other numbers of documents and ids, or a document that cannot be stored,
                such as one with metadata that JSON cannot hold; the others are stored.
        """
        given = [document.id for document in documents] if ids is None else list(ids)
        if len(given) != len(documents):
            raise InputError(f"there are {len(documents)} documents, and {len(given)} ids")
        names = [name or str(uuid.uuid4()) for name in given]
        self._texts.add(
            records.Document(name, document.page_content, document.metadata)
            for name, document in zip(names, documents, strict=True)
        )
        return names

    def delete(  # type: ignore[override]
        self, ids: list[str] | None = None
    ) -> None:
        """Delete documents; unknown ids are ignored. None: delete all."""
        self._texts.delete(ids)

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents that exist, in the order of `ids`."""
        return [_document(row) for row in self._texts.get(ids)]

    def similarity_search(  # type: ignore[override]
        self, query: str, k: int = 4, filter: DocumentFilter | None = None
    ) -> list[Document]:
        """Return the k documents nearest to a query, best first."""
        return [document for document, _ in self.similarity_search_with_score(query, k, filter)]

    def similarity_search_with_score(
        self, query: str | Sequence[float], k: int = 4, filter: DocumentFilter | None = None
    ) -> list[tuple[Document, float]]:
        """Return the k documents nearest to a query or a vector (d,), with their cosines."""
        if filter is not None and not callable(filter):
            conditions(filter, None)  # refuses a wrong filter, also of an empty store
        fits = filter if callable(filter) else lambda one: matches(filter or {}, one.metadata)
        chosen = None if filter is None else lambda row: fits(_document(row))
        return [(_document(row), score) for row, score in self._texts.nearest(query, k, chosen)]

    def similarity_search_by_vector(  # type: ignore[override]
        self, embedding: list[float], k: int = 4, filter: DocumentFilter | None = None
    ) -> list[Document]:
        """Return the k documents nearest to a vector (d,), best first."""
        return [document for document, _ in self.similarity_search_with_score(embedding, k, filter)]

    def max_marginal_relevance_search(  # type: ignore[override]
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: DocumentFilter | None = None,
    ) -> list[Document]:
        """Return k of the `fetch_k` documents nearest to a query that differ from each other.

        Args:
            lambda_mult: the weight of nearness, from 0 (differences alone) to 1.
        """
        vector = self.embeddings.embed_query(query)
        return self.max_marginal_relevance_search_by_vector(vector, k, fetch_k, lambda_mult, filter)

    def max_marginal_relevance_search_by_vector(  # type: ignore[override]
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: DocumentFilter | None = None,
    ) -> list[Document]:
        """Return documents as `max_marginal_relevance_search`, for a vector (d,)."""
        found = self.similarity_search_by_vector(embedding, max(k, fetch_k), filter)
        vectors = self.embeddings.embed_documents([document.page_content for document in found])
        chosen = maximal_marginal_relevance(np.array(embedding), vectors, lambda_mult, k)
        return [found[place] for place in chosen]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        # a text's cosine with itself may be above 1 by rounding
        return lambda cosine: min(max(cosine, 0.0), 1.0)


def _document(row: DocumentRow) -> Document:
    return Document(id=row.id, page_content=row.text, metadata=shown(row.metadata))


_text = attrgetter("page_content")  # of a document


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
        self,
        query: str,
        *,
        run_manager: object,
        k: int | None = None,
        sentences: int | None = None,
        where: Filter | None = None,
    ) -> list[Document]:
        """Search; `k`, `sentences` and `where`, if `invoke` has them, replace the retriever's."""
        results = search_results(
            self.index,
            query,
            self.k if k is None else k,
            self.sentences if sentences is None else sentences,
            self.where if where is None else where,
            self.options,
        )
        return [
            Document(
                # the whole document has its id; a sentence has none
                id=hit.id if place is hit.place else None,
                page_content=place.text,
                metadata=metadata | {"score": hit.score},
            )
            for hit, place, metadata in results
        ]

    _aget_relevant_documents = in_a_thread(_get_relevant_documents)


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
        best = ranked(self.model, query, documents, _text, self.top_n, self.max_tokens)
        return [
            document.model_copy(
                update={"metadata": {**document.metadata, "relevance_score": score}}
            )
            for document, score in best
        ]


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
        results = []
        for document, sentence in best_sentences(
            self.model, query, documents, _text, self.top_n, self.min_score
        ):
            source = {} if document.id is None else {"source": document.id}
            place = {"start": sentence.start, "end": sentence.end, "score": sentence.score}
            results.append(
                Document(
                    page_content=sentence.text, metadata={**source, **document.metadata, **place}
                )
            )
        return results
