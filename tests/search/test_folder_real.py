"""A real folder: more than a thousand files, indexed with pocket, killed on the way, gone on with, changed and searched."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from helpers.children import PATHS, PROGRAMS
from helpers.real_folder import Folder, make_folder

from runnel import Embedder, Index
from runnel.errors import ReadError, UnsupportedKind
from runnel.models.embedder import EMPTY
from runnel.records import Places
from runnel.search import encoding
from runnel.search.index import Changes
from runnel.search.records import WHOLE
from runnel.text.documents.document import DocumentText
from runnel.text.documents.reader import DocumentReader
from runnel.text.folders import find_files
from runnel.text.sentences import split_sentences

BATCH = 120  # documents in a commit


@dataclass
class Expected:
    """What the files hold, read one after another without an index."""

    documents: dict[str, DocumentText] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # file -> why
    other_kinds: set[str] = field(default_factory=set)  # names


@dataclass
class Story:
    """How the index came about: after each kill what was acknowledged, and what was there."""

    place: Path
    told: list[int] = field(default_factory=list)
    seen: list[set[str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # documents that were there with another text, or without vectors
    changes: Changes = field(default_factory=Changes)  # of the call that went to the end
    known: set[str] = field(default_factory=set)  # after it


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Folder:
    return make_folder(tmp_path_factory.mktemp("real").resolve() / "files")


@pytest.fixture(scope="module")
def expected(folder) -> Expected:
    made = Expected()
    with DocumentReader() as reader:
        for path in find_files([folder.root]):
            try:
                for document in reader.read(path):
                    made.documents[str(path) if document.id is None else f"{path}#{document.id}"] = document
            except UnsupportedKind:
                made.other_kinds.add(path.name)
            except ReadError as error:
                made.failed[str(path)] = str(error)
    empty = {name: document.text for name, document in made.documents.items() if not document.text.strip()}
    for name, text in empty.items():
        made.failed[name] = f"cannot read an empty document; remove it (it is {text[:20]!a}: {EMPTY})"
        del made.documents[name]
    return made


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder.load("pocket")


@pytest.fixture(scope="module")
def story(folder, expected, embedder, tmp_path_factory) -> Story:
    """Killed before the first commit and twice after one, always at a random moment; then gone on with to the end."""
    story = Story(tmp_path_factory.mktemp("real") / "index")
    Index.create(story.place, embedder, fields={"kind": "str"}).close()
    rng = random.Random(11)
    for commits in (0, 1, 1):
        story.told.append(index_and_kill(story.place, folder.root, commits, rng.uniform(0, 1.5)))
        with Index.open(story.place, embedder) as index:
            story.seen.append(set(index.store.content_hashes()))
            story.wrong += wrong(index, expected)
    with pytest.MonkeyPatch.context() as patch, Index.open(story.place, embedder) as index:
        patch.setattr(encoding, "_BATCH_DOCUMENTS", BATCH)
        story.changes = index.add_files([folder.root])
        index.optimize()
        story.wrong += wrong(index, expected)
        story.known = set(index.store.content_hashes())
    return story


@pytest.fixture(scope="module")
def index(story, embedder) -> Iterator[Index]:
    with Index.open(story.place, embedder) as opened:
        yield opened


def index_and_kill(place: Path, folder: Path, commits: int, seconds: float) -> int:
    """How many documents were acknowledged when the writer was killed, some seconds behind its `commits`-th commit."""
    command = [sys.executable, str(PROGRAMS / "killed_indexer.py"), str(place), str(folder), "pocket", str(BATCH)]
    environment = os.environ | PATHS
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(1 + commits)]
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        told += process.stdout.readlines()
    assert told[0] == "begun\n" and "done\n" not in told, "it was too fast to be killed"
    return int(([0] + [line for line in told[1:] if line.endswith("\n")])[-1])


def wrong(index: Index, expected: Expected) -> list[str]:
    """Documents that are not what the file holds, or have not all of their passages."""
    rows = index.store.documents(list(index.store.content_hashes()))
    found = []
    for name, row in rows.items():
        held = expected.documents.get(name)
        if held is None or (row.text, row.title, row.metadata["kind"]) != (held.text, held.title or "", held.kind):
            found.append(name)
    passages = index.store.passages([(name, number) for name in rows for number in (0, WHOLE)])
    return found + [name for name in rows if not {(name, 0), (name, WHOLE)} <= passages.keys()]


def group(name: str, expected: Expected) -> str:
    """The kind of a document's file; "gz" if it is packed."""
    return "gz" if name.partition("#")[0].endswith(".gz") else expected.documents[name].kind


# ---- all of it is there ------------------------------------------------------------------------------------------------


def test_there_are_more_than_a_thousand_files_of_every_kind(folder, expected, story):
    kinds = Counter(group(name, expected) for name in expected.documents)
    reasons = Counter(" ".join(why.replace(name, "").split()[:8]) for name, why in story.changes.failed.items())
    print(f"\nfiles {dict(folder.files)}, {len(folder.hostile)} hostile; documents {dict(kinds)}")
    print(f"{story.changes.tokens:,} tokens in the last call; left out {len(story.changes.failed)}: {dict(reasons)}")
    print(f"killed after {story.told}, {[len(one) for one in story.seen]} there")
    assert sum(folder.files.values()) >= 1200
    assert set(kinds) == {"txt", "md", "html", "pdf", "docx", "epub", "jsonl", "csv", "tsv", "gz"} and min(kinds.values()) >= 60


def test_what_was_acknowledged_outlived_every_kill(story):
    for told, seen in zip(story.told, story.seen, strict=True):
        assert told <= len(seen) <= told + BATCH  # the last commit may be done and not yet told
    assert story.told == sorted(story.told) and story.told[-1] > 0
    assert all(before <= after for before, after in zip(story.seen, [*story.seen[1:], story.known], strict=True))
    assert set(story.changes.unchanged) == story.seen[-1]  # nothing is read twice


def test_every_document_is_there_once_as_its_file_has_it(expected, story):
    assert story.known == set(expected.documents)
    assert story.wrong == []
    assert len(story.changes.added) + len(story.changes.unchanged) == len(story.known)
    assert story.changes.updated == story.changes.deleted == []


def test_the_rest_is_told_with_its_reason(folder, expected, story):
    assert story.changes.failed == expected.failed
    told = {Path(name).name: why for name, why in story.changes.failed.items() if Path(name).parent.name == "hostile"}
    assert expected.other_kinds == {"picture.txt", "program.txt", "office.doc"}
    assert told.keys() == folder.hostile.keys() - expected.other_kinds
    for name, reason in told.items():
        assert folder.hostile[name] in reason, name
    assert not list(folder.root.parent.rglob("planted.txt"))


def test_texts_are_whole_with_their_pages_and_headings(folder, index):
    rows = index.store.documents(list(folder.texts))
    for name, texts in folder.texts.items():
        row, places = rows[name], Places(rows[name].blocks)
        plain = " ".join(row.text.split())
        for number, text in enumerate(texts, start=1):
            assert text.body in plain and text.title in plain, name
            page, headings = places.at(row.text.index(text.title) + len(text.title) + 10)
            assert page == (number if row.metadata["kind"] == "pdf" else None), name
            if row.metadata["kind"] in ("md", "html", "pdf", "docx", "epub"):
                assert headings == (text.title,), name
    assert index.store.lexical("quokka", 5, []) == []  # what lies outside


# ---- searching ---------------------------------------------------------------------------------------------------------


def distinctive(expected: Expected, of_each: int) -> dict[str, list[tuple[str, str]]]:
    """{kind: (document, a sentence that is in no other one)}, from documents spread evenly over each kind."""
    sentences = {
        name: {" ".join(document.text[a:b].split()) for a, b in split_sentences(document.text).tolist()}
        for name, document in expected.documents.items()
    }
    times = Counter(sentence for found in sentences.values() for sentence in found)
    kinds: dict[str, list[tuple[str, str]]] = {}
    for name, found in sentences.items():
        good = [s for s in found if times[s] == 1 and 8 <= len(s.split()) <= 40 and sum(map(str.isalpha, s)) > 0.75 * len(s)]
        if good:
            kinds.setdefault(group(name, expected), []).append((name, max(sorted(good), key=len)))
    return {kind: [all_[i * len(all_) // of_each] for i in range(of_each)] for kind, all_ in kinds.items()}


def test_distinctive_sentences_are_found_and_shown(expected, index):
    chosen = distinctive(expected, 12)
    assert len(chosen) == 10
    totals = Counter[str]()
    for kind, pairs in chosen.items():
        found = shown = first = 0
        for number, (name, sentence) in enumerate(pairs):
            words = sentence.split()
            query = " ".join(word for i, word in enumerate(words) if i % 4 != 3)  # as one remembers it
            hits = index.search(query, read=3, sentences=3 if number % 4 == 0 else 0)
            found += name in [hit.id for hit in hits]
            first += hits[0].id == name
            if number % 4 == 0:
                texts = [" ".join(one.text.split()) for hit in hits for one in hit.sentences if hit.id == name]
                shown += any(sentence in text for text in texts)
        print(f"{kind}: {found} of {len(pairs)} found, {first} first, {shown} of 3 shown")
        assert found >= 10 and shown >= 1, kind
        totals.update(found=found, shown=shown)
    assert totals["found"] >= 114 and totals["shown"] >= 24  # of 120 and 30


def test_questions_find_the_document_that_answers(folder, index):
    if not folder.questions:
        pytest.skip("no ../shared/data: the texts are of Python itself, and have no questions")
    chosen = sorted(folder.questions)[:: max(len(folder.questions) // 40, 1)]
    ranks = [[hit.id for hit in index.search(one, sentences=0)] for one in chosen]
    found = sum(folder.questions[one] in names for one, names in zip(chosen, ranks, strict=True))
    print(f"{found} of {len(chosen)} questions")
    assert found > 0.85 * len(chosen)


def test_filters_hold_for_real_files(folder, expected, index):
    for kind in ("pdf", "csv"):
        hits = index.search("treatment of the symptoms", top_k=30, where={"kind": kind}, sentences=0)
        assert len(hits) == 30 and {expected.documents[hit.id].kind for hit in hits} == {kind}


# ---- changes -----------------------------------------------------------------------------------------------------------


def test_changes_of_the_folder_are_followed(folder, story, index, monkeypatch):
    monkeypatch.setattr(encoding, "_BATCH_DOCUMENTS", 20)
    place = folder.root / "changing"
    place.mkdir()
    written = folder.root / "written"
    for kind in ("pdf", "docx", "epub", "html"):
        shutil.copy(written / kind / f"{kind}0.{kind}", place / f"a.{kind}")
    for name in ("touched", "changed", "appended", "renamed", "removed"):
        (place / f"{name}.txt").write_text(f"The {name} ferret.\n")
    rows = place / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": i, "text": f"Ferret number {i}."}) + "\n" for i in range(50)))

    def told(changes: Changes) -> list[set[str]]:
        assert set(changes.failed) - {str(rows)} == set(story.changes.failed)
        parts = (changes.added, changes.updated, changes.deleted)
        return [{str(Path(name).relative_to(place)) for name in part} for part in parts]

    def while_read(commit: object) -> None:
        """The file of rows changes between two commits of it."""
        if rows.stat().st_size < 2500:
            with rows.open("a") as file:
                file.write(json.dumps({"id": 50, "text": "The late ferret."}) + "\n" + " " * 2500 + "\n")

    files = {*(f"a.{kind}" for kind in ("pdf", "docx", "epub", "html"))}
    texts = {f"{name}.txt" for name in ("touched", "changed", "appended", "renamed", "removed")}
    first = index.add_files([folder.root], on_commit=while_read)
    assert "changed while it was read" in first.failed[str(rows)]
    second = index.add_files([folder.root])
    added = told(first)[0] | told(second)[0]
    assert added == files | texts | {f"rows.jsonl#{i}" for i in range(51)}
    assert str(rows) not in second.failed and told(second)[1:] == [set(), set()]

    (place / "touched.txt").touch()
    (place / "changed.txt").write_text("The polecat.\n")
    with (place / "appended.txt").open("a") as file:
        file.write("And a stoat.\n")
    (place / "renamed.txt").rename(place / "new name.txt")
    (place / "removed.txt").unlink()
    (place / "a.pdf").write_bytes((written / "pdf" / "pdf1.pdf").read_bytes())
    (place / "a.docx").write_bytes((place / "a.docx").read_bytes()[:3000])  # keeps what is known of it
    changes = index.add_files([folder.root])
    assert changes.failed.pop(str(place / "a.docx")).startswith(str(place / "a.docx"))
    assert told(changes) == [{"new name.txt"}, {"changed.txt", "appended.txt", "a.pdf"}, {"renamed.txt", "removed.txt"}]
    assert len(index) == len(story.known) + len(files) + 4 + 51
    found = [Path(one.document).name for one in index.store.lexical("polecat stoat", 5, [])]
    assert sorted(found) == ["appended.txt", "changed.txt"]

    shutil.rmtree(place)
    assert len(index.add_files([folder.root]).deleted) == len(files) + 4 + 51
    assert set(index.store.content_hashes()) == story.known


def test_the_command_line_has_nothing_left_to_do(folder, story, index, run, caplog):
    index.close()
    ended = run("index", folder.root, "--to", story.place, "--json")
    told = json.loads(ended.out)
    assert ended.code == 1 and [told[name] for name in ("added", "updated", "deleted", "tokens_read")] == [0, 0, 0, 0]
    assert told["unchanged"] == told["documents"] == len(story.known) and told["failed"] == len(story.changes.failed)
    assert all(name in caplog.text + ended.err for name in story.changes.failed)
