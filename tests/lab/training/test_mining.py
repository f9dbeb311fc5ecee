"""Hard negatives: every search against a loop over all documents, the draw, and what is refused."""

import math
import re
import sys
from collections import Counter

import bm25s
import numpy as np
import pytest
from helpers.judged_tasks import ToyEmbedder

from runnel.batching import top
from runnel.errors import InputError, MissingDependency
from runnel.lab.training.corpus import Texts
from runnel.lab.training.data import Triple
from runnel.lab.training.mining import (
    LIKELY,
    NEGATIVE,
    POSITIVE,
    Mining,
    NegativeJudge,
    bm25_ranker,
    mine,
    search_by,
    word_triples,
)
from runnel.records import Document

WORDS = (
    "red blue green cat dog fish runs sleeps eats slowly quickly never often where under".split()
)


def pool(*texts):
    return Texts(Document(f"d{i}", text) for i, text in enumerate(texts))


def random_texts(count, seed, words=12):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(3, words))) for _ in range(count)]


def bm25_by_hand(query, texts, k1=0.9, b=0.4):
    stop = set(bm25s.tokenization.STOPWORDS_EN)
    split = [[w for w in re.findall(r"\w\w+", text.lower()) if w not in stop] for text in texts]
    mean = sum(map(len, split)) / len(split)
    scores = np.zeros(len(texts))
    for word in re.findall(r"\w\w+", query.lower()):
        holding = sum(word in words for words in split)
        if word not in stop and holding:
            idf = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
            for i, words in enumerate(split):
                tf = words.count(word)
                scores[i] += idf * tf / (tf + k1 * (1 - b + b * len(words) / mean))
    return scores


@pytest.mark.parametrize(
    ("depth", "k1", "b"),
    [(1, 0.9, 0.4), (7, 0.9, 0.4), (100, 0.9, 0.4), (100, 0.1, 0), (100, 4.46, 0.82)],
)
@pytest.mark.parametrize("block", [1, 7, 1000])
def test_bm25_is_exact(monkeypatch, depth, k1, b, block):
    monkeypatch.setattr("runnel.lab.training.mining._TEXTS", block)
    texts = [*random_texts(60, seed=0), "", "The of and", "Elephant! ELEPHANT"]
    queries = ["red cat where", "the of", "unheard of words", "elephant sleeps", "dog dog fish"]
    found = search_by(bm25_ranker(pool(*texts), k1=k1, b=b))(
        [Triple(q, ("x",)) for q in queries], depth
    )
    assert [len(rows) for rows in found[1:3]] == [0, 0]
    for query, rows in zip(queries, found, strict=True):
        scores = bm25_by_hand(query, texts, k1, b)
        assert len(rows) == min(depth, (scores > 0).sum())
        np.testing.assert_allclose(scores[rows], np.sort(scores)[::-1][: len(rows)], rtol=1e-6)


def test_bm25_needs_words_and_its_package(monkeypatch):
    with pytest.raises(InputError, match="a corpus with words"):
        bm25_ranker(pool("", "?"))
    for k1, b in ((-0.1, 0.4), (0.9, 1.1), (math.nan, 0.4)):
        with pytest.raises(InputError, match=rf"{k1:g} and {b:g}"):
            bm25_ranker(pool("a word"), k1=k1, b=b)
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(MissingDependency, match="bm25s"):
        bm25_ranker(pool("a"))


@pytest.mark.parametrize("count", [1, 3, 5, 6, 9])
def test_top_with_ties(count):
    scores = np.array([1.0, 3, 2, 3, 2, 2], dtype=np.float32)
    assert top(scores, count).tolist() == [1, 3, 2, 4, 5, 0][:count]


def in_order(rows):
    return lambda triples, depth: [np.array(rows[:depth]) for _ in triples]


def drawn(corpus, triples, search, judge=None, start=0, **settings):
    return list(mine(iter(triples), corpus, search, Mining(**settings), judge, start))


def numbered(count):
    return [f"document number {n} speaks of {n}" for n in range(count)]


def test_draws_are_uniform_and_depend_on_the_seed_and_the_place():
    corpus = pool(*numbered(30))
    triples = [Triple(f"q{n}", ("the answer",)) for n in range(2000)]
    found = drawn(corpus, triples, in_order(range(29, -1, -1)), number=3, ranks=(5, 14))
    counts = Counter(text for mined in found for text in mined.drawn)
    assert set(counts) == {corpus.at(29 - rank) for rank in range(4, 14)}
    assert all(len(set(mined.drawn)) == 3 and not mined.refused for mined in found)
    # 3 of 10, 2000 times; 4.9 standard deviations
    assert all(abs(count - 600) < 100 for count in counts.values())
    corpus = pool(*numbered(50))
    search = in_order(range(50))
    triples = [Triple(f"q{n}", ("the answer",)) for n in range(600)]
    whole = [mined.drawn for mined in drawn(corpus, triples, search, number=4, ranks=(1, 40))]
    assert [
        mined.drawn for mined in drawn(corpus, triples, search, number=4, ranks=(1, 40), start=333)
    ] == whole[333:]
    other = [
        mined.drawn for mined in drawn(corpus, triples, search, number=4, ranks=(1, 40), seed=1)
    ]
    assert sum(a == b for a, b in zip(whole, other, strict=True)) < 5


def test_copies_are_refused():
    long = " ".join(f"word{n}" for n in range(100))
    corpus = pool(
        long.upper() + " !",  # a copy of the positive
        long.replace("word50", "else"),  # nearly
        " ".join(long.split()[:80]),  # a part of it is no copy
        "two words",
        "Two, words?",
        "of the data",
        "🜨",
        "something else",
        "",
    )
    triple = Triple("q", ("x", long), ("Of the data", "🜨"))
    mined = drawn(corpus, [triple], in_order(range(9)), number=9, ranks=(1, 9))[0]
    assert mined.refused == {POSITIVE: 2, NEGATIVE: 3, "empty": 1} and mined.triple is triple
    assert len(mined.drawn) == 3 and {"something else", " ".join(long.split()[:80])} < set(
        mined.drawn
    )


@pytest.mark.parametrize("margin", [0.1, 0.3])
def test_bars_on_scores_against_a_loop(margin):
    texts = list(dict.fromkeys(random_texts(80, seed=3)))
    corpus = pool(*texts)
    embedder = ToyEmbedder()
    triples = [
        Triple(text, (f"{text} often", texts[i])) for i, text in enumerate(random_texts(9, seed=4))
    ]
    vectors = embedder.encode_document(texts)
    judge = NegativeJudge(embedder, lambda rows: vectors[rows])
    search = in_order(range(len(texts)))
    found = drawn(corpus, triples, search, judge, number=80, ranks=(1, 80), relative_margin=margin)
    refused = 0
    for triple, mined in zip(triples, found, strict=True):
        query = embedder.encode_query([triple.query])[0]
        allowed = (1 - margin) * (embedder.encode_document(triple.positives) @ query).mean()
        copies = [
            text
            for text in texts
            if any(word_triples(text) == word_triples(p) for p in triple.positives)
        ]
        scores = dict(zip(texts, embedder.encode_document(texts) @ query, strict=True))
        assert all(scores[text] <= allowed + 1e-6 for text in mined.drawn)
        left = [text for text in texts if text not in mined.drawn and text not in copies]
        assert mined.refused[LIKELY] + mined.refused[NEGATIVE] + mined.refused[POSITIVE] == len(
            texts
        ) - len(mined.drawn)
        assert sum(scores[text] > allowed + 1e-6 for text in left) == mined.refused[LIKELY]
        refused += mined.refused[LIKELY]
    assert 50 < refused < 9 * len(texts) - 50


def test_ranks_begin_with_1():
    with pytest.raises(InputError, match="7 negatives of ranks 0 to 9"):
        Mining(ranks=(0, 9))
