import errno
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from runnel import files
from runnel.errors import StoreError
from runnel.files import open_own, replacing, sweep, write

needs_full_device = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs a device that is always full, which Linux has"
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("data", "expected"), [(b"", b""), (b"0123456", b"0123456"), ("é\n", b"\xc3\xa9\n")])
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


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs signals")
def test_a_writer_that_is_killed_leaves_the_old_file(tmp_path):
    write(tmp_path / "out", b"old")
    program = (
        "import os, pathlib, sys; from runnel.files import replacing\n"
        "with replacing(pathlib.Path(sys.argv[1])) as partial:\n"
        "    partial.write_bytes(b'half of the n'); os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "out")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "out").read_bytes() == b"old" and len(names(tmp_path)) == 2
    sweep(tmp_path, "other")
    assert len(names(tmp_path)) == 2
    sweep(tmp_path, "out")
    assert names(tmp_path) == ["out"]


def test_sweep_leaves_files_that_are_not_ours(tmp_path):
    for name in ("a.0123abcd.partial", "b[1].0123abcd.partial", "b1.0123abcd.partial", "mine.partial", "a"):
        (tmp_path / name).touch()
    sweep(tmp_path, "b[1]")
    assert names(tmp_path) == ["a", "a.0123abcd.partial", "b1.0123abcd.partial", "mine.partial"]
    sweep(tmp_path)
    assert names(tmp_path) == ["a", "mine.partial"]


def test_a_file_reaches_the_disk_before_it_has_its_name_and_the_name_after(tmp_path, monkeypatch):
    done, fsync, replace = [], os.fsync, Path.replace

    def syncing(handle):
        done.append("folder" if os.path.samestat(os.fstat(handle), tmp_path.stat()) else "file")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(Path, "replace", lambda *paths: (done.append("rename"), replace(*paths)))
    write(tmp_path / "out", b"new")
    assert done == ["file", "rename", "folder"]


def test_many_writers_of_one_file(tmp_path):
    texts = [bytes([65 + n]) * 50_000 for n in range(8)]
    threads = [threading.Thread(target=write, args=(tmp_path / "out", text)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "out").read_bytes() in texts and names(tmp_path) == ["out"]


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such directory; create it first: '.*missing'"):
        write(tmp_path / "missing" / "out", b"x")


@pytest.mark.parametrize("name", ["..", "folder"])
def test_a_directory_is_no_file_to_write(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="is a directory; name a file"):
        write(Path(name), b"")
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["pipe", "link"])
def test_devices_and_pipes_are_not_replaced(tmp_path, name):
    """As root, /dev/stdout itself would become a file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with pytest.raises(OSError, match="is not a regular file; name another one"):
        write(tmp_path / name, b"")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "pipe").is_fifo() and names(tmp_path) == ["link", "pipe"]


@pytest.mark.skipif(not Path("/dev").is_dir(), reason="this system has no /dev")
def test_nothing_in_dev_is_replaced():
    with pytest.raises(OSError, match="not a regular file"):
        write(Path("/dev/runnel-test"), b"")


@needs_full_device
def test_a_full_disk_is_told_with_the_file(tmp_path):
    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(OSError, match=r"No space left on device: '.*out'") as caught, replacing(tmp_path / "out") as partial:
        partial.unlink()
        partial.symlink_to("/dev/full")
        partial.write_bytes(b"new")
    assert caught.value.errno == errno.ENOSPC
    assert (tmp_path / "out").read_bytes() == b"old" and names(tmp_path) == ["out"]


@pytest.mark.skipif(os.name == "nt", reason="needs limits of resources")
def test_errors_of_the_system_that_safetensors_reports_as_text(tmp_path):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*out'"), replacing(tmp_path / "out") as partial:
            save_file({"a": np.zeros(1000)}, partial)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == []


def test_errors_about_other_files_keep_their_names(tmp_path):
    with pytest.raises(FileNotFoundError, match="input"), replacing(tmp_path / "out"):
        (tmp_path / "input").read_bytes()
    with pytest.raises(ValueError, match="a bug"), replacing(tmp_path / "out"):
        raise ValueError("a bug")


# ---- files that others may have put there ----------------------------------------------------------------------------


def test_a_partial_file_is_not_written_through_a_link(tmp_path, monkeypatch):
    (tmp_path / "mine").write_bytes(b"mine")
    monkeypatch.setattr(files, "token_hex", lambda size: "00" * size)
    (tmp_path / "out.00000000.partial").symlink_to("mine")
    with pytest.raises(FileExistsError):
        write(tmp_path / "out", b"new")
    assert (tmp_path / "mine").read_bytes() == b"mine" and not (tmp_path / "out").exists()


@pytest.mark.skipif(os.name == "nt", reason="needs links and named pipes")
@pytest.mark.parametrize("kind", ["link", "dangling link", "second name", "pipe"])
def test_a_file_of_our_own_is_never_a_file_of_somebody_else(tmp_path, kind):
    mine, own = tmp_path / "mine", tmp_path / "own"
    mine.write_bytes(b"mine")
    if kind == "second name":
        own.hardlink_to(mine)
    elif kind == "pipe":
        os.mkfifo(own)
    else:
        own.symlink_to("mine" if kind == "link" else "new")
    with pytest.raises(StoreError, match=re.escape(str(own))):
        open_own(own)
    assert mine.read_bytes() == b"mine" and names(tmp_path) == ["mine", "own"]


@pytest.mark.parametrize("data", [b"", b"123"])
def test_a_file_of_our_own_is_read_and_appended_to(tmp_path, data):
    for already in (0, 1):
        with open_own(tmp_path / "own", mode=0o600) as file:
            file.seek(0)
            assert file.read() == data * already
            file.write(data)
    assert (tmp_path / "own").read_bytes() == 2 * data
    assert os.name == "nt" or (tmp_path / "own").stat().st_mode & 0o777 == 0o600
