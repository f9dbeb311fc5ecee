"""Chroma (pip install chromadb): a collection embedded by a function that is registered as
"runnel".
"""

import chromadb
from chromadb.api.types import Documents, EmbeddingFunction
from chromadb.utils.embedding_functions import register_embedding_function

from runnel import Embedder


@register_embedding_function
class RunnelEmbeddings(EmbeddingFunction[Documents]):
    """An embedder. The collection stores the name of the model; import this module before such a
    collection is opened.
    """

    def __init__(self, model: str = "pocket"):
        self.model = model
        self.embedder = Embedder.load(model)

    def __call__(self, input):
        return list(self.embedder.encode_document(input))

    def embed_query(self, input):
        return list(self.embedder.encode_query(input))

    @staticmethod
    def name():
        return "runnel"

    def get_config(self):
        return {"model": self.model}

    @staticmethod
    def build_from_config(config):
        return RunnelEmbeddings(config["model"])


if __name__ == "__main__":
    collection = chromadb.EphemeralClient().create_collection(
        "documents", embedding_function=RunnelEmbeddings()
    )
    collection.add(
        ids=["gc", "train"],
        documents=["Objects that nothing refers to may be garbage-collected.", "A train leaves."],
    )
    # [['gc']]
    print(
        collection.query(
            query_texts=["what happens to objects that nothing refers to"], n_results=1
        )["ids"]
    )
