"""Sentences judged by marked evidence: ranks, metrics, groups, and what scores say."""

import numpy as np
import pytest
from helpers.tiny import tiny_model

from runnel.lab.evaluation.evidence import (
    METRICS,
    by_parts,
    by_retriever,
    judge,
    summarize,
    values_of,
)
from runnel.lab.evaluation.metrics import parse_metrics
from runnel.lab.training.data import Evidence
from runnel.lab.training.mining import bm25_scorer
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.text.sentences import split_sentences

# sentences [0, 9), [9, 19), [19, 32), [32, 43)
TEXT = "One cat. Two dogs. Three birds. Four fish. "


def judged(evidence, scores, text=TEXT, name="q", logits=True):
    example = Evidence("query", text, tuple(evidence), name)
    return judge(example, split_sentences(text), np.array(scores, np.float32), logits=logits)


@pytest.mark.parametrize(
    ("evidence", "scores", "answers", "spans"),
    [
        ([(9, 19)], [1, 2, 3, 4], [3], [3]),
        ([(8, 19)], [1, 2, 3, 4], [3], [3]),  # character 8 is a space of the first sentence
        ([(7, 10)], [1, 2, 3, 4], [3, 4], [3]),  # the end of the first and the start of the second
        ([(0, 3), (35, 40)], [1, 2, 3, 4], [1, 4], [4, 1]),
        ([(0, 43)], [4, 3, 2, 1], [1, 2, 3, 4], [1]),
        ([(0, 3), (4, 6)], [1, 1, 1, 1], [1], [1, 1]),  # equal scores: in document order
        ([], [1, 2, 3, 4], [], []),
    ],
)
def test_ranks_of_evidence(evidence, scores, answers, spans):
    one = judged(evidence, scores)
    assert (one.sentences, one.answers, one.spans, one.words) == (4, answers, spans, 8)
    assert one.positions == [start / len(TEXT) for start, _ in evidence]


def test_metrics():
    metrics = parse_metrics([*METRICS, "AP"])
    none = judged([], [1, 2, 3, 4], name="none")
    one = judged([(9, 19)], [1, 9, 3, 4], name="r")
    values = values_of([judged([(0, 3), (35, 40)], [1, 2, 3, 4]), none, one], metrics)
    assert set(values) == {"q", "r"} and list(values["q"]) == list(metrics)
    assert (
        values["q"]["Recall@1"],
        values["q"]["Recall@5"],
        values["q"]["P@5"],
        values["q"]["MRR@10"],
    ) == (0.5, 1, 0.4, 1)
    assert values["q"]["AP"] == pytest.approx((1 + 2 / 4) / 2)
    assert values["q"]["nDCG@10"] == pytest.approx((1 + 1 / np.log2(5)) / (1 + 1 / np.log2(3)))
    assert values["r"] == {
        "Recall@1": 1,
        "Recall@5": 1,
        "Recall@10": 1,
        "P@5": 0.2,
        "MRR@10": 1,
        "nDCG@10": 1,
        "AP": 1,
    }


def summary(*parts, metrics=("Recall@1",)):
    return summarize(parts, values_of(parts, parse_metrics(metrics)))


def test_groups_by_length_and_position():
    long = judged([(0, 3)], np.zeros(300), "One cat. " * 300, "long")
    found = summary(
        judged([(0, 3)], [1, 2, 3, 4]), judged([(37, 41)], [1, 2, 3, 4], name="b"), long
    )
    assert [(g["name"], g["queries"]) for g in found["by_length"]] == [
        ("up to 500 words", 2),
        ("501 to 2,000 words", 1),
    ]
    assert found["by_length"][1]["metrics"] == {"Recall@1": 1}
    assert found["metrics"]["Recall@1"] == pytest.approx(2 / 3)


def test_calibration():
    rows = summary(
        judged([(0, 3)], [1.5, 0.5, -30, 0.2]), judged([], [2.1, 1.2, -1, -0.5], name="none")
    )["calibration"]
    assert [(r["score"], r["sentences"], r["answers"]) for r in rows] == [
        (2, 1, 0),
        (1, 2, 1),
        (0, 2, 0),
        (-1, 2, 0),
        (-8, 1, 0),
    ]
    assert (
        rows[1]["share"] == 0.5
        and rows[1]["share_above"] == pytest.approx(1 / 3)
        and rows[1]["found_above"] == 1
    )
    assert rows[2]["sigmoid"] == pytest.approx(1 / (1 + np.exp(-0.5)))
    assert summary(judged([(0, 3)], [1, 2, 3, 4], logits=False))["calibration"] == []


def test_bm25_of_sentences_and_units(tmp_path):
    score = by_parts(bm25_scorer)
    spans, scores = score("dogs and fish", TEXT)
    assert spans.tolist() == split_sentences(TEXT).tolist() and (scores > 0).tolist() == [
        False,
        True,
        False,
        True,
    ]
    assert (score("cat", TEXT)[1] > 0).tolist() == [True, False, False, False]
    assert (score("cat", "A cat. A dog.")[1] > 0).tolist() == [True, False]
    units = ((0, 13), (13, 20), (20, len(TEXT)))
    for scorer in (score, by_retriever(SentenceRetriever(tiny_model(tmp_path)))):
        assert scorer("cat", TEXT, units)[0].tolist() == [list(unit) for unit in units]
        assert scorer("cat", TEXT)[0].tolist() == split_sentences(TEXT).tolist()
    assert len(by_parts(bm25_scorer, 4)("cat", TEXT, units)[0]) == 2, "chunks are asked for"


def test_a_sentence_alone_is_scored_without_the_others(tmp_path):
    retriever = SentenceRetriever(tiny_model(tmp_path))
    spans, whole = by_retriever(retriever)("cat", TEXT)
    pieces, alone = by_retriever(retriever, context=1)("cat", TEXT)
    expected = [retriever.score("cat", TEXT[start:end])[0].score for start, end in spans]
    assert pieces.tolist() == spans.tolist() and alone == pytest.approx(expected, abs=1e-5)
    assert abs(alone - whole).max() > 1e-3


def test_recall_by_position():
    """Of two spans of one question, the first tenth's is found at 1 and the last one's at 4."""
    one = judged([(0, 3), (41, 42)], [4, 3, 2, 1])
    assert summary(
        one, judged([(2, 6)], [1, 2, 3, 4], name="b"), metrics=("Recall@1", "Recall@5", "MRR")
    )["recall_by_position"] == [
        {"from": 0.0, "to": 0.1, "spans": 2, "metrics": {"Recall@1": 0.5, "Recall@5": 1.0}},
        {"from": 0.9, "to": 1.0, "spans": 1, "metrics": {"Recall@1": 0.0, "Recall@5": 1.0}},
    ]
