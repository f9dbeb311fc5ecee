"""A pytest plugin: a small BEIR folder, and an embedder of toy vectors."""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.command_line import Ended, FakeEmbedder, Words
from helpers.files import write_files


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """Three judged queries, of which one shares no word with any document."""
    documents = ["red cat", "blue cat", "red red dog", "a blue bird and a red cat and a dog", " "]
    rows = (
        json.dumps({"_id": f"d{n}", "title": "", "text": text}) + "\n"
        for n, text in enumerate(documents)
    )
    queries = {"1": "blue cats cat", "2": "red dog", "3": "zebra", "4": "not judged"}
    judged = ["1\td1\t2", "1\td0\t1", "2\td0\t1", "2\td2\t0", "3\td4\t1"]
    write_files(
        tmp_path / "beir",
        {
            "corpus.jsonl.gz": gzip.compress("".join(rows).encode()),
            "queries.jsonl": [{"_id": q, "text": text} for q, text in queries.items()],
            "qrels/test.tsv": ["query-id\tcorpus-id\tscore", *judged],
        },
    )
    return tmp_path / "beir"


class ToyEmbedder(FakeEmbedder):
    """Vectors of the words red, blue, cat and dog."""

    dimension = 4

    def __init__(self) -> None:
        super().__init__()
        self.model = SimpleNamespace(
            fingerprint=lambda: "f00d", prompts={}, backbone=SimpleNamespace(longest_text=None)
        )
        self.read = 0

    def vector(self, text: str) -> np.ndarray:
        return np.array(
            [text.count(word) for word in ("red", "blue", "cat", "dog")], dtype=np.float32
        )

    def encode_query(self, texts: Iterable[str], max_tokens: int | None = None) -> np.ndarray:
        return np.stack([self.vector(text) for text in texts])

    encode_document = encode_query

    def encode_rows(
        self, rows: Iterable[Words], progress: Callable[..., object] | None = None
    ) -> Iterator[np.ndarray]:
        for row in rows:
            self.read += 1
            yield self.vector(row.text)


def results(done: Ended) -> dict[str, Any]:
    assert done.code == 0, done.err
    return {r["task"]: r for r in json.loads(done.out)["results"]}
