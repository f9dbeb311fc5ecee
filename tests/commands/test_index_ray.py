"""`runnel index --ray` without Ray: options and output. The work itself is tested in tests/integrations/test_ray.py."""

from __future__ import annotations

import json

import pytest

from runnel.commands.index_ray import New, Room, parse_shards, read_shards
from runnel.errors import InputError
from runnel.integrations import ray as runnel_ray
from runnel.integrations.ray import ShardOutcome, ShardProgress
from runnel.search.records import IndexSettings
from runnel.search.shards import Manifest
from runnel.text.shards import Shard

NEW = New({"kind": "str"}, None, False)
ALL = parse_shards("1-3/3")


def manifest(number: int) -> Manifest:
    failed = {"bad.pdf": "a scan"} if number == 1 else {}
    return Manifest(number, 3, "p", "i", "f", IndexSettings("m", [[1.0]], 1), 9, 5, 6, 700, failed, 1, 700, 1.0)


@pytest.mark.parametrize(
    ("text", "numbers"), [("2/8", [2]), ("1-3/3", [1, 2, 3]), ("3-6/8", [3, 4, 5, 6]), ("8-8/8", [8]), ("1-1/1", [1])]
)
def test_shards_are_named_singly_or_as_a_range(text, numbers):
    count = int(text.partition("/")[2])
    assert parse_shards(text) == [Shard(number, count) for number in numbers]


@pytest.mark.parametrize("text", ["", "8", "0-3/8", "1-9/8", "3-1/8", "1-/8", "-3/8", "1-2-3/8", "a-b/c"])
def test_other_names_are_refused(text):
    with pytest.raises(InputError, match="--shard must be I"):
        parse_shards(text)


@pytest.mark.parametrize(("place", "address"), [("local", None), ("auto", "auto"), ("ray://head:10001", "ray://head:10001")])
def test_what_is_asked_for_is_handed_on(run, monkeypatch, place, address):
    asked = {}

    def encode_shards(paths, folder, shards, model, **options):
        asked.update(options, paths=paths, folder=folder, shards=shards, model=model)
        options["progress"](ShardProgress(1, 3, 2, 0, None, 1.0))
        options["progress"](ShardProgress(1, 3, 2, 500, 1000, 2.0))
        options["progress"](ShardProgress(3, 3, 2, 2100, 0, 3.0))
        return ShardOutcome([manifest(n) for n in (2, 1, 3)], tokens=2100, seconds=3.0)

    monkeypatch.setattr(runnel_ray, "encode_shards", encode_shards)
    done = run("index", "a.jsonl", "--to", "shards", "--shard", "1-3/3", "--ray", place, "--workers", 2, "--field", "kind:str")
    assert done.code == 0
    assert done.out == "shards: 3 of 3 shards, 15 documents, 18 passages, 2,100 tokens; 2,100 tokens read\n"
    assert done.err.splitlines() == [
        "runnel: 1 of 3 shards",
        "runnel: 3 of 3 shards, 700 tokens/s",
        "runnel: left out: bad.pdf: a scan",
    ]
    del asked["progress"]
    assert asked == {
        "paths": ["a.jsonl"],
        "folder": "shards",
        "shards": [Shard(n, 3) for n in (1, 2, 3)],
        "model": "pocket",
        "fields": {"kind": "str"},
        "passage_tokens": None,
        "remember": False,
        "workers": 2,
        "cpus": 1,
        "gpus": 0.0,
        "address": address,
    }


def test_what_is_not_finished_is_told_and_the_exit_code_is_1(monkeypatch, capsys):
    outcome = ShardOutcome([manifest(1)], {Shard(3, 3): "OSError: disk\nfull"}, [Shard(2, 3)], 700, 1.0)
    monkeypatch.setattr(runnel_ray, "encode_shards", lambda *arguments, **options: outcome)
    assert read_shards(["a.jsonl"], "shards", ALL, None, NEW, Room("auto", None, 1, 0.0), as_json=True) == 1
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["shards"], told["wanted"], told["documents"], told["tokens_read"]) == (1, 3, 5, 700)
    assert told["failed"] == {"3/3": "OSError: disk\nfull"} and told["left_out"] == {"bad.pdf": "a scan"}
    assert told["not_begun"] == ["2/3"]
    assert "runnel: shard 3/3 failed: OSError: disk full\n" in err
    assert "runnel: 1 shard was not begun after these errors; repeat the command when the cause is gone\n" in err


def test_shards_are_not_written_to_object_storage(run):
    done = run("index", "a.jsonl", "--to", "s3://bucket/a", "--shard", "1-3/3", "--ray", "auto")
    assert done.code == 1 and "shards are written to a folder, which all machines can see; got s3://bucket/a" in done.err
