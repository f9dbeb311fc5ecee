"""LanceDB: a table whose rows and queries are embedded by a registered function "runnel", its
results reranked.
"""

import tempfile

import lancedb
from lancedb.embeddings import TextEmbeddingFunction, get_registry, register
from lancedb.pydantic import LanceModel, Vector

from runnel import Embedder, Reranker

embedder = Embedder.load("pocket")


@register("runnel")
class RunnelEmbeddings(TextEmbeddingFunction):
    """The table stores the function's name: import this module before such a table is opened."""

    def ndims(self):
        return embedder.dimension

    def generate_embeddings(self, texts, *args, **kwargs):
        return list(embedder.encode_document(list(texts)))

    def compute_query_embeddings(self, query, *args, **kwargs):
        return list(embedder.encode_query([query]))


if __name__ == "__main__":
    pocket = get_registry().get("runnel").create()

    class Row(LanceModel):
        text: str = pocket.SourceField()
        vector: Vector(pocket.ndims()) = pocket.VectorField()

    with tempfile.TemporaryDirectory() as folder:
        table = lancedb.connect(folder).create_table("documents", schema=Row)
        table.add(
            [
                {"text": "A train leaves at noon."},
                {"text": "Objects that nothing refers to may be collected."},
            ]
        )
        found = table.search(question := "what happens to garbage").limit(2).to_list()
        # Objects that ...
        print(Reranker.load("pocket").rank(question, [row["text"] for row in found])[0].text)
