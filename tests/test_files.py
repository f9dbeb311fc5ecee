"""Encodings of files; files written whole or not at all; and the writer's lock: one holder, named
to the others.
"""

import errno
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.texts import repeat
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from runnel import files
from runnel.errors import InputError, ReadError, StoreBusy, StoreError, UnsupportedKind
from runnel.files import (
    WriterLock,
    check_encoding,
    decode,
    near_names,
    open_bytes,
    open_own,
    replacing,
    sweep,
    write,
)
from runnel.text.folders import Root


@pytest.mark.parametrize(
    ("given_name", "near"),
    [
        ("contrct.txt", "contract.txt"),
        ("Contract.TXT", "contract.txt"),
        ("nots/a.md", "notes"),  # the first part that is missing
        ("notes/aa.md", str(Path("notes", "a.md"))),
        ("unlike", None),
        ("", None),
        (repeat("x", 5000) + "/a", None),
    ],
)
def test_a_path_that_does_not_exist_is_told_near_names(tmp_path, monkeypatch, given_name, near):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    for name in ("contract.txt", "notes/a.md", "near\nname.txt"):
        (tmp_path / name).touch()
    assert near_names(Path(given_name)) == ("" if near is None else f"; near names: {near}")
    if near is not None:
        with pytest.raises(ReadError, match=f"near names: {re.escape(near)}$"):
            open_bytes(given_name)
        with pytest.raises(InputError, match=f"near names: {re.escape(near)}$"):
            Root.parse(given_name)
    assert near_names(Path("near name.txt")) == ""  # a name with a line break is not shown


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff")))
def test_utf8_is_never_taken_for_anything_else_and_other_encodings_have_marks(text):
    decoded = decode(text.encode(), "a.txt")
    assert (decoded.text, decoded.encoding, decoded.warning) == (text, "utf-8", None)
    text += "one\r\ntwo\rthree\n\nfour 😀 \x0c end"
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        decoded = decode(text.encode(encoding), "a.txt")
        assert (decoded.text, decoded.encoding, decoded.warning) == (text, encoding, None)


def test_a_named_encoding_and_guesses():
    assert decode("café".encode("cp1252"), "a", "cp1252").text == "café"
    for encoding in ("utf-16-le", "utf-16-be"):
        data = "Plain words, no mark.".encode(encoding)
        decoded = decode(data, "a")
        assert (
            decoded.text == decode(data, "a", encoding).text == "Plain words, no mark."
            and encoding in decoded.warning
        )
    decoded = decode(b"good line\nA na\xefve caf\xe9 \x96 it costs 3 \x80.", "a")
    assert decoded.text == "good line\nA naïve café – it costs 3 €."
    assert decoded.encoding == "cp1252" and "byte 0xef at offset 14, line 2" in decoded.warning


GUESS = r"a is not valid utf-8 \(byte 0x.*does not look like cp1252; give its encoding"


@pytest.mark.parametrize(
    ("data", "encoding", "error", "named"),
    [
        ("Сегодня в столице хорошая погода".encode("cp1251"), None, ReadError, GUESS),
        ("ずっと日本語の文です".encode("shift_jis"), None, ReadError, GUESS),
        (b"one \x81 byte, and", None, ReadError, GUESS),
        (b"caf\nspaa\xe9", "ascii", ReadError, r"a .*ascii.* 0xe9 at offset 8, line 2"),
        (b"\xff\xfea\0b", None, ReadError, "utf-16"),
        (b"abc\0def", None, UnsupportedKind, "a is binary"),
        (b"\x89PN\x01\x02\x03\x04\x05\x06", None, UnsupportedKind, "a is binary"),
    ],
)
def test_what_is_no_text_of_an_encoding_is_refused(data, encoding, error, named):
    with pytest.raises(error, match=named):
        decode(data, "a", encoding)


def test_markup_declares_its_encoding_and_a_false_or_odd_declaration_does_no_harm():
    for markup, encoding, words in (
        ('<meta charset="{}">', "shift_jis", "日本語"),
        ('<meta charset="{}">', "iso-2022-jp", "日本語"),  # in bytes of ASCII
        (
            "<meta http-equiv='Content-Type' content='text/html; charset={}'>",
            "koi8-r",
            "Привет всем",
        ),
        ('<?xml version="1.0" encoding="{}"?>', "cp1251", "Привет всем"),
    ):
        data = (markup.format(encoding) + words).encode(encoding)
        assert decode(data, "a", markup=True).text.endswith(words)
    assert decode("<meta charset=cp1252>Привет".encode(), "a", markup=True).text.endswith("Привет")
    # as browsers take it
    assert decode(b"<meta charset=latin1>\x80 5", "a", markup=True).text.endswith("€ 5")
    for name in ("rot13", "utf-16", "no-such", "zlib"):
        assert decode(f"<meta charset={name}>plain".encode(), "a", markup=True).text.endswith(
            "plain"
        )
    log = b"\x1b[31mred\x1b[0m and a bell \x07 in many ordinary words of text\n"  # of a terminal
    assert decode(log, "log.txt").text.startswith("\x1b[31m")


def test_files_that_cannot_be_opened_and_encodings_that_are_none(tmp_path, monkeypatch):
    for path in (tmp_path / "nothing.txt", tmp_path, "a\0b", "https://a.org/b"):
        with pytest.raises(ReadError, match=re.escape(str(path))):
            open_bytes(path)

    def refuse(*_):
        raise PermissionError("denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(ReadError, match=r"permission .*a\.txt"):
        open_bytes("a.txt")
    for encoding in ("hex", "utf-99", "utf\0", ""):
        with pytest.raises(InputError, match="unknown encoding"):
            check_encoding(encoding)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("data", "expected"), [(b"", b""), (b"0123456", b"0123456"), ("é\n", b"\xc3\xa9\n")]
)
def test_a_file_is_replaced(tmp_path, data, expected):
    for _ in range(2):
        write(tmp_path / "out", data)
        assert (tmp_path / "out").read_bytes() == expected
        (tmp_path / "out").write_bytes(b"old and longer")
    assert names(tmp_path) == ["out"]


def test_the_old_file_stays_until_the_block_ends_and_if_it_fails(tmp_path):
    write(tmp_path / "out", b"old")
    with pytest.raises(KeyError), replacing(tmp_path / "out") as partial:
        partial.write_bytes(b"new")
        assert (tmp_path / "out").read_bytes() == b"old" and partial.parent == tmp_path
        raise KeyError
    assert (tmp_path / "out").read_bytes() == b"old" and names(tmp_path) == ["out"]
    with pytest.raises(FileNotFoundError, match="input"), replacing(tmp_path / "out"):
        (tmp_path / "input").read_bytes()  # the error keeps its name


def test_partial_files_of_killed_writers_are_swept(tmp_path):
    with replacing(tmp_path / "out") as partial:
        left = partial.name
    (tmp_path / left).touch()
    sweep(tmp_path, "other")
    assert len(names(tmp_path)) == 2
    sweep(tmp_path, "out")
    assert names(tmp_path) == ["out"]
    for name in (
        "a.0123abcd.partial",
        "b[1].0123abcd.partial",
        "b1.0123abcd.partial",
        "mine.partial",
    ):
        (tmp_path / name).touch()
    sweep(tmp_path, "b[1]")
    assert names(tmp_path) == ["a.0123abcd.partial", "b1.0123abcd.partial", "mine.partial", "out"]
    sweep(tmp_path)
    assert names(tmp_path) == ["mine.partial", "out"]


def test_a_file_reaches_the_disk_before_it_has_its_name_and_the_name_after(tmp_path, monkeypatch):
    done = []
    fsync = os.fsync
    replace = Path.replace

    def syncing(handle):
        done.append("folder" if os.path.samestat(os.fstat(handle), tmp_path.stat()) else "file")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(Path, "replace", lambda *paths: (done.append("rename"), replace(*paths)))
    write(tmp_path / "out", b"new")
    assert done == ["file", "rename", "folder"]


@pytest.mark.skipif(os.name == "nt", reason="needs named pipes and /dev")
def test_what_is_no_file_to_write_is_not_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    errors = {
        "missing/out": FileNotFoundError,
        "folder/..": IsADirectoryError,
        "folder": IsADirectoryError,
        "pipe": OSError,
    }
    # As root, /dev/stdout itself would become a file.
    for name, error in (errors | {"link": OSError, "/dev/runnel-test": OSError}).items():
        with pytest.raises(
            error, match="missing'" if name == "missing/out" else name.rpartition("/")[2]
        ):
            write(tmp_path / name, b"")
    assert (
        (tmp_path / "link").is_symlink()
        and (tmp_path / "pipe").is_fifo()
        and names(tmp_path) == ["folder", "link", "pipe"]
    )


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs a device that is always full, which Linux has"
)
def test_a_full_disk_is_told_with_the_file(tmp_path):
    (tmp_path / "out").write_bytes(b"old")
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*out'") as caught,
        replacing(tmp_path / "out") as partial,
    ):
        partial.unlink()
        partial.symlink_to("/dev/full")
        partial.write_bytes(b"new")
    assert caught.value.errno == errno.ENOSPC
    assert (tmp_path / "out").read_bytes() == b"old" and names(tmp_path) == ["out"]


@pytest.mark.skipif(os.name == "nt", reason="needs limits of resources")
def test_errors_of_the_system_that_safetensors_reports_as_text(tmp_path, full_disk):
    full_disk(1000)
    with (
        pytest.raises(OSError, match=r"File too large: '.*out'"),
        replacing(tmp_path / "out") as partial,
    ):
        save_file({"a": np.zeros(1000)}, partial)
    assert names(tmp_path) == []


def test_a_partial_file_is_not_written_through_a_link(tmp_path, monkeypatch):
    (tmp_path / "mine").write_bytes(b"mine")
    monkeypatch.setattr(files, "token_hex", lambda size: repeat("00", size))
    (tmp_path / "out.00000000.partial").symlink_to("mine")
    with pytest.raises(FileExistsError):
        write(tmp_path / "out", b"new")
    assert (tmp_path / "mine").read_bytes() == b"mine" and not (tmp_path / "out").exists()


@pytest.mark.skipif(os.name == "nt", reason="needs links and named pipes")
@pytest.mark.parametrize(
    "take", [open_own, lambda path: WriterLock(path, path).acquire()], ids=["file", "lock"]
)
@pytest.mark.parametrize(
    "kind", ["link", "dangling link", "second name", "empty second name", "pipe", "folder"]
)
def test_a_file_of_our_own_is_never_a_file_of_somebody_else(tmp_path, kind, take):
    """A cloned repository may have brought it: git keeps links, and archives
    keep hard links too.
    """
    mine = tmp_path / "mine"
    own = tmp_path / "own"
    mine.write_text("" if "empty" in kind else "process of my own\n")
    if "second name" in kind:
        own.hardlink_to(mine)
    elif kind == "pipe":
        os.mkfifo(own)
    elif kind == "folder":
        own.mkdir()
    else:
        own.symlink_to("mine" if kind == "link" else "new")
    before = mine.read_text()
    with pytest.raises((StoreError, IsADirectoryError), match=re.escape(str(own))):
        take(own)
    assert mine.read_text() == before and names(tmp_path) == ["mine", "own"]


def test_a_file_of_our_own_is_read_and_appended_to(tmp_path):
    for already in (0, 1):
        with open_own(tmp_path / "own") as file:
            file.seek(0)
            assert file.read() == b"123" * already
            file.write(b"123")
    assert (tmp_path / "own").read_bytes() == b"123123"
    assert os.name == "nt" or (tmp_path / "own").stat().st_mode & 0o777 == 0o600


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.lock"


@pytest.mark.parametrize("left", [None, "", "process 7", "process 1234567\n"])
def test_a_lock_has_one_holder_at_a_time(path, tmp_path, left):
    if left is not None:
        path.write_text(left)
    first, second = (WriterLock(path, tmp_path / "out") for _ in range(2))
    first.acquire()
    first.acquire()
    assert path.read_text() == f"process {os.getpid()}\n"
    with pytest.raises(StoreBusy, match=rf"out .* process {os.getpid()}"):
        second.acquire()
    first.release()
    second.acquire()
    second.release(remove=True)
    second.release()
    assert not path.exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has neither flock nor limits")
def test_a_lock_that_cannot_be_taken_or_written_is_named(path, full_disk, monkeypatch):
    """And nobody is said to hold it."""

    def refuse(*arguments):
        raise OSError(errno.EOPNOTSUPP, "not supported")

    lock = WriterLock(path, path.parent)
    with monkeypatch.context() as without:
        without.setattr("fcntl.flock", refuse)
        for wait in (False, True):
            with pytest.raises(OSError, match=re.escape(str(path))):
                lock.acquire(wait=wait)
    full_disk(0)
    with pytest.raises(OSError, match=re.escape(str(path))):
        lock.acquire()


def test_a_lock_can_be_waited_for(path):
    first, second = (WriterLock(path, path) for _ in range(2))
    with first.held():
        release = threading.Timer(0.1, first.release)
        release.start()
        with second.held(wait=True):
            release.join()
            with pytest.raises(StoreBusy, match=f"process {os.getpid()}"):
                first.acquire()
    first.acquire()
    first.release()


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_at_the_new_file(path, monkeypatch):
    """Another process holds the file that this one has opened, and removes it as it lets go."""
    first, second = (WriterLock(path, path) for _ in range(2))
    first.acquire()
    real = files._try_lock

    def try_lock(file, wait):
        first.release(remove=True)
        return real(file, wait)

    monkeypatch.setattr(files, "_try_lock", try_lock)
    second.acquire()
    assert path.exists() and path.read_text() == f"process {os.getpid()}\n"
    with pytest.raises(StoreBusy):
        WriterLock(path, path).acquire()
    second.release()


def test_a_file_with_other_content_is_no_lock(path):
    path.write_text("process of my own\n")
    with pytest.raises(StoreError, match=re.escape(str(path))) as caught:
        WriterLock(path, path).acquire()
    assert not isinstance(caught.value, StoreBusy) and path.read_text() == "process of my own\n"
