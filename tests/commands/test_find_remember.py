"""`runnel find --remember`: a later question to a file neither parses nor reads it, and has the same answer."""

from __future__ import annotations

import gzip
import itertools
import json
import re
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.tiny import tiny_encoder, tiny_model

from runnel.engine import Engine
from runnel.errors import InputError
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.ops.backend import has_native_bf16
from runnel.search.finding import cache_folder, open_cache
from runnel.search.remembered import DocumentCache
from runnel.text.documents.reader import DocumentReader, read_document

TEXT = """# The house

The cat sat on the mat. A dog sat to the sea.

## The river

A river runs to the sea. The finally clause is executed. The cat runs on.
"""
QUERY = "the river runs"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of a model that remembers and of one that does not."""
    folder = tmp_path_factory.mktemp("models")
    tiny_encoder(folder / "made").save(folder / "encoder")
    tiny_encoder(folder / "made", block=10).save(folder / "other")
    tiny_model(folder / "made").save(folder / "recurrent")
    return folder


@pytest.fixture
def find(run, models, tmp_path):
    """Calls `runnel find` with the model that remembers."""
    (tmp_path / "a.md").write_text(TEXT)

    def call(*more, query=QUERY, model="encoder", stdin=""):
        return run("find", query, *more, "--model", models / model, stdin=stdin)

    return call


@pytest.fixture
def reading(monkeypatch):
    """What is read from now on: names of files, and tokens of each request."""
    read: list[object] = []
    of_files, of_engine = DocumentReader.read, Engine.map

    def read_file(self, path):
        read.append(str(path))
        return of_files(self, path)

    def read_tokens(self, requests, *more):
        def counted():
            for request in requests:
                read.append(len(request.ids))
                yield request

        return of_engine(self, counted(), *more)

    monkeypatch.setattr(DocumentReader, "read", read_file)
    monkeypatch.setattr(Engine, "map", read_tokens)
    return read


def entries(tmp_path):
    return sorted((tmp_path / "cache").rglob("*.safetensors"))


def test_a_second_question_reads_nothing_but_itself(find, reading, tmp_path):
    plain = find("a.md", "--json")
    first = find("a.md", "--json", "--remember")
    folder = tmp_path / "cache" / "find"
    assert first.err == f"runnel: note: documents are stored in {folder} for later questions; remove that folder to delete them\n"
    assert len(entries(tmp_path)) == 1 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    reading.clear()
    again = find("a.md", "--json")
    assert reading == [5]  # [CLS] the river runs [SEP]
    assert plain.out == first.out == again.out and again.err == ""
    assert find("a.md").out == find("a.md", "--remember").out
    other = json.loads(find("a.md", "--json", "-k", 1, query="where did the cat sit").out)
    assert len(other["sentences"]) == 1 and "a.md" not in reading
    assert json.loads(again.out)["sentences"][0]["headings"][0] == "The house"


def test_the_key_is_all_that_the_answer_depends_on(find, reading, tmp_path):
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
    find("a.md", "--unit", "paragraph", "--remember")
    reading.clear()
    assert find("a.md", "--unit", "paragraph").out.count("\n") == 4 and reading == [5]


def test_a_changed_file_is_read_and_can_be_remembered_again(find, reading, tmp_path):
    find("a.md", "--remember")
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
    for one, other in zip(json.loads(plain.out)["sentences"], json.loads(mixed.out)["sentences"], strict=True):
        assert one.pop("score") == pytest.approx(other.pop("score"), abs=0.05) and one == other  # other steps, other rounding
    assert json.loads(plain.out)["files"] == json.loads(mixed.out)["files"]
    assert find("b.txt", "missing.txt", "a.md", "--remember").code == 2
    assert len(entries(tmp_path)) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:100],
        lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
    ],
    ids=["cut", "flipped"],
)
def test_a_damaged_entry_is_read_anew_with_a_note(find, reading, tmp_path, damage):
    right = find("a.md", "--remember").out
    [entry] = entries(tmp_path)
    data = entry.read_bytes()
    entry.write_bytes(damage(data))
    done = find("a.md")
    assert done.out == right and done.err.startswith(f"runnel: note: a.md is read again: {entry} cannot be used (")
    assert done.err.count("\n") == 1 and entry.read_bytes() == data  # it had been asked for
    reading.clear()
    assert find("a.md").err == "" and reading == [5]


def test_an_entry_of_another_file_or_model_is_read_anew_with_a_note(find, models, reading, tmp_path):
    (tmp_path / "b.md").write_text("The keeper is Mallory. A river runs to b.")
    right = {
        (name, model): find(name, "--remember", model=model).out for name in ("a.md", "b.md") for model in ("encoder", "other")
    }
    whole = {path: path.read_bytes() for path in entries(tmp_path)}
    for path, other in itertools.permutations(whole, 2):
        path.write_bytes(whole[other])
        reading.clear()
        found = [find(name, model=model) for name, model in right]
        assert [one.out for one in found] == [*right.values()]
        assert [path.name in one.err for one in found if one.err] == [True] and sum(name in reading for name, _ in right) == 2
        assert path.read_bytes() == whole[path]


@pytest.mark.parametrize("model", ["encoder", "recurrent"])
def test_text_without_a_token_is_no_answer(find, tmp_path, model):
    (tmp_path / "empty.txt").write_text("\u200b\n\n\ufeff \u0301\n")
    alone = find("empty.txt", "--json", model=model)
    assert (alone.code, json.loads(alone.out)["sentences"]) == (1, [])
    assert find("empty.txt", model=model).out == find("empty.txt", "--min-score", -9, model=model).out == ""
    (tmp_path / "b.md").write_text("\u200b\n\n" + TEXT.replace("\n\n", "\n\n\ufeff\n\n"))
    right = [one["text"].strip() for one in json.loads(find("a.md", "--json", "-k", 50, model=model).out)["sentences"]]
    for options in ([], ["--remember"] * (model == "encoder"), []):
        found = json.loads(find("empty.txt", "b.md", "--json", "-k", 50, *options, model=model).out)["sentences"]
        assert [one["text"].strip() for one in found] == right and {one["file"] for one in found} == {"b.md"}


def test_scores_are_explained(find, models, tmp_path, terminal):
    """Their parts sum to them, whichever document a sentence is of, read or remembered."""
    (tmp_path / "b.txt").write_text("The dog sat. A river runs to b.")
    (tmp_path / "c.txt").write_text("\u200b\n\nA cat.")  # a sentence without a token
    find("b.txt", "--remember")
    found = json.loads(find("a.md", "b.txt", "c.txt", "--json", "--explain", "-k", 9).out)["sentences"]
    assert {one["file"] for one in found} == {"a.md", "b.txt", "c.txt"}
    for one in found:
        assert sum(one["parts"].values()) == pytest.approx(one["score"], abs=1e-4) or (
            one["parts"] == {} and one["file"] == "c.txt"
        )
    shown = find("a.md", "b.txt", "c.txt", "--explain", "-k", 1).out.splitlines()[1]
    assert re.fullmatch(r"    score -?\d+\.\d\d = -?\d+\.\d\d average sentence( [-+] \d+\.\d\d [a-z ]+){5}", shown)
    done = find("a.md", "--explain", model="recurrent")
    assert done.code == 2 and "no parts to explain" in done.err


def test_what_is_not_remembered_is_said(find, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"id": "x", "text": "A river runs."}\n')
    (tmp_path / "table.csv.gz").write_bytes(gzip.compress(b"id,text\ny,The cat sat.\n"))
    (tmp_path / "empty.txt").write_text(" ")
    done = find("-", "rows.jsonl", "table.csv.gz", "empty.txt", "--remember", stdin="The sea.")
    noted = ("standard input is not", "rows.jsonl contains rows", "table.csv.gz contains rows", "empty.txt is empty")
    assert done.code == 0 and all(what in line for what, line in zip(noted, done.err.splitlines(), strict=True))
    assert entries(tmp_path) == []


def test_a_model_that_cannot_remember_says_so(find, models, tmp_path):
    done = find("a.md", "--remember", model="recurrent")
    assert done.code == 2 and done.out == "" and f"{models / 'recurrent'} reads the query before" in done.err
    assert not (tmp_path / "cache").exists()


def test_the_folder_of_caches(monkeypatch, tmp_path):
    monkeypatch.delenv("RUNNEL_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache_folder() == tmp_path / ".cache" / "runnel"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x" / "runnel"
    monkeypatch.setenv("RUNNEL_CACHE", "here")
    assert cache_folder() == Path("here").absolute()
    monkeypatch.delenv("RUNNEL_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")

    def no_home():
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", no_home)
    assert cache_folder() is None
    with pytest.raises(InputError, match="no home folder to remember documents in; set RUNNEL_CACHE"):
        open_cache(lambda: pytest.fail("not needed"), "pocket", [], keep=True)
    assert open_cache(lambda: pytest.fail("not needed"), "pocket", [], keep=False) is None


def test_many_writers_leave_one_whole_entry(models, tmp_path, monkeypatch):
    monkeypatch.setenv("RUNNEL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.md"
    path.write_text(TEXT)
    retriever = SentenceRetriever.load(models / "encoder")
    document = read_document(path)
    [vectors] = retriever.remember([document.text])

    def write(_):
        kept = DocumentCache(tmp_path / "cache" / "find", lambda: retriever, str(models / "encoder"), [None, None], keep=True)
        entry = kept.entry(str(path))
        for _ in range(5):
            kept.put(entry, document, vectors)
            found, read = kept.get(entry)
            assert found == document and read.to_bytes() == vectors.to_bytes()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(8)))
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == entries(tmp_path) and len(entries(tmp_path)) == 1


def test_a_file_that_changes_while_it_is_read_is_not_kept(models, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("RUNNEL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.md"
    path.write_text(TEXT)
    retriever = SentenceRetriever.load(models / "encoder")
    kept = DocumentCache(tmp_path / "cache" / "find", lambda: retriever, str(models / "encoder"), [None, None], keep=True)
    entry, document = kept.entry(str(path)), read_document(path)
    path.write_text(TEXT + "More.")
    kept.put(entry, document, next(retriever.remember([document.text])))
    assert caplog.messages == [f"note: {path} is not remembered: it changed while it was read"]
    assert entries(tmp_path) == []
