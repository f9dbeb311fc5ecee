"""`runnel index` and `runnel search` without a place: the project's own index in .runnel."""

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from runnel.files import WriterLock
from runnel.search.project import Project

HEART = "The heart is a muscle. It pumps blood through the body."
RIVER = "# Water\n\nRivers carry water to the sea."


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "notes" / "deep").mkdir(parents=True)
    (tmp_path / "notes" / "heart.txt").write_text(HEART)
    (tmp_path / "notes" / "deep" / "river.md").write_text(RIVER)
    return tmp_path


def found(done):
    return [Path(document["source"]).name for document in json.loads(done.out)["documents"]]


def test_a_project_is_indexed_and_kept_up_to_date_by_searches(run, folder, monkeypatch):
    done = run("index")
    assert done.code == 0 and done.out == f"{folder}/.runnel: 2 added; 2 documents, {done.out.split()[-3]} tokens read\n"
    assert (folder / ".runnel" / ".gitignore").read_text() == "*\n"

    monkeypatch.chdir(folder / "notes" / "deep")
    done = run("search", "what does the heart do", "--json")
    assert found(done) == ["heart.txt", "river.md"] and done.err == f"runnel: note: the project is {folder}\n"
    monkeypatch.chdir(folder)

    (folder / "notes" / "heart.txt").unlink()
    (folder / "new.txt").write_text("A tuple cannot be changed.")
    assert "new.txt" not in run("search", "tuple", "--no-update", "--json").out
    done = run("search", "what is a tuple", "--json")
    assert found(done) == ["new.txt", "river.md"]
    assert done.err == f"runnel: note: {folder}/.runnel: 1 added, 1 deleted\n"
    assert run("search", "what is a tuple", "--json").err == ""
    assert "2 documents, 2 passages, none damaged" in run("index", "--check").out


def test_paths_and_globs_are_remembered_and_an_empty_mount_point_does_not_empty_the_index(run, folder, caplog):
    assert "1 added" in run("index", "notes", "--exclude", "deep/").out
    (folder / "more.md").write_text(RIVER)
    assert "1 added, 1 unchanged" in run("index", "more.md").out
    assert "1 added, 2 unchanged" in run("index", "--include", "*.md", "--include", "*.txt").out
    (folder / "notes").rename(folder / "elsewhere")
    (folder / "notes").mkdir()
    done = run("search", "what does the heart do", "--json")
    assert done.code == 0 and sorted(found(done)) == ["heart.txt", "more.md", "river.md"]
    assert f"{folder}/notes is missing or has no files (is it mounted?); `runnel index` removes its 2" in caplog.text
    assert "2 deleted" in run("index").out


def test_an_index_that_cannot_be_written_is_searched_as_it_was(run, folder):
    Project(folder).save()
    done = run("search", "tuple")
    assert done.code == 2 and f"{folder}/.runnel holds no index yet" in done.err
    run("index")
    (folder / "new.txt").write_text("A tuple cannot be changed.")
    lock = WriterLock(folder / ".runnel" / "update.lock", folder)
    lock.acquire()
    try:
        done = run("search", "tuple", "--json")
        assert done.code == 0 and sorted(found(done)) == ["heart.txt", "river.md"]
        reason = f"{folder}/.runnel is being written by process {os.getpid()}; wait until it is done"
        assert done.err == f"runnel: note: {reason}; searching the last commit of {folder}/.runnel\n"
        done = run("index")
        assert done.code == 1 and reason in done.err
    finally:
        lock.release()
    assert "1 added" in run("search", "tuple", "--json").err


@pytest.mark.parametrize("named", [[], ["notes", "--to", "library"]], ids=["project", "named"])
def test_watch_follows_changes_until_ctrl_c(run, folder, monkeypatch, caplog, named):
    """The index of a project, and one with a name of its own. A change is indexed once it has lasted for an interval."""
    rows, whole = folder / "notes" / "rows.jsonl", b'{"id": 1, "text": "one"}\n{"id": 2, "text": "two"}\n'
    steps = iter(
        step
        for change in (
            lambda: rows.write_bytes(whole[:40]),  # cannot be read yet
            lambda: rows.write_bytes(whole),
            lambda: (folder / "notes" / "heart.txt").unlink(),
            lambda: signal.raise_signal(signal.SIGINT),
        )
        for step in (change, lambda: None)
    )
    monkeypatch.setattr("runnel.search.project.time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: next(steps)()))
    done = run("index", *named, "--watch")
    assert (done.code, done.err) == (0, "runnel: watching for changes; end with Ctrl-C\nrunnel: stopped watching\n")
    told = [line.partition(": ")[2].rpartition(", ")[0] for line in done.out.splitlines()]
    assert told == [
        "2 added; 2 documents",
        "1 added, 2 unchanged, 1 failed; 3 documents",
        "1 added, 3 unchanged; 4 documents",
        "3 unchanged, 1 deleted; 3 documents",
    ]
    assert "rows.jsonl" in caplog.text
