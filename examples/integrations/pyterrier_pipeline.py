"""PyTerrier (pip install pyterrier): a search of an index and a reranker as transformers; neither
needs Java.
"""

import tempfile

import pandas as pd
import pyterrier as pt

from runnel import Document, Index, Reranker


class RunnelRetriever(pt.Transformer):
    """`qid`, `query` to `qid`, `query`, `docno`, `score`, `rank` (from 0), `text`."""

    def __init__(self, index, num_results=1000):
        self.index, self.num_results = index, num_results

    def transform(self, inp):
        found = [
            (one, self.index.search(one.query, self.num_results, sentences=0))
            for one in inp.itertuples()
        ]
        rows = [
            (one.qid, one.query, hit.id, hit.score, hit.rank - 1, hit.text)
            for one, hits in found
            for hit in hits
        ]
        return pd.DataFrame(rows, columns=["qid", "query", "docno", "score", "rank", "text"])


class RunnelReranker(pt.Transformer):
    """`qid`, `query`, `docno`, `text` to the same with a new `score` (a logit) and `rank`."""

    def __init__(self, model="pocket"):
        self.model = Reranker.load(model)

    def transform(self, inp):
        parts = [
            part.assign(score=self.model.score(part["query"].iloc[0], list(part["text"])))
            for _, part in inp.groupby("qid")
        ]
        return pt.model.add_ranks(pd.concat(parts)).sort_values(["qid", "rank"])


if __name__ == "__main__":
    topics = pd.DataFrame(
        [("1", "what happens to objects that nothing refers to")], columns=["qid", "query"]
    )
    with tempfile.TemporaryDirectory() as folder, Index.create(f"{folder}/shelf") as index:
        index.add(
            [
                Document("gc", "Objects that nothing refers to may be garbage-collected."),
                Document("t", "A train leaves."),
            ]
        )
        print((RunnelRetriever(index) >> RunnelReranker())(topics)["docno"].tolist())  # ['gc', 't']
