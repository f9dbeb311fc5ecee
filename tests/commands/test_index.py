"""`runnel index` and `runnel search`, with the built-in model: indexes with a name, and the
project's own in .runnel.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.children import GIVE_UP_S
from helpers.files import write_files

from runnel import Index
from runnel.errors import InputError
from runnel.files import WriterLock
from runnel.search.filters import parse_conditions
from runnel.search.project import Project
from runnel.search.records import IndexSettings

HEART = "The heart is a muscle. It pumps blood through the body. Nothing else matters here."
RIVER = (
    "# Water\n\nRivers carry water to the sea.\n\n# Mountains\n\nSnow falls on mountains in winter."
)


@pytest.fixture
def folder(tmp_path):
    write_files(tmp_path, {"notes/heart.txt": HEART, "notes/deep/river.md": RIVER})
    return tmp_path


def test_a_folder_is_indexed_searched_and_refreshed(run, folder, terminal):
    done = run("index", "notes", "--to", "library", "--field", "kind:str", "--json")
    told = json.loads(done.out)
    assert (
        done.code == 0
        and (told["documents"], told["added"], told["failed"]) == (2, 2, 0)
        and told["tokens_read"] > 20
    )
    found = json.loads(
        run("search", "what does the heart do", "--in", "library", "--json", "-k", 1, "-s", 1).out
    )
    (document,) = found["documents"]
    assert document["source"] == str(folder / "notes" / "heart.txt") and document["rank"] == 1
    (sentence,) = document["sentences"]
    assert HEART[sentence["start"] : sentence["end"]] == sentence["text"]
    assert set(found["seconds"]) == {
        "open",
        "query",
        "dense",
        "lexical",
        "rerank",
        "fetch",
        "sentences",
    }
    shown = run("search", "snow in winter", "--in", "library", "--where", "kind=md", "-s", 1).out
    assert "river.md" in shown and " %, line 7, Mountains)" in shown and "heart" not in shown
    shown = run("search", "mountains", "--in", "library", "-s", 9).out
    assert (
        re.search(r"\n    # Mountains  \(\d+ %, line 5, Mountains\)", shown)
        and "\n      Snow falls on mountains in winter." in shown
    )
    (folder / "notes" / "heart.txt").unlink()
    done = run("index", "notes", "--to", "library")
    assert done.code == 0 and "1 unchanged, 1 deleted; 1 document, 0 tokens read" in done.out


def test_remembered_documents_are_reranked(run, folder):
    assert run("index", "notes", "--to", "library", "--remember", "-m", "pocket-mamba2").code == 0
    found = json.loads(
        run("search", "what does the heart do", "--in", "library", "--json", "--read", 1).out
    )
    assert "rerank" in found["seconds"] and [
        bool(one["sentences"]) for one in found["documents"]
    ] == [True, False]
    run("index", "notes", "--to", "plain", "-m", "pocket-mamba2")
    run("index", "notes", "--to", "plain", "--remember").refused("made without --remember")
    run("index", "notes", "--to", "plain", "--field", "year:int", "--passage-tokens", 99).refused(
        "the fields {} and passages of"
    )


def test_conditions():
    settings = IndexSettings("m", [], 4, fields={"year": "int", "draft": "bool", "name": "str"})
    assert parse_conditions(
        ["year>=2020", "year < 2024", "draft=False", "name!=a=b"], settings.fields
    ) == {
        "year": {">=": 2020, "<": 2024},
        "draft": {"=": False},
        "name": {"!=": "a=b"},
    }
    for bad in ("year", "size=3", "year=x", "draft=1"):
        with pytest.raises(InputError, match=r"the condition .* cannot be used"):
            parse_conditions([bad], settings.fields)


@pytest.mark.usefixtures("parser_that_fails")
def test_the_time_to_parse_a_file_is_chosen(run, folder, caplog):
    (folder / "notes" / "hostile.html").write_text("<!-- a page -->busy")
    done = run("index", "notes", "--to", "library", "--parse-seconds", 1)
    assert (
        done.code == 1
        and "2 added, 1 failed" in done.out
        and "hostile.html was not parsed" in caplog.text
    )


# ---- the index of the project that holds the working directory -----------------------------------


def found(done):
    """Return the names of the files of a search's results, copies included."""
    return [
        Path(name).name
        for document in json.loads(done.out)["documents"]
        for name in (document["source"], *(place["file"] for place in document["also"]))
    ]


def test_a_project_is_indexed_and_kept_up_to_date_by_searches(run, folder, monkeypatch):
    done = run("index")
    assert (
        done.code == 0
        and done.out
        == f"{folder}/.runnel: 2 added; 2 documents, {done.out.split()[-3]} tokens read\n"
    )
    assert (folder / ".runnel" / ".gitignore").read_text() == "*\n"

    monkeypatch.chdir(folder / "notes" / "deep")
    done = run("search", "what does the heart do", "--json")
    assert (
        found(done) == ["heart.txt", "river.md"]
        and done.err == f"runnel: note: the project is {folder}\n"
    )
    monkeypatch.chdir(folder)

    (folder / "notes" / "heart.txt").unlink()
    (folder / "new.txt").write_text("A tuple cannot be changed.")
    assert "new.txt" not in run("search", "tuple", "--no-update", "--json").out
    done = run("search", "what is a tuple", "--json")
    assert found(done) == ["new.txt", "river.md"]
    assert done.err == f"runnel: note: {folder}/.runnel: 1 added, 1 deleted\n"
    assert run("search", "what is a tuple", "--json").err == ""
    assert "2 documents, 2 passages, none damaged" in run("check").out


def test_paths_and_globs_are_remembered_and_an_empty_mount_point_does_not_empty_the_index(
    run, folder, caplog
):
    assert "1 added" in run("index", "notes", "--exclude", "deep/").out
    (folder / "more.md").write_text(RIVER)
    assert "1 added, 1 unchanged" in run("index", "more.md").out
    assert "1 added, 2 unchanged" in run("index", "--include", "*.md", "--include", "*.txt").out
    (folder / "notes").rename(folder / "elsewhere")
    (folder / "notes").mkdir()
    done = run("search", "what does the heart do", "--json")
    assert done.code == 0 and sorted(found(done)) == ["heart.txt", "more.md", "river.md"]
    assert (
        f"{folder}/notes is missing or has no files (is it mounted?); `runnel index` removes its 2"
        in caplog.text
    )
    assert "2 deleted" in run("index").out


@pytest.mark.parametrize("saved", [False, True])
def test_a_search_without_an_index_makes_it_and_says_so(run, folder, monkeypatch, saved):
    if saved:
        Project(folder).extend([str(folder)])
    monkeypatch.setattr(Path, "home", lambda: folder)
    assert run("search", "what does the heart do", "--no-update").code == 2
    if not saved:
        done = run("search", "what does the heart do")
        assert done.code == 2 and "run `runnel index`" in done.err  # not of a home folder
    monkeypatch.setattr(Path, "home", lambda: folder / "home")
    done = run("search", "what does the heart do", "--json")
    assert done.code == 0 and {"heart.txt", "river.md"} <= set(found(done))
    assert f"there is no index yet; indexing {folder} in {folder}/.runnel" in done.err
    assert "no index yet" not in run("search", "heart").err


def test_an_index_that_cannot_be_written_is_searched_as_it_was(run, folder):
    Project(folder).extend([str(folder)])
    run("search", "tuple", "--no-update").refused(f"{folder}/.runnel holds no index yet", code=2)
    run("index")
    (folder / "new.txt").write_text("A tuple cannot be changed.")
    with WriterLock(folder / ".runnel" / "update.lock", folder).held():
        done = run("search", "tuple", "--json")
        assert done.code == 0 and sorted(found(done)) == ["heart.txt", "river.md"]
        reason = (
            f"{folder}/.runnel is being written by process {os.getpid()}; wait until it is done"
        )
        assert (
            done.err == f"runnel: note: {reason}; searching the last commit of {folder}/.runnel\n"
        )
        run("index").refused(reason)
    assert "1 added" in run("search", "tuple", "--json").err


@pytest.mark.parametrize("named", [[], ["notes", "--to", "library"]], ids=["project", "named"])
def test_watch_follows_changes_until_ctrl_c(run, folder, monkeypatch, caplog, named):
    """The index of a project, and one with a name of its own. A change is indexed once it has
    lasted for an interval.
    """
    rows = folder / "notes" / "rows.jsonl"
    whole = b'{"id": 1, "text": "one"}\n{"id": 2, "text": "two"}\n'
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
    monkeypatch.setattr(
        "runnel.search.indexed_files.time",
        SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: next(steps)()),
    )
    done = run("index", *named, "--watch")
    notes = done.err.splitlines()
    assert (done.code, len(notes), notes[0], notes[-1]) == (
        0,
        3,
        "runnel: watching for changes; end with Ctrl-C",
        "runnel: stopped watching",
    )
    assert "rows.jsonl" in notes[1]
    assert [line.partition(": ")[2].rpartition(", ")[0] for line in done.out.splitlines()] == [
        "2 added; 2 documents",
        "1 added, 2 unchanged, 1 failed; 3 documents",
        "1 added, 3 unchanged; 4 documents",
        "3 unchanged, 1 deleted; 3 documents",
    ]
    assert "rows.jsonl" in caplog.text


def test_empty_files_are_counted_and_no_error(run, tmp_path, monkeypatch):
    folder = tmp_path / "package"
    write_files(folder, {"__init__.py": "", "b.md": " \n", "a.txt": "The code is 7741."})
    for first in ("1 added", "1 unchanged"):
        done = run("index", folder, "--to", "library")
        assert (done.code, done.err) == (0, "") and f"{first}, 2 empty; 1 document" in done.out
    (folder / "a.txt").write_text("")
    shown = json.loads(run("index", folder, "--to", "library", "--json").out)
    assert (shown["deleted"], shown["empty"], shown["failed"]) == (1, 3, 0)
    monkeypatch.chdir(folder)
    (folder / "a.txt").write_text("The code is 7742.")
    assert run("index").code == 0
    done = run("search", "code", "-l")
    assert (done.code, done.out, done.err) == (0, "a.txt\n", "")


def test_the_language_of_a_new_index(run, tmp_path):
    (tmp_path / "a.txt").write_text("Am 3. Mai kam er. Das war gut.")
    assert run("index", "a.txt", "--to", "library", "--language", "de").code == 0
    (document,) = json.loads(run("search", "Mai", "--in", "library", "--json").out)["documents"]
    assert next(one["text"].strip() for one in document["sentences"]) == "Am 3. Mai kam er."
    run("index", "a.txt", "--to", "library", "--language", "fr").refused("the language de")
    assert run("search", "Mai", "--in", "library", "--language", "fr").code == 2
    assert run("find", "Mai", "a.txt", "--language", "not a code").code == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["search", "what burned"], ["index"], ["index", ".", "--to", "library"]]
)
def test_two_processes_index_one_folder_at_once(folder, command):
    """Both begin without an index; one may have to wait, and says so."""
    write_files(folder, {"mill.txt": "The mill burned in 1911."})
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "runnel", *command],
            cwd=folder,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(2)
    ]
    ended = [(process.communicate(timeout=GIVE_UP_S)[1], process.returncode) for process in both]
    assert any(code == 0 for _, code in ended)
    for said, code in ended:
        assert code == 0 or "is being written by process" in said
        assert "Traceback" not in said and "move" not in said
    place = folder / ("library" if "--to" in command else ".runnel/index")
    with Index.open(place) as index:
        assert len(index) == 3
