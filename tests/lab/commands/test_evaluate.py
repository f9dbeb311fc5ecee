"""`runnel lab evaluate` on retrieval tasks, evidence and tasks of mteb: metrics, texts that are
cut, resumed work, bad input.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.children import run_python
from helpers.files import read_rows, write_files, write_rows
from helpers.judged_tasks import ToyEmbedder, results
from helpers.tiny import tiny_encoder, tiny_model
from helpers.toy import Toy, ToyConfig
from mteb.mocks.mock_tasks import MockRerankingTask, MockRetrievalTask, MockSTSTask

from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.engine import Engine
from runnel.lab.evaluation import mteb, retrieval
from runnel.lab.evaluation.retrieval import Reading
from runnel.lab.training import recipes
from runnel.models.embedder import Embedder
from runnel.models.reranker import Reranker

DOCUMENT = "The red cat sat. A dog ran. The blue bird flew away."
UNITS = [[0, 17], [17, 21], [21, 28], [28, len(DOCUMENT)]]
EVIDENCE = [
    {"id": "a", "question": "red cat", "document": DOCUMENT, "evidence": [[0, 16]]},
    {"question": "dog", "document": DOCUMENT, "evidence": [[19, 22]]},
    {"id": "c", "question": "who flew", "document": DOCUMENT, "evidence": [[36, 40]]},
    {"id": "d", "question": "zebra", "document": DOCUMENT, "evidence": []},
]


@pytest.fixture(autouse=True)
def no_models_of_other_tests():
    retrieval._model.cache_clear()


@pytest.fixture
def evaluate(run):
    def evaluate(*arguments):
        """Return the result of the only task."""
        (result,) = results(run("lab", "evaluate", *arguments, "--json")).values()
        return result

    return evaluate


def scores(path):
    """Return (query, document) -> score of a run, in its order."""
    return {
        (query, name): float(score)
        for query, _, name, _, score, _ in map(str.split, path.read_text().splitlines())
    }


def test_bm25(run, beir, tmp_path):
    command = ("lab", "evaluate", "bm25", "beir", "--out", "out")
    done = run(*command, "--metrics", "nDCG@10,MRR,Recall@1")
    assert done.code == 0 and done.err == ""
    assert "beir" in done.out and "nDCG@10" in done.out and "bm25 as bm25" in done.out
    files = ["beir.json", "beir.queries.jsonl", "beir.trec", "beir.trec.json"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == files
    result = json.loads((tmp_path / "out" / "beir.json").read_text())
    assert (result["version"], result["kind"], result["queries"], result["documents"]) == (
        1,
        "retrieval",
        3,
        5,
    )
    values = {row.pop("query"): row for row in read_rows(tmp_path / "out" / "beir.queries.jsonl")}
    ranked = list(scores(tmp_path / "out" / "beir.trec"))
    assert ranked[:3] == [("1", "d1"), ("1", "d3"), ("1", "d0")] and {
        query for query, _ in ranked[3:]
    } == {"2"}
    assert values["1"] == pytest.approx(
        {"nDCG@10": 2.5 / (2 + 1 / np.log2(3)), "MRR": 1.0, "Recall@1": 0.5}
    )
    assert values["3"] == {"nDCG@10": 0.0, "MRR": 0.0, "Recall@1": 0.0}  # missing from the run
    assert result["metrics"]["MRR"] == pytest.approx(np.mean([v["MRR"] for v in values.values()]))
    done = run(*command, "--json", "--metrics", "P@1")
    assert "out/beir.trec is finished already" in done.err and list(
        results(done)["beir"]["metrics"]
    ) == ["P@1"]


def test_runs_judgments_and_texts_in_files(evaluate, beir, tmp_path):
    expected = evaluate("bm25", "beir", "--out", "out")["metrics"]
    (tmp_path / "qrels.txt").write_text("1 0 d1 2\n1 0 d0 1\n2 0 d0 1\n2 0 d2 0\n3 0 d4 1\n")
    for task in ("beir", "beir/qrels/test.tsv", "qrels.txt"):
        found = evaluate("out/beir.trec", task)
        assert found["metrics"] == expected and found["as"] == "run"
    texts = ("--corpus", "beir/corpus.jsonl.gz", "--queries", "beir/queries.jsonl")
    # and nothing is kept without --out
    assert evaluate("bm25", "qrels.txt", *texts)["metrics"] == expected


def test_an_embedder_and_its_prompts(evaluate, beir, fake, tmp_path):
    fake.embed = ToyEmbedder()
    found = evaluate("toy", "beir", "--prompt", "find: ", "--out", "out")
    assert (found["model"], found["as"], fake.embed.model.prompts) == (
        "toy",
        "embed",
        {"query": "find: "},
    )
    found = scores(tmp_path / "out" / "beir.trec")
    assert [(name, score) for (query, name), score in found.items() if query == "2"][:2] == [
        ("d2", 3),
        ("d3", 2),
    ]
    assert {name for _, name in found} == {"d0", "d1", "d2", "d3"}  # d4 has no text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--depth", 2), [("1", "d1"), ("1", "d3"), ("2", "d2"), ("2", "d3")]),  # of BM25's best
        # the other judged queries are missing, and count as 0
        (("--run", "given.trec"), [("2", "d3"), ("2", "d0")]),
    ],
)
def test_a_reranker_reorders_a_run(evaluate, beir, fake, tmp_path, options, expected):
    (tmp_path / "given.trec").write_text("2 Q0 d0 1 9 x\n2 Q0 d3 2 8 x\n4 Q0 d0 1 1 x\n")
    assert evaluate("toy", "beir", "--as", "rerank", *options, "--out", "out")["as"] == "rerank"
    assert len(fake.rerank.ranked) == len({query for query, _ in expected})
    assert list(scores(tmp_path / "out" / "beir.trec")) == expected
    assert (tmp_path / "out" / "beir.bm25.trec").exists() == ("--depth" in options)


def test_an_index_of_the_corpus(evaluate, beir, tmp_path):
    tiny_encoder(tmp_path / "tokenizer").save(tmp_path / "tiny")
    words = ("--weight", 0, "--rerank", 0, "--metrics", "MRR@10")
    made = evaluate("tiny", "beir", "--as", "index", "--out", "made", *words)
    assert made["as"] == "index" and made["metrics"]["MRR@10"] == pytest.approx((1 + 1 / 3) / 3)
    ranked = {name for _, name in scores(tmp_path / "made" / "beir.trec")}
    assert ranked == {"d0", "d1", "d2", "d3"} and (tmp_path / "made" / "beir.index").exists()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("beir/qrels/test.tsv", "9\td0\t1\n", "beir/queries.jsonl"),
        ("beir/qrels/test.tsv", "1\tx\t1\n", "beir/corpus.jsonl.gz"),
        ("beir/qrels/test.tsv", "1\td0\t0\n", "no document as relevant"),
        (
            "beir/corpus.jsonl.gz",
            '{"_id": "d1", "text": "cat"}\n{"_id": "d 2", "text": "a cat"}\n',
            "'d 2'",
        ),
        ("beir/corpus.jsonl.gz", '{"_id": "d1", "text": " "}\n', "none of its 1 has text"),
        ("run.trec", "", "none of the 0 queries of run.trec"),
        ("run.trec", "8 Q0 d0 1 1 x\n", "beir/qrels/test.tsv"),
        ("run.trec", "1 Q0 d0 1 1 x\n1 Q0 zz 2 0 x\n", "'zz'"),
        ("e.jsonl", json.dumps(EVIDENCE[3]), "no question has evidence"),
        ("e.jsonl", f"{json.dumps(EVIDENCE[0])}\n" * 2, "'a'"),
    ],
)
def test_bad_tasks_runs_and_evidence(run, beir, tmp_path, file, content, message):
    (tmp_path / file).write_text(content)
    run(
        "lab",
        "evaluate",
        file if file == "run.trec" else "bm25",
        file if file == "e.jsonl" else "beir",
    ).refused(message)


def test_what_does_not_fit_is_reported(run, evaluate, beir):
    assert evaluate("bm25", "beir", "--depth", 5, "--metrics", "Recall@5")["notes"] == []
    assert evaluate("bm25", "beir", "--depth", 2, "--metrics", "Recall@5,MRR")["notes"] == [
        "2 documents of a query are kept; the metrics look at 5"
    ]
    (beir / "qrels" / "dev.tsv").write_text("1\td1\t1\n1\tgone\t1\n2\td0\t0\n77\td0\t1\n")
    done = run("lab", "evaluate", "bm25", "beir", "beir/qrels/dev.tsv", "--json")
    assert list(results(done)) == ["beir", "beir-dev"]
    for note in (
        "1 of 3 queries have no relevant document, and count as 0",
        "1 of 3 judged queries have no text, and count as 0",
        "1 of 3 relevant documents are not in the corpus, the first is 'gone'",
    ):
        assert f"note: beir-dev: {note}" in done.err
    (beir / "qrels" / "test.tsv").rename(beir / "qrels" / "train.tsv")
    assert (
        "'test.tsv'; expected one of dev.tsv, train.tsv"
        in run("lab", "evaluate", "bm25", "beir").err
    )


@pytest.fixture
def evidence(tmp_path):
    write_rows(tmp_path / "evidence.jsonl", EVIDENCE)
    return "evidence.jsonl"


def test_evidence(run, evidence, fake, tmp_path):
    command = ("lab", "evaluate", "toy", evidence, "--out", "out")
    done = run(*command).ok()
    result = json.loads((tmp_path / "out" / "evidence.json").read_text())
    assert (result["kind"], result["as"], result["queries"], result["unanswered"]) == (
        "sentences",
        "sentences",
        3,
        1,
    )
    assert result["metrics"]["Recall@1"] == 1
    assert result["by_length"][0]["name"] == "up to 500 words"
    assert [row["sentences"] for row in result["calibration"]] == [1, 2, 9]  # scores 2, 1 and 0
    assert "up to 500 words" in done.out and "sigmoid" in done.out
    assert [row["query"] for row in read_rows(tmp_path / "out" / "evidence.queries.jsonl")] == [
        "a",
        "2",
        "c",
    ]
    again = run(*command, "--metrics", "P@1")
    assert "evidence.ranks.jsonl is finished already" in again.err and "P@1" in again.out


def test_bm25_on_the_same_sentences_or_units(run, evaluate, evidence, beir, tmp_path):
    both = results(
        run("lab", "evaluate", "bm25", evidence, "beir", "--json", "--metrics", "MRR@10")
    )
    assert both["evidence"]["metrics"] == {"MRR@10": 1.0} and both["beir"]["kind"] == "retrieval"
    assert both["evidence"]["calibration"] == []
    write_rows(tmp_path / evidence, [EVIDENCE[0] | {"units": UNITS}, *EVIDENCE[1:]])
    assert evaluate("bm25", evidence, "--out", "out")["sentences"] == 13
    assert [row["sentences"] for row in read_rows(tmp_path / "out" / "evidence.ranks.jsonl")] == [
        4,
        3,
        3,
        3,
    ]


DOCUMENTS = {
    "d0": "the cat sat on the mat and the dog sat",
    "d1": "a river runs to the sea",
    "d2": "the dog",
}
QUERIES = {"1": "the cat and a dog", "2": "a river"}


@pytest.fixture
def task(tmp_path):
    write_files(
        tmp_path,
        {
            "task/corpus.jsonl": [{"_id": i, "text": text} for i, text in DOCUMENTS.items()],
            "task/queries.jsonl": [{"_id": i, "text": text} for i, text in QUERIES.items()],
            "task/qrels.tsv": "query-id\tcorpus-id\tscore\n1\td0\t1\n2\td1\t1\n",
            "bm25.trec": [f"{q} Q0 {d} 1 1 x" for q in QUERIES for d in DOCUMENTS],
        },
    )
    return "task"


@pytest.fixture
def model(tmp_path):
    tiny_encoder(tmp_path / "tokenizer").save(tmp_path / "run" / "model")
    return "run/model"


@pytest.fixture
def many(tmp_path):
    """A task of one query with 2,000 candidates, which is also asked about the first 20."""
    texts = [{"_id": f"d{n}", "text": f"the cat {'sat ' * (n % 7)}{n}"} for n in range(2000)]
    ranked = [f"1 Q0 d{n} 1 {2000 - n} x" for n in range(2000)]
    write_files(
        tmp_path,
        {
            "many/corpus.jsonl": texts,
            "many/queries.jsonl": [{"_id": "1", "text": "a dog sat"}],
            "many/qrels.tsv": "query-id\tcorpus-id\tscore\n1\td7\t1\n",
            "20.trec": ranked[:20],
            "2000.trec": ranked,
        },
    )
    return {row["_id"]: row["text"] for row in texts}


@pytest.mark.parametrize("segments", [(), ("--segment-tokens", 6, "--stride", 3)])
def test_a_recurrent_reranker_reads_pairs_in_memory_that_does_not_grow(
    run, many, tmp_path, monkeypatch, segments
):
    tiny_model(tmp_path / "tokenizer").save(tmp_path / "recurrent")
    most = {}
    read = Engine.map

    def spied(engine, requests, *more):
        under_way = 0

        def counted():
            nonlocal under_way
            for request in requests:
                assert not request.keep_state
                under_way += 1
                most[count] = max(most.get(count, 0), under_way)
                yield request

        for result in read(engine, counted(), *more):
            under_way -= 1
            yield result

    monkeypatch.setattr(Engine, "map", spied)
    options = ("--as", "rerank", "--dtype", "fp32", "--depth", 2000, *segments)
    for count in (20, 2000):
        out = ("--run", f"{count}.trec", "--out", f"out{count}")
        run("lab", "evaluate", "recurrent", "many", *options, *out).ok()
    assert most[2000] < 2000 / 4
    found = scores(tmp_path / "out2000" / "many.trec")
    assert len(found) == 2000
    reranker = Reranker.load(tmp_path / "recurrent", "float32")
    for name in ("d0", "d6", "d1999"):
        texts = [many[name]]
        if segments:
            texts = Reading(segment_tokens=6, stride=3).cut(many[name], reranker.model.tokenizer)
        assert found["1", name] == pytest.approx(reranker.score("a dog sat", texts).max(), abs=1e-5)


PEAK = """
import pathlib, re, sys
from runnel.cli import main
sys.argv[0] = "runnel"
try:
    main()
finally:
    print(re.findall(r"VmHWM:\\s*(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, which Linux has")
def test_the_peak_of_memory_does_not_grow_with_candidates(many, tmp_path):
    """A state is 512 KiB in fp32, 128 in 8 bits: those of all candidates are 250 MiB or more."""
    sizes = Mamba2Config(128, 32, 8, state_size=128, head_size=16)
    tiny_model(tmp_path / "tokenizer", backbone=Mamba2(sizes)).save(tmp_path / "recurrent")

    def peak(count: int, *options: str) -> float:
        command = ["lab", "evaluate", "recurrent", "many", "--as", "rerank", "--dtype", "fp32"]
        files = ["--depth", "2000", "--run", f"{count}.trec", "--out", f"{count}{options}"]
        out = run_python("-c", PEAK, *command, *files, *options, cwd=tmp_path)
        return int(out.split()[-1]) / 1024

    few = peak(20)
    assert peak(2000) < few + 40
    assert peak(2000, "--remember") > few + 150


def test_states_are_remembered_when_they_are_asked_for(run, task, tmp_path, monkeypatch):
    tiny_model(tmp_path / "tokenizer").save(tmp_path / "recurrent")
    kept = []
    remember = Reranker.remember

    def spied(self, documents, *more, **options):
        kept.append(len(documents))
        return remember(self, documents, *more, **options)

    monkeypatch.setattr(Reranker, "remember", spied)
    command = ("lab", "evaluate", "recurrent", task, "--as", "rerank", "--run", "bm25.trec")
    done = run(*command, "--remember", "--out", "kept", "--json")
    assert kept == [3] and results(done)["task"]["reading"] == {"remember": True}
    assert run(*command, "--out", "read").code == 0 and kept == [3]
    with_states, pairs = (scores(tmp_path / out / "task.trec") for out in ("kept", "read"))
    assert with_states == pytest.approx(pairs, abs=0.05)
    assert "another remember (True, now False)" in run(*command, "--out", "kept").err
    run(*command, "--remember", "--max-tokens", 9).refused("--remember has no effect")
    pairs = str(Path(__file__).parents[2] / "golden" / "transformers" / "bert-pairs")
    command = ("lab", "evaluate", pairs, *command[3:], "--remember", "--out", "whole")
    refused = run(*command)
    assert refused.code == 1 and "remember" in refused.err, "a cross-encoder has no states"


@pytest.mark.parametrize("stride", [2, None])
def test_a_reranker_by_its_best_segment(run, task, model, tmp_path, stride):
    options = ("--segment-tokens", 4, *(("--stride", stride) if stride else ()))
    command = ("lab", "evaluate", model, task, "--dtype", "fp32", *options)
    run(*command, "--as", "rerank", "--run", "bm25.trec", "--out", "rerank").ok()
    reranker = Reranker.load(tmp_path / model, "float32")
    found = scores(tmp_path / "rerank" / "task.trec")
    for name, document in DOCUMENTS.items():
        segments = Reading(segment_tokens=4, stride=stride).cut(document, reranker.model.tokenizer)
        for query, text in QUERIES.items():
            best = reranker.score(text, segments).max()
            assert found[query, name] == pytest.approx(best, abs=1e-4)
    run(*command).refused("--segment-tokens has no effect")


def test_texts_are_cut_as_options_or_else_the_recipe_of_the_run_say(
    run, evaluate, task, model, tmp_path
):
    command = (model, task, "--dtype", "fp32", "--out")
    cut = ("cut", "--max-tokens", 5, "--max-query-tokens", 4)
    assert "texts were cut to 5 tokens" in run("lab", "evaluate", *command, *cut).err
    assert evaluate(*command, *cut)["reading"] == {"max_tokens": 5, "max_query_tokens": 4}
    embedder = Embedder.load(tmp_path / model, "float32")
    found = scores(tmp_path / "cut" / "task.trec")
    for query, text in QUERIES.items():
        vectors = embedder.encode_document(DOCUMENTS.values(), max_tokens=5)
        expected = vectors @ embedder.encode_query(text, max_tokens=4)
        assert [found[query, name] for name in DOCUMENTS] == pytest.approx(
            expected.tolist(), abs=1e-5
        )
    evaluate(*command, "whole")
    whole = scores(tmp_path / "whole" / "task.trec")
    changes = ("evaluation.max_document_tokens=5", "evaluation.max_query_tokens=4")
    recipes.write(
        recipes.read("mamba-retriever-msmarco", changes=changes), tmp_path / "run" / "recipe.toml"
    )
    done = run("lab", "evaluate", *command, "recipe")
    assert f"note: as in the recipe of {model}: max_tokens 5, max_query_tokens 4" in done.err
    assert scores(tmp_path / "recipe" / "task.trec") == found != whole
    done = run("lab", "evaluate", *command, "given", "--max-tokens", 100, "--max-query-tokens", 100)
    assert "recipe" not in done.err and scores(tmp_path / "given" / "task.trec") == whole


def test_each_set_has_its_metric_and_a_group_counts_once(run, tmp_path):
    """One set of two queries, of which words find one; and needle in two lengths, in which words
    find 1 of 1 and 0 of 1.
    """
    found = {"qid": "256q", "context_length": 256}
    lost = {"qid": "512q", "context_length": 512}
    needles = [
        {"doc_id": f"{n}{name}", "text": name, "context_length": n}
        for n in (256, 512)
        for name in ("gold", "iron")
    ]
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
    of_needle = {"name": "needle", "sets": 2, "metrics": {"nDCG@1": 0.5}}
    assert found["means"] == [of_needle, {"name": "mean", "sets": 2, "metrics": {}}]
    assert (tmp_path / "out" / "needle-256.trec").read_text().startswith("256q Q0 256gold 1 ")
    done = run(*command)
    assert done.err.count("is finished already") == 3 and "needle, mean" in done.out
    assert done.out.count("mean") == 1  # nDCG@1 and nDCG@10 are not averaged


def test_a_checkpoint_is_read_as_the_recipe_of_its_run_says(run, evaluate, beir, tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    tiny_encoder(tmp_path / "tokenizer").save(folder / "checkpoint-4")
    (folder / "checkpoint-8").mkdir()  # as with LoRA: only what was trained
    recipe = recipes.read("pairs", changes=("evaluation.max_query_tokens=4",))
    recipes.write(recipe, tmp_path / "run" / "recipe.toml")
    found = evaluate("run/checkpoints/checkpoint-4", "beir")
    assert found["reading"] == {"max_query_tokens": 4}
    for name in ("run", "run/checkpoints", "run/checkpoints/checkpoint-8"):
        run("lab", "evaluate", name, "beir").refused(f"{name} has no weights")


TEMPLATE = "Instruction: {instruction}\nQuery: "


@pytest.fixture
def mocks(monkeypatch, tmp_path):
    model = tiny_model(tmp_path, papers_heads=True, backbone=Toy(ToyConfig(128, 32)))
    known = {"retrieval": MockRetrievalTask, "reranking": MockRerankingTask, "sts": MockSTSTask}
    monkeypatch.setattr(mteb, "find_tasks", lambda name: [known[name]()])
    monkeypatch.setattr(
        retrieval, "_model", lambda how, *_: (Reranker if how == "rerank" else Embedder)(model)
    )


def test_mteb_reports_scores_and_means_and_resumes(run, mocks, tmp_path):
    command = (
        "lab",
        "evaluate",
        "tiny",
        "--mteb",
        "retrieval",
        "reranking",
        "sts",
        "--out",
        "out",
        "--prompt",
        TEMPLATE,
    )
    found = json.loads(run(*command, "--json").ok().out)
    scores = [one["score"] for one in found["results"]]
    assert [one["type"] for one in found["results"]] == ["Retrieval", "Reranking", "STS"]
    assert (
        found["results"][2]["prompt"] == "Instruction: Retrieve semantically similar text.\nQuery: "
    )
    assert found["means"][-2:] == [
        {"name": "mean over tasks", "tasks": 3, "score": pytest.approx(sum(scores) / 3)},
        {"name": "mean over types", "tasks": 3, "score": pytest.approx(sum(scores) / 3)},
    ]
    files = {
        path: path.stat().st_mtime_ns
        for path in (tmp_path / "out" / "mteb" / "results").rglob("Mock*.json")
    }
    assert len(files) == 3
    again = run(*command)
    assert again.code == 0 and "mean over types" in again.out
    assert files == {
        path: path.stat().st_mtime_ns
        for path in (tmp_path / "out" / "mteb" / "results").rglob("Mock*.json")
    }


def test_retrieval_is_reranked_from_the_predictions_of_another_model(run, mocks):
    assert run("lab", "evaluate", "tiny", "--mteb", "retrieval", "--out", "first").code == 0
    run("lab", "evaluate", "tiny", "--mteb", "retrieval", "--as", "rerank").refused(
        "--run FOLDER/mteb/predictions"
    )
    done = run(
        "lab",
        "evaluate",
        "tiny",
        "--mteb",
        "retrieval",
        "--as",
        "rerank",
        "--run",
        "first/mteb/predictions",
        "--json",
    )
    assert done.code == 0 and json.loads(done.out)["as"] == "rerank", done.err
