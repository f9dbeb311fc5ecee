"""What the score of the best sentence says: how often that sentence is evidence, and how high it is
without any answer.

    python -m tools.top_scores --data FOLDER

Questions about documents held back from training, each asked of its own document and of another
document of the same set, where the best sentence is always wrong. The figures of pocket-mamba2's
card were made with this and `--model pocket-mamba2`. tools/train_pocket says what FOLDER holds.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runnel import SentenceRetriever
from tools.train_pocket.data import evidence, held_back

SETS = (
    "squad_xquad_en",
    "qed_paragraphs",
    "hotpotqa_distractor",
    "2wiki_distractor",
    "covidqa",
    "fairytaleqa",
    "evidence_inference",
)  # fmt: skip; not cuad, whose questions are answered in most contracts
EDGES = (-100.0, 0.0, 1.0, 2.0, 3.0, 4.0, 100.0)
_MOST = 60_000  # characters of a document


def main() -> None:
    """Print a row for each range of scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=40, help="of each set")
    parser.add_argument("--model", default="pocket")
    options = parser.parse_args()
    retriever = SentenceRetriever.load(options.model)
    own: list[tuple[float, bool]] = []
    foreign: list[float] = []
    for name in SETS:
        before = len(own)
        for record, other in chosen(options.data, name, options.questions):
            first, second = (
                max(sentences, key=lambda s: s.score)
                for sentences in retriever.score_many(
                    record["question"], [record["document"], other]
                )
            )
            own.append(
                (first.score, any(a < first.end and first.start < b for a, b in record["evidence"]))
            )
            foreign.append(second.score)
        mine = own[before:]
        others = foreign[before:]
        right = sum(hit for _, hit in mine)
        higher = sum(a > b for (a, _), b in zip(mine, others, strict=True))
        print(
            f"{name}: {len(mine)} questions, best sentence is evidence {right}, higher than in the"
            f" other document {higher}",
            flush=True,
        )
    for low, high in itertools.pairwise(EDGES):
        hits = [hit for score, hit in own if low <= score < high]
        wrong = sum(low <= score < high for score in foreign)
        print(
            f"{low:6.1f} to {high:6.1f}: {len(hits):4} own, {sum(hits):4} of them evidence;"
            f" {wrong:4} in another document"
        )


def chosen(data: Path, name: str, most: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Questions about held-back documents, spread over these, each with the text of another
    document.
    """
    records: dict[str, list[dict[str, Any]]] = {}
    for record in evidence(data, name):
        if held_back(record["doc_id"]) and len(record["document"]) <= _MOST:
            records.setdefault(record["doc_id"], []).append(record)
    texts = {document: rows[0]["document"] for document, rows in records.items()}
    names = sorted(records)
    picker = random.Random(name)
    picker.shuffle(names)
    for turn in range(most):
        document = names[turn % len(names)]
        other = names[(turn + 1) % len(names)]
        if records[document] and document != other:
            record = records[document].pop(picker.randrange(len(records[document])))
            yield record, texts[other]


if __name__ == "__main__":
    main()
