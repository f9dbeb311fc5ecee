"""Times `Index.search` stage by stage over many documents of 1,000 words, and indexing beside the engine alone.

    python tools/search_latency.py FOLDER                        # FOLDER: plain text files of ten million words or more
    python tools/search_latency.py FOLDER --read 10000           # every vector a real one

The words of the files, in order, make the documents. The first `--read` are read by the model; the rest are stored with the
passages and vectors of one of those, jittered: that costs a search the same and saves most of the reading. Queries are eight
words from somewhere inside documents. Prints the tables of docs/performance.md.
"""

from __future__ import annotations

import argparse
import itertools
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from runnel import Document, Embedder, Index
from runnel.search.records import WHOLE, DocumentRow, PassageRow

WORDS = 1000
_COMMIT = 1000  # documents


def texts(folder: Path, count: int) -> list[str]:
    """`count` texts of `WORDS` words from the files of a folder, each of which may go on in the next file."""

    def words() -> Iterator[str]:
        for path in sorted(folder.rglob("*.txt")):
            yield from path.read_text(encoding="utf-8", errors="replace").split()

    source = words()
    found = [" ".join(itertools.islice(source, WORDS)) for _ in range(count)]
    if len(found[-1].split()) < WORDS:
        raise SystemExit(f"{folder} has too few words for {count:,} documents of {WORDS:,}; add files or lower --documents")
    return found


def fill(index: Index, documents: list[str], read: int) -> None:
    """Index the first `read` documents; store the others with vectors close to those of one of them."""
    index.add(Document(f"d{i}", text) for i, text in enumerate(documents[:read]))
    rng = np.random.default_rng(0)
    known = index.store.documents([f"d{i}" for i in range(read)])
    passages: dict[str, list[PassageRow]] = {}
    keys = [(name, number) for name in known for number in range(WHOLE, WORDS)]
    for (name, _), row in sorted(index.store.passages(keys).items()):
        passages.setdefault(name, []).append(row)
    for first in range(read, len(documents), _COMMIT):
        rows: list[DocumentRow] = []
        parts: list[PassageRow] = []
        for i in range(first, min(first + _COMMIT, len(documents))):
            like = known[f"d{i % read}"]
            rows.append(replace(like, id=f"d{i}", text=documents[i], content_hash=f"h{i}"))
            parts += [made_up(row, f"d{i}", documents[i], len(like.text), rng) for row in passages[like.id]]
        index.store.commit(rows, parts, [])
    index.optimize()


def made_up(row: PassageRow, name: str, text: str, length: int, rng: np.random.Generator) -> PassageRow:
    """A passage of another document, at the same part of it."""
    start, end = (round(place * len(text) / length) for place in (row.start, row.end))
    vector = row.vector + 0.5 * rng.standard_normal(len(row.vector), dtype=np.float32) / np.sqrt(len(row.vector))
    vector = (vector / np.linalg.norm(vector)).astype(np.float32)
    return PassageRow(name, row.number, start, end, text[start:end] if row.number != WHOLE else "", vector)


def queries(documents: list[str], count: int) -> list[str]:
    """Eight words in a row from somewhere inside `count` documents."""
    rng = random.Random(0)
    starts = [(rng.choice(documents).split(), rng.randrange(WORDS - 8)) for _ in range(count)]
    return [" ".join(words[start : start + 8]) for words, start in starts]


def search_times(index: Index, asked: list[str]) -> dict[str, list[float]]:
    """Seconds of every stage of every query, and of the query as a whole ("all")."""
    found: dict[str, list[float]] = {}
    for query in asked:
        timings: dict[str, float] = {}
        start = time.perf_counter()
        index.search(query, timings=timings)
        timings["all"] = time.perf_counter() - start
        for name, seconds in timings.items():
            found.setdefault(name, []).append(seconds)
    return found


def measured(call: Callable[[], object]) -> tuple[float, float]:
    """(seconds, seconds of processor time) of a call."""

    def processor() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    wall, busy = time.perf_counter(), processor()
    call()
    return time.perf_counter() - wall, processor() - busy


def indexing(embedder: Embedder, documents: list[str], folder: Path, rounds: int) -> None:
    """Tokens per second of `Index.add` and of the engine alone on the same documents, in turns."""
    rows = list(embedder.render(documents))
    total = sum(map(len, rows))
    ratios: list[tuple[float, float]] = []
    for turn in range(rounds):
        with Index.create(folder / f"indexing-{turn}", embedder) as index:
            add = measured(lambda index=index: index.add(Document(str(i), text) for i, text in enumerate(documents)))
        alone = measured(lambda: list(embedder.encode_rows(rows)))
        ratios.append((alone[0] / add[0], alone[1] / add[1]))
        speeds = f"{total / add[0]:,.0f} tokens/s indexed, {total / alone[0]:,.0f} by the engine alone"
        print(f"{speeds}; processor {add[1]:.1f} s and {alone[1]:.1f} s")
    wall, busy = (statistics.median(ratio[kind] for ratio in ratios) for kind in (0, 1))
    print(f"\nindexing over the engine alone, median of {rounds}: {wall:.2f} by the clock, {busy:.2f} by processor time\n")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--read", type=int, default=1000, help="how many of them the model reads")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5, help="of indexing 200 documents")
    parser.add_argument("--to", type=Path, help="where the index is kept; one that is there is used again")
    arguments = parser.parse_args()
    documents = texts(arguments.folder, arguments.documents)
    with tempfile.TemporaryDirectory() as temporary:
        place = arguments.to or Path(temporary) / "index"
        if place.exists():
            index = Index.open(place)
        else:
            index = Index.create(place)
            fill(index, documents, min(arguments.read, len(documents)))
        asked = queries(documents, arguments.queries + 5)
        search_times(index, asked[:5])
        print(f"{len(index):,} documents, {arguments.queries} queries\n")
        print("| stage | least, ms | p50, ms | p95, ms |\n|---|---|---|---|")
        for name, seconds in search_times(index, asked[5:]).items():
            print(f"| {name} | " + " | ".join(f"{1000 * value:.1f}" for value in np.percentile(seconds, [0, 50, 95])) + " |")
        print()
        indexing(index.embedder, documents[:200], Path(temporary), arguments.rounds)


if __name__ == "__main__":
    main()
