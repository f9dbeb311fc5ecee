"""`runnel rerank` with a stand-in for the model: runs written, stopped work continued, bad input
named.
"""

import json

import pytest
from helpers.command_line import FakeReranker
from helpers.files import write_files


@pytest.fixture
def task(tmp_path):
    """Three queries, four documents, and a run with candidates in another order
    than their scores.
    """
    corpus = ["a\tred cat", "b\tblue cat", "c\tblue dog", "d\tnever a candidate"]
    candidates = [
        "q1 Q0 b 1 9 x",
        "q1 Q0 a 2 8 x",
        "q2 Q0 a 2 1 x",
        "q2 Q0 c 1 3 x",
        "q2 Q0 b 3 0 x",
        "q3 Q0 c 1 1 x",
    ]
    queries = ["q1\tred cat", "q2\tblue dog", "q3\tred dog"]
    files = {"queries.tsv": queries, "corpus.tsv": corpus, "run.trec": candidates}
    write_files(tmp_path, files)
    return (
        "rerank",
        "--queries",
        "queries.tsv",
        "--corpus",
        "corpus.tsv",
        "--run",
        "run.trec",
        "--to",
        "out.trec",
    )


RERANKED = """q1 Q0 a 1 2.000000 runnel
q1 Q0 b 2 1.000000 runnel
q2 Q0 c 1 2.000000 runnel
q2 Q0 b 2 1.000000 runnel
q2 Q0 a 3 0.000000 runnel
q3 Q0 c 1 1.000000 runnel
"""


def test_rerank_one_query(run, fake, tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr(
        "runnel.models.reranker.Reranker.load",
        lambda *names, **more: loaded.append(more) or fake.rerank,
    )
    (tmp_path / "docs.txt").write_text("blue cat\nred cat\n")
    done = run("rerank", "red cat", "docs.txt")
    assert done.code == 0 and done.out == "  1. 2\n     red cat\n  2. 1\n     blue cat\n"
    assert json.loads(
        run("rerank", "red cat", "docs.txt", "--json", "-k", 1, "--dtype", "int8").out
    )["hits"] == [{"rank": 1, "id": "2", "score": 2.0, "text": "red cat"}]
    assert [more["dtype"] for more in loaded] == ["auto", "int8"]


def test_rerank_a_run_remembers_each_candidate_once(run, fake, task, tmp_path):
    done = run(*task)
    assert (done.code, done.err, done.out) == (0, "", "out.trec: 3 queries\n")
    assert (tmp_path / "out.trec").read_text() == RERANKED
    assert fake.rerank.remembered == [(["a", "b", "c"], None, "int8")]
    run(*task[:-1], "other.trec", "--memory", "states", "--memory-dtype", "fp32")
    assert fake.rerank.remembered[1] == (["a", "b", "c"], "states", "fp32")
    assert sorted(p.name for p in tmp_path.glob("out*")) == ["out.trec", "out.trec.json"]
    fake.rerank = FakeReranker(remembers=False)
    fake.rerank.truncated = 2  # of each query
    assert "cut 6 documents" in run(*task[:-1], "best.trec", "--depth", 2, "--top-k", 1).err
    best = [line.split()[:3] for line in (tmp_path / "best.trec").read_text().splitlines()]
    assert (
        best == [["q1", "Q0", "a"], ["q2", "Q0", "c"], ["q3", "Q0", "c"]]
        and fake.rerank.remembered == []
    )


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shards_of_a_run_are_the_run(run, fake, task, tmp_path, count):
    """Shards are parts of the candidates, and a query belongs where its first one lies: 0, 2 and 5
    of 6.
    """
    for number in range(1, count + 1):
        assert run(*task, "--shard", f"{number}/{count}").code == 0
    parts = sorted(tmp_path.glob("out-*.trec"))
    assert len(parts) == count and "".join(part.read_text() for part in parts) == RERANKED
    assert [len(part.read_text().splitlines()) for part in parts] == {
        1: [6],
        2: [5, 1],
        3: [2, 3, 1],
        5: [2, 0, 3, 0, 1],
    }[count]
    assert len(fake.rerank.ranked) == 3


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("run.trec", "q7 Q0 a 1 1 x\n", "'q7'"),
        ("run.trec", "q1 Q0 zz 1 1 x\n", "'zz'"),
        (
            "corpus.tsv",
            "a\tred cat\nb\tblue\na\ttwice\n",
            "corpus.tsv, lines 1 and 3: both have the id 'a'",
        ),
    ],
)
def test_rerank_input_that_does_not_fit(run, fake, task, tmp_path, file, content, message):
    (tmp_path / file).write_text(content)
    run(*task).refused(message)
