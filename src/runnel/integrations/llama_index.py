"""LlamaIndex: an embedding model, a node parser, a vector store and a retriever over an index, and
postprocessors (docs/integrations.md).

The embedding and the postprocessors are stored (`to_dict`) with the name of their model, from which
they load it again. A `model` is a loaded one or what its class's `load` takes; `max_tokens` cuts
longer texts, with a warning (None: nothing is cut).
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from runnel import records
from runnel.checks import expect_choice, expect_count, expect_text, refuse_when
from runnel.errors import needing
from runnel.integrations.calls import (
    LIBRARY,
    IndexTexts,
    Matches,
    best_sentences,
    document_vectors,
    fields_of,
    in_a_thread,
    loaded,
    name_of,
    ranked,
    search_results,
    shown,
)
from runnel.models.embedder import Embedder
from runnel.models.reranker import Reranker
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.records import trim
from runnel.search.filters import Filter
from runnel.search.index import Index
from runnel.search.records import DocumentRow
from runnel.text.sentences import passage_bounds, read_sentences

with needing("this needs llama-index-core", "llama-index"):
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import Field, PrivateAttr
    from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings
    from llama_index.core.node_parser import NodeParser
    from llama_index.core.node_parser.node_utils import build_nodes_from_splits
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import (
        BaseComponent,
        BaseNode,
        Document,
        MetadataMode,
        NodeRelationship,
        NodeWithScore,
        QueryBundle,
        RelatedNodeInfo,
        TextNode,
    )
    from llama_index.core.utils import get_tqdm_iterable
    from llama_index.core.vector_stores.types import (
        BasePydanticVectorStore,
        MetadataFilters,
        VectorStoreQuery,
        VectorStoreQueryResult,
    )
    from llama_index.core.vector_stores.utils import (
        build_metadata_filter_fn,
        metadata_dict_to_node,
        node_to_metadata_dict,
    )

_PREFETCHED = 4  # nodes to find for each node that maximal marginal relevance is to choose
_BATCH = 256  # texts that the library gives to one call; its own default is 10


class _Named:
    """A component that the library stores under the name of its class."""

    @classmethod
    def class_name(cls) -> str:
        return cls.__name__


class _WithModel(_Named, BaseComponent):
    """A component with a model, which the library stores by what it was loaded from."""

    model: str
    _kind: ClassVar[type[Any]]
    _loaded: Any = PrivateAttr()

    def __init__(self, model: object = "pocket", **fields: Any) -> None:
        fields["model"] = name_of(self._kind, model)
        super().__init__(**fields)
        self._loaded = loaded(self._kind, model)


class RunnelEmbedding(_Named, BaseEmbedding):
    """An embedder, with its own prompts for queries and documents if it has some. Vectors have unit
    length; the vector of a text without a token is (1, 0, ..., 0).

    Args:
        fields: of `BaseEmbedding`; `embed_batch_size` is 256 by default.
    """

    max_tokens: int | None = Field(default=None, ge=1)
    _embedder: Embedder = PrivateAttr()

    def __init__(
        self,
        model_name: Embedder | str | Path = "pocket",
        *,
        max_tokens: int | None = None,
        **fields: Any,
    ) -> None:
        defaults = {"embed_batch_size": _BATCH, "max_tokens": max_tokens}
        super().__init__(**defaults | fields | {"model_name": name_of(Embedder, model_name)})
        self._embedder = loaded(Embedder, model_name)

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._embedder.encode_query(query, max_tokens=self.max_tokens).tolist()

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return document_vectors(self._embedder, texts, self.max_tokens)

    _aget_query_embedding = in_a_thread(_get_query_embedding)
    _aget_text_embedding = in_a_thread(_get_text_embedding)
    _aget_text_embeddings = in_a_thread(_get_text_embeddings)


class RunnelNodeParser(_WithModel, NodeParser):
    """A parser into nodes of whole sentences.

    The nodes of a document have all its text but whitespace between them, and exact
    `start_char_idx` and `end_char_idx`, which the library's parsers find by searching for the text,
    so that a repeated text may have the place of another. Texts without a token have no nodes.

    Args:
        model: an embedder, or what `Embedder.load` takes; its tokens are counted.
        max_tokens: the most tokens of a node of several sentences, without the metadata that the
            library adds for embedding.
    """

    max_tokens: int = Field(default=128, ge=1)
    _kind = Embedder

    def _parse_nodes(
        self, /, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: object
    ) -> list[BaseNode]:
        parsed: list[BaseNode] = []
        for node in get_tqdm_iterable(nodes, show_progress, "Parsing nodes"):
            text = node.get_content(metadata_mode=MetadataMode.NONE)
            spans = self._spans(text)
            offset, _ = _origin(node)
            children = build_nodes_from_splits(
                [text[start:end] for start, end in spans], node, id_func=self.id_func
            )
            for child, (start, end) in zip(children, spans, strict=True):
                child.start_char_idx = offset + start
                child.end_char_idx = offset + end
            parsed += children
        return parsed

    _aparse_nodes = in_a_thread(_parse_nodes)

    def _postprocess_parsed_nodes(
        self, nodes: list[BaseNode], parent_doc_map: dict[str, Document]
    ) -> list[BaseNode]:
        # the library sets the places of nodes again, by a search for their texts: keep ours
        places = [
            (node.start_char_idx, node.end_char_idx) for node in nodes if isinstance(node, TextNode)
        ]
        nodes = super()._postprocess_parsed_nodes(nodes, parent_doc_map)
        for node, (start, end) in zip(nodes, places, strict=True):
            assert isinstance(node, TextNode)
            node.start_char_idx, node.end_char_idx = start, end
        return nodes

    def _spans(self, text: str) -> list[tuple[int, int]]:
        if self._loaded.is_empty(text):
            return []
        model = self._loaded.model
        tokens = read_sentences(
            text, model.templates["document"].encode_pieces(model.tokenizer, "document", text)
        )
        # sentences are joined to passages; each goes on to the character where the next begins
        starts = np.append(tokens.spans[:, 0], len(text))
        edges = starts[passage_bounds(tokens.bounds, self.max_tokens)].tolist()
        return [trim(text, start, end) for start, end in itertools.pairwise(edges)]


# by the modes of a query, options of `Index.search`, which "default" and "mmr" do not call
_MODES: dict[str, dict[str, float]] = {
    "default": {},
    "mmr": {},
    "hybrid": {},
    "text_search": {"dense_weight": 0, "rerank": 0},
    "sparse": {"dense_weight": 0, "rerank": 0},
}


class RunnelVectorStore(_Named, BasePydanticVectorStore):
    """A vector store over an index, whose model makes the vectors, of the texts of nodes without
    metadata; embeddings of nodes are not used.

    The modes of a query: "default" ranks by vectors alone, and similarities are the cosines of the
    query and the best passage of a node; "mmr" chooses of four times as many nodes (or
    `mmr_prefetch_k`) those that differ from each other, by `mmr_threshold`; "hybrid" is the search
    of the index, by vectors and words, reranked, and `alpha` is the share of vectors in the first
    ranking, from 0 to 1; "text_search" and "sparse" rank by words alone. Filters read all stored
    nodes.

    Args:
        place: of an index, which is created if it does not exist; None: a temporary folder, removed
            with the store. Or an open index.
        model: an embedder, or what `Embedder.load` takes (default: the index's own; for a new index
            "pocket").
    """

    stores_text: bool = True
    is_embedding_query: bool = False  # a query is its text, which the index's model reads
    place: str | None = None
    _texts: IndexTexts = PrivateAttr()

    def __init__(
        self,
        place: Index | str | Path | None = None,
        model: Embedder | str | Path | None = None,
        **fields: Any,
    ) -> None:
        where = place.store.uri if isinstance(place, Index) else place
        fields["place"] = None if where is None else str(where)
        super().__init__(**fields)
        self._texts = IndexTexts(place, model)

    @property
    def client(self) -> Index:
        """The index."""
        return self._texts.index

    def add(self, nodes: Sequence[BaseNode], **add_kwargs: object) -> list[str]:
        """Add nodes, replacing nodes of the same ids, and return the ids. A text without a token is
        stored and never found.

        Raises:
            InputError: nodes that cannot be stored, such as those with metadata that JSON cannot
                hold; the others are stored.
        """
        self._texts.add(map(_stored, nodes))
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: object) -> None:
        """Delete the nodes of a source document."""
        self._texts.delete(matches=lambda row: _source(row) == ref_doc_id)

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: object,
    ) -> None:
        """Delete the nodes of these ids (None: all) that match."""
        self._texts.delete(node_ids, _matcher(filters))

    def clear(self) -> None:
        """Delete all nodes."""
        self._texts.delete()

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Return the nodes of these ids that exist, in order (None: all), and match."""
        return [_node(row) for row in self._texts.get(node_ids, _matcher(filters))]

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Return the best nodes, their ids and similarities.

        Raises:
            InputError: another mode; no text in the query, or by vectors no text and no vector;
                a vector of another width than the model's.
        """
        mode = query.mode.value
        expect_choice(mode, _MODES, "the mode of a query of RunnelVectorStore")
        matches = None
        if query.filters is not None or query.node_ids or query.doc_ids:
            # the library gives no ids as an empty list
            matches = _matcher(query.filters, query.node_ids or None, query.doc_ids or None)
        if mode in ("default", "mmr"):
            given = query.query_str if query.query_embedding is None else query.query_embedding
            count = query.similarity_top_k
            if mode == "mmr":
                count = max(count, kwargs.get("mmr_prefetch_k") or _PREFETCHED * count)
            found = self._texts.nearest(given or "", count, matches)
            if mode == "mmr":
                found = [found[place] for place in self._diverse(query, found)]
        else:
            top_k = query.hybrid_top_k or query.similarity_top_k
            options = dict(_MODES[mode])
            # alpha is the share of vectors, from 0 to 1; 1 must not divide by 0
            if mode == "hybrid" and query.alpha is not None:
                options["dense_weight"] = query.alpha / (1.0000001 - query.alpha)
            found = self._texts.search(query.query_str or "", top_k, matches, **options)
        return VectorStoreQueryResult(
            nodes=[_node(row) for row, _ in found],
            similarities=[score for _, score in found],
            ids=[row.id for row, _ in found],
        )

    def _diverse(
        self, query: VectorStoreQuery, found: Sequence[tuple[DocumentRow, float]]
    ) -> list[int]:
        """Return the places of the texts that maximal marginal relevance chooses."""
        embedder = self.client.embedder
        vector = query.query_embedding or embedder.encode_query(query.query_str or "").tolist()
        _, places = get_top_k_mmr_embeddings(
            vector,
            document_vectors(embedder, [row.text for row, _ in found], None),
            similarity_top_k=query.similarity_top_k,
            mmr_threshold=query.mmr_threshold,
        )
        return places


# The fields in which LlamaIndex itself keeps a node, and the name of their dict, which the index
# stores in the metadata, below `LIBRARY`.
_NAME = "llama_index"
_FIELDS = ("_node_content", "_node_type", "document_id", "doc_id", "ref_doc_id")


def _stored(node: BaseNode) -> records.Document:
    """Return a node as the index stores it."""
    fields = node_to_metadata_dict(node, remove_text=True)
    rest = {name: fields[name] for name in _FIELDS}
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    return records.Document(node.node_id, text, {**node.metadata, LIBRARY: {_NAME: rest}})


def _node(row: DocumentRow) -> BaseNode:
    if fields := fields_of(row, _NAME):
        return metadata_dict_to_node(fields, row.text)
    return TextNode(id_=row.id, text=row.text, metadata=shown(row.metadata))


def _source(row: DocumentRow) -> str | None:
    """Return the id of a node's source document."""
    return fields_of(row, _NAME).get("ref_doc_id")


def _matcher(
    filters: MetadataFilters | None,
    node_ids: Collection[str] | None = None,
    doc_ids: Collection[str] | None = None,
) -> Matches:
    """Return a test of a text: whether it is of these nodes and source documents, and its metadata
    fits.
    """
    refuse_when(
        (
            not isinstance(filters, MetadataFilters | None),
            f"the filters are {filters!r:.80}; expected MetadataFilters",
        )
    )
    return lambda row: (
        (node_ids is None or row.id in node_ids)
        and (doc_ids is None or _source(row) in doc_ids)
        and build_metadata_filter_fn(
            lambda _: fields_of(row, _NAME) | shown(row.metadata), filters
        )(row.id)
    )


class RunnelRetriever(BaseRetriever):
    """A search of an index of runnel: whole documents, or the sentences of documents that answer,
    with the documents' scores.

    A sentence has its place in the document, and `sentence_score`, `page` and `headings` in its
    metadata. What a search adds to the metadata of a document, but its title, is left out of what
    language models and embedders read.

    Args:
        index: an open index.
        similarity_top_k: documents to find.
        sentences: nodes per document, best first; 0: the whole document.
        where: a filter by metadata (`Index.search`).
        options: further arguments of `Index.search`.
    """

    def __init__(
        self,
        index: Index,
        similarity_top_k: int = 10,
        sentences: int = 0,
        where: Filter | None = None,
        options: Mapping[str, object] | None = None,
        **fields: Any,
    ) -> None:
        expect_count(similarity_top_k, "similarity_top_k")
        self._search = partial(
            search_results,
            index,
            top_k=similarity_top_k,
            sentences=sentences,
            where=where,
            options=options or {},
        )
        super().__init__(**fields)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        nodes = []
        for hit, place, metadata in self._search(query_bundle.query_str):
            added = [name for name in metadata if name not in hit.metadata and name != "title"]
            node = TextNode(
                text=place.text,
                metadata=metadata,
                start_char_idx=place.start,
                end_char_idx=place.end,
                excluded_llm_metadata_keys=added,
                excluded_embed_metadata_keys=added,
                relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=hit.id)},
            )
            if place is hit.place:
                node.id_ = hit.id
            nodes.append(NodeWithScore(node=node, score=hit.score))
        return nodes

    _aretrieve = in_a_thread(_retrieve)


class RunnelRerank(_WithModel, BaseNodePostprocessor):
    """A reranker: the best nodes, best first, with its scores (logits). It reads what the library
    embeds of a node.

    Args:
        top_n: nodes to return; None: all.
    """

    top_n: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    _kind = Reranker

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        read = partial(NodeWithScore.get_content, metadata_mode=MetadataMode.EMBED)
        best = ranked(self._loaded, _query(query_bundle), nodes, read, self.top_n, self.max_tokens)
        return [NodeWithScore(node=scored.node, score=score) for scored, score in best]


class RunnelSentences(_WithModel, BaseNodePostprocessor):
    """A sentence retriever: the sentences of all nodes that answer the query, best first, as nodes
    with scores.

    Each has the metadata of its node, and its place: in the source document if the node knows its
    own place there, otherwise in the node's text; `source_node` is the text that the place counts
    in. Equal sentences are returned once.

    Args:
        top_n: sentences to return, of all nodes together.
        min_score: omit sentences with lower scores; None: none.
    """

    top_n: int = Field(default=10, ge=1)
    min_score: float | None = None
    _kind = SentenceRetriever

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        results = []
        for scored, sentence in best_sentences(
            self._loaded,
            _query(query_bundle),
            nodes,
            NodeWithScore.get_content,
            self.top_n,
            self.min_score,
        ):
            node = scored.node
            first, source = _origin(node)
            part = TextNode(
                text=sentence.text,
                metadata=dict(node.metadata),
                excluded_embed_metadata_keys=node.excluded_embed_metadata_keys,
                excluded_llm_metadata_keys=node.excluded_llm_metadata_keys,
                start_char_idx=first + sentence.start,
                end_char_idx=first + sentence.end,
                relationships={
                    NodeRelationship.SOURCE: source,
                    NodeRelationship.PARENT: node.as_related_node_info(),
                },
            )
            results.append(NodeWithScore(node=part, score=sentence.score))
        return results


def _origin(node: BaseNode) -> tuple[int, RelatedNodeInfo]:
    """Return the start of a node's text in its source, and the source: the node itself, unless it
    knows its place in another.
    """
    start = getattr(node, "start_char_idx", None)
    if start is None or node.source_node is None:
        return 0, node.as_related_node_info()
    return start, node.source_node


def _query(bundle: QueryBundle | None) -> str:
    query = None if bundle is None else bundle.query_str
    expect_text(query, "the query (query_str or query_bundle)")
    return query or ""
