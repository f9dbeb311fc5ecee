"""How much of a document is read, and its score from segments: FirstP, LongP, MaxP and SumP (docs/evaluation.md).

Source: Dai and Callan, Deeper Text Understanding for IR with Contextual Neural Language Modeling, 2019; paper C, 4.3 and B.2.2.
Differs: segments have a number of tokens, not of words. SumP of a reranker adds the sigmoids of its scores, so that no segment
lowers a sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from runnel.lab.evaluation.pieces import expect_stride, windows
from runnel.lab.training import recipes
from runnel.lab.training.corpora import Texts
from runnel.records import Document
from runnel.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Reading:
    """What is read of queries and documents; None: all."""

    max_tokens: int | None = None  # of a document, for a reranker of query and document, special ones included
    max_query_tokens: int | None = None  # of a query, for an embedder
    segment_tokens: int | None = None  # of a segment's text; only with it the next two count
    stride: int | None = None  # tokens from the start of a segment to the next; None: segments do not overlap
    aggregate: Literal["max", "sum"] = "max"  # how a document's score is made of its segments'

    def __post_init__(self) -> None:
        if self.segment_tokens is not None and self.stride is not None:
            expect_stride(self.stride, self.segment_tokens)

    def settings(self) -> dict[str, object]:
        """Return the settings that scores depend on; none if everything is read."""
        found = {name: value for name, value in asdict(self).items() if value is not None}
        return found if self.segment_tokens is not None else {n: v for n, v in found.items() if n != "aggregate"}

    def of_documents(self) -> dict[str, object]:
        """Return the settings that vectors of documents depend on."""
        return {name: value for name, value in self.settings().items() if name not in ("max_query_tokens", "aggregate")}

    def cut(self, text: str, tokenizer: Tokenizer) -> list[str]:
        """Return the segments of a text, at least one; together they cover it."""
        assert self.segment_tokens is not None
        encoded = tokenizer.encode(text)
        count, stride = len(encoded.ids), self.stride or self.segment_tokens
        if count <= self.segment_tokens:
            return [text]
        cuts = windows(np.arange(count + 1), self.segment_tokens, stride)
        pieces = [text[encoded.starts[first] : encoded.ends[last - 1]] for first, last in cuts]
        return [piece for piece in pieces if piece.strip()] or [text]

    def cut_all(self, documents: Iterable[Document], tokenizer: Tokenizer) -> tuple[Texts, np.ndarray]:
        """Return the segments of all documents, with ids such as "d1#0", and the document's row of each, int64."""
        owners: list[int] = []

        def pieces() -> Iterator[Document]:
            for row, document in enumerate(documents):
                for number, piece in enumerate(self.cut(document.text, tokenizer)):
                    owners.append(row)
                    yield Document(segment_id(document.id, number), piece)

        texts = Texts(pieces())
        return texts, np.array(owners, dtype=np.int64)

    def combine(self, scores: Mapping[str, float]) -> list[tuple[str, float]]:
        """Return documents with their scores, best first, from the logits of their segments."""
        combined: dict[str, float] = {}
        for name, score in scores.items():
            document = name.rpartition("#")[0]
            if self.aggregate == "sum":
                combined[document] = combined.get(document, 0.0) + 1 / (1 + math.exp(-max(score, -700.0)))
            else:
                combined[document] = max(combined.get(document, -math.inf), score)
        return sorted(combined.items(), key=lambda one: -one[1])


def segment_id(document: str, number: int) -> str:
    """Return the id of a segment, from which `Reading.combine` reads the document's."""
    return f"{document}#{number}"


def recorded(model: str, job: str) -> Reading:
    """Return what a run's recipe says about evaluation, for RUN/model and RUN/checkpoints/...; other models read everything."""
    folder = Path(model)
    path = (folder.parent.parent if folder.parent.name == "checkpoints" else folder.parent) / "recipe.toml"
    if (folder.name != "model" and folder.parent.name != "checkpoints") or not path.is_file():
        return Reading()
    recipe = recipes.read(str(path))
    if recipe.job != job:
        return Reading()
    table = recipe.evaluation
    return Reading(table.max_tokens or table.max_document_tokens, table.max_query_tokens)
