"""What shorter and quantized vectors cost in quality: nDCG@10 of folders in BEIR's form, for each
width and precision.

    python -m tools.vector_sizes FOLDER... --model pocket

Texts are embedded once. Vectors of float32 are compared by inner product; int8 by the inner product
of the 8-bit numbers, with the ranges of all documents; "restored" by that of the query in float32
with the documents restored from 8 bits; binary by the number of equal bits; "rescored" orders the
40 documents with the most equal bits by the inner product of the query in float32 with the
document's bits as -1 and 1. docs/embed.md has the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from runnel import Embedder
from runnel.lab.evaluation.metrics import evaluate, mean, parse_metrics
from runnel.lab.evaluation.tasks import find_task, read_task
from runnel.models.precision import quantize, truncated, value_ranges

_WIDTHS = (384, 256, 192, 128, 64)
_RESCORED = 40


def main() -> None:
    """Print a row for each set and width."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--model", default="pocket")
    options = parser.parse_args()
    embedder = Embedder.load(options.model)
    for folder in options.folders:
        task = read_task(find_task(folder))
        corpus = [document for document in task.corpus or () if document.text.strip()]
        names = [document.id for document in corpus]
        documents = embedder.encode_document(document.text for document in corpus)
        queries = embedder.encode_query(task.queries.values())
        for width in (one for one in _WIDTHS if one <= embedder.dimension):
            row = []
            for kind, scores in scored(truncated(queries, width), truncated(documents, width)):
                run = {
                    query: dict(zip(names, map(float, of), strict=True))
                    for query, of in zip(task.queries, scores, strict=True)
                }
                found = mean(evaluate(parse_metrics(["nDCG@10"]), task.qrels, run))["nDCG@10"]
                row.append(f"{kind} {found:.4f}")
            print(f"{folder.name}, {width}: {', '.join(row)}", flush=True)


def scored(queries: np.ndarray, documents: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the precision and the scores (queries, documents)."""
    yield "float32", queries @ documents.T
    ranges = value_ranges(documents)
    levels = [quantize(one, "int8", ranges).astype(np.float32) for one in (queries, documents)]
    yield "int8", levels[0] @ levels[1].T
    yield "restored", queries @ (ranges[0] + (levels[1] + 128.5) * (ranges[1] - ranges[0]) / 255).T
    signs = [
        np.unpackbits(quantize(one, "ubinary"), axis=1).astype(np.float32) * 2 - 1
        for one in (queries, documents)
    ]
    equal = signs[0] @ signs[1].T
    yield "binary", equal
    bar = -np.partition(-equal, min(_RESCORED, equal.shape[1]) - 1, axis=1)[
        :, [min(_RESCORED, equal.shape[1]) - 1]
    ]
    yield "rescored", np.where(equal >= bar, queries @ signs[1].T, -1e9)


if __name__ == "__main__":
    main()
