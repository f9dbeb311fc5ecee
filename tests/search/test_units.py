"""What each shard owns: every document once and in order, even in tokens."""

from __future__ import annotations

import json
import os
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers.tiny import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.search.files import Scan, read_files
from runnel.search.units import ShardPlan, read_units
from runnel.text.shards import Shard

ROWS = st.lists(
    st.sampled_from(['{"text": "a"}', '{"id": "%d", "text": "b"}', '{"text": "a longer text \\u00e9 \u2028"}', "", " "]),
    max_size=12,
)
FILES = st.lists(
    st.tuples(st.sampled_from(["txt", "jsonl", "csv"]), ROWS, st.sampled_from(["\n", "\r\n"]), st.booleans()), max_size=5
)


@settings(deadline=None)
@given(FILES, st.integers(1, 20))
def test_the_shards_have_all_documents_once_and_in_order(described, count):
    with tempfile.TemporaryDirectory() as name:
        for number, (kind, rows, end, ended) in enumerate(described):
            lines = [row.replace("%d", f"x{i}") for i, row in enumerate(rows)]
            text = end.join(lines) + (end if ended and lines else "")
            (Path(name) / f"{number}.{kind}").write_bytes(b"\xef\xbb\xbf" * ended + text.encode())
        expected, scan = [], Scan()
        expected = [(d.id, d.text, d.title, d.source, d.metadata, d.blocks) for d in read_files([name], {}, scan)]
        failed: dict[str, str] = {}
        plan = ShardPlan([name])
        parts = [list(read_units(plan.units(Shard(number, count)), failed)) for number in range(1, count + 1)]
        found = [(d.id, d.text, d.title, d.source, d.metadata, d.blocks) for part in parts for d in part]
        assert found == expected
        assert failed == scan.failed


def test_errors_have_the_lines_of_the_file(tmp_path):
    lines = ['{"text": "a"}'] * 5 + ["", "{]"]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    failed: dict[str, str] = {}
    last = list(read_units(ShardPlan([tmp_path]).units(Shard(3, 3)), failed))
    assert [one.id.partition("#")[2] for one in last] == ["5"]
    assert "rows.jsonl, line 7: not valid JSON" in failed[str(tmp_path / "rows.jsonl")]
    (tmp_path / "rows.jsonl").write_text("\n".join([*lines[:4], '{"body": 1}']))
    list(read_units(ShardPlan([tmp_path]).units(Shard(3, 3)), failed))
    assert 'rows.jsonl, row 5: expected "text"' in failed[str(tmp_path / "rows.jsonl")]


def test_rows_of_one_id_in_a_shard_are_left_out_with_the_lines_of_the_file(tmp_path):
    lines = [json.dumps({"id": name, "text": "a text of some length"}) for name in ("a", "b", "c", "x", "d", "d", "\ud800")]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    failed: dict[str, str] = {}
    last = list(read_units(ShardPlan([tmp_path]).units(Shard(2, 2)), failed))
    assert [one.id.partition("#")[2] for one in last] == ["d"], failed
    assert [name.rpartition(", ")[2] for name in failed] == ["line 6", "line 7"]
    assert "the id 'd' is already used in line 5" in failed[f"{tmp_path / 'rows.jsonl'}, line 6"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipes_are_left_out_of_shards_at_once(tmp_path):
    os.mkfifo(tmp_path / "rows.jsonl")
    failed: dict[str, str] = {}
    assert list(read_units(ShardPlan([tmp_path]).units(Shard(1, 1)), failed)) == []
    assert "is a pipe, which may never end" in failed[str(tmp_path / "rows.jsonl")]


def test_what_is_called_jsonl_and_is_not_is_not_cut(tmp_path):
    import gzip

    with gzip.open(tmp_path / "packed.jsonl", "wt") as file:
        file.write("".join(f'{{"text": "row {i}"}}\n' for i in range(50)))
    plan = ShardPlan([tmp_path])
    parts = [list(read_units(plan.units(Shard(number, 3)), {})) for number in (1, 2, 3)]
    assert [len(part) for part in parts] == [50, 0, 0]


def test_an_archive_that_claims_to_be_huge_leaves_the_other_shards_something(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "bomb.docx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b"a" * 30_000_000)
    size = (tmp_path / "bomb.docx").stat().st_size
    assert ShardPlan([tmp_path]).weight <= 10 * size < 1_000_000


def test_shards_are_even_in_tokens(tmp_path, tmp_path_factory):
    """A mixture as people have it: texts of very different lengths, pages with markup, one large file of rows."""
    rng = random.Random(0)
    words = ["the cat sat on the mat", "a river runs to the sea", "finally the clause is executed"]

    def text(mean: int) -> str:
        return ". ".join(rng.choice(words) for _ in range(1 + int(rng.lognormvariate(0, 0.8) * mean)))

    for i in range(60):
        (tmp_path / f"{i}.txt").write_text(text(40))
        page = "".join(f'<div class="section" id="s{n}"><p class="text">{text(1)}</p></div>' for n in range(20))
        (tmp_path / f"{i}.html").write_text(f"<html><body>{page}</body></html>")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"id": i, "text": text(5)}) + "\n" for i in range(600)))
    tokenizer = tiny_model(tmp_path_factory.mktemp("model") / "tiny").tokenizer
    plan = ShardPlan([tmp_path])
    tokens = []
    for number in range(1, 5):
        documents = read_units(plan.units(Shard(number, 4)), {})
        tokens.append(sum(len(tokenizer.encode(one.text).ids) for one in documents))
    assert max(tokens) / np.mean(tokens) <= 1.2, tokens
