"""Metrics agree with trec_eval, whatever the ties and holes; differences are judged by a paired
test.
"""

from functools import partial

import numpy as np
import pytest

from runnel.errors import InputError
from runnel.lab.evaluation import metrics
from runnel.lab.evaluation.metrics import METRICS, compare, cutoff, evaluate, mean, parse_metrics

TREC = {"nDCG@10": "ndcg_cut_10", "Recall@100": "recall_100", "P@5": "P_5", "AP": "map"}
TREC |= {"MRR": "recip_rank", "Success@1": "success_1"}


def random_task(seed, queries=30, documents=40):
    """Qrels with grades from 0 to 2, and a run with ties, missing queries, unjudged documents and
    queries that nobody judged.
    """
    rng = np.random.default_rng(seed)
    names = [f"d{i}" for i in range(documents)] + ["é", "Z", "z", "10", "9"]
    qrels = {}
    run = {}
    for q in range(queries):
        judged = rng.choice(names, rng.integers(1, 12), replace=False)
        qrels[f"q{q}"] = {str(d): int(rng.integers(0, 3)) for d in judged}
        if rng.random() < 0.8:
            found = rng.choice(names, rng.integers(1, len(names)), replace=False)
            # many ties; some in 32 bits only
            scores = rng.integers(0, 6, len(found)) / 3 + rng.choice([0, 1e-9], len(found))
            run[f"q{q}"] = {str(d): float(s) for d, s in zip(found, scores, strict=True)}
    run["unjudged"] = {"d1": 1.0}
    return qrels, run


@pytest.mark.parametrize("seed", range(5))
def test_metrics_are_those_of_trec_eval(seed):
    """Also where ir-measures takes MRR@10 from another provider than MRR, with another order of
    ties.
    """
    import pytrec_eval as trec

    qrels, run = random_task(seed)
    values = evaluate(parse_metrics([*TREC, "MRR@10", "MRR@1"]), qrels, run)
    expected = trec.RelevanceEvaluator(qrels, set(TREC.values())).evaluate(run)
    assert set(values) == set(qrels) and len(expected) < len(qrels)
    for query, found in values.items():
        for name, theirs in TREC.items():
            assert found[name] == pytest.approx(
                expected[query][theirs] if query in expected else 0.0, abs=1e-12
            ), (query, name)
        assert found["MRR@10"] == pytest.approx(found["MRR"] if found["MRR"] >= 0.0999 else 0)
        assert found["MRR@1"] == found["Success@1"]
    missing = set(qrels) - set(run)
    assert missing and all(set(values[query].values()) == {0.0} for query in missing)
    assert mean(values)["AP"] == pytest.approx(np.mean([values[q]["AP"] for q in qrels]))


def test_names_of_metrics():
    metrics = parse_metrics([*METRICS, " P(rel=2)@5"])
    assert (
        list(metrics) == [*METRICS, "P(rel=2)@5"]
        and cutoff(metrics) == 100
        and cutoff(parse_metrics(["AP"])) == 0
    )
    for name in ("xyz", "nDCG@x"):
        with pytest.raises(InputError, match=f"'{name}'.*after @"):
            parse_metrics([name])


def test_compare():
    rng = np.random.default_rng(0)
    a = rng.random(101)
    same = compare(a, a)
    assert (same.queries, same.difference, same.low, same.high, same.p) == (101, 0, 0, 0, 1)
    better = compare(a, a + 0.1 + 0.05 * rng.standard_normal(101))
    assert better.p < 0.001 and 0.08 < better.low < better.difference < better.high < 0.12
    chance = compare(a, rng.permutation(a))
    assert chance.p > 0.5 and chance.low < 0 < chance.high
    assert compare([0.0], [1.0]).p == 1  # one query proves nothing
    # all three differences are positive: two of eight sign patterns are as extreme
    assert compare([0, 0, 0], [1, 2, 3]).p == pytest.approx(0.25, abs=0.02)


def test_two_evaluations_write_to_one_folder_at_once(tmp_path, monkeypatch):
    saved = partial(metrics.save, {"task": "t"}, {"q": {"ndcg": 1.0}}, tmp_path)
    write = metrics.write_jsonl

    def write_meanwhile(path, rows):
        def late():
            monkeypatch.undo()
            saved()
            yield from rows

        write(path, late())

    monkeypatch.setattr(metrics, "write_jsonl", write_meanwhile)
    saved()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.json", "t.queries.jsonl"]
