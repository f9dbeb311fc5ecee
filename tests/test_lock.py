"""The writer's lock: one holder, named to the others, and free again when its process is dead."""

import os
import re
import subprocess
import sys

import pytest

import runnel.files as lock_module
from runnel.errors import StoreBusy, StoreError
from runnel.files import WriterLock

HOLDER = """
import sys
from pathlib import Path
from runnel.files import WriterLock

lock = WriterLock(Path(sys.argv[1]), Path("out"))
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.lock"


def test_a_lock_has_one_holder_at_a_time(path, tmp_path):
    first, second = (WriterLock(path, tmp_path / "out") for _ in range(2))
    first.acquire()
    first.acquire()
    with pytest.raises(StoreBusy, match=rf"out is being written by process {os.getpid()}; wait until it is done"):
        second.acquire()
    first.release()
    second.acquire()
    second.release(remove=True)
    second.release()
    assert not path.exists()


def test_the_lock_of_a_dead_process_is_free(path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        lock = WriterLock(path, path)
        with pytest.raises(StoreBusy, match=f"written by process {holder.pid};"):
            lock.acquire()
    finally:
        holder.kill()
        holder.communicate()
    lock.acquire()
    lock.release()


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_at_the_new_file(path, monkeypatch):
    """Another process holds the file that this one has opened, and removes it as it lets go."""
    first, second = (WriterLock(path, path) for _ in range(2))
    first.acquire()
    real = lock_module._try_lock

    def try_lock(file):
        first.release(remove=True)
        return real(file)

    monkeypatch.setattr(lock_module, "_try_lock", try_lock)
    second.acquire()
    assert path.exists() and path.read_text() == f"process {os.getpid()}\n"
    with pytest.raises(StoreBusy):
        WriterLock(path, path).acquire()
    second.release()


@pytest.mark.skipif(os.name == "nt", reason="needs links and named pipes")
@pytest.mark.parametrize("kind", ["content", "link", "dangling link", "second name", "empty second name", "pipe", "folder"])
def test_what_is_not_a_lock_is_left_as_it_is(path, tmp_path, kind):
    """A cloned repository may have brought it: git keeps links, and archives keep hard links too."""
    mine = path if kind == "content" else tmp_path / "mine"
    mine.write_text("" if "empty" in kind else "process of my own\n")
    if "second name" in kind:
        path.hardlink_to(mine)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif "link" in kind:
        path.symlink_to("missing" if "dangling" in kind else "mine")
    before = sorted(tmp_path.iterdir()), mine.read_text()
    with pytest.raises((StoreError, IsADirectoryError), match=re.escape(str(path))) as caught:
        WriterLock(path, path).acquire()
    assert not isinstance(caught.value, StoreBusy)
    assert (sorted(tmp_path.iterdir()), mine.read_text()) == before


@pytest.mark.parametrize("content", ["", "process 7", "process 1234567\n"])
def test_a_lock_file_that_was_left_behind_is_used_again(path, content):
    path.write_text(content)
    lock = WriterLock(path, path)
    lock.acquire()
    assert path.read_text() == f"process {os.getpid()}\n"
    lock.release()
