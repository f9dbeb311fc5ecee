"""The training script's own parts, on made-up data; training itself is not run here."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[2]))  # `tools` is no part of the installed package

pytest.importorskip("zstandard", reason="the training script reads compressed data; install the dev extra")

from tools.train_pocket.data import groups, held_back
from tools.train_pocket.documents import Question, Reading, _overlapping
from tools.train_pocket.evaluate import ndcg
from tools.train_pocket.lexical import Bm25, words
from tools.train_pocket.loop import schedule
from tools.train_pocket.recall import recall
from tools.train_pocket.student import CLS, SEP, framed, pack
from tools.train_pocket.tasks import draw_window, sentence_loss, window


@pytest.fixture
def reading() -> Reading:
    """Forty sentences of five tokens and ten characters each."""
    ids = np.arange(1000, 1200, dtype=np.int32)
    bounds = np.arange(0, 201, 5)
    spans = np.stack([np.arange(0, 400, 10), np.arange(10, 401, 10)], axis=1)
    return Reading("made up", ids, bounds, spans)


@pytest.fixture
def question(reading: Reading) -> Question:
    return Question("q", "where", np.array([1003, 7, 1101], dtype=np.int32), 0, ((20, 22), (21, 23)))


def test_one_document_in_ten_is_held_back_and_both_lengths_of_a_question_fall_together():
    names = [f"document {i}" for i in range(2000)]
    assert 140 < sum(map(held_back, names)) < 260
    assert all(held_back(name) == held_back(name + "-long") for name in names)


def test_groups_are_runs_of_neighboring_sentences():
    import random

    text = " ".join(f"This is sentence number {i} of the text." for i in range(30))
    found = groups(text, random.Random(0), 50)
    assert len(found) == 50 and all(group in text for group in found)


def test_evidence_sentences_are_those_that_overlap_the_span(reading: Reading):
    assert _overlapping(reading.spans, 20, 30) == (2, 3)
    assert _overlapping(reading.spans, 19, 31) == (1, 4)


def test_window_has_the_ids_labels_and_marks_of_inference(reading: Reading, question: Question):
    idf = np.full(30522, 0.5, dtype=np.float32)
    one = window(question, reading, idf, 18, 25)
    assert one.ids[:5].tolist() == [CLS, 1003, 7, 1101, SEP]
    assert one.labels.tolist() == [0, 0, 1, 1, 1, 0, 0]
    assert np.array_equal(one.ids[one.bounds[2] : one.bounds[3]], reading.ids[100:105])
    assert one.marks[: one.query_end].sum() == 0 and (one.marks[one.query_end :, 1] == 1).all()
    assert np.flatnonzero(one.marks[:, 0]).tolist() == [one.query_end + 11]  # token 1101, in sentence 20
    assert one.lexical.shape == (7, 2) and one.lexical[:, 1].argmax() == 2


def test_drawn_windows_hold_an_answer_and_stay_inside_the_document(reading: Reading, question: Question):
    rng = np.random.default_rng(0)
    idf = np.ones(30522, dtype=np.float32)
    for _ in range(20):
        assert draw_window(question, reading, idf, rng).labels.sum() > 0


def test_sentence_loss_weighs_answers_and_the_rest_alike():
    label = torch.tensor([1.0, 0, 0, 0])
    even = sentence_loss(torch.zeros(4), label)
    assert float(even) == pytest.approx(np.log(2) + 0.5 * np.log(4))
    assert sentence_loss(torch.tensor([3.0, -3, -3, -3]), label) < even


def test_bm25_prefers_the_rare_word_and_drops_stop_words():
    assert words("The cats of the houses") == ["cat", "house"]
    index = Bm25(["a cat and a dog", "a dog", "a dog in the house", "the dog and the cats"])
    assert index.top("what of the house", 3).tolist() == [2]
    assert index.top("cats", 3).tolist() == [0, 3]


def test_ndcg_and_recall():
    assert ndcg(np.array([5, 1, 2]), {5: 1.0, 2: 1.0}) == pytest.approx((1 + 0.5) / (1 + 1 / np.log2(3)))
    question = Question("q", "", np.array([1]), 0, ((0, 2), (7, 9)))
    scores = -np.arange(30, dtype=np.float32)
    assert recall(question, scores, depth=5) == 0.5 and recall(question, scores) == 1.0


def test_packing_and_schedule():
    ids, cu_seqlens = pack([framed(np.array([7, 8], dtype=np.int32)), framed(np.array([9], dtype=np.int32))])
    assert ids.tolist() == [CLS, 7, 8, SEP, CLS, 9, SEP] and cu_seqlens.tolist() == [0, 4, 7]
    factors = [schedule(x, 0.1, 0.02) for x in (0.0, 0.1, 0.5, 1.0)]
    assert factors[0] < 0.01 and factors[1] > factors[2] > factors[3] == pytest.approx(0.02)
