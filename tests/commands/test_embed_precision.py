"""`runnel embed --truncate-dim --precision`: smaller vectors, their ranges, and what they need."""

import json

import numpy as np
import pytest

from runnel.models.precision import quantize, value_ranges

ROWS = [{"id": f"d{i}", "text": "word " * (i + 1)} for i in range(7)]


@pytest.fixture(autouse=True)
def blocks_of_one_row(monkeypatch):
    """What was embedded before an interruption is kept, up to the last row."""
    monkeypatch.setattr("runnel.commands.embed._BLOCK_ROWS", 1)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def cut(monkeypatch, fake):
    """The options that the model was loaded with."""
    seen = {}

    def load(name, **options):
        seen.update(options)
        return fake.embed

    monkeypatch.setattr("runnel.models.embedder.Embedder.load", load)
    return seen


def test_embed_cuts_vectors(run, cut, corpus):
    run("embed", "corpus.jsonl", "--to", "out.npy", "--truncate-dim", "2")
    assert cut["truncate_dim"] == 2
    assert "truncate_dim (2, now 1)" in run("embed", "corpus.jsonl", "--to", "out.npy", "--truncate-dim", "1").err


@pytest.mark.parametrize("block", [1, 2, 100])
def test_embed_writes_8_bits_with_the_ranges_of_all_vectors(run, fake, corpus, tmp_path, monkeypatch, block):
    monkeypatch.setattr("runnel.commands.vectors._BLOCK_ROWS", block)
    run("embed", "corpus.jsonl", "--to", "whole.npy")
    done = run("embed", "corpus.jsonl", "--to", "out.npy", "--precision", "int8")
    assert done.out == "out.npy: 7 vectors of 3 numbers, int8\n"
    whole, found, ranges = (np.load(tmp_path / name) for name in ("whole.npy", "out.npy", "out.ranges.npy"))
    assert np.array_equal(ranges, value_ranges(whole)) and np.array_equal(found, quantize(whole, "int8", ranges))
    assert found.dtype == np.int8 and found[:, 1].min() == -128 and found[:, 1].max() == 127
    assert json.loads((tmp_path / "out.npy.json").read_text())["precision"] == "int8"

    for extra in ((), ("--query",), ("--shard", "1/1")):
        name = "q" + "".join(extra).strip("-").replace("/", "")
        run("embed", "corpus.jsonl", "--to", f"{name}.jsonl", "--precision", "uint8", "--ranges", "out.ranges.npy", *extra)
        (path,) = tmp_path.glob(f"{name}*.jsonl")
        rows = [json.loads(line)["vector"] for line in path.read_text().splitlines()]
        assert rows == quantize(whole, "uint8", ranges).tolist() and not list(tmp_path.glob("q*ranges*"))


def test_embed_writes_bits_and_resumes(run, fake, corpus, tmp_path):
    fake.embed.stop_after = 4
    run("embed", "corpus.jsonl", "--to", "out.npy", "--precision", "ubinary")
    fake.embed.stop_after = None
    assert "resumed after 4 vectors" in run("embed", "corpus.jsonl", "--to", "out.npy", "--precision", "ubinary").err
    assert np.array_equal(np.load(tmp_path / "out.npy"), np.full((7, 1), 0b11100000, np.uint8))
    assert "precision ('ubinary', now None)" in run("embed", "corpus.jsonl", "--to", "out.npy").err


def test_embed_says_what_8_bits_need(run, fake, corpus, tmp_path):
    for extra in (("--query",), ("--shard", "1/2")):
        done = run("embed", "corpus.jsonl", "--to", "out.npy", "--precision", "int8", *extra)
        assert done.code == 1 and "--precision int8 of queries and shards needs --ranges FILE" in done.err
    done = run("embed", "corpus.jsonl", "--to", "out.npy", "--precision", "binary", "--ranges", "x.npy")
    assert "--ranges has no effect with --precision binary; omit it" in done.err
    np.save(tmp_path / "bad.npy", np.zeros((2, 4), np.float32))
    (tmp_path / "no.npy").write_text("text")
    for name, message in (
        ("bad.npy", "bad.npy has float32 (2, 4); expected the ranges of these vectors, float32 (2, 3)"),
        ("no.npy", "no.npy cannot be read as ranges"),
    ):
        assert message in run("embed", "corpus.jsonl", "--to", "out.npy", "--precision", "int8", "--ranges", name).err
    (tmp_path / "one.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    done = run("embed", "one.jsonl", "--to", "one.npy", "--precision", "int8")
    assert "int8 vectors need the ranges of at least two vectors, got 1; give --ranges" in done.err
