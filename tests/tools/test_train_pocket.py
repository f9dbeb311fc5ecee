"""The training script's own parts, on made-up data; training on real data is not run here."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from runnel.lab.training.vector_scores import known_columns
from runnel.models.pocket.heads import VectorScore
from runnel.models.pocket.lexical import FEATURES
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.models.recurrent.heads import HeldHead
from tools.train_pocket import relevance
from tools.train_pocket.data import held_back
from tools.train_pocket.evaluate import ndcg
from tools.train_pocket.examples import Example, overlapping
from tools.train_pocket.fit import aside, calibrate_by_set, load, merged, save, scores, train
from tools.train_pocket.lexical import Bm25, words
from tools.train_pocket.measure import ALONE, LATE, OTHER, calibration_table, context_table
from tools.train_pocket.recall import recall
from tools.train_pocket.tune import chosen_passages, loss_of, passage_loss

pytestmark = pytest.mark.slow

D = 16


def examples(count, seed=0, sentences=30):
    """The sentence that answers points away from the query, and shares its words: neither cosine
    nor length tells.
    """
    make = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        query = F.normalize(torch.randn(D, generator=make), dim=0)
        vectors = F.normalize(torch.randn(sentences, D, generator=make), dim=-1)
        features = torch.rand(sentences, FEATURES, generator=make)
        place = int(torch.randint(sentences, (1,), generator=make))
        vectors[place] = -query
        features[place, 4] = 1.0
        found.append(
            Example(
                f"set {number % 2}",
                number,
                str(number),
                query,
                vectors,
                features,
                ((place, place + 1),),
            )
        )
    return found


def elsewhere(found):
    return [
        Example(e.set, e.number, "0", e.query.roll(1), e.vectors.roll(3, 1), e.features * 0.5, ())
        for e in found
    ]


def test_what_is_held_back_and_how_documents_are_cut():
    names = [f"document {i}" for i in range(2000)]
    assert 140 < sum(map(held_back, names)) < 260
    assert all(held_back(name) == held_back(name + "-long") for name in names)
    assert 120 < sum(map(aside, [name for name in names if not held_back(name)])) < 240
    spans = np.stack([np.arange(0, 400, 10), np.arange(10, 401, 10)], axis=1)
    assert overlapping(spans, 20, 30) == (2, 3)
    assert overlapping(spans, 19, 31) == (1, 4)


def document(tokens):
    """A document whose sentences have so many tokens, a character each, and vectors of their own
    direction.
    """
    bounds = np.cumsum([0, *tokens])
    spans = np.stack([bounds[:-1], bounds[1:]], axis=1)
    vectors = 100 * np.eye(len(tokens), D, dtype=np.int8)
    ids = np.arange(bounds[-1], dtype=np.int32)
    scales = np.array(tokens, np.float32)
    kinds = np.zeros(len(tokens), np.uint8)
    return SentenceVectors("x" * int(bounds[-1]), spans, ids, bounds, vectors, scales, kinds)


def test_passages_are_whole_sentences():
    found = relevance.passages("long", document([100, 60, 1, 200, 20]))
    assert [(p.first, p.last) for p in found] == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert (
        [len(p.content.ids) for p in found]
        == [len(p.content.text) for p in found]
        == [160, 1, 200, 20]
    )
    assert found[0].content.sums().sum(0)[:3].tolist() == [10000.0, 6000.0, 0.0] and found[
        1
    ].content.bounds.tolist() == [0, 1]


def test_tuning_sees_what_answers_and_what_looks_most_like_it():
    read = document([100] * 20)
    (one,) = examples(1, sentences=20)
    passages, bm25 = chosen_passages(one, read, np.random.default_rng(0))
    places = [sentence for passage in passages for sentence, _, _ in passage.sentences]
    answer = one.evidence[0][0]
    assert places[0] == answer and len(passages) == 4 and len(bm25) == 20
    plain = known_columns(one.query, one.vectors, one.features)[:, 1:3].sum(1)
    assert set(places[1:]) <= set(plain.topk(9).indices.tolist()) - {answer}
    assert [(a, b) for p in passages for _, a, b in p.sentences] == [(1, 101)] * 4  # behind [CLS]
    loss, away = loss_of(one, one.query, one.vectors[places], places, bm25)
    assert away == pytest.approx(0, abs=1e-6) and loss > 0
    better, moved = loss_of(
        one, one.query, torch.cat([one.query[None], one.vectors[places[1:]]]), places, bm25
    )
    assert better < loss and moved > 0.1


def test_the_loss_of_passages_leaves_out_those_chosen_for_another_question_to_the_same_document():
    # 0 answers query 0, 1 query 1, 2 query 2, 3 none
    queries = 0.05 * torch.eye(3, D)
    loss = passage_loss(
        queries, torch.eye(4, D), (0, 1, 2, 0), (True, True, True, False), ("a", "a", "b")
    )
    # of 4 passages: query 0 sees its own two and one of another document, query 1 its own and one,
    # query 2 all
    expected = [np.log(1 + k * np.exp(-1.0)) for k in (2, 1, 3)]
    assert float(loss) == pytest.approx(np.mean(expected), rel=1e-5)


def test_a_head_learns_what_tells_answers_and_is_calibrated_and_kept(tmp_path):
    found = examples(40)
    held = examples(30, seed=1)
    kept = examples(60, seed=2)
    head = train(found, elsewhere(found), seed=0, steps=110, hidden_size=D)

    def hits(one):
        return float(
            np.mean(
                [
                    recall(e.evidence, s.numpy(), 1)
                    for e, s in zip(held, scores(one, held), strict=True)
                ]
            )
        )

    assert hits(HeldHead(VectorScore(D))) < 0.2 < 0.8 <= hits(head)
    calibrate_by_set(head, kept, elsewhere(kept))
    assert float(
        torch.cat([s.sigmoid() for s in scores(head, [*kept, *elsewhere(kept)])]).sum()
    ) == pytest.approx(len(kept), rel=0.05)
    save(head, tmp_path, {})
    again = load(tmp_path, D)
    assert all(
        torch.equal(a, b) for a, b in zip(scores(again, held), scores(head, held), strict=True)
    )
    assert "area" in calibration_table(head, held, elsewhere(held))
    heads = [train(found, [], seed=seed, steps=4, hidden_size=D) for seed in range(3)]
    means = [
        torch.stack(three).mean(0)
        for three in zip(*(scores(one, held) for one in heads), strict=True)
    ]
    for one, mean, together in zip(held, means, scores(merged(heads), held), strict=True):
        plain = known_columns(one.query, one.vectors, one.features)[:, 1:3].sum(1)
        torch.testing.assert_close(together, mean + 0.15 * plain, atol=1e-5, rtol=1e-5)


def test_context_counts_spans_by_the_length_of_the_document_and_by_their_third():
    # one span in the first third, one in the last
    found = [replace(one, evidence=((0, 1), (29, 30))) for one in examples(4)]
    documents = {(e.set, e.document): document([50 if e.number < 3 else 400] * 30) for e in found}
    # ten best sentences: one end each
    first = np.arange(30, 0, -1, dtype=np.float32)
    last = np.arange(30, dtype=np.float32)
    rows = {ALONE: [last] * 4, LATE: [first] * 4, OTHER: [first] * 4, "**pocket**": [first] * 4}
    lines = context_table(found, documents, rows).splitlines()
    assert lines[2] == "| questions | 3 | 0 | 1 | 4 | 0 | 4 |"
    assert lines[3].split(" | ")[1:] == ["0.500", "-", "0.500", "0.000", "-", "1.000 |"]
    assert lines[7] == (
        f"| {LATE} against {ALONE} | +0.000 (+0.000, +0.000) | - | +0.000 (+0.000, +0.000) "
        "| +1.000 (+1.000, +1.000) | - | -1.000 (-1.000, -1.000) |"
    )


def test_bm25_ndcg_and_recall():
    assert words("The cats of the houses") == ["cat", "house"]
    index = Bm25(["a cat and a dog", "a dog", "a dog in the house", "the dog and the cats"])
    assert index.top("what of the house", 3).tolist() == [2]
    assert index.top("cats", 3).tolist() == [0, 3]
    assert ndcg(
        [np.array([5, 1, 2]), np.array([], np.int64)], [{5: 1, 2: 1}, {0: 2}]
    ) == pytest.approx([(1 + 0.5) / (1 + 1 / np.log2(3)), 0])
    scores = -np.arange(30, dtype=np.float32)
    assert (
        recall(((0, 2), (7, 9)), scores, depth=5) == 0.5 and recall(((0, 2), (7, 9)), scores) == 1.0
    )
