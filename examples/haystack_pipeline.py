"""A pipeline of Haystack: find chapters by their vectors, rerank them, and return the sentences
that answer with their places.

python examples/haystack_pipeline.py "Is the finally clause executed if a return statement is
reached?"
"""

import sys
from pydoc_data.topics import topics

from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore

from runnel.integrations.haystack import (
    RunnelDocumentEmbedder,
    RunnelRanker,
    RunnelSentences,
    RunnelTextEmbedder,
)

CHAPTERS = (
    "for",
    "while",
    "break",
    "continue",
    "try",
    "with",
    "del",
    "return",
    "yield",
    "nonlocal",
)


def search_pipeline(store: InMemoryDocumentStore) -> Pipeline:
    """Return a pipeline from a question to sentences."""
    pipeline = Pipeline()
    pipeline.add_component("embedder", RunnelTextEmbedder("pocket"))
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=5))
    pipeline.add_component("ranker", RunnelRanker("pocket", top_k=3))
    pipeline.add_component("sentences", RunnelSentences("pocket", top_k=5))
    pipeline.connect("embedder.embedding", "retriever.query_embedding")
    pipeline.connect("retriever.documents", "ranker.documents")
    pipeline.connect("ranker.documents", "sentences.documents")
    return pipeline


def main() -> None:
    """Search some chapters of the Python language reference and print the sentences that answer."""
    question = (
        sys.argv[1]
        if len(sys.argv) > 1
        else "Is the finally clause executed if a return statement is reached?"
    )
    store = InMemoryDocumentStore()
    chapters = [Document(id=name, content=topics[name].strip()) for name in CHAPTERS]
    store.write_documents(RunnelDocumentEmbedder("pocket").run(chapters)["documents"])
    inputs = {
        "embedder": {"text": question},
        "ranker": {"query": question},
        "sentences": {"query": question},
    }
    for one in search_pipeline(store).run(inputs)["sentences"]["documents"]:
        place = "{source_id}:{start}-{end}".format_map(one.meta)
        print(f"{one.score:.2f}  {place}  {' '.join(one.content.split())}")


if __name__ == "__main__":
    main()
