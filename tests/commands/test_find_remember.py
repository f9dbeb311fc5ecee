"""Files that `runnel find` and `ask` remember: a later question neither parses nor encodes them,
and has the same answer.
"""

import gzip
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.children import GIVE_UP_S, PATHS
from helpers.files import write_files
from helpers.reading import count_tokens
from helpers.texts import repeat
from helpers.tiny import tiny_encoder, tiny_model

from runnel import files
from runnel.commands.find import FileOptions
from runnel.errors import InputError
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.ops.backend import has_native_bf16
from runnel.search import document_cache, finding
from runnel.search.document_cache import cache_folder
from runnel.text.documents.reader import DocumentReader

TEXT = """# The house

The cat sat on the mat. A dog sat to the sea.

## The river

A river runs to the sea. The finally clause is executed. The cat runs on.
"""
QUERY = "the river runs"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tiny_encoder(folder / "made").save(folder / "encoder")
    tiny_encoder(folder / "made", block=10).save(folder / "other")
    tiny_model(folder / "made").save(folder / "recurrent")
    return folder


@pytest.fixture
def find(run, models, tmp_path):
    (tmp_path / "a.md").write_text(TEXT)

    def call(*more, query=QUERY, model="encoder", stdin=""):
        return run("find", query, *more, "--model", models / model, stdin=stdin)

    return call


@pytest.fixture
def folder(tmp_path):
    """Where files are remembered; not there before the first."""
    return tmp_path / "cache" / "find"


@pytest.fixture
def reading(monkeypatch):
    """What is read from now on: names of files, and tokens of each text."""
    read = count_tokens(monkeypatch)
    of_files = DocumentReader.read

    def read_file(self, path):
        read.append(str(path))
        return of_files(self, path)

    monkeypatch.setattr(DocumentReader, "read", read_file)
    return read


def entries(tmp_path):
    return sorted((tmp_path / "cache").rglob("*.safetensors"))


def partial_of(entry, writer="0123abcd"):
    return entry.with_name(f"{entry.name}.{writer}.partial")


def contents(folder):
    """Return the mode and the content of all that is in a folder, and of itself."""
    return {
        path: (stat.S_IMODE(path.lstat().st_mode), path.read_bytes() if path.is_file() else b"")
        for path in (folder, *folder.rglob("*"))
    }


def test_a_second_question_reads_nothing_but_itself_until_the_cache_is_emptied(
    find, run, reading, folder, tmp_path
):
    plain = find("a.md", "--json")
    first = find("a.md", "--json", "--remember")
    assert (
        first.err.count("\n") == 1
        and f"stored in {folder} for later" in first.err
        and "runnel info --cache" in first.err
    )
    assert len(entries(tmp_path)) == 1 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    reading.clear()
    again = find("a.md", "--json")
    assert reading == [5]  # [CLS] the river runs [SEP]
    assert plain.out == first.out == again.out and again.err == ""
    assert find("a.md").out == find("a.md", "--remember").out
    other = json.loads(find("a.md", "--json", "-k", 1, query="where did the cat sit").out)
    assert len(other["sentences"]) == 1 and "a.md" not in reading
    assert json.loads(again.out)["sentences"][0]["headings"][0] == "The house"
    assert re.fullmatch(
        r"    score -?\d+\.\d\d = -?\d+\.\d\d average sentence( [-+] \d+\.\d\d [a-z ]+){5}",
        find("a.md", "--explain", "-k", 1).out.splitlines()[1],
    )
    find("a.md", "--explain", model="recurrent").refused("no parts", code=2)
    [entry] = entries(tmp_path)
    facts = {
        "folder": str(folder),
        "documents": 1,
        "bytes": entry.stat().st_size,
        "limit_bytes": 1 << 30,
    }
    assert json.loads(run("info", "--cache", "--json").out) == facts | {"emptied": False}
    assert str(folder) in run("info", "--cache").out and entries(tmp_path) == [entry]
    partial_of(entry).write_bytes(b"")
    assert "1, " in run("info", "--cache", "--empty").out
    assert [path.name for path in folder.iterdir()] == ["CACHEDIR.TAG"]
    assert json.loads(run("info", "--cache", "--json").out) == facts | {
        "documents": 0,
        "bytes": 0,
        "emptied": False,
    }


@pytest.mark.slow
@pytest.mark.parametrize("emptied", [False, True])
def test_processes_share_a_cache_folder(find, models, reading, folder, tmp_path, emptied):
    """All remember the same documents at once, also while others empty the folder: all answer the
    same, and what remains is whole.
    """
    names = [f"{number}.md" for number in range(6)]
    for number, name in enumerate(names):
        (tmp_path / name).write_text(TEXT + f"The river {number} runs. " * number)
    environment = os.environ | PATHS | {"RUNNEL_CACHE": str(tmp_path / "cache")}
    environment |= {"OMP_NUM_THREADS": "1"}
    asked = ["find", QUERY, *names, "--remember", "--json", "--model", str(models / "encoder")]
    commands = [asked] * 3 + [["info", "--cache", "--empty"]] * (2 * emptied)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "runnel", *command], cwd=tmp_path, env=environment, **pipes
        )
        for command in commands
    ]
    ended = [process.communicate(timeout=GIVE_UP_S) for process in running]
    assert all(process.returncode == 0 for process in running), ended
    assert not any("Traceback" in errors or "not remembered" in errors for _, errors in ended)
    (out,) = {out for out, _ in ended[:3]}
    assert not list(folder.glob("*.partial")) and (folder / "CACHEDIR.TAG").exists()
    assert emptied or len(entries(tmp_path)) == len(names)
    reading.clear()
    again = find(*names, "--json")
    assert again.out == out and again.err == ""
    assert emptied or reading == [5]


def test_the_key_is_all_that_the_answer_depends_on(find, models, reading, tmp_path):
    find("a.md", "--remember")
    shutil.copy("a.md", "b.md")
    shutil.copy("a.md", "b.txt")  # no headings there
    (tmp_path / "c.md").write_text(TEXT + "More.")
    for more, is_read in (
        (["a.md"], False),
        (["b.md"], False),  # another name of the same content
        (["b.txt"], True),
        (["c.md"], True),
        (["a.md", "--encoding", "latin-1"], True),
        (["a.md", "--unit", "paragraph"], True),
        (["a.md", "--dtype", "fp32" if has_native_bf16() else "bf16"], True),
    ):
        reading.clear()
        assert find(*more).code == 0
        assert (more[0] in reading) == is_read, more
    reading.clear()
    find("a.md", model="other")
    find("a.md", model="recurrent")
    assert reading.count("a.md") == 2
    assert len(entries(tmp_path)) == 1  # nothing is kept that nobody asked for
    own = tmp_path / "own"
    for version in "encoder", "other":  # a model that is replaced
        shutil.copytree(models / version, own, dirs_exist_ok=True)
        reading.clear()
        find("a.md", "--remember", model=own)
        assert "a.md" in reading
    find("a.md", "--unit", "paragraph", "--remember")
    reading.clear()
    assert find("a.md", "--unit", "paragraph").out.count("\n") == 4 and reading == [5]
    (tmp_path / "a.md").write_text("The dog is executed.")
    assert "The dog is executed." in find("a.md").out and "a.md" in reading
    assert find("a.md", "--remember").err == ""  # where it is kept was said before
    reading.clear()
    assert "The dog is executed." in find("a.md").out and reading == [5]


def test_files_with_and_without_memory_are_searched_together(find, reading, tmp_path):
    for name in "bcd":
        (tmp_path / f"{name}.txt").write_text(f"The {name} sat. A river runs to {name}.")
    names = ["a.md", "b.txt", "c.txt", "d.txt", "b.txt"]
    plain = find(*names, "--json", "-k", 9)
    find("b.txt", "c.txt", "--remember")
    reading.clear()
    mixed = find(*names, "--json", "-k", 9)
    assert [one for one in reading if isinstance(one, str)] == ["a.md", "d.txt"]
    for one, other in zip(
        json.loads(plain.out)["sentences"], json.loads(mixed.out)["sentences"], strict=True
    ):
        # other steps, other rounding
        assert one.pop("score") == pytest.approx(other.pop("score"), abs=0.05) and one == other
    assert json.loads(plain.out)["files"] == json.loads(mixed.out)["files"]
    assert find("b.txt", "missing.txt", "a.md", "--remember").code == 2
    assert len(entries(tmp_path)) == 3


@pytest.mark.parametrize("damage", ["cut", "a bit flipped", "of another file", "of another model"])
def test_an_entry_that_is_not_what_was_stored_is_read_anew_with_a_note(find, tmp_path, damage):
    (tmp_path / "b.md").write_text("The keeper is Mallory. A river runs to b.")
    name, model = ("b.md", "encoder") if damage == "of another file" else ("a.md", "other")
    find(name, "--remember", model=model)
    [other] = entries(tmp_path)
    of_other = other.read_bytes()
    other.unlink()
    right = find("a.md", "--remember").out
    [entry] = entries(tmp_path)
    data = entry.read_bytes()
    changed = {
        "cut": data[:100],
        "a bit flipped": data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
    }.get(damage, of_other)
    for options, after in ((), []), (("--remember",), [data]):
        entry.write_bytes(changed)
        done = find("a.md", *options)
        assert done.out == right and done.err.startswith(
            f"runnel: note: a.md is read again: {entry} cannot be used ("
        )
        assert (
            done.err.count("\n") == 1 and [path.read_bytes() for path in entries(tmp_path)] == after
        )
        assert find("a.md").err == ""


def test_what_is_not_remembered_is_said(find, tmp_path):
    write_files(
        tmp_path,
        {
            "rows.jsonl": '{"id": "x", "text": "A river runs."}\n',
            "table.csv.gz": gzip.compress(b"id,text\ny,The cat sat.\n"),
            "empty.txt": " ",
        },
    )
    done = find("-", "rows.jsonl", "table.csv.gz", "empty.txt", "--remember", stdin="The sea.")
    noted = (
        "standard input is not",
        "rows.jsonl contains rows",
        "table.csv.gz contains rows",
        "empty.txt is empty",
    )
    assert done.code == 0 and all(
        what in line for what, line in zip(noted, done.err.splitlines(), strict=True)
    )
    assert entries(tmp_path) == []


@pytest.mark.parametrize(
    "order", [["slow.txt", "a.md", "b.txt", "c.txt"], ["c.txt", "b.txt", "a.md", "slow.txt"]]
)
def test_what_takes_more_than_two_seconds_to_parse_and_encode_is_remembered(
    find, reading, tmp_path, monkeypatch, order
):
    """A clock of its own: parsing slow.txt takes 3 s, encoding a token 0.1 s."""
    now = [0.0]
    of_files, of_model = DocumentReader.read, SentenceRetriever.remember

    def parse(self, path):
        now[0] += 3.0 if path == "slow.txt" else 0.0
        return of_files(self, path)

    def encode(self, texts, **options):
        for vectors in of_model(self, texts, **options):
            now[0] += len(vectors.ids) / 10
            yield vectors

    monkeypatch.setattr(DocumentReader, "read", parse)
    monkeypatch.setattr(SentenceRetriever, "remember", encode)
    monkeypatch.setattr(finding, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(document_cache, "LONG_S", 2.0)
    for name in "slow", "b", "c":
        (tmp_path / f"{name}.txt").write_text(f"The {name} sat. A river runs.")
    right = find(*order, "--no-remember")
    assert entries(tmp_path) == []
    assert find(*order).out == right.out and len(entries(tmp_path)) == 2
    reading.clear()
    assert find(*order).out == right.out
    assert [name for name in reading if isinstance(name, str)] == [
        name for name in order if name in ("b.txt", "c.txt")
    ]
    reading.clear()
    assert (
        find(*order, "--no-remember").err == ""
        and [one for one in reading if isinstance(one, str)] == order
    )


def test_what_was_used_longest_ago_is_removed(find, folder, tmp_path, monkeypatch):
    stored = {}
    for name in "abc":
        Path(f"{name}.txt").write_text(f"The {name} sat. A river runs to the sea.")
        find(f"{name}.txt", "--remember")
        [stored[name]] = set(entries(tmp_path)) - {*stored.values()}
        os.utime(stored[name], (0, 1000 + ord(name)))
    killed = partial_of(stored["a"])
    writing = partial_of(stored["b"])
    for path, used in (killed, 1000), (writing, None):
        path.write_bytes(b"")
        os.utime(path, used and (used, used))
    find("a.txt")  # b is now the one that was used first
    monkeypatch.setattr(document_cache, "LIMIT_BYTES", 3 * stored["a"].stat().st_size + 50)
    find("a.md", "--remember")
    left = {*folder.iterdir()}
    assert (
        stored["a"] in left and stored["b"] not in left and killed not in left and writing in left
    )


@pytest.mark.parametrize("renamed", ["before", "after"])
def test_a_mark_that_another_process_writes_meanwhile_is_seen(tmp_path, monkeypatch, renamed):
    mark = tmp_path / "CACHEDIR.TAG"
    partial = partial_of(mark)
    partial.write_bytes(document_cache._MARKED)
    listed = Path.iterdir

    def list_and_rename(folder):
        if renamed == "before":
            partial.rename(mark)
        names = list(listed(folder))
        if renamed == "after":
            partial.rename(mark)
        return iter(names)

    monkeypatch.setattr(Path, "iterdir", list_and_rename)
    assert document_cache.is_cache(tmp_path)


@pytest.mark.parametrize("new", [True, False])
def test_what_another_process_empties_while_it_is_written_is_no_fault(
    find, folder, tmp_path, monkeypatch, new
):
    if not new:
        find("a.md", "--remember")
    Path("b.md").write_text(TEXT + "The river b runs.")

    def empty(path, sync=files.sync):
        document_cache.trim(folder, -1)
        sync(path)

    with monkeypatch.context() as emptied:
        emptied.setattr(files, "sync", empty)
        done = find("b.md", "--remember")
    assert (done.code, done.err) == (0, "") and not entries(tmp_path)
    find("b.md", "--remember")
    assert len(entries(tmp_path)) == 1


ENTRY = f"{repeat('0', 32)}-{repeat('1', 32)}.safetensors"
USERS_FILES = {
    "notes": lambda folder: (folder / "notes.txt").write_text("mine"),
    "a file like an entry": lambda folder: (folder / "model.safetensors").write_text("mine"),
    "a partial file": lambda folder: (folder / "x.safetensors.0123abcd.partial").write_text("mine"),
    "folders": lambda folder: (
        (folder / "photos").mkdir(),
        (folder / "photos" / "p.jpg").write_text("mine"),
    ),
    "a folder like an entry": lambda folder: (folder / ENTRY).mkdir(),
    "a link like an entry": lambda folder: (folder / ENTRY).symlink_to(__file__),
    "a hidden file": lambda folder: (folder / ".hidden").write_text("mine"),
    "a mark of another program": (
        lambda folder: (folder / "CACHEDIR.TAG").write_text(
            "Signature: 8a477f597d28d172789f06886806bc55\n# This is a cache directory tag created"
            " by cargo.\n"
        )
    ),
}


@pytest.mark.parametrize("kind", USERS_FILES)
def test_a_folder_with_other_files_is_not_used(find, run, folder, monkeypatch, kind):
    right = find("a.md", "--no-remember").out
    folder.mkdir(parents=True)
    USERS_FILES[kind](folder)
    for path in (path for path in folder.rglob("*") if not path.is_symlink()):
        os.utime(path, (1000, 1000))
    folder.chmod(0o755)
    before = contents(folder)
    monkeypatch.setattr(document_cache, "LIMIT_BYTES", 0)
    Path("b.txt").write_text(" ")
    done = find("a.md", "b.txt", "--remember")
    assert (done.code, done.out) == (0, right) and done.err.count(str(folder)) == 1
    assert f"a.md is not remembered ({folder} " in done.err and "RUNNEL_CACHE" in done.err
    for options in (), ("--empty",), ("--empty", "--json"):
        done = run("info", "--cache", *options)
        assert done.code == 1 and str(folder) in done.err and done.out == ""
    assert contents(folder) == before


@pytest.mark.parametrize("kind", [kind for kind in USERS_FILES if "mark" not in kind])
def test_only_its_own_files_are_counted_and_removed(find, run, tmp_path, monkeypatch, kind):
    find("a.md", "--remember")
    [entry] = entries(tmp_path)
    folder = entry.parent
    size = entry.stat().st_size
    USERS_FILES[kind](folder)
    elsewhere = folder / "old" / entry.name
    elsewhere.parent.mkdir()
    shutil.copy(entry, elsewhere)
    before = contents(folder)
    facts = json.loads(run("info", "--cache", "--json").out)
    assert (facts["documents"], facts["bytes"]) == (1, size)
    monkeypatch.setattr(document_cache, "LIMIT_BYTES", 0)
    Path("b.txt").write_text("The cat sat. A river runs.")
    assert find("b.txt", "--remember").err == "" and not entry.exists()
    del before[entry]
    assert contents(folder) == before
    monkeypatch.setattr(document_cache, "LIMIT_BYTES", 1 << 30)
    find("a.md", "--remember")
    assert run("info", "--cache", "--empty").code == 0 and contents(folder) == before


@pytest.mark.parametrize("mask", [0o000, 0o022])
@pytest.mark.parametrize("there", [False, True])
@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_what_is_remembered_is_for_this_user_alone(find, folder, mask, there):
    if there:
        folder.mkdir(parents=True)
        folder.chmod(0o755)
    before = os.umask(mask)
    try:
        assert f"stored in {folder}" in find("a.md", "--remember").err
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert len([*folder.iterdir()]) == 2 and modes == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == (0o755 if there else 0o700)


def test_a_cache_of_a_version_that_wrote_no_mark_is_taken_over(find, run, reading, tmp_path):
    find("a.md", "--remember")
    [entry] = entries(tmp_path)
    mark = entry.with_name("CACHEDIR.TAG")
    mark.unlink()
    partial_of(mark).touch()  # of a process that was killed
    reading.clear()
    assert find("a.md").code == 0 and reading == [5]
    assert json.loads(run("info", "--cache", "--json").out)["documents"] == 1
    assert "stored in" in find("a.md", "--unit", "paragraph", "--remember").err and mark.exists()
    (entry.parent / "mine").touch()  # in a folder with a mark
    assert find("a.md").err == "" and len(entries(tmp_path)) == 2
    mark.unlink()
    assert run("info", "--cache", "--empty").code == 1 and len(entries(tmp_path)) == 2
    (entry.parent / "mine").unlink()
    assert run("info", "--cache", "--empty").code == 0 and [*entry.parent.iterdir()] == []


@pytest.mark.parametrize("kind", ["of another user", "a link", "a file"])
def test_a_folder_without_trust_is_not_used(find, run, reading, tmp_path, monkeypatch, kind):
    right = find("a.md", "--remember").out
    [entry] = entries(tmp_path)
    folder = entry.parent
    if kind == "of another user":
        if os.name == "nt":
            pytest.skip("Windows has no such owners")
        if os.geteuid() == 0:
            os.chown(folder, 1234, -1)
        owner = folder.stat().st_uid
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    elif kind == "a link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        shutil.rmtree(folder)
        folder.write_text("mine")
    before = contents(tmp_path)
    reading.clear()
    done = find("a.md", "--remember")
    assert (done.code, done.out) == (0, right) and "a.md" in reading
    assert done.err.count("\n") == 1 and f"a.md is not remembered ({folder}" in done.err
    for options in (), ("--empty",):
        assert (done := run("info", "--cache", *options)).code == 1 and str(folder) in done.err
    assert contents(tmp_path) == before
    if kind == "of another user":
        monkeypatch.setenv("RUNNEL_SAFE_DIRECTORIES", str(folder.parent))
        reading.clear()
        assert find("a.md").out == right and reading == [5]


def test_a_cache_that_cannot_be_written_is_said_once(find, tmp_path, monkeypatch, full_disk):
    monkeypatch.setattr(document_cache, "LONG_S", 0.0)
    Path("b.txt").write_text("The cat sat. A river runs.")
    right = find("a.md", "b.txt", "--no-remember")
    assert right.err == ""
    cache = tmp_path / "cache"
    for prevent in (lambda: cache.write_text("a file"), lambda: (cache.unlink(), full_disk(100))):
        prevent()
        done = find("a.md", "b.txt")
        assert (done.code, done.out) == (0, right.out)
        assert (
            done.err.count("\n") == 1
            and "is not remembered" in done.err
            and "--no-remember" in done.err
        )
    assert [*(cache / "find").iterdir()] == []


def rule(messages):  # of `stub`
    return "NO ANSWER"


@pytest.mark.usefixtures("stub")
def test_ask_remembers_for_find_too(run, find, models, reading, monkeypatch):
    monkeypatch.setattr(document_cache, "LONG_S", 0.0)
    asked = [
        run("ask", QUERY, "a.md", "--model", models / "encoder", "--show-context").out
        for _ in range(2)
    ]
    assert asked[0] == asked[1] != "" and reading.count("a.md") == 1
    assert find("a.md").code == 0 and reading.count("a.md") == 1
    run("ask", QUERY, "a.md", "--model", models / "encoder", "--no-remember")
    assert reading.count("a.md") == 2
    run("ask", QUERY, "a.md", "--model", models / "recurrent", "--remember").refused(
        "cannot remember", code=2
    )


@pytest.mark.parametrize(
    ("own", "common", "folder"),
    [
        ("", "", ".cache/runnel/find"),
        ("", "not/absolute", ".cache/runnel/find"),
        ("", "/absolute", "/absolute/runnel/find"),
        ("here", "/absolute", "here/find"),
    ],
)
def test_the_folder_of_caches(monkeypatch, tmp_path, own, common, folder):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RUNNEL_CACHE", own)
    monkeypatch.setenv("XDG_CACHE_HOME", common)
    assert cache_folder() == tmp_path / folder


@pytest.mark.parametrize("home", [None, "", "relative", "./relative"])
@pytest.mark.parametrize("common", [None, "", "relative"])
def test_without_a_home_nothing_is_remembered(find, run, tmp_path, monkeypatch, home, common):
    monkeypatch.setattr(document_cache, "LONG_S", 0.0)
    monkeypatch.delenv("RUNNEL_CACHE")
    for name, value in (
        ("USERPROFILE" if os.name == "nt" else "HOME", home),
        ("XDG_CACHE_HOME", common),
    ):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    Path("b.txt").write_text("The cat sat. A river runs.")
    before = contents(tmp_path)
    root = Path("/.cache/runnel").exists()
    done = find("a.md", "b.txt")
    assert done.code == 0 and done.err.count("\n") == 1
    assert "not remembered (no home folder" in done.err
    assert find("a.md", "--no-remember").err == ""
    find("a.md", "--remember").refused("set RUNNEL_CACHE", code=2)
    for command in ("info", "--cache"), ("info", "--cache", "--empty"):
        assert (done := run(*command)).code == 1 and "no home folder" in done.err
    assert contents(tmp_path) == before and Path("/.cache/runnel").exists() == root
    with pytest.raises(InputError, match=r"no home folder.*RUNNEL_CACHE"):
        FileOptions().cache(lambda: pytest.fail("not needed"), "pocket", remember=True)


def test_a_file_that_changes_while_it_is_read_is_not_remembered(find, tmp_path, monkeypatch):
    of_model = SentenceRetriever.remember

    def encode(self, texts, **options):
        for vectors in of_model(self, texts, **options):
            (tmp_path / "a.md").write_text(TEXT + "More.")
            yield vectors

    monkeypatch.setattr(SentenceRetriever, "remember", encode)
    assert (
        find("a.md", "--remember").err
        == "runnel: note: a.md is not remembered: it changed while it was read\n"
    )
    assert entries(tmp_path) == []


@pytest.mark.slow
def test_thirty_remembered_documents_cost_a_question_at_most_three_times_one():
    """In processor time: only the best sentences of all together are read again."""
    retriever = SentenceRetriever.load("pocket")
    texts = [
        " ".join(f"Ship {n} of harbor {d} carries {n * d} barrels." for n in range(4 if d else 60))
        for d in range(30)
    ]
    remembered = list(retriever.remember(texts))

    def seconds(documents):
        start = time.process_time()
        retriever.second_look(list(retriever.first_look("how many barrels", documents)))
        return time.process_time() - start

    seconds(remembered[:1])  # the kernels are ready afterwards
    one = min(seconds(remembered[:1]) for _ in range(3))
    assert min(seconds(remembered) for _ in range(3)) <= 3 * one
