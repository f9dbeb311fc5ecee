"""What a server answers: its routes, and the shape of an error in each."""

from typing import Any

OPENAI = {"error"}
DETAIL = {"detail"}  # for clients of Jina and Voyage
COHERE = {"message"}
TEI = {"error", "error_type"}
POSTS: dict[str, tuple[set[str], Any]] = {  # by route: the fields of an error, and a body
    "/v1/embeddings": (OPENAI | DETAIL, {"input": ["a b c d"]}),
    "/v1/find": (OPENAI, {"query": "a", "documents": ["b c d"]}),
    "/v1/search": (OPENAI, {"query": "a b c d"}),
    "/v1/verify": (OPENAI, {"quote": "a", "text": "b c d"}),
    "/embed": (TEI, {"inputs": ["a b c d"]}),
    "/embed_all": (TEI, {"inputs": ["a b c d"]}),
    "/similarity": (TEI, {"inputs": {"source_sentence": "a b c d", "sentences": ["a"]}}),
    "/tokenize": (TEI, {"inputs": ["a b c d"]}),
    "/predict": (TEI, {"inputs": [["a", "b c d"]]}),
    "/v1/embed": (COHERE, {"texts": ["a b c d"]}),
    "/v2/embed": (COHERE, {"texts": ["a b c d"]}),
    "/v1/tokenize": (COHERE, {"text": "a b c d"}),
    "/v1/rerank": (COHERE | DETAIL, {"query": "a", "documents": ["b c d"]}),
    "/v2/rerank": (COHERE, {"query": "a", "documents": ["b c d"]}),
    "/rerank": (COHERE | TEI, {"query": "a", "texts": ["b c d"]}),
}  # POST / is that of /embed, and not in the schema
