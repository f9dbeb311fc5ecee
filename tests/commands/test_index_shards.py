"""`runnel index --shard` and `--shards`, with the built-in model."""

import json

import pytest

from runnel import Embedder
from runnel.search.encoding import new_settings
from runnel.search.shards import encode_shard
from runnel.text.shards import Shard

TEXTS = {
    "heart.txt": "The heart is a muscle. It pumps blood through the body. Nothing else matters here.",
    "river.md": "# Water\n\nRivers carry water to the sea.\n\n# Mountains\n\nSnow falls on mountains in winter.",
    "rows.jsonl": "".join(json.dumps({"id": i, "text": f"Planet {i} goes around the sun."}) + "\n" for i in range(8)),
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "files").mkdir()
    for name, text in TEXTS.items():
        (tmp_path / "files" / name).write_text(text)
    (tmp_path / "files" / "bad.pdf").write_bytes(b"%PDF-1.7 nothing")
    return tmp_path / "files"


def test_shards_are_made_and_taken_in(run, folder, tmp_path, monkeypatch, caplog):
    pocket = Embedder.load("pocket")  # once for all the commands
    monkeypatch.setattr("runnel.models.embedder.Embedder.load", lambda *_, **__: pocket)
    done = run("index", "files", "--to", "shards", "--shard", "1/2", "--field", "kind:str")
    assert done.code == 0 and done.out.startswith("shards/00001-of-00002: ") and "tokens read" in done.out
    assert "left out" in caplog.text and "bad.pdf" in caplog.text  # told, and no reason to run the job again

    assert run("index", "files/heart.txt", "--to", "old").code == 0
    done = run("index", "files", "--to", "old", "--shard", "1/2")
    assert (done.code, done.err.splitlines()[-1]) == (
        1,
        "runnel: error: old holds an index; choose another folder for the shards, then import them (--shards)",
    )

    done = run("index", "--shards", "shards", "--to", "library")
    assert done.code == 1 and "shard 2 of 2 is not finished in shards; run it (again)" in done.err
    assert not (tmp_path / "library").exists()

    done = run("index", "files", "--to", "shards", "--shard", "2/2", "--field", "kind:str", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["shard"], told["count"], told["folder"]) == (2, 2, "shards/00002-of-00002")
    assert told["documents"] > 0 and told["tokens"] == told["tokens_read"] > 10
    done = run("index", "files", "--to", "shards", "--shard", "2/2", "--field", "kind:str", "--json")
    assert done.code == 0 and json.loads(done.out) == told | {"tokens_read": 0} and "is finished already" in done.err

    done = run("index", "--shards", "shards", "--to", "library", "--json")
    told = json.loads(done.out)
    assert (told["documents"], told["added"], told["failed"], told["tokens_read"]) == (10, 10, 1, 0)
    assert done.code == 1 and "bad.pdf" in done.err  # as an index of the files themselves
    found = json.loads(run("search", "snow in winter", "--in", "library", "--where", "kind=md", "--json").out)
    assert [one["source"] for one in found["documents"]] == [str(folder / "river.md")]

    (folder / "bad.pdf").unlink()
    done = run("index", "files", "--to", "library")
    assert done.code == 0 and "10 unchanged; 10 documents, 0 tokens read" in done.out


def test_shards_of_the_former_pocket_say_what_takes_them_in(run, folder):
    former = Embedder.load("pocket-mamba2")
    former.model.source = "pocket"  # as it was called
    encode_shard(["files"], "shards", Shard(1, 1), former, settings=new_settings(former))
    done = run("index", "--shards", "shards", "--to", "library")
    assert done.code == 1 and "shards was made by the former 'pocket', which is now called 'pocket-mamba2'" in done.err
    done = run("index", "files", "--to", "shards", "--shard", "1/1")
    assert done.code == 1 and "shard 1/1 was made with the former 'pocket'; 'pocket' gives other vectors" in done.err
    done = run("index", "--shards", "shards", "--to", "library", "-m", "pocket-mamba2")
    assert "10 documents" in done.out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("files", "--to", "x", "--shard", "3/2"), 1, "--shard must be I/N with 1 <= I <= N, like 2/8, got '3/2'"),
        (("files", "--to", "s3://bucket/x", "--shard", "1/2"), 1, "shards are written to a folder"),
        (("nothing", "--to", "x", "--shard", "1/2"), 1, "no file or folder nothing"),
        (("files", "--to", "x", "--shard", "1/2", "--field", "kind"), 1, "expected NAME:TYPE"),
        (("--shards", "nothing", "--to", "x"), 1, "there are no shards in nothing"),
        (("--to", "x"), 2, "give a PATH to read, or --shards FOLDER"),
        (("files", "--shards", "y", "--to", "x"), 2, "PATH cannot be given with --shards"),
        (("--shards", "y", "--shard", "1/2", "--to", "x"), 2, "--shard cannot be given with --shards"),
        (
            ("--shards", "y", "--remember", "--field", "a:int", "--to", "x"),
            2,
            "--field cannot be given with --shards",
        ),
        (("files", "--to", "x", "--incomplete"), 2, "--incomplete needs --shards"),
        (("files", "--to", "x", "--shard", "1/2", "--keep-missing"), 2, "--keep-missing cannot be given with --shard"),
    ],
)
def test_wrong_usage_is_told(run, folder, monkeypatch, arguments, code, message):
    monkeypatch.setattr("runnel.models.embedder.Embedder.load", lambda *_, **__: pytest.fail("loaded"))
    done = run("index", *arguments)
    assert done.code == code and message in " ".join(done.err.replace("│", " ").split())
