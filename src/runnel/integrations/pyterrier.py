"""PyTerrier: a search of an index and a reranker as transformers, for its pipelines and experiments.

    import pyterrier as pt
    from runnel.integrations.pyterrier import RunnelReranker, RunnelRetriever

    search = RunnelRetriever(Index.open("library"), num_results=100)
    pt.Experiment([search, search >> RunnelReranker("pocket")], topics, qrels, ["nDCG@10"])

Neither needs Java. Runs are also exchanged as TREC files: `runnel rerank` and `runnel evaluate` read what
`pt.io.write_results` writes, and `pt.io.read_results` reads theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runnel.errors import needing
from runnel.integrations.models import loaded
from runnel.models.reranker import Reranker
from runnel.records import expect_count
from runnel.search.index import Index

with needing("this needs pyterrier", "pyterrier"):
    import pandas as pd
    import pyterrier as pt


class RunnelRetriever(pt.Transformer):
    """A search of an index: `qid`, `query` to `qid`, `query`, `docno`, `score`, `rank` (from 0), `text`.

    Args:
        index: an open index.
        num_results: documents to return for each query.
        options: further arguments of `Index.search`, such as {"dense_weight": 0}.

    Raises:
        InputError: `num_results` is below 1; when searching, a query is empty.
    """

    def __init__(self, index: Index, num_results: int = 1000, options: Mapping[str, Any] | None = None) -> None:
        expect_count(num_results, "num_results")
        self.index, self.num_results, self.options = index, num_results, dict(options or {})

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Search for each query; columns of the queries are kept."""
        pt.validate.query_frame(inp, ["query"])
        queries = inp[pt.model.query_columns(inp)].drop_duplicates("qid")
        rows: list[dict[str, Any]] = []
        for query in queries.to_dict("records"):
            hits = self.index.search(query["query"], self.num_results, sentences=0, **self.options)
            rows += [query | {"docno": hit.id, "score": hit.score, "rank": hit.rank - 1, "text": hit.text} for hit in hits]
        return pd.DataFrame(rows, columns=[*queries.columns, "docno", "score", "rank", "text"])


class RunnelReranker(pt.Transformer):
    """A reranker: `qid`, `query`, `docno`, `text` to the same with new `score` (a logit) and `rank` (from 0).

    Args:
        model: a reranker, or what `Reranker.load` takes.
        text_field: the column with the documents' text.
        max_tokens: cut longer documents, with a warning (`Reranker.score`); default: nothing is cut.

    Raises:
        CheckpointError: the model is missing or has no rerank head.
        InputError (when ranking): a query is empty.
    """

    def __init__(
        self, model: Reranker | str | Path = "pocket", text_field: str = "text", *, max_tokens: int | None = None
    ) -> None:
        self.model, self.text_field, self.max_tokens = loaded(Reranker, model), text_field, max_tokens

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Score the documents of each query; best first."""
        pt.validate.result_frame(inp, ["query", self.text_field])
        scored = inp.assign(score=0.0)
        for _, group in inp.groupby("qid", sort=False):
            texts = group[self.text_field].tolist()
            scored.loc[group.index, "score"] = self.model.score(group["query"].iloc[0], texts, max_tokens=self.max_tokens)
        order = scored.groupby("qid", sort=False)["score"].rank(ascending=False, method="first")
        return scored.assign(rank=order.astype(int) - 1).sort_values(["qid", "rank"], ignore_index=True)
