"""`runnel lab evaluate`: texts that are cut, documents scored by segments, and the recipe of a run that says so."""

import json

import numpy as np
import pytest
from helpers.command_line import FakeReranker
from helpers.tiny import tiny_encoder

from runnel.lab.evaluation import retrieval
from runnel.lab.training import recipes
from runnel.models.embedder import Embedder
from runnel.models.reranker import Reranker

DOCUMENTS = {"d0": "the cat sat on the mat and the dog sat", "d1": "a river runs to the sea", "d2": "the dog"}
QUERIES = {"1": "the cat and a dog", "2": "a river"}


@pytest.fixture(autouse=True)
def no_models_of_other_tests():
    retrieval._model.cache_clear()


@pytest.fixture
def task(tmp_path):
    (tmp_path / "task").mkdir()
    for name, texts in (("corpus", DOCUMENTS), ("queries", QUERIES)):
        (tmp_path / "task" / f"{name}.jsonl").write_text(
            "".join(json.dumps({"_id": i, "text": t}) + "\n" for i, t in texts.items())
        )
    (tmp_path / "task" / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n1\td0\t1\n2\td1\t1\n")
    (tmp_path / "bm25.trec").write_text("".join(f"{q} Q0 {d} 1 1 x\n" for q in QUERIES for d in DOCUMENTS))
    return "task"


@pytest.fixture
def model(tmp_path):
    tiny_encoder(tmp_path / "tokenizer").save(tmp_path / "run" / "model")
    return "run/model"


def scores(path):
    """Return (query, document) -> score of a run."""
    return {(q, d): float(score) for q, _, d, _, score, _ in map(str.split, path.read_text().splitlines())}


def segments(tokenizer, text, tokens, stride):
    """Return segments, cut by words of the tokenizer."""
    encoded = tokenizer.encode(text)
    starts = range(0, max(0, len(encoded.ids) - tokens) + stride, stride)
    return [text[encoded.starts[s] : encoded.ends[min(s + tokens, len(encoded.ids)) - 1]] for s in starts]


@pytest.mark.parametrize(("aggregate", "combine"), [("max", max), ("sum", sum)])
def test_an_embedder_by_segments(run, task, model, tmp_path, aggregate, combine):
    options = ("--segment-tokens", 4, "--stride", 2, "--aggregate", aggregate, "--dtype", "fp32")
    done = run("lab", "evaluate", model, task, *options, "--out", "out")
    assert done.code == 0, done.err
    embedder, found = Embedder.load(tmp_path / model, "float32"), scores(tmp_path / "out" / "task.trec")
    queries = dict(zip(QUERIES, embedder.encode_query(QUERIES.values()), strict=True))
    for name, text in DOCUMENTS.items():
        vectors = embedder.encode_document(segments(embedder.model.tokenizer, text, 4, 2))
        for query, vector in queries.items():
            assert found[query, name] == pytest.approx(combine((vectors @ vector).tolist()), abs=1e-5)


def test_a_reranker_by_segments(run, task, model, tmp_path):
    command = ("lab", "evaluate", model, task, "--as", "rerank", "--run", "bm25.trec", "--segment-tokens", 4, "--dtype", "fp32")
    for aggregate in ("max", "sum"):
        done = run(*command, "--aggregate", aggregate, "--out", aggregate)
        assert done.code == 0, done.err
    reranker, highest, sums = (
        Reranker.load(tmp_path / model, "float32"),
        scores(tmp_path / "max/task.trec"),
        scores(tmp_path / "sum/task.trec"),
    )
    for query, text in QUERIES.items():
        for name, document in DOCUMENTS.items():
            logits = reranker.score(text, segments(reranker.model.tokenizer, document, 4, 4))
            assert highest[query, name] == pytest.approx(max(logits), abs=1e-4)
            assert sums[query, name] == pytest.approx((1 / (1 + np.exp(-logits))).sum(), abs=1e-4)


def test_interrupted_work_by_segments_resumes(run, task, fake, tmp_path):
    fake.rerank = FakeReranker(stop_after=1)
    fake.rerank.model.tokenizer = tiny_encoder(tmp_path / "tokenizer").tokenizer
    command = ("lab", "evaluate", "toy", task, "--as", "rerank", "--run", "bm25.trec", "--segment-tokens", 4, "--out", "out")
    assert run(*command).code == 130
    retrieval._model.cache_clear()
    fake.rerank.stop_after = None
    assert run(*command).code == 0
    pieces = segments(fake.rerank.model.tokenizer, DOCUMENTS["d0"], 4, 4)
    best = max(len(set(QUERIES["1"].split()) & set(piece.split())) for piece in pieces)
    assert scores(tmp_path / "out" / "task.trec")["1", "d0"] == best
    assert {name.rpartition("#")[0] for _, name in scores(tmp_path / "out" / "task.segments.trec")} == set(DOCUMENTS)
    done = run(*command, "--aggregate", "sum")
    assert done.code == 1 and "finished work with another aggregate" in done.err


def test_texts_are_cut(run, task, model, tmp_path):
    done = run("lab", "evaluate", model, task, "--max-tokens", 5, "--max-query-tokens", 4, "--dtype", "fp32", "--out", "out")
    assert done.code == 0 and "texts were cut to 5 tokens" in done.err
    assert json.loads((tmp_path / "out" / "task.json").read_text())["reading"] == {"max_tokens": 5, "max_query_tokens": 4}
    embedder, found = Embedder.load(tmp_path / model, "float32"), scores(tmp_path / "out" / "task.trec")
    for query, text in QUERIES.items():
        vectors = embedder.encode_document(DOCUMENTS.values(), max_tokens=5)
        expected = vectors @ embedder.encode_query(text, max_tokens=4)
        assert [found[query, name] for name in DOCUMENTS] == pytest.approx(expected.tolist(), abs=1e-5)


def test_the_recipe_of_a_run_is_followed(run, task, model, tmp_path):
    expected = {}
    for out, options in (("cut", ("--max-tokens", 5)), ("whole", ())):
        assert run("lab", "evaluate", model, task, *options, "--out", out).code == 0
        expected[out] = scores(tmp_path / out / "task.trec")
    recipe = recipes.read("mamba-retriever-msmarco", changes=("evaluation.max_document_tokens=5",))
    recipes.write(recipe, tmp_path / "run" / "recipe.toml")
    done = run("lab", "evaluate", model, task, "--out", "recipe")
    assert f"note: as in the recipe of {model}: max_tokens 5, max_query_tokens 32" in done.err
    assert scores(tmp_path / "recipe" / "task.trec") == expected["cut"] != expected["whole"]
    done = run("lab", "evaluate", model, task, "--max-tokens", 100, "--max-query-tokens", 100, "--out", "given")
    assert "recipe" not in done.err and scores(tmp_path / "given" / "task.trec") == expected["whole"]
