"""The library rerankers (pip install rerankers): a ranker of runnel with its interface. Scores are
logits.
"""

from rerankers.documents import Document
from rerankers.models.ranker import BaseRanker
from rerankers.results import RankedResults, Result
from rerankers.utils import prep_docs

from runnel import Reranker


class RunnelRanker(BaseRanker):
    """A reranker; documents are read whole, all in one call."""

    def __init__(self, model_name_or_path: str = "pocket", verbose: int = 0) -> None:
        self.model = Reranker.load(model_name_or_path)

    def score(self, query: str, doc: str) -> float:
        """Return the score of a document."""
        return float(self.model.score(query, [doc])[0])

    def rank(
        self,
        query: str,
        docs: list[str | Document],
        doc_ids: list[str] | None = None,
        metadata: list | None = None,
    ):
        """Rank documents, best first; without ids, texts are numbered from 0."""
        documents = prep_docs(docs, doc_ids, metadata)
        hits = self.model.rank(query, [document.text for document in documents])
        return RankedResults(
            [Result(documents[int(hit.id)], hit.score, hit.rank) for hit in hits],
            query,
            has_scores=True,
        )


if __name__ == "__main__":
    texts = ["A train leaves at noon.", "Objects that nothing refers to may be garbage-collected."]
    results = RunnelRanker().rank(
        "what happens to objects that nothing refers to", texts, doc_ids=["train", "gc"]
    )
    print([result.doc_id for result in results.top_k(2)])  # ['gc', 'train']
