"""A worker's requests about an index: make documents, fill an index, check it, and time indexing
and searches.

The texts need no external data: sentences of the Python reference in random order, with made-up
words so that word frequencies are as uneven as in a real collection. The model reads the first
documents. The others are stored with vectors and memories close to those of a document that was
read: searches cost the same, and most of the reading is saved.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.machine import peak_bytes, reset_peak
from runnel.engine import Request
from runnel.models.embedder import Embedder
from runnel.models.memory import Memory
from runnel.models.pocket.layout import passages_of
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.models.recurrent.memory import DocumentState
from runnel.models.reranker import Reranker
from runnel.records import Document
from runnel.search.encoding import remembers_sentences
from runnel.search.index import Index
from runnel.search.records import WHOLE, DocumentRow, PassageRow
from runnel.text.sentences import read_sentences, split_sentences

WORDS = 1000  # of a document
_QUERY_WORDS = 8
_MADE_UP = 40  # one word in 40 is
_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
_COMMIT = 500  # documents
_WARM = 20  # documents that are read before any is timed
_CHECKED = 20  # documents and queries
_STAGES = ("query", "dense", "lexical")


# ---- texts ---------------------------------------------------------------------------------------


def texts(count: int, words: int = WORDS) -> list[str]:
    """Return `count` documents of `words` words, the same on each call."""
    rng = random.Random(0)
    pool = _sentences()
    return [_text(rng, pool, words) for _ in range(count)]


def _sentences() -> list[list[str]]:
    """Return the sentences of the Python reference that are prose, as words."""
    from pydoc_data.topics import topics

    found = []
    for topic in sorted(topics):
        for start, end in split_sentences(topics[topic]).tolist():
            words = topics[topic][start:end].split()
            plain = sum(re.fullmatch(r"[A-Za-z]+[,;.:]?", word) is not None for word in words)
            if len(words) > 5 and plain > 0.8 * len(words):
                found.append(words)
    return found


def _text(rng: random.Random, pool: Sequence[Sequence[str]], words: int) -> str:
    parts: list[str] = []
    left = words
    while left > 0:
        sentence = [
            word if rng.randrange(_MADE_UP) else _made_up_word(rng)
            for word in rng.choice(pool)[:left]
        ]
        left -= len(sentence)
        parts += [*sentence[:-1], sentence[-1] + ("\n\n" if rng.random() < 0.15 else " ")]
    return " ".join(parts).replace("\n ", "\n").replace("  ", " ").rstrip()


def _made_up_word(rng: random.Random) -> str:
    number = int(min(rng.paretovariate(0.7), 1e5))  # Zipf's law, nearly
    return "".join(
        _SYLLABLES[number // len(_SYLLABLES) ** power % len(_SYLLABLES)] for power in range(3)
    )


def queries(documents: Sequence[str], count: int) -> list[str]:
    """Return `count` queries: consecutive words of a random document."""
    rng = random.Random(1)
    chosen = [rng.choice(documents).split() for _ in range(count)]
    return [
        " ".join(words[start : start + _QUERY_WORDS])
        for words in chosen
        for start in [rng.randrange(len(words) - _QUERY_WORDS)]
    ]


# ---- filling -------------------------------------------------------------------------------------


def fill(folder: str, model: str, count: int, read: int) -> dict[str, Any]:
    """Make an index of `count` documents, of which the model reads `read`, and check these. Return
    facts, or "wrong" and why.
    """
    documents = texts(count)
    embedder = Embedder.load(model)
    with Index.create(folder, embedder, remember=True) as index:
        index.add(Document(f"d{i}", text) for i, text in enumerate(documents[:read]))
        wrong = check(index, documents[:read])
        if wrong:
            return {"wrong": wrong}
        _multiply(index, documents, read)
        index.optimize()
        facts = {"passages": index.store.last_commit().passages, "disk_bytes": _size(folder)}
        return facts | {"keeps_sentences": remembers_sentences(embedder)}


def _multiply(index: Index, documents: Sequence[str], read: int) -> None:
    """Store the documents from index `read` on without reading them."""
    rng = np.random.default_rng(0)
    names = [f"d{i}" for i in range(read)]
    known = index.store.documents(names)
    memories = index.store.memories(names)
    passages: dict[str, list[PassageRow]] = {}
    for (name, _), row in sorted(_passages(index).items()):
        passages.setdefault(name, []).append(row)
    for first in range(read, len(documents), _COMMIT):
        rows: list[DocumentRow] = []
        parts: list[PassageRow] = []
        for i in range(first, min(first + _COMMIT, len(documents))):
            like = known[f"d{i % read}"]
            new = replace(like, id=f"d{i}", text=documents[i], content_hash=f"h{i}")
            if remembers_sentences(index.embedder):
                memory = _sentences_like(
                    SentenceVectors.from_bytes(memories[like.id], like.text),
                    new.text,
                    index.embedder,
                )
            else:
                memory = replace(
                    DocumentState.from_bytes(memories[like.id], like.text), text=new.text
                ).to_bytes()
            new = replace(new, memory=memory)
            rows.append(new)
            parts += [_close_to(row, new, len(like.text), rng) for row in passages[like.id]]
        index.store.commit(rows, parts, [])


def _passages(index: Index) -> dict[tuple[str, int], PassageRow]:
    """Return all passages of an index by document and number."""
    return {(row.document, row.number): row for rows in index.store.scan() for row in rows}


def _sentences_like(read: SentenceVectors, text: str, embedder: Embedder) -> bytes:
    """Return a memory for another document's sentences that repeats the vectors of one that was
    read.
    """
    tokens = read_sentences(text, [embedder.model.tokenizer.encode(text)])
    vectors, scales = _repeated((read.vectors, read.scales), len(tokens.spans))
    count = len(passages_of(tokens.bounds, embedder.model.backbone)) - 1
    passages = None if read.passages is None else _repeated(read.passages, count)
    return SentenceVectors(
        text, tokens.spans, tokens.ids, tokens.bounds, vectors, scales, tokens.kinds, passages
    ).to_bytes()


def _repeated(stored: tuple[np.ndarray, np.ndarray], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first `count` rows of vectors and scales, from the beginning again where there are
    fewer.
    """
    vectors, scales = stored
    rows = np.arange(count) % len(scales)
    return vectors[rows], scales[rows]


def _close_to(
    row: PassageRow, document: DocumentRow, length: int, rng: np.random.Generator
) -> PassageRow:
    """Return a passage at the same relative place of another document, with a vector close to
    `row`'s.
    """
    start, end = (round(place * len(document.text) / length) for place in (row.start, row.end))
    vector = row.vector + 0.5 * rng.standard_normal(len(row.vector), dtype=np.float32) / np.sqrt(
        len(row.vector)
    )
    vector = (vector / np.linalg.norm(vector)).astype(np.float32)
    text = document.text[start:end] if row.number != WHOLE else ""
    return PassageRow(document.id, row.number, start, end, text, vector)


def _size(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


# ---- checking ------------------------------------------------------------------------------------


def check(index: Index, documents: Sequence[str]) -> str:
    """Return why an index of these documents, d0, d1 and so on, differs from the model's own
    results; "" if it does not.

    Vectors are compared with `Embedder.encode_document` and `encode_spans`, the nearest ones with
    all inner products, and scores of remembered documents with scores of whole pairs.
    """
    embedder = index.embedder
    few = dict(list(enumerate(documents))[:_CHECKED])
    found = _passages(index)
    for i, text in few.items():
        rows = [
            row
            for (name, number), row in sorted(found.items())
            if name == f"d{i}" and number != WHOLE
        ]
        if embedder.reader.block:  # each by itself
            own = embedder.encode_document([row.text for row in rows])
        else:
            own = embedder.encode_spans(text, [(row.start, row.end) for row in rows])
        expected = np.concatenate([embedder.encode_document([text]), own])
        stored = np.stack([row.vector for row in (found[f"d{i}", WHOLE], *rows)])
        cosine = float((expected * stored).sum(1).min())
        if not cosine > 0.999:
            return f"vectors of a document differ from the embedder's: cosine {cosine:.5f}"
    matrix = np.stack([row.vector for row in found.values()])
    for query in queries(documents, _CHECKED):
        vector = embedder.encode_query([query])[0]
        expected = np.sort(matrix @ vector)[::-1][:50]
        got = np.array([one.score for one in index.store.nearest(vector, 50, [])])
        if len(got) != len(expected) or np.abs(got - expected).max() > 1e-4:
            return "the nearest passages are not those of all inner products"
    return _check_memories(index, few)


def _check_memories(index: Index, documents: dict[int, str]) -> str:
    reranker = Reranker(index.embedder.model)
    query = queries(list(documents.values()), 1)[0]
    found = index.store.memories([f"d{i}" for i in documents])
    kind = SentenceVectors if remembers_sentences(index.embedder) else DocumentState
    memory = Memory(
        reranker.model.backbone,
        {f"d{i}": kind.from_bytes(found[f"d{i}"], text) for i, text in documents.items()},
    )
    agreement = np.corrcoef(
        reranker.score(query, memory), reranker.score(query, list(documents.values()))
    )[0, 1]
    return (
        ""
        if agreement > 0.97
        else f"scores of remembered documents agree with whole pairs by {agreement:.3f} only"
    )


# ---- timing --------------------------------------------------------------------------------------


def time_indexing(model: str, count: int, rounds: int) -> dict[str, Any]:
    """Time indexing documents and the engine alone on their ids, in turns.

    Returns:
        "tokens", and "seconds" and "processor" (seconds of all threads): "engine", "index" and
        "remember" (with memories) -> one number for each round.
    """
    documents = texts(count)
    embedder = Embedder.load(model)
    rows = list(embedder.render(documents))
    seconds: dict[str, list[float]] = {"engine": [], "index": [], "remember": []}
    processor: dict[str, list[float]] = {name: [] for name in seconds}
    with TemporaryDirectory() as folder:

        def add(remember: bool) -> Callable[[], object]:
            index = made.setdefault(
                remember, Index.create(f"{folder}/{turn}-{remember}", embedder, remember=remember)
            )
            return lambda: index.add(
                Document(f"d{i}", text) for i, text in enumerate(documents[:some])
            )

        for turn in range(-1, rounds):  # the first compiles kernels and makes buffers
            some = count if turn >= 0 else _WARM
            made: dict[bool, Index] = {}
            calls: dict[str, Callable[[], object]] = {
                "engine": lambda: embedder.model.engine.run([Request(ids) for ids in rows[:some]]),  # noqa: B023
                "index": add(False),
                "remember": add(True),
            }
            for name, call in calls.items():
                wall = time.perf_counter()
                busy = time.process_time()
                call()
                if turn >= 0:
                    seconds[name].append(time.perf_counter() - wall)
                    processor[name].append(time.process_time() - busy)
            for index in made.values():
                index.close()
    return {"tokens": sum(map(len, rows)), "seconds": seconds, "processor": processor}


def time_searches(folder: str, model: str, count: int, asked: int) -> dict[str, Any]:
    """Time searches of an index that `fill` made, with and without reranking in turns.

    Returns:
        "seconds": stage -> one number for each query, of searches with reranking; also "first
        stage" (query, dense and lexical), "whole search" and "without reranking"; "peak_bytes" of
        the process.
    """
    index = Index.open(folder, model)
    seconds: dict[str, list[float]] = {}
    for number, query in enumerate(queries(texts(count), asked + 5)):
        if number == 5:  # the first five load what is loaded once
            seconds.clear()
            reset_peak("cpu")
        for name, found in _times(index, query):
            seconds.setdefault(name, []).append(found)
    return {"seconds": seconds, "peak_bytes": peak_bytes("cpu")}


def _times(index: Index, query: str) -> Iterator[tuple[str, float]]:
    stages: dict[str, float] = {}
    start = time.perf_counter()
    index.search(query, timings=stages)
    yield "whole search", time.perf_counter() - start
    yield from stages.items()
    yield "first stage", sum(stages[name] for name in _STAGES)
    start = time.perf_counter()
    index.search(query, rerank=0)
    yield "without reranking", time.perf_counter() - start
