"""Shards of an index: what each owns, that any of them can be ended anyhow, and that together they are the whole."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.children import PATHS, PROGRAMS
from helpers.tiny import tiny_model
from helpers.waiting import GIVE_UP_S
from programs.sharded import BATCH, FIELDS, PASSAGE_TOKENS, contents, everything, write_few, write_files

from runnel import Embedder
from runnel.errors import StoreError
from runnel.lock import WriterLock
from runnel.search import encoding, shards
from runnel.search.encoding import DocumentEncoder, new_settings
from runnel.search.index import Index
from runnel.search.shards import encode_shard, read_manifest
from runnel.text.shards import Shard

COUNT = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    Embedder(tiny_model(folder / "tiny")).save(folder / "saved")
    return folder / "saved"


@pytest.fixture(scope="module")
def embedder(model):
    return Embedder.load(model, dtype="float32")  # other batches, other rounding: in bf16 it can be seen


@pytest.fixture(scope="module")
def wanted(embedder):
    return new_settings(embedder, FIELDS, PASSAGE_TOKENS)


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(encoding, "_BATCH_DOCUMENTS", BATCH)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files") / "files")


@pytest.fixture(scope="module")
def made(files, embedder, wanted, tmp_path_factory):
    """All shards in one folder, made without a break."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "_BATCH_DOCUMENTS", BATCH)
        for number in range(1, COUNT + 1):
            encode_shard([files], folder, Shard(number, COUNT), embedder, settings=wanted)
    return folder


# ---- a shard can be ended anyhow -------------------------------------------------------------------------------------


@pytest.fixture
def starter(model, tmp_path):
    """Start a process for each shard, kill those alive when `until()` is true; return how they ended."""
    files = write_files(tmp_path / "files", pages=False)  # no process to parse them: that would take most of the time
    no_threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "NUMBA_THREADING_LAYER": "workqueue"}  # for fork
    no_threads |= {"TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, str(PROGRAMS / "sharded.py"), str(files), str(model)]
    environment = os.environ | PATHS | no_threads
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:

        def call(place, *shards, until=lambda: False):
            process.stdin.write(f"{place} {' '.join(shards)}\n")
            process.stdin.flush()
            pids, late = list(map(int, process.stdout.readline().split())), time.monotonic() + GIVE_UP_S
            while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < late and not until():
                time.sleep(0.001)
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return list(map(int, process.stdout.readline().split()))

        yield call
        process.stdin.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc, which Linux has")
def test_killed_and_parallel_processes_leave_the_files_of_an_unbroken_run(starter, tmp_path):
    shards = [f"1/{COUNT}", f"3/{COUNT}"]
    names = [Shard.parse(shard).name for shard in shards]
    assert starter(tmp_path / "whole", *shards) == [0, 0]
    expected = [contents(tmp_path / "whole" / name) for name in names]
    rng, kills = random.Random(11), 0
    for folder in ("a", "b"):
        place = tmp_path / folder
        for _ in range(3):
            parts = len(list(place.rglob("documents-*.parquet"))) + rng.choice([0, 1, 1, 2])
            delay = rng.uniform(0, 0.02)  # some of it behind the last of these parts

            def until(place=place, parts=parts, delay=delay):
                return len(list(place.rglob("documents-*.parquet"))) >= parts and not time.sleep(delay)

            kills += starter(place, *shards, until=until).count(signal.SIGKILL)
        assert starter(place, *shards) == [0, 0]
        assert [contents(place / name) for name in names] == expected
    assert kills >= 8


def test_a_run_that_ends_at_any_write_goes_on(made, files, embedder, wanted, tmp_path, monkeypatch, small_batches):
    name, real = Shard(2, COUNT).name, shards._write
    writes = len(contents(made / name)) + 1  # and begun.json
    assert writes >= 8
    for last in range(writes):
        count = 0

        def failing(path, data, last=last):
            nonlocal count
            count += 1
            if count > 1 + last % 2:
                raise OSError(28, "No space left on device")
            real(path, data)

        with monkeypatch.context() as patch:
            patch.setattr(shards, "_write", failing)
            try:
                encode_shard([files], tmp_path, Shard(2, COUNT), embedder, settings=wanted)
            except OSError:
                assert read_manifest(tmp_path / name) is None
    done = encode_shard([files], tmp_path, Shard(2, COUNT), embedder, settings=wanted)
    assert done.tokens_read < done.tokens
    assert contents(tmp_path / name) == contents(made / name)


def test_a_finished_shard_is_not_read_again(made, files, embedder, wanted, monkeypatch):
    before = contents(made / Shard(1, COUNT).name)
    monkeypatch.setattr(DocumentEncoder, "__init__", lambda *_: pytest.fail("the model was used"))
    done = encode_shard([files], made, Shard(1, COUNT), embedder, settings=wanted)
    assert done.tokens_read == 0 and done.tokens > 100 and done.documents > 10
    assert contents(made / Shard(1, COUNT).name) == before


def test_a_shard_is_made_by_one_process_at_a_time(files, embedder, wanted, tmp_path):
    place = tmp_path / "00001-of-00002"
    place.mkdir()
    lock = WriterLock(place / "writer.lock", place)
    lock.acquire()
    with pytest.raises(StoreError, match=r"00001-of-00002 is being written by process"):
        encode_shard([files], tmp_path, Shard(1, 2), embedder, settings=wanted)
    lock.release()


def test_a_manifest_tells_what_a_shard_is(made, embedder, wanted):
    manifests = [read_manifest(made / Shard(number, COUNT).name) for number in range(1, COUNT + 1)]
    assert [one.shard for one in manifests] == [1, 2, 3] and {one.count for one in manifests} == {COUNT}
    assert {one.fingerprint for one in manifests} == {embedder.model.backbone.fingerprint()}
    assert len({one.plan for one in manifests}) == 1 and len({one.input for one in manifests}) == COUNT
    assert all(one.settings == wanted for one in manifests)
    assert sum(one.documents for one in manifests) == 88 and all(one.passages >= one.documents for one in manifests)
    assert [one.parts for one in manifests] == [-(-one.documents // BATCH) for one in manifests]
    assert all(one.tokens == one.tokens_read > 0 and one.bytes > 100 and one.seconds > 0 for one in manifests)
    failed = {Path(name).name: reason for one in manifests for name, reason in one.failed.items()}
    assert set(failed) == {"bad.pdf", "empty.txt"} and "damaged or truncated PDF" in failed["bad.pdf"]


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.fixture
def few(tmp_path):
    return write_few(tmp_path / "few")


def test_a_shard_of_other_work_is_refused(few, embedder, wanted, tmp_path):
    def encode(**changed):
        return encode_shard([few], tmp_path / "out", Shard(1, 2), embedder, settings=replace(wanted, **changed))

    encode()
    with pytest.raises(StoreError, match=r"shard 1/2 was made with passage_tokens 32, not 64; give the same, or remove"):
        encode(passage_tokens=64)
    with pytest.raises(StoreError, match=r"shard 1/2 was made with fields \{'kind': 'str'\}, not \{\}"):
        encode(fields={})
    with pytest.raises(StoreError, match=r"was made with the model .*; 'other' gives other vectors"):
        encode(model="other", probe=(-np.array(wanted.probe)).tolist())
    text = (few / "0.txt").read_text()
    (few / "0.txt").write_text(text.upper())
    with pytest.raises(StoreError, match=r"the files of shard 1/2 have changed since it was begun"):
        encode()
    (few / "0.txt").write_text(text)
    (few / "9.txt").write_text("More.")
    with pytest.raises(StoreError, match=r"some have been added, removed or changed in size since"):
        encode()
    (few / "9.txt").unlink()
    assert encode().tokens_read == 0
    (tmp_path / "out" / "00001-of-00002" / "passages-00000.parquet").unlink()
    with pytest.raises(StoreError, match=r"lacks files of its parts \[0\]; remove it and run the shard again"):
        encode()


def test_unfinished_work_is_checked_too(few, embedder, wanted, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(DocumentEncoder, "encode", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        encode_shard([few], tmp_path / "out", Shard(1, 2), embedder, settings=wanted)
    (few / "0.txt").write_text((few / "0.txt").read_text().upper())
    with pytest.raises(StoreError, match=r"the files of shard 1/2 have changed"):
        encode_shard([few], tmp_path / "out", Shard(1, 2), embedder, settings=wanted)


def test_a_file_that_changes_while_a_shard_is_made_is_told(few, embedder, wanted, tmp_path, monkeypatch):
    real = DocumentEncoder.encode

    def encode(self, rows, **options):
        (few / "1.txt").write_text("The dog 1 sat on the mat.")
        return real(self, rows, **options)

    monkeypatch.setattr(DocumentEncoder, "encode", encode)
    with pytest.raises(StoreError, match=r"1\.txt changed while shard 1/2 was made of it; remove .*00001-of-00002 and"):
        encode_shard([few], tmp_path / "out", Shard(1, 2), embedder, settings=wanted)
    assert read_manifest(tmp_path / "out" / "00001-of-00002") is None


def test_parts_that_another_version_has_cut_are_refused(files, embedder, wanted, tmp_path, monkeypatch):
    real, count = DocumentEncoder.encode, 0

    def encode(self, rows, **options):
        nonlocal count
        count += 1
        if count > 1:
            raise KeyboardInterrupt
        return real(self, rows, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(encoding, "_BATCH_DOCUMENTS", 5)
        patch.setattr(DocumentEncoder, "encode", encode)
        encode_shard([files], tmp_path, Shard(1, 2), embedder, settings=wanted)
    with pytest.raises(StoreError, match="parts that were cut otherwise"):
        encode_shard([files], tmp_path, Shard(1, 2), embedder, settings=wanted)


# ---- into an index ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=["lance", "local"])
def index(request, embedder, tmp_path):
    options = {"fields": FIELDS, "passage_tokens": PASSAGE_TOKENS, "store": request.param}
    with Index.create(tmp_path / "index", embedder, **options) as empty:
        yield empty


def test_shards_make_the_index_that_the_files_make(made, files, embedder, index, tmp_path):
    changes = index.add_shards(made)
    assert len(changes.added) == 88 == len(index) and not changes.updated and len(changes.failed) == 2
    options = {"fields": FIELDS, "passage_tokens": PASSAGE_TOKENS, "store": "local"}
    with Index.create(tmp_path / "direct", embedder, **options) as direct:
        told = direct.add_files([files])
        assert told.added == changes.added and told.tokens == changes.tokens and told.failed == changes.failed
        (documents, passages), (expected, of_them) = everything(index), everything(direct)
        assert list(documents) == list(expected)
        cut = str(files / "rows.jsonl")
        for name, row in documents.items():
            other = expected[name]
            assert replace(row, source_hash="") == replace(other, source_hash="")
            assert row.source == cut or row.source_hash == other.source_hash
        assert passages.keys() == of_them.keys()
        for key, row in passages.items():
            other = of_them[key]
            for name in ("start", "end", "text", "page", "heading"):
                assert getattr(row, name) == getattr(other, name)
            np.testing.assert_allclose(row.vector, other.vector, atol=1e-6)
        if index.store.__class__ is direct.store.__class__:
            for query in ("the dog", "text 7", "a river"):
                assert [(hit.id, hit.text) for hit in index.search(query)] == [(hit.id, hit.text) for hit in direct.search(query)]
    assert {hit.id.partition("#")[0] for hit in index.search("row of the dog", top_k=5, where={"kind": "jsonl"})} == {cut}
    again = index.add_shards(made)
    assert (len(again.unchanged), again.added, again.updated, again.tokens) == (88, [], [], 0)
    refreshed = index.add_files([files])
    assert (len(refreshed.unchanged), refreshed.added, refreshed.updated, refreshed.deleted) == (88, [], [], [])


def test_states_and_memories_come_along(embedder, tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "long.txt").write_text("The cat sat on the mat. " * 2500)
    (tmp_path / "files" / "short.txt").write_text("A river runs to the sea.")
    kept = new_settings(embedder, {}, 256, remember=True)
    encode_shard([tmp_path / "files"], tmp_path / "shards", Shard(1, 1), embedder, settings=kept)
    with (
        Index.create(tmp_path / "one", embedder, remember=True) as taken,
        Index.create(tmp_path / "two", embedder, remember=True) as direct,
    ):
        taken.add_shards(tmp_path / "shards")
        direct.add_files([tmp_path / "files"])
        ids = list(direct.store.content_hashes())
        assert taken.store.documents(ids, saved=True) == direct.store.documents(ids, saved=True)
        assert [row.saved is not None for row in direct.store.documents(ids, saved=True).values()] == [True, False]
        assert taken.store.memories(ids) == direct.store.memories(ids) and len(taken.store.memories(ids)) == 2
        (tmp_path / "files" / "long.txt").write_text("The cat sat on the mat. " * 2510)
        again = taken.add_files([tmp_path / "files"])
        assert len(again.updated) == 1 and again.tokens_read < again.tokens / 10


def test_taking_in_goes_on_after_an_end(made, index, monkeypatch):
    monkeypatch.setattr("runnel.search.shard_set._COMMIT_DOCUMENTS", 15)

    def end(commit):
        if commit.number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.add_shards(made, on_commit=end)
    there = len(index)
    assert 0 < there < 88
    monkeypatch.setattr("runnel.search.shard_set._COMMIT_BYTES", 1)  # a commit for each part
    last = index.commits()[-1].number
    changes = index.add_shards(made)
    assert (len(changes.unchanged), len(changes.added), len(index)) == (there, 88 - there, 88)
    assert index.commits()[-1].number - last >= (88 - there) // BATCH


def test_changed_documents_replace_those_that_are_there(few, embedder, wanted, index, tmp_path):
    encode_shard([few], tmp_path / "one", Shard(1, 1), embedder, settings=wanted)
    index.add_shards(tmp_path / "one")
    (few / "3.txt").write_text("Another river.")
    encode_shard([few], tmp_path / "two", Shard(1, 1), embedder, settings=wanted)
    changes = index.add_shards(tmp_path / "two")
    assert changes.updated == [str(few / "3.txt")] and len(changes.unchanged) == 5 and changes.added == []
    assert index.store.documents(changes.updated)[changes.updated[0]].text == "Another river.\n"[:-1]


def test_sets_that_are_not_whole_are_refused(made, files, embedder, wanted, index, tmp_path):
    folder = tmp_path / "set"
    with pytest.raises(StoreError, match=r"there are no shards in .*set"):
        index.add_shards(folder)
    shutil.copytree(made, folder)
    (folder / "00002-of-00003" / "manifest.json").unlink()
    with pytest.raises(StoreError, match=r"shard 2 of 3 is not finished in .*set; run it \(again\), or import the others"):
        index.add_shards(folder)
    shutil.rmtree(folder / "00003-of-00003")
    with pytest.raises(StoreError, match="shards 2 and 3 of 3 are not finished"):
        index.add_shards(folder)
    assert len(index) == 0
    changes = index.add_shards(folder, incomplete=True)
    assert len(changes.added) == read_manifest(folder / "00001-of-00003").documents == len(index)
    (folder / "00001-of-00004").mkdir()
    with pytest.raises(StoreError, match="has shards of 3 and of 4; keep each set in a folder of its own"):
        index.add_shards(folder)


def test_shards_that_do_not_belong_together_are_refused(few, embedder, wanted, index, tmp_path):
    def encode(number, place, **changed):
        return encode_shard([few], tmp_path / place, Shard(number, 2), embedder, settings=replace(wanted, **changed))

    encode(1, "settings")
    encode(2, "settings", passage_tokens=64)
    with pytest.raises(StoreError, match=r"shard 2 in .* was made with passage_tokens 64, not 32, as shard 1 was"):
        index.add_shards(tmp_path / "settings")
    encode(1, "files")
    (few / "rows.jsonl").write_text('{"id": "one", "text": "the cat"}\n')
    encode(2, "files")
    with pytest.raises(StoreError, match=r"shards 1 and 2 in .* were made of different files"):
        index.add_shards(tmp_path / "files")
    (few / "rows.jsonl").write_text('{"id": "same", "text": "the cat"}\n' * 40)
    failed = encode(2, "twice").failed
    first = 40 - len(failed)  # of the rows that this shard owns
    assert failed and all(f"the id 'same' is already used in line {first}" in why for why in failed.values())
    (few / "rows.jsonl").write_text('{"id": "same", "text": "the cat sat and sat and sat and sat and sat on the mat"}\n' * 2)
    for other in few.glob("*.txt"):
        other.unlink()
    encode(1, "same")
    encode(2, "same")
    with pytest.raises(StoreError, match=r"rows.jsonl#same' is in two shards, 00001-of-00002 and 00002-of-00002"):
        index.add_shards(tmp_path / "same")
    assert len(index) == 0


def test_an_index_of_another_model_or_damaged_shards_are_refused(made, index, tmp_path):
    other = Embedder(tiny_model(tmp_path / "other", seed=1))
    options = {"fields": FIELDS, "passage_tokens": PASSAGE_TOKENS, "store": "local"}
    with (
        Index.create(tmp_path / "another", other, **options) as another,
        pytest.raises(StoreError, match=r"the set of shards in .* was made with the model .* gives other vectors, as the index"),
    ):
        another.add_shards(made)
    shutil.copytree(made, tmp_path / "damaged")
    part = tmp_path / "damaged" / "00001-of-00003" / "passages-00000.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(StoreError, match=r"passages-00000\.parquet cannot be read .*; remove .*00001-of-00003 and run"):
        index.add_shards(tmp_path / "damaged")
