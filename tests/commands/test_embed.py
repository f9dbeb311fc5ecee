"""`runnel embed` with a stand-in for the model: files written, stopped work continued, bad input
named.
"""

import json

import numpy as np
import pytest
from helpers.command_line import FakeEmbedder
from helpers.files import read_rows, write_rows
from helpers.texts import repeat
from helpers.tiny import tiny_model

from runnel.models.precision import quantize, value_ranges

ROWS = [{"id": f"d{i}", "text": repeat("word ", i + 1)} for i in range(7)]


@pytest.fixture(autouse=True)
def blocks_of_one_row(monkeypatch):
    """What was embedded before an interruption is kept, up to the last row."""
    monkeypatch.setattr("runnel.jobs.embedding._BLOCK_ROWS", 1)


@pytest.fixture
def corpus(tmp_path):
    return write_rows(tmp_path / "corpus.jsonl", ROWS)


def lengths(path):
    return np.load(path)[:, 1].tolist()


def test_embed_writes_vectors_and_ids(run, fake, corpus, tmp_path, monkeypatch):
    done = run("embed", "corpus.jsonl", "--to", "out.npy")
    assert (done.code, done.err) == (0, "") and done.out == "out.npy: 7 vectors of 3 numbers\n"
    vectors = np.load(tmp_path / "out.npy")
    assert vectors.dtype == np.float32 and vectors.shape == (7, 3)
    assert lengths(tmp_path / "out.npy") == [1, 2, 3, 4, 5, 6, 7]
    assert (tmp_path / "out.ids").read_text().split() == [row["id"] for row in ROWS]
    about = json.loads((tmp_path / "out.npy.json").read_text())
    assert (
        about["count"] == 7
        and about["fingerprint"] == "f00d"
        and about["prompt"] == "document"
        and about["truncated"] == 0
    )
    assert sorted(p.name for p in tmp_path.glob("out*")) == ["out.ids", "out.npy", "out.npy.json"]
    monkeypatch.setattr(
        "runnel.models.embedder.Embedder.load",
        lambda name, **options: seen.update(options) or fake.embed,
    )
    fake.embed.options = []
    seen = {}
    run(
        "embed",
        "corpus.jsonl",
        "--to",
        "out.jsonl",
        "--query",
        "--truncate-dim",
        2,
        "--dtype",
        "fp32",
    )
    rows = read_rows(tmp_path / "out.jsonl")
    assert [row["id"] for row in rows] == [row["id"] for row in ROWS] and np.float32(
        rows[0]["vector"][2]
    ) == np.float32(0.1)
    assert set(fake.embed.options) == {("q: ", None)} and (seen["truncate_dim"], seen["dtype"]) == (
        2,
        "float32",
    )
    assert (
        "truncate_dim (2, now 1)"
        in run("embed", "corpus.jsonl", "--to", "out.jsonl", "--query", "--truncate-dim", "1").err
    )


def test_a_file_that_changes_while_it_is_read_and_a_disk_that_fails(
    run, fake, corpus, tmp_path, monkeypatch
):
    def changing(rows, progress):
        for vector in FakeEmbedder.encode_rows(fake.embed, rows, progress):
            corpus.write_text(corpus.read_text() + "\n")
            yield vector

    monkeypatch.setattr(fake.embed, "encode_rows", changing)
    run("embed", "corpus.jsonl", "--to", "out.npy").refused(
        "corpus.jsonl changed", "out.npy.sqlite"
    )
    assert not (tmp_path / "out.npy").exists()

    def failing(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("runnel.jobs.rows.FileRange.readinto", failing)
    run("embed", "corpus.jsonl", "--to", "other.npy").refused("corpus.jsonl: Input/output error")


@pytest.mark.parametrize("count", [1, 3, 11])
def test_embed_shards_one_after_another_are_the_whole(run, fake, tmp_path, count):
    (tmp_path / "in.txt").write_bytes(
        b"\xef\xbb\xbfone\r\n\r\ntwo words\r\n\xef\xbb\xbfthree\nlast"
    )
    run("embed", "in.txt", "--to", "whole.npy")
    seen = fake.embed.seen
    fake.embed.seen = []
    for i in range(1, count + 1):
        assert run("embed", "in.txt", "--to", "out.npy", "--shard", f"{i}/{count}").code == 0
    parts = [f"out-{i:05d}-of-{count:05d}" for i in range(1, count + 1)]
    ids = "".join((tmp_path / f"{part}.ids").read_text() for part in parts).split()
    # the numbers of their lines
    assert ids == ["1", "3", "4", "5"] == (tmp_path / "whole.ids").read_text().split()
    assert fake.embed.seen == seen == ["one", "two words", "\ufeffthree", "last"]
    assert [length for part in parts for length in lengths(tmp_path / f"{part}.npy")] == [
        1,
        2,
        1,
        1,
    ]
    about = [json.loads((tmp_path / f"{part}.npy.json").read_text()) for part in parts]
    assert sum(one["tokens"] for one in about) == 5 and sum(one["count"] for one in about) == 4
    assert about[0]["shard"] == f"1/{count}"


def test_a_shard_has_the_line_numbers_and_columns_of_the_file(run, fake, tmp_path):
    (tmp_path / "in.jsonl").write_text(repeat('{"id": 1, "text": "one two three"}\n', 4) + "{]\n")
    run("embed", "in.jsonl", "--to", "rows.npy", "--shard", "3/3").refused(
        "in.jsonl, line 5: not valid JSON"
    )
    # a shard's first line has no column names
    (tmp_path / "plain.tsv").write_text("a\tone\nb\ttext\n")
    assert [
        run("embed", "plain.tsv", "--to", "plain.npy", "--shard", f"{n}/2").code for n in (1, 2)
    ] == [0, 0]
    assert fake.embed.seen[-2:] == ["one", "text"]
    (tmp_path / "in.tsv").write_bytes(b"a\tone\nb\ttwo\nc\t\xff\n")
    run("embed", "in.tsv", "--to", "table.npy", "--shard", "2/2").refused(
        "in.tsv is not UTF-8 text", "after line 2"
    )


def test_rows_of_standard_input_and_cut_and_empty_texts(run, fake, tmp_path):
    run("embed", "-", "--to", "out.npy", stdin="one\n\ntwo words\n")
    assert (tmp_path / "out.ids").read_text().split() == ["1", "3"]
    run("embed", "-", "--to", "out2.npy", stdin='{"_id": "x", "title": "T", "text": "b"}\n')
    assert fake.embed.seen[-1] == "T b"
    (tmp_path / "in.tsv").write_text("a\tone two three\nb\t \nc\tone\n")
    done = run("embed", "in.tsv", "--to", "cut.npy", "--max-tokens", 2)
    assert "warning: left out: 1 row without text, the first is 'b'" in done.err
    assert "warning: 1 of 2 texts were cut to 2 tokens" in done.err
    assert json.loads((tmp_path / "cut.npy.json").read_text())["truncated"] == 1


def test_special_tokens_count_when_a_text_is_cut(run, tmp_path):
    tiny_model(tmp_path / "tokenizer").save(tmp_path / "tiny")
    (tmp_path / "in.txt").write_text("the cat sat\n")  # and a marker on each side
    for most, cut in ((5, False), (4, True)):
        said = run("embed", "in.txt", "-m", "tiny", "--to", f"{most}.npy", "--max-tokens", most).err
        assert ("runnel: warning: 1 of 1 texts were cut to 4 tokens\n" in said) == cut
    facts = [json.loads((tmp_path / f"{most}.npy.json").read_text()) for most in (5, 4)]
    assert [(one["truncated"], one["tokens"]) for one in facts] == [(0, 5), (1, 4)]


def test_a_table_without_a_column_of_texts(run, fake, tmp_path):
    (tmp_path / "in.csv").write_bytes(b"\xef\xbb\xbfname;size\nox;3\nant;\n")
    done = run("embed", "in.csv", "--to", "out.jsonl")
    assert done.code == 0 and fake.embed.seen == ["name: ox\nsize: 3", "name: ant"]
    assert [row["id"] for row in read_rows(tmp_path / "out.jsonl")] == ["1", "2"]
    assert "in.csv: its columns are 'name', 'size'" in done.err


def test_half_characters_are_replaced_in_texts_and_rows_with_them_in_ids_left_out(
    run, fake, tmp_path
):
    rows = [
        {"id": "a", "text": "one"},
        {"id": "b", "text": "half \ud83d of it"},
        {"id": "c", "title": "\udc00", "text": "x"},
    ]
    rows += [{"id": "d\ud800", "text": "two"}, {"id": "e", "text": "whole \U0001f600"}]
    write_rows(tmp_path / "in.jsonl", rows)
    done = run("embed", "in.jsonl", "--to", "out.npy")
    assert done.code == 0 and fake.embed.seen == [
        "one",
        "half \ufffd of it",
        "\ufffd x",
        "whole \U0001f600",
    ]
    assert (tmp_path / "out.ids").read_text().split() == ["a", "b", "c", "e"]
    assert "in.jsonl: 2 rows with halves" in done.err and "in line 2\n" in done.err
    assert "in.jsonl: 1 row left out" in done.err and "in line 4\n" in done.err


@pytest.mark.parametrize("block", [1, 2, 100])
def test_embed_writes_8_bits_with_the_ranges_of_all_vectors(
    run, fake, corpus, tmp_path, monkeypatch, block
):
    monkeypatch.setattr("runnel.jobs.embedding._VECTORS", block)
    run("embed", "corpus.jsonl", "--to", "whole.npy")
    done = run("embed", "corpus.jsonl", "--to", "out.npy", "--precision", "int8")
    assert done.out == "out.npy: 7 vectors of 3 numbers, int8\n"
    whole, found, ranges = (
        np.load(tmp_path / name) for name in ("whole.npy", "out.npy", "out.ranges.npy")
    )
    assert np.array_equal(ranges, value_ranges(whole)) and np.array_equal(
        found, quantize(whole, "int8", ranges)
    )
    assert found.dtype == np.int8 and found[:, 1].min() == -128 and found[:, 1].max() == 127
    assert json.loads((tmp_path / "out.npy.json").read_text())["precision"] == "int8"

    for extra in ((), ("--query",), ("--shard", "1/1")):
        name = "q" + "".join(extra).strip("-").replace("/", "")
        run(
            "embed",
            "corpus.jsonl",
            "--to",
            f"{name}.jsonl",
            "--precision",
            "uint8",
            "--ranges",
            "out.ranges.npy",
            *extra,
        )
        (path,) = tmp_path.glob(f"{name}*.jsonl")
        rows = [row["vector"] for row in read_rows(path)]
        assert rows == quantize(whole, "uint8", ranges).tolist() and not list(
            tmp_path.glob("q*ranges*")
        )


def test_embed_writes_bits_and_resumes(run, fake, corpus, tmp_path):
    fake.embed.stop_after = 4
    run("embed", "corpus.jsonl", "--to", "out.npy", "--precision", "ubinary")
    fake.embed.stop_after = None
    assert (
        "resuming after 4 vectors"
        in run("embed", "corpus.jsonl", "--to", "out.npy", "--precision", "ubinary").err
    )
    assert np.array_equal(np.load(tmp_path / "out.npy"), np.full((7, 1), 0b11100000, np.uint8))
    assert "precision ('ubinary', now None)" in run("embed", "corpus.jsonl", "--to", "out.npy").err
    np.save(tmp_path / "bad.npy", np.zeros((2, 4), np.float32))
    (tmp_path / "no.npy").write_text("text")
    for name, message in (("bad.npy", "float32 (2, 4)"), ("no.npy", "no.npy cannot be read")):
        assert (
            message
            in run(
                "embed", "corpus.jsonl", "--to", "8.npy", "--precision", "int8", "--ranges", name
            ).err
        )
    write_rows(tmp_path / "one.jsonl", ROWS[:1])
    run("embed", "one.jsonl", "--to", "one.npy", "--precision", "int8").refused("--ranges")
