"""A project's own index: found upwards, brought up to date, and refused where it cannot be."""

import json
import multiprocessing
import os
import re
import shlex
import shutil
import sys
from contextlib import ExitStack

import pytest
from helpers.children import GIVE_UP_S
from helpers.files import write_files

from runnel.errors import InputError, StoreError
from runnel.search import file_hashes
from runnel.search.index import Index
from runnel.search.indexed_files import IndexedFiles, watch
from runnel.search.project import Project, index_name
from runnel.text.folders import EVERYTHING, Selection


@pytest.fixture
def folder(tmp_path, monkeypatch):
    # files that were just written count as old
    monkeypatch.setattr(file_hashes, "_TICK_NS", -1_000_000_000)
    write_files(
        tmp_path,
        {
            "notes/cat.txt": "The cat sat on the mat.",
            "notes/deep/river.md": "A river runs to the sea.",
            "other.txt": "The dog sat.",
        },
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path.resolve()


@pytest.fixture
def made(embedder):
    """Make a project and its index, which is closed after the test."""
    with ExitStack() as stack:

        def make(folder, *paths, **more):
            project = Project(folder).extend(paths, **more)
            return project, stack.enter_context(Index.create(project.place, embedder))

        yield make


def names(folder, ids):
    return sorted(os.path.relpath(name, folder) for name in ids)


def test_a_project_is_found_upwards_with_its_paths(folder, made, tmp_path_factory):
    assert Project.find(folder / "notes" / "deep") is None
    project, _ = made(folder, "notes", "*.txt", selection=Selection(exclude=("deep/",)))
    assert project.paths == ("notes", "*.txt") and index_name(str(project.place)) == folder.name
    assert Project.find(folder / "notes" / "deep") == project == Project.find(folder)
    assert (folder / ".runnel" / ".gitignore").read_text() == "*\n"
    # names are stored relative, so it may lead to the project
    link = tmp_path_factory.mktemp("links") / "link"
    link.symlink_to(folder)
    assert Project.find(link / "notes") == project and Project.find(link).paths == project.paths
    inner = Project(folder / "notes").extend([str(folder / "notes")])
    assert Project.find(folder / "notes" / "deep") == inner and inner.paths == (".",)
    for path in ("other.txt", ".", "*.txt"):
        with pytest.raises(InputError, match=r"outside of the project .*notes: .* --to FOLDER"):
            inner.extend([path])
    with pytest.raises(InputError, match="there is no file or folder missing"):
        inner.extend(["missing"])
    named = {
        "/home/me/library": "library",
        "library": "library",
        "s3://bucket/papers": "papers",
        "index": "index",
    }
    assert {place: index_name(place) for place in named} == named


def stored(*paths, **changed):
    return json.dumps(
        {"format": 1, "paths": [".", *paths], "include": [], "exclude": [], "ignore_files": True}
        | changed
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be used .*No such file or directory"),
        ("{", "cannot be used .*Expecting property name"),
        ("[]", "cannot be used .*list indices"),
        ('{"format": 1}', "cannot be used .*'paths'"),
        (stored(include=["!x"]), "cannot be used .*omit the !"),
        (stored(format=2), "cannot be used .*format 2"),
        *(
            (stored(path), re.escape(f"outside of the project: {path})"))
            for path in ("/etc", "..", "notes/../../x", "../*.txt")
        ),
    ],
)
def test_a_damaged_project_says_what_to_do(tmp_path, content, reason):
    (tmp_path / ".runnel").mkdir()
    name = "project.json" if content is not None else "notes.txt"
    (tmp_path / ".runnel" / name).write_text(content or "")
    with pytest.raises(StoreError, match=rf"project.json .*{reason}"):
        Project.find(tmp_path)
    shutil.rmtree(tmp_path / ".runnel")
    (tmp_path / ".runnel").write_text("")
    with pytest.raises(StoreError, match=r"project.json cannot be used .*Not a directory"):
        Project.find(tmp_path)


@pytest.mark.parametrize(
    "names", [[], [".gitignore"], ["project.json.lock", ".gitignore", "project.json.0a.partial"]]
)
def test_a_project_that_was_only_begun_is_a_new_one(tmp_path, names):
    """Another process has just made the folder, or was killed when it had."""
    write_files(tmp_path, {f".runnel/{name}": "" for name in names})
    (tmp_path / ".runnel").mkdir(exist_ok=True)
    project = Project.find(tmp_path)
    assert project == Project(tmp_path)
    project.extend([])
    assert Project.find(tmp_path).paths == (".",)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.parametrize("turn", range(5))
def test_no_process_loses_a_path_that_another_one_stores(folder, turn):
    names = [f"{number}.txt" for number in range(8)]
    write_files(folder, dict.fromkeys(names, "The mill burned."))
    processes = multiprocessing.get_context("fork")
    ready = processes.Barrier(len(names))

    def store(name):
        project = Project.find(folder) or Project(folder)
        ready.wait()
        selection = Selection(include=("*.txt",)) if name == names[turn] else None
        paths = project.extend([name], selection).paths
        sys.exit(name not in paths)

    running = [processes.Process(target=store, args=(name,)) for name in names]
    for process in running:
        process.start()
    for process in running:
        process.join(GIVE_UP_S)
        assert process.exitcode == 0
    project = Project.find(folder)
    assert sorted(project.paths) == names and project.selection.include == ("*.txt",)


def test_an_update_keeps_the_documents_of_paths_that_were_stored_since(folder, made):
    """A server, or a process that watches files, has read the project's paths long before."""
    project, index = made(folder, "notes")
    assert len(project.update(index).added) == 2
    Project.find(folder).extend(["other.txt"], Selection(exclude=("*.md",)))
    changes = project.update(index)
    assert names(folder, changes.added) == ["other.txt"]
    assert names(folder, changes.deleted) == ["notes/deep/river.md"]
    assert not project.update(index)


@pytest.mark.parametrize("boundary", ["ceiling", "home", "writable", "mount"])
def test_the_way_up_ends(folder, monkeypatch, boundary):
    """A boundary has its own project only; that of a mount point is also found from the folders
    below.
    """
    for path in (folder, folder / "notes"):
        Project(path).extend([str(path)])
    deep = folder / "notes" / "deep"
    notes = folder / "notes"
    assert Project.find(deep).folder == notes
    if boundary == "ceiling":
        monkeypatch.setenv(
            "RUNNEL_CEILING_DIRECTORIES",
            os.pathsep.join(["relative", str(folder / "missing"), str(notes)]),
        )
    elif boundary == "home":
        monkeypatch.setenv("HOME", str(notes))
    elif boundary == "writable":
        notes.chmod(0o1777)
    else:
        monkeypatch.setattr(os.path, "ismount", lambda path: path == notes)
        assert Project.find(deep).folder == notes
        (notes / ".runnel").rename(notes / "no longer")
        assert Project.find(deep) is Project.find(notes) is None
        return
    assert Project.find(deep) is None and Project.find(notes).folder == notes
    (notes / ".runnel").rename(notes / "no longer")
    assert Project.find(notes) is None and Project.find(folder).folder == folder
    if os.name != "nt":  # which has no such modes
        assert (folder / ".runnel").stat().st_mode & 0o777 == 0o700
        (folder / ".runnel").chmod(0o750)
        Project(folder).extend([str(folder)])
        assert (folder / ".runnel").stat().st_mode & 0o777 == 0o750


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such owners")
def test_the_folder_of_another_user_is_refused_until_it_is_trusted(folder, monkeypatch):
    place = folder / "two words"
    place.mkdir()
    Project(place).extend([str(place)])
    if os.geteuid() == 0:
        os.chown(place / ".runnel", 1234, -1)
    owner = (place / ".runnel").stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    monkeypatch.setenv("SUDO_UID", str(owner))  # counts for root alone
    monkeypatch.setenv("RUNNEL_SAFE_DIRECTORIES", str(folder))
    with pytest.raises(
        StoreError, match=rf"two words/.runnel belongs to another user \({owner}\)"
    ) as error:
        Project.find(place)
    name, value = re.fullmatch(r".*: export (\w+)=(.*)", str(error.value)).groups()
    monkeypatch.setenv(name, *shlex.split(value))
    assert Project.find(place) == Project(place, (".",))
    monkeypatch.delenv(name)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert Project.find(place) == Project(place, (".",))


def test_a_path_that_has_become_a_link_is_read_only_inside_of_the_project(
    folder, made, tmp_path_factory
):
    project, index = made(folder, "notes", "other.txt")
    project.update(index)
    (folder / "notes").rename(folder / "moved")
    (folder / "notes").symlink_to("moved")
    assert "moved/cat.txt" in names(folder, project.update(index).added)
    (secret := tmp_path_factory.mktemp("secret") / "cat.txt").write_text("A secret.")
    (folder / "notes").unlink()
    (folder / "notes").symlink_to(secret.parent)
    with pytest.raises(InputError, match="notes is outside of the project"):
        project.update(index)
    assert not any("secret" in name for name in index.store.content_hashes())


@pytest.mark.parametrize("gone", ["emptied", "missing"])
def test_documents_of_a_path_that_may_not_be_mounted_are_kept_on_request(
    folder, made, caplog, gone
):
    write_files(folder, {"more/a.txt": "A bird sang."})
    project, index = made(folder, "notes", "more/*.txt", "other.txt")
    project.update(index)
    for name in ("notes", "more"):
        (folder / name).rename(folder / f"{name} elsewhere")
        if gone == "emptied":
            (folder / name).mkdir()
    (folder / "other.txt").write_text("The dog ran.")
    changes = project.update(index, keep_missing=True)
    assert (
        names(folder, changes.updated) == ["other.txt"] and not changes.deleted and len(index) == 4
    )
    assert names(folder, changes.failed) == ["more/*.txt", "notes"]
    assert (
        "notes is missing or has no files (is it mounted?); `runnel index` removes its 2 documents"
        in changes.failed[str(folder / "notes")]
    )
    assert len(project.update(index).deleted) == 3
    told = f"notes is no longer in {folder}; its documents are removed from the index"
    assert (told in caplog.messages) == (gone == "missing")


@pytest.mark.parametrize(
    "name", [".runnel", ".runnel/index", ".runnel/index/commits.lance", ".runnel/files.json"]
)
def test_a_link_in_the_folder_is_refused(folder, name):
    """An update of a cloned repository would change, or empty, the index that
    its link points to.
    """
    mine = folder / "mine"
    mine.mkdir()
    Project(folder).extend([str(folder)])
    (folder / ".runnel" / "index").mkdir()
    if (folder / name).is_dir():
        (folder / name).rename(mine / "moved")
    (folder / name).symlink_to("mine/moved" if name == ".runnel" else mine)
    with pytest.raises(StoreError, match=re.escape(f"{folder / name} is a link")):
        Project.find(folder)


def test_only_what_has_changed_is_read(folder, made, monkeypatch):
    project, index = made(folder)
    assert names(folder, project.update(index).added) == [
        "notes/cat.txt",
        "notes/deep/river.md",
        "other.txt",
    ]
    read = []
    digest = file_hashes.hashlib.file_digest
    monkeypatch.setattr(
        file_hashes.hashlib,
        "file_digest",
        lambda stream, kind: read.append(stream.name) or digest(stream, kind),
    )
    assert len(project.update(index).unchanged) == 3 and read == []
    (folder / "notes" / "cat.txt").write_text("The cat ran.")
    (folder / "other.txt").unlink()
    changes = project.update(index)
    assert names(folder, read) == names(folder, changes.updated) == ["notes/cat.txt"]
    assert names(folder, changes.deleted) == ["other.txt"] and len(index) == 2


def test_files_that_fail_are_tried_again_only_if_they_change_or_on_request(folder, made, caplog):
    write_files(
        folder,
        {
            "notes/bad.pdf": b"%PDF-1.7 nothing",
            "notes/empty.txt": "",
            "notes/rows.jsonl": '{"id": 1, "text": "one"}\n{"id": 1, "text": "two"}\n',
            "notes/no_rows.csv": "id,text\n",
        },
    )
    os.mkfifo(folder / "notes" / "pipe")
    project, index = made(folder, "notes")
    failed = ["notes/bad.pdf", "notes/pipe", "notes/rows.jsonl, line 2"]
    assert (
        names(folder, project.update(index).failed) == failed
        and "no_rows.csv: no rows" in caplog.text
    )
    caplog.clear()
    changes = project.update(index)
    assert not changes and not changes.failed and not caplog.messages and len(index) == 3
    assert names(folder, changes.empty) == ["notes/empty.txt"]
    assert names(folder, project.update(index, retry=True).failed) == failed
    (folder / "notes" / "empty.txt").write_text("no more")
    assert names(folder, project.update(index).added) == ["notes/empty.txt"]


# ---- watching ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("looks", "results", "expected"),
    [
        ([1, 1, 1, 1], [True], [2]),  # once at first
        ([1, 1, 2, 2, 2, 1, 1], [True] * 3, [2, 4, 7]),
        ([1, 1, 2, 3, 4, 4, 4], [True] * 2, [2, 6]),  # a file that is being written is left alone
        # an update that was not possible is repeated
        ([1, 1, 1, 1], [False, False, True], [2, 3, 4]),
        ([1, 1, 2, 1, 1], [True], [2]),  # changed back
    ],
)
def test_updates_follow_changes_that_have_settled(looks, results, expected, monkeypatch):
    """`expected`: the numbers of the looks after which there was an update."""
    seen = iter(looks)
    results = iter(results)
    taken = []
    updates = []
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(StopIteration):  # after the last look
        watch(
            lambda: updates.append(len(taken)) or next(results),
            lambda: taken.append(next(seen)) or {"a": (taken[-1], 0, 0)},
        )
    assert updates == expected


def test_signatures_show_every_change(tmp_path):
    file = tmp_path / "a.txt"
    files = IndexedFiles([tmp_path, tmp_path / "missing"], EVERYTHING)
    states = [files.look()]
    for change in (lambda: file.write_text("one"), lambda: file.write_text("three"), file.unlink):
        change()
        states.append(files.look())
    assert (
        states[0] == states[3] == {} and states[1] != states[2] and list(states[1]) == [str(file)]
    )
