"""Lexical features against a plain reading of their definitions, and what a sceptic would ask of
them.
"""

import math
import time
from itertools import pairwise

import numpy as np
import pytest

from runnel.models.pocket.lexical import (
    FEATURES,
    K1,
    LEADING,
    WINDOW,
    B,
    WordTable,
    piece_features,
    sentence_features,
    static_bm25,
    word_table,
    words,
)

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    ".",
    "!",
    "-",
    "the",
    "of",
    "a",
    "cat",
    "cats",
    "dog",
    "##s",
    "##ma",
    "##tic",
]
PIECES += [
    "house",
    "houses",
    "auto",
    "press",
    "##press",
    "##ion",
    "un",
    "rain",
    "##y",
    "19",
    "is",
    "glass",
]
VOCABULARY = {piece: number for number, piece in enumerate(PIECES)}
STOPPED = {"the", "of", "a", "is"}


@pytest.fixture
def table() -> WordTable:
    return word_table(VOCABULARY, np.linspace(0.1, 0.9, len(PIECES), dtype=np.float32))


def ids(text: str) -> np.ndarray:
    return np.array([VOCABULARY[piece] for piece in text.split()], dtype=np.int32)


def singular(piece: str) -> str:
    drops = piece.endswith("s") and not piece.endswith("ss") and len(piece.removeprefix("##")) > 3
    return piece[:-1] if drops and piece[:-1] in VOCABULARY else piece


def plain_words(
    numbers: np.ndarray, table: WordTable
) -> list[tuple[tuple[str, ...], float, bool, int]]:
    """(pieces, static idf, no stop word, first token) of each word."""
    found: list[list[int]] = []
    for place, number in enumerate(numbers):
        if found and PIECES[number].startswith("##"):
            found[-1].append(place)
        else:
            found.append([place])
    out = []
    for places in found:
        pieces = [PIECES[numbers[p]] for p in places]
        if pieces[0].removeprefix("##").isalnum():
            idf = float(table.idf[numbers[places[0]]]) if len(places) == 1 else 1.0
            known = tuple(singular(p) if p != "##s" else "" for p in pieces)
            while known and not known[-1]:
                known = known[:-1]
            out.append((known, idf, len(places) > 1 or pieces[0] not in STOPPED, places[0]))
    return out


def plain_bm25(counts: list[dict], lengths: list[float], weight: dict) -> tuple[list[float], dict]:
    size = len(counts)
    df = {t: sum(t in c for c in counts) for t in weight}
    idf = {t: math.log(1 + (size - n + 0.5) / (n + 0.5)) if n else 0.0 for t, n in df.items()}
    mean = max(sum(lengths) / max(size, 1), 1.0)
    norm = [K1 * (1 - B + B * length / mean) for length in lengths]
    score = [
        sum(weight[t] * idf[t] * c / (c + k) for t, c in row.items())
        for row, k in zip(counts, norm, strict=True)
    ]
    return score, idf


def plain_features(
    numbers: np.ndarray, bounds: np.ndarray, query: np.ndarray, table: WordTable
) -> np.ndarray:
    size = len(bounds) - 1
    asked = [(w, idf) for w, idf, content, _ in plain_words(query, table) if content]
    weight = {w: sum(v == w for v, _ in asked) for w, _ in asked}
    idf = dict(reversed(asked))
    rows: list[list] = [[] for _ in range(size)]
    order = []
    for w, _, content, place in plain_words(numbers, table):
        if content:
            sentence = max(s for s in range(size) if bounds[s] <= place < bounds[s + 1])
            rows[sentence].append(w)
            order.append((w, sentence))
    counts = [{w: row.count(w) for w in row if w in weight} for row in rows]
    lengths = [float(len(row)) for row in rows]
    score, local = plain_bm25(counts, lengths, weight)
    best = max([*score, 1e-9])
    most = max(sum(local[w] * weight[w] for w in weight), 1e-9)
    total = max(sum(idf[w] * weight[w] for w in weight), 1e-9)
    pieces = {int(p): float((query == p).sum()) for p in query}
    parts = [numbers[a:b].tolist() for a, b in pairwise(bounds)]
    by_piece, _ = plain_bm25(
        [{p: r.count(p) for p in r if p in pieces} for r in parts],
        [float(len(r)) for r in parts],
        pieces,
    )
    pairs = {(v, w) for (v, _), (w, _) in pairwise(asked)}
    ranked = sorted(range(size), key=lambda s: -round(score[s], 6))
    lent = []
    for count in LEADING:
        leading = [s for s in ranked[:count] if score[s] > 0]
        new = {w for s in leading for w in rows[s] if w not in weight}
        given, _ = plain_bm25(
            [{w: row.count(w) for w in row if w in new} for row in rows],
            lengths,
            dict.fromkeys(new, 1),
        )
        given = [0.0 if s in leading else g for s, g in enumerate(given)]
        lent.append([g / max([*given, 1e-9]) for g in given])
    near = [set().union(*counts[max(s - WINDOW, 0) : s + WINDOW + 1]) for s in range(size)]

    def share(found: set) -> float:
        return sum(idf[w] * weight[w] for w in found) / total

    out = []
    for s in range(size):
        met = {(v, w) for (v, a), (w, b) in pairwise(order) if a == b == s and (v, w) in pairs}
        row = [
            score[s] / most,
            score[s] / best,
            score[s - 1] / best if s else 0.0,
            score[s + 1] / best if s + 1 < size else 0.0,
        ]
        row += [
            share(set(counts[s])),
            sum(local[w] * weight[w] for w in counts[s]) / most,
            share(near[s]),
        ]
        row += [
            by_piece[s] / max([*by_piece, 1e-9]),
            math.log1p(lengths[s]) / 4,
            share(set().union(*counts)),
        ]
        row += [math.log1p(len(asked)) / 4, math.log1p(size) / 8, len(met) / max(len(pairs), 1)]
        row += [
            sum(idf[w] * weight[w] for w in weight) / max(len(asked), 1),
            *(column[s] for column in lent),
        ]
        out.append(row)
    return np.array(out).reshape(size, FEATURES)


def test_features_are_those_of_a_plain_reading(table: WordTable):
    rng = np.random.default_rng(0)
    for trial in range(200):
        numbers = rng.integers(1, len(PIECES), size=int(rng.integers(1, 60)))
        # some sentences have no token
        cuts = np.sort(rng.integers(0, len(numbers) + 1, size=int(rng.integers(0, 9))))
        bounds = np.array([0, *cuts, len(numbers)])
        query = rng.integers(4, len(PIECES), size=int(rng.integers(0, 12)))
        found = sentence_features(numbers, bounds, query, table)
        assert found.dtype == np.float32 and found.shape == (len(bounds) - 1, FEATURES)
        np.testing.assert_allclose(
            found, plain_features(numbers, bounds, query, table), atol=1e-5, err_msg=str(trial)
        )


def test_a_part_of_a_word_and_its_pieces_in_another_order_are_other_words(table: WordTable):
    keys = [
        words(ids(text), table).keys[0]
        for text in ("auto ##ma", "auto ##ma ##tic", "auto ##tic ##ma", "auto", "press")
    ]
    assert len(set(keys)) == 5 and keys[4] != words(ids("##press"), table).keys[0]


def test_each_piece_of_a_script_without_spaces_is_a_word():
    pieces = ["[UNK]", ".", "cat", "東", "京", "ス", "##マ", "##ホ", "##s"]
    numbers = {piece: number for number, piece in enumerate(pieces)}
    table = word_table(numbers, np.full(len(pieces), 0.5, np.float32))
    assert table.continues.tolist() == [False] * 8 + [True]

    def row(text: str) -> np.ndarray:
        return np.array([numbers[piece] for piece in text.split()], dtype=np.int32)

    text = row("東 京 cat . cat ##s マ . ス ##マ ##ホ .".replace(" マ", " ##マ"))
    bounds = np.array([0, 4, 8, 12])
    features = sentence_features(text, bounds, row("##マ ##ホ"), table)
    assert (
        features[:, 1].argmax() == 2
        and features[1, 1] > 0
        and features[:, 12].tolist() == [0, 0, 1]
    )
    assert features[0, 1] == 0 == sentence_features(text, bounds, row("ス"), table)[1, 1]


def test_empty_documents_sentences_and_queries(table: WordTable):
    none = np.zeros(0, dtype=np.int32)
    assert sentence_features(none, np.array([0]), ids("cat"), table).shape == (0, FEATURES)
    assert np.isfinite(sentence_features(none, np.array([0, 0, 0]), ids("cat"), table)).all()
    assert np.isfinite(sentence_features(ids("cat dog"), np.array([0, 2]), none, table)).all()
    assert static_bm25(none, ids("cat"), table) == static_bm25(ids("cat"), none, table) == 0.0


def test_a_score_of_a_document_needs_no_other_and_is_a_share(table: WordTable):
    one = static_bm25(ids("cat dog"), ids("cats rain"), table)
    assert 0 < one < static_bm25(ids("cat rain"), ids("cats rain"), table) < 1
    assert static_bm25(ids("dog house"), ids("cats rain"), table) == 0.0


def test_a_long_document_takes_no_loop_over_its_sentences(table: WordTable):
    numbers = np.random.default_rng(0).integers(4, len(PIECES), size=300_000)
    began = time.process_time()
    sentence_features(
        numbers,
        np.linspace(0, len(numbers), 20_001).astype(np.int64),
        ids("cat house rain ##y"),
        table,
    )
    assert time.process_time() - began < 2


def test_features_of_pieces_against_the_formulas() -> None:
    rng = np.random.default_rng(3)
    bounds = np.array([2, 5, 5, 9, 14])
    ids = rng.integers(0, 6, 16)
    query = np.array([1, 4, 4, 29])
    idf = rng.random(31).astype(np.float32)
    got = piece_features(ids, bounds, query, idf)
    sentences = [ids[a:b].tolist() for a, b in pairwise(bounds)]
    counts = [{t: row.count(t) for t in row if t in query} for row in sentences]
    score, local = plain_bm25(counts, [float(len(row)) for row in sentences], {1: 1, 4: 1, 29: 1})
    share = [sum(idf[t] for t in row) / (idf[1] + idf[4] + idf[29]) for row in counts]
    # one that does not occur counts as the rarest
    most = sum(value or math.log1p(2 * 4 + 1) for value in local.values())
    np.testing.assert_allclose(
        got, np.stack([share, np.array(score) * (K1 + 1) / most], axis=1), rtol=1e-4, atol=1e-5
    )
