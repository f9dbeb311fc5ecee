"""`runnel index` and `runnel search`, with the built-in model."""

import json
import sys

import pytest
from helpers.children import PROGRAMS

from runnel.text.documents import reader

HEART = "The heart is a muscle. It pumps blood through the body. Nothing else matters here."
RIVER = "# Water\n\nRivers carry water to the sea.\n\n# Mountains\n\nSnow falls on mountains in winter."


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "heart.txt").write_text(HEART)
    (tmp_path / "files" / "river.md").write_text(RIVER)
    return tmp_path / "files"


def test_a_folder_is_indexed_searched_and_refreshed(run, folder, terminal):
    done = run("index", "files", "--to", "library", "--field", "kind:str", "--json")
    told = json.loads(done.out)
    assert done.code == 0 and (told["documents"], told["added"], told["failed"]) == (2, 2, 0) and told["tokens_read"] > 20
    found = json.loads(run("search", "what does the heart do", "--in", "library", "--json", "-k", 1, "-s", 1).out)
    (document,) = found["documents"]
    assert document["source"] == str(folder / "heart.txt") and document["rank"] == 1
    (sentence,) = document["sentences"]
    assert HEART[sentence["start"] : sentence["end"]] == sentence["text"]
    assert set(found["seconds"]) == {"open", "query", "dense", "lexical", "rerank", "fetch", "sentences"}
    shown = run("search", "snow in winter", "--in", "library", "--where", "kind=md", "-s", 1).out
    assert "river.md" in shown and "(Mountains)" in shown and "heart" not in shown
    shown = run("search", "mountains", "--in", "library", "-s", 9).out
    assert "\n    # Mountains  (Mountains)" in shown and "\n      Snow falls on mountains in winter." in shown
    (folder / "heart.txt").unlink()
    done = run("index", "files", "--to", "library")
    assert done.code == 0 and "1 unchanged, 1 deleted; 1 document, 0 tokens read" in done.out


def test_remembered_documents_are_reranked(run, folder):
    assert run("index", "files", "--to", "library", "--remember", "-m", "pocket-mamba2").code == 0
    found = json.loads(run("search", "what does the heart do", "--in", "library", "--json", "--read", 1).out)
    assert "rerank" in found["seconds"] and [bool(one["sentences"]) for one in found["documents"]] == [True, False]
    run("index", "files", "--to", "plain", "-m", "pocket-mamba2")
    done = run("index", "files", "--to", "plain", "--remember")
    assert done.code == 1 and "made without --remember" in done.err
    done = run("index", "files", "--to", "plain", "--field", "year:int", "--passage-tokens", 99)
    assert done.code == 1 and "the fields {} and passages of" in done.err


def test_conditions():
    from runnel.commands.search import parse_conditions
    from runnel.errors import InputError
    from runnel.search.records import IndexSettings

    settings = IndexSettings("m", [], 4, fields={"year": "int", "draft": "bool", "name": "str"})
    assert parse_conditions(["year>=2020", "year < 2024", "draft=False", "name!=a=b"], settings) == {
        "year": {">=": 2020, "<": 2024},
        "draft": {"=": False},
        "name": {"!=": "a=b"},
    }
    for bad in ("year", "size=3", "year=x", "draft=1"):
        with pytest.raises(InputError, match="--where is"):
            parse_conditions([bad], settings)


def test_the_time_to_parse_a_file_is_chosen(run, folder, monkeypatch, caplog):
    monkeypatch.setattr(reader, "_COMMAND", (sys.executable, "-P", str(PROGRAMS / "worker_that_fails.py")))
    (folder / "hostile.html").write_text("<!-- a page -->busy")
    done = run("index", "files", "--to", "library", "--parse-seconds", 1)
    assert done.code == 1 and "2 added, 1 failed" in done.out and "hostile.html was not parsed" in caplog.text


def test_check_names_what_is_damaged(run, folder):
    run("index", "files", "--to", "library")
    done = run("index", "--check", "--to", "library")
    assert done.code == 0 and done.out == "library: 2 documents, 2 passages, none damaged\n"
    [data] = (folder.parent / "library" / "documents.lance" / "data").iterdir()
    data.write_bytes(data.read_bytes().replace(b"It pumps blood", b"It pumps flood"))
    done = run("index", "--check", "--to", "library")
    assert done.code == 1 and done.err.count("\n") == 1 and done.out.startswith("library: 1 damaged; restore it from a copy")
    assert f"runnel: damaged: {folder / 'heart.txt'}: its text, title, file or metadata is not what was stored" in done.err
    told = json.loads(run("index", "--check", "--to", "library", "--json").out)
    assert told["documents"] == 2 and [one["document"] for one in told["damaged"]] == [str(folder / "heart.txt")]


@pytest.mark.parametrize(("place", "address"), [("local", None), ("auto", "auto"), ("ray://head:10001", "ray://head:10001")])
def test_files_are_read_by_the_workers_that_are_asked_for(run, folder, monkeypatch, place, address):
    asked = {}

    def index_files(index, paths, *, selection, prune, limits, ocr, progress, **room):
        asked.update(room, paths=paths, prune=prune)
        return index.add_files(paths, selection=selection, prune=prune, limits=limits, ocr=ocr, progress=progress)

    monkeypatch.setattr("runnel.integrations.ray.index_files", index_files)
    done = run("index", "files", "--to", "library", "--keep-missing", "--ray", place, "--workers", 2, "--worker-gpus", 0.5)
    assert done.code == 0 and done.out.startswith("library: 2 added; 2 documents, ")
    assert asked == {"paths": ["files"], "prune": False, "address": address, "workers": 2, "cpus": 1, "gpus": 0.5}
