"""What an index costs on disk and to fill, for docs/scale.md: real texts, pocket-mamba2, LanceDB.

    python tools/index_costs.py FOLDER      # FOLDER: plain text files; their words make documents
                                            of 1,000 words

Writes docs/scale.json. The vector index is built here, although so few passages would be searched
without one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
import tracemalloc
from datetime import timedelta
from pathlib import Path

import numpy as np

from runnel import Document, Embedder, Index
from runnel.search.encoding import new_settings
from runnel.search.lance import LanceStore
from runnel.search.records import WHOLE, DocumentRow, IndexSettings, PassageRow

PAGE = Path(__file__).parent.parent / "docs" / "scale.json"
_WORDS = 1000  # of a document
_PART = 10_000  # documents in a commit
_VECTORS = 7  # of such a document


def texts(folder: Path, count: int) -> list[str]:
    """Documents of the words of the files in a folder, continued in the next
    file where one ends.
    """
    files = (
        path.read_text(encoding="utf-8", errors="replace").split()
        for path in sorted(folder.rglob("*.txt"))
    )
    words = itertools.chain.from_iterable(files)
    found = [" ".join(itertools.islice(words, _WORDS)) for _ in range(count)]
    if len(found[-1].split()) < _WORDS:
        raise SystemExit(
            f"{folder} has too few words for {count:,} documents of {_WORDS:,}; add files or lower"
            " --documents"
        )
    return found


def size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def on_disk(documents: list[str], folder: Path) -> dict[str, float]:
    """Bytes of an index of these documents, by part, and what it holds."""
    from lancedb.index import IvfRq

    index = Index.create(folder / "index")
    with index:
        changes = index.add(Document(f"document-{i:09}", text) for i, text in enumerate(documents))
        index.optimize()
    # what can be gone back to included
    found: dict[str, float] = {"index_bytes": size(folder / "index")}
    words = 0
    for name in ("documents", "passages"):
        table = index.store._database.open_table(name)  # type: ignore[union-attr]  # the local store
        # nobody opens it any more
        table.optimize(cleanup_older_than=timedelta(0), delete_unverified=True)
        found[f"{name}_bytes"] = size(folder / "index" / f"{name}.lance" / "data")
        words += size(folder / "index" / f"{name}.lance" / "_indices")
    table.create_index("vector", config=IvfRq(distance_type="cosine"))
    return found | {
        "documents": len(documents),
        "words": _WORDS,
        "tokens": changes.tokens,
        "passages": table.count_rows(f"number != {WHOLE}"),
        "vectors": table.count_rows(),
        "dimension": index.embedder.dimension,
        "text_bytes": sum(len(text.encode()) for text in documents),
        "words_index_bytes": words,
        "vector_index_bytes": size(folder / "index" / "passages.lance" / "_indices") - words,
    }


def made_up(first: int, count: int, dimension: int) -> tuple[list[DocumentRow], list[PassageRow]]:
    """Documents with random vectors."""
    rng = np.random.default_rng(first)
    documents = []
    passages = []
    for number in range(first, first + count):
        name = f"/data/corpus.jsonl#document-{number:09}"
        documents.append(
            DocumentRow(
                name, "a river " * 700, "", "/data/corpus.jsonl", "0" * 64, "0" * 64, 1300, {}
            )
        )
        vectors = rng.standard_normal((_VECTORS, dimension), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        for place, vector in enumerate(vectors, start=WHOLE):
            passages.append(
                PassageRow(name, place, 0, 9, "" if place == WHOLE else f"a river {number}", vector)
            )
    return documents, passages


def filling(settings: IndexSettings, folder: Path, sizes: tuple[int, ...]) -> dict[str, object]:
    """Seconds of processor time to commit a part to indexes of these numbers of documents; bytes of
    memory of a known one.
    """
    store = LanceStore.create(str(folder), settings)
    there = 0
    seconds = []
    for wanted in sizes:
        while there < wanted:
            count = min(5000, wanted - there)
            store.commit(*made_up(there, count, settings.dimension), [])
            there += count
        store.optimize()
        took = []
        for _ in range(3):
            part = made_up(there, _PART, settings.dimension)
            there += _PART
            start = time.process_time()
            store.commit(*part, [])
            took.append(time.process_time() - start)
        seconds.append([wanted, statistics.median(took)])
    tracemalloc.start()
    known = store.content_hashes()
    used = tracemalloc.get_traced_memory()[0] / len(known)
    tracemalloc.stop()
    return {"commit_documents": _PART, "commit_seconds": seconds, "known_bytes": used}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=1500)
    options = parser.parse_args()
    os.environ.setdefault("LANCEDB_LOG", "error")
    with tempfile.TemporaryDirectory() as folder:
        found = filling(
            new_settings(Embedder.load("pocket-mamba2")),
            Path(folder) / "made-up",
            (5000, 20_000, 80_000),
        )
        found |= on_disk(texts(options.folder, options.documents), Path(folder))
    PAGE.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
