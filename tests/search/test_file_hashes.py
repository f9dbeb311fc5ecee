"""Hashes of files that are computed again only when size or times have changed."""

import hashlib
import os
import time

import pytest

from runnel.search import files as file_hashes
from runnel.search.files import FileHashes

OLD_NS = time.time_ns() - 60 * 1_000_000_000


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file that counts as old although it was just written: the tests need not wait."""
    monkeypatch.setattr(file_hashes, "_TICK_NS", -1_000_000_000)
    (tmp_path / "a.txt").write_text("one")
    return tmp_path / "a.txt"


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_an_unchanged_file_is_not_read_again(file, tmp_path, monkeypatch):
    first = FileHashes(tmp_path / "hashes.json")
    assert first.sha256(file) == digest("one") and first.current == {str(file): digest("one")}
    first.save()
    again = FileHashes(tmp_path / "hashes.json")
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("the file was read"))
        assert again.sha256(file) == digest("one")
    file.write_text("two")
    assert again.sha256(file) == digest("two")


def test_a_change_that_keeps_size_and_time_is_seen(file):
    hashes = FileHashes()
    times = (OLD_NS, OLD_NS)
    os.utime(file, ns=times)
    assert hashes.sha256(file) == digest("one")
    file.write_text("two")
    os.utime(file, ns=times)  # as tools do that copy times
    assert hashes.sha256(file) == digest("two")


def test_a_file_that_has_just_changed_is_read_again(tmp_path, monkeypatch):
    """On a file system with a coarse clock, two changes in a row leave the same time."""
    (tmp_path / "a.txt").write_text("one")
    real = os.stat(tmp_path / "a.txt")
    monkeypatch.setattr(type(tmp_path), "stat", lambda path: real)
    hashes = FileHashes()
    assert hashes.sha256(tmp_path / "a.txt") == digest("one")
    (tmp_path / "a.txt").write_text("two")
    assert hashes.sha256(tmp_path / "a.txt") == digest("two")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 2}', '{"format": 1, "files": 3}', '{"format": 1, "files": {}}'])
def test_a_damaged_file_of_hashes_counts_as_missing(file, tmp_path, content):
    (tmp_path / "hashes.json").write_text(content)
    assert FileHashes(tmp_path / "hashes.json").sha256(file) == digest("one")


def test_removed_files_are_forgotten(file, tmp_path):
    hashes = FileHashes(tmp_path / "hashes.json")
    hashes.sha256(file)
    hashes.failures = {str(file): digest("one"), "/gone": "x"}
    hashes.save()
    kept = FileHashes(tmp_path / "hashes.json")
    assert kept.failures == {str(file): digest("one")}
    kept.save()  # nothing was asked for
    assert FileHashes(tmp_path / "hashes.json").failures == {}
