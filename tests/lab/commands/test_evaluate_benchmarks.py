"""`runnel lab evaluate` on published benchmarks: their metrics, means in which a group of sets counts once, and resumed work."""

import json

from tests.helpers.qa_files import write_rows


def test_each_set_has_its_metric_and_a_group_counts_once(run, tmp_path):
    """One set of two queries, of which words find one; and needle in two lengths, in which words find 1 of 1 and 0 of 1."""
    found, lost = {"qid": "256q", "context_length": 256}, {"qid": "512q", "context_length": 512}
    needles = [{"doc_id": f"{n}{name}", "text": name, "context_length": n} for n in (256, 512) for name in ("gold", "iron")]
    for name, rows in {
        "qmsum/corpus": [{"doc_id": "a", "text": "red cat"}, {"doc_id": "b", "text": "blue dog"}],
        "qmsum/queries": [{"qid": "1", "text": "cats and a cat"}, {"qid": "2", "text": "zebra"}],
        "qmsum/qrels": [{"qid": "1", "doc_id": "a"}, {"qid": "2", "doc_id": "b"}],
        "needle/corpus": needles,
        "needle/queries": [found | {"text": "gold"}, lost | {"text": "gold"}],
        "needle/qrels": [found | {"doc_id": "256gold"}, lost | {"doc_id": "512iron"}],
    }.items():
        write_rows(tmp_path / "longembed" / f"{name}.jsonl", rows)
    command = ("lab", "evaluate", "bm25", "longembed", "--out", "out")
    found = json.loads(run(*command, "--json").out)
    assert {one["task"]: one["metrics"] for one in found["results"]} == {
        "needle-256": {"nDCG@1": 1.0},
        "needle-512": {"nDCG@1": 0.0},
        "qmsum": {"nDCG@10": 0.5},
    }
    of_needle, of_all = {"name": "needle", "sets": 2, "metrics": {"nDCG@1": 0.5}}, {"name": "mean", "sets": 2, "metrics": {}}
    assert found["means"] == [of_needle, of_all]
    assert (tmp_path / "out" / "needle-256.trec").read_text().startswith("256q Q0 256gold 1 ")
    done = run(*command)
    assert done.err.count("is finished already") == 3 and "needle, mean" in done.out
    assert done.out.count("mean") == 1  # nDCG@1 and nDCG@10 are not averaged
