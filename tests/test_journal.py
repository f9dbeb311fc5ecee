"""The journal of work: rows are stored all or none, one process writes, and nothing of others is touched.

tests/commands/test_resume.py kills commands in the middle of it, and repeats them with other settings.
"""

import json
import os
import sqlite3

import pytest

from runnel.errors import InputError, StoreBusy, StoreError
from runnel.journal import Journal, Row


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.jsonl"


def begun(out, *rows, **settings):
    with Journal(out, settings) as journal:
        journal.begin()
        journal.add(*rows)


def finished(out, **settings):
    with Journal(out, settings) as journal:
        journal.begin()
        out.write_text("made")
        journal.finish({"count": 3})


def names(out):
    return sorted(path.name for path in out.parent.iterdir())


@pytest.mark.parametrize("count", [0, 1, 3])
def test_rows_come_back_in_order_with_their_bytes(out, count):
    rows = [Row(f"key {n}" if n % 2 else n, {"text": f"\ud83d {n}", "score": n / 3}, bytes([n, 255])) for n in range(count)]
    begun(out, *rows)
    with Journal(out, {}) as journal:
        assert list(journal.rows(data=True)) == rows and len(journal) == count
        assert [row.data for row in journal.rows()] == [b""] * count
        assert [journal.get(row.key) for row in rows] == [row.value for row in rows] and journal.get("other") is None
    assert names(out) == (["out.jsonl.sqlite"] if count else [])


def test_rows_are_stored_all_or_none_and_once(out):
    begun(out, Row("a", 1))
    with Journal(out, {}) as journal, pytest.raises(StoreError):
        journal.add(Row("b", 2), Row("a", 3))
    with Journal(out, {}) as journal:
        assert [tuple(row)[:2] for row in journal.rows()] == [("a", 1)]


def test_finished_work(out, tmp_path):
    finished(out, model="m")
    assert json.loads((tmp_path / "out.jsonl.json").read_text()) == {"model": "m", "count": 3}
    assert names(out) == ["out.jsonl", "out.jsonl.json"]
    with Journal(out, {"model": "m"}) as journal:
        assert journal.facts == journal.begin() == {"model": "m", "count": 3}
        with pytest.raises(InputError, match="fingerprint"):
            journal.begin(fingerprint="f")
    out.unlink()
    with Journal(out, {"model": "other"}) as journal:  # nothing is lost by it
        assert journal.begin() is None and names(out)[0] == "out.jsonl.sqlite"


def test_one_process_works_at_a_time_and_others_cannot_read_its_rows(out, tmp_path):
    begun(out, model="m")
    assert names(out) == []  # work without rows is replaced
    begun(out, Row(0, "a text"), model="n")
    assert os.name == "nt" or (tmp_path / "out.jsonl.sqlite").stat().st_mode & 0o777 == 0o600
    with Journal(out, {}), pytest.raises(StoreBusy, match=f"process {os.getpid()}"), Journal(out, {}):
        pass
    for name, error in (("", IsADirectoryError), ("missing/out", FileNotFoundError)):
        with pytest.raises(error), Journal(tmp_path / name, {}):
            pass


@pytest.mark.parametrize("content", [b"mine", b'{"mine": 1}', b"[]"])
@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.json", "out.ids"])
def test_files_from_elsewhere_are_left_alone(out, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name), Journal(out, {"model": "m"}, also=[tmp_path / "out.ids"]):
        pass
    assert names(out) == [name] and (tmp_path / name).read_bytes() == content


@pytest.mark.parametrize("ending", [".sqlite", ".sqlite-wal", ".sqlite-journal", ".sqlite.lock"])
def test_nothing_is_written_through_a_link(out, tmp_path, ending):
    (tmp_path / "mine").write_bytes(before := b"mine " * 1000)
    (tmp_path / f"out.jsonl{ending}").symlink_to("mine")
    with pytest.raises(StoreError, match=f"out.jsonl{ending}"), Journal(out, {}):
        pass
    assert (tmp_path / "mine").read_bytes() == before


def test_a_file_of_another_program_or_damage_is_an_error(out, tmp_path):
    path = tmp_path / "out.jsonl.sqlite"
    path.write_text("no journal " * 999)
    with pytest.raises(StoreError, match=r"out\.jsonl\.sqlite"), Journal(out, {}):
        pass
    path.unlink()
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE rows (name)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"), Journal(out, {}):
        pass
    assert path.read_bytes() == before
    path.unlink()
    begun(out, *(Row(n, "text " * 99) for n in range(99)))
    path.write_bytes(path.read_bytes()[:8192] + b"\xff" * 4096 + path.read_bytes()[12288:])
    with pytest.raises(StoreError, match=r"out\.jsonl\.sqlite"), Journal(out, {}):
        pass


@pytest.mark.parametrize("leftover", ["out.jsonl.0123abcd.partial", "out.jsonl.sqlite-wal", "out.jsonl.sqlite"])
def test_leftovers_of_a_killed_process_go(out, tmp_path, leftover):
    finished(out)
    (tmp_path / leftover).write_bytes(b"")
    with Journal(out, {}):
        pass
    assert names(out) == ["out.jsonl", "out.jsonl.json"]


def test_a_full_disk_is_named(out):
    with Journal(out, {}) as journal:
        journal.begin()
        journal._database.execute("PRAGMA max_page_count = 10")
        with pytest.raises(OSError, match=r"No space left on device.*out\.jsonl\.sqlite"):
            journal.add(*(Row(n, 0, bytes(5000)) for n in range(20)))
