"""A query engine of LlamaIndex that reads the sentences that answer, instead of whole nodes.

python examples/llama_index_query.py "Is the finally clause executed if a return statement is
reached?"
"""

import sys
from pydoc_data.topics import topics

from llama_index.core import VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import Document

from runnel import Embedder, Reranker, SentenceRetriever
from runnel.integrations.llama_index import (
    RunnelEmbedding,
    RunnelNodeParser,
    RunnelRerank,
    RunnelSentences,
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


def main() -> None:
    """Index some chapters of the Python language reference, and print what a language model would
    be asked.
    """
    question = (
        sys.argv[1]
        if len(sys.argv) > 1
        else "Is the finally clause executed if a return statement is reached?"
    )
    embedder = Embedder.load("pocket")  # one model for all four jobs
    documents = [
        Document(text=topics[name].strip(), doc_id=name, metadata={"chapter": name})
        for name in CHAPTERS
    ]
    index = VectorStoreIndex.from_documents(
        documents,
        embed_model=RunnelEmbedding(embedder),
        transformations=[RunnelNodeParser(embedder, max_tokens=128)],
    )
    engine = RetrieverQueryEngine.from_args(
        index.as_retriever(similarity_top_k=20),
        llm=MockLLM(),  # repeats its prompt; a chat model answers
        node_postprocessors=[
            RunnelRerank(Reranker(embedder.model), top_n=10),
            RunnelSentences(SentenceRetriever(embedder.model), top_n=5),
        ],
    )
    answer = engine.query(question)
    print(answer)
    for one in answer.source_nodes:
        print(
            f"{one.node.ref_doc_id}:{one.node.start_char_idx}-{one.node.end_char_idx} "
            f" {one.score:.2f}"
        )


if __name__ == "__main__":
    main()
