"""Work that resumes: an SQLite file with its settings and a row for each finished step, written by one process at a time."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from runnel.errors import InputError, StoreError
from runnel.files import WriterLock, expect_replaceable, open_own, sibling, sweep, write_json

_APPLICATION = 0x72756E6C  # in the header of the file
_FILES = ("", "-wal", "-journal")  # that SQLite writes, by their endings
_TABLES = f"""BEGIN;
PRAGMA application_id = {_APPLICATION};
CREATE TABLE settings (settings TEXT NOT NULL);
CREATE TABLE rows (key PRIMARY KEY, value TEXT NOT NULL, data BLOB NOT NULL);
COMMIT"""


class Row(NamedTuple):
    """A finished step: its key, what JSON can hold of it, and bytes."""

    key: str | int
    value: Any
    data: bytes = b""


class Journal:
    """The work on a file OUT: enter it, `begin`, `add` a row for each step, write OUT, and `finish`.

    OUT.sqlite has the settings and the rows until `finish` replaces it with OUT.json, the settings and facts of the result.
    Once `add` has returned, its rows survive the end of the process. Work that ends without rows leaves no files.

    Args:
        out: the file to make.
        settings: what the result depends on, as far as it is known; `begin` takes the rest.
        also: files that are made together with OUT.

    Raises:
        InputError: the work was begun or finished with other settings, or a file to make is not from this work.
        OSError: OUT cannot be a file.
        StoreBusy: another process is at work.
        StoreError: OUT.sqlite is damaged, a link or not a journal.
    """

    def __init__(self, out: Path, settings: Mapping[str, object], *, also: Sequence[Path] = ()) -> None:
        self.out = out
        self.facts: dict[str, Any] | None = None  # of finished work
        self._settings = dict(settings)
        self._path, self._about = sibling(out, ".sqlite"), sibling(out, ".json")
        self._made = [out, *also, self._about]
        self._lock = WriterLock(sibling(out, ".sqlite.lock"), out)
        self._database: sqlite3.Connection | None = None
        self._count: int | None = None  # None: nothing is known of the file

    def __enter__(self) -> Journal:
        expect_replaceable(self.out)
        self._lock.acquire()
        with ExitStack() as failed:
            failed.callback(self.__exit__)
            for path in self._made:
                sweep(path.parent, path.name)
            if self.out.exists() and self._about.exists():
                self.facts = self._read_facts()
                self._remove()  # what a killed process left
            else:
                found = next((path for path in self._made if path.exists()), None)
                own = self._about.exists() and self._settings.keys() <= self._read_facts().keys()  # its OUT was removed
                if found is not None and not self._path.exists() and not own:
                    raise InputError(f"{found} exists already and is not from this command; move it away or choose another name")
                self._open()
            self._compare()
            failed.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        if self._database is not None:
            self._database.close()
        if self._count == 0:
            self._remove()
        self._lock.release(remove=True)

    def __len__(self) -> int:
        return self._count or 0

    def begin(self, **settings: object) -> dict[str, Any] | None:
        """Return the facts of finished work; if there are none, record the settings, with these in addition, and return None."""
        self._settings |= settings
        self._compare()
        if not self._count and self.facts is None:
            self._about.unlink(missing_ok=True)  # of a result that was removed
            with self._connection() as database, database:
                database.execute("DELETE FROM settings")
                database.execute("INSERT INTO settings VALUES (?)", [json.dumps(self._settings)])
        return self.facts

    def add(self, *rows: Row) -> None:
        """Store rows with new keys: all of them or, if this fails or the process is killed, none."""
        with self._connection() as database, database:
            values = ((row.key, json.dumps(row.value), row.data) for row in rows)
            database.executemany("INSERT INTO rows VALUES (?, ?, ?)", values)
        self._count = len(self) + len(rows)

    def get(self, key: str | int) -> Any:
        """Return the value of a row, None if there is none."""
        with self._connection() as database:
            found = database.execute("SELECT value FROM rows WHERE key = ?", [key]).fetchone()
        return found and json.loads(found[0])

    def rows(self, *, data: bool = False) -> Iterator[Row]:
        """Yield the rows in the order of `add`, with or without their bytes."""
        with self._connection() as database:
            for key, value, *more in database.execute(f"SELECT key, value{', data' if data else ''} FROM rows ORDER BY rowid"):
                yield Row(key, json.loads(value), *more)

    def finish(self, facts: Mapping[str, object]) -> dict[str, Any]:
        """Record that OUT is complete; return the settings and `facts`."""
        self.facts = {**self._settings, **facts}
        write_json(self._about, self.facts)
        if self._database is not None:
            self._database.close()
        self._remove()
        return self.facts

    def changed_error(self, what: str) -> InputError:
        """Return the error for work that belongs to other input; `what` says what has changed."""
        files = ", ".join(str(path) for path in (self._path, *self._made) if path.exists())
        return InputError(f"{what}; remove {files} to start from scratch")

    def _compare(self) -> None:
        """Raise InputError if the work was begun or finished with other settings."""
        recorded = self.facts
        if recorded is None:
            with self._connection() as database:
                found = database.execute("SELECT settings FROM settings").fetchone() if self._count else None
            if found is None:
                return
            recorded = json.loads(found[0])
        for name, value in self._settings.items():
            if recorded.get(name) != value:
                work = "unfinished" if self.facts is None else "finished"
                raise self.changed_error(
                    f"{self.out} is {work} work with another {name} ({recorded.get(name)!r}, now {value!r}): "
                    "give the same options and input, or another output name"
                )

    def _read_facts(self) -> dict[str, Any]:
        """Return the content of OUT.json; empty if it is damaged or from elsewhere."""
        try:
            facts = json.loads(self._about.read_text(encoding="utf-8"))
        except ValueError:
            return {}
        return facts if isinstance(facts, dict) else {}

    def _open(self) -> None:
        for path in (sibling(self._path, ending) for ending in _FILES):
            if path == self._path or os.path.lexists(path):
                open_own(path, mode=0o600).close()  # never through a link; texts are for this user only
        self._database = sqlite3.connect(self._path, check_same_thread=False)
        with self._connection() as database:
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            has_tables = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
            damage = database.execute("PRAGMA quick_check(1)").fetchone()[0]
            if has_tables and database.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
                damage = "a file of another program"
            if damage != "ok":
                raise sqlite3.DatabaseError(damage)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            if not has_tables:
                database.executescript(_TABLES)
            self._count = database.execute("SELECT COUNT(*) FROM rows").fetchone()[0]

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Yield the open file; errors name it."""
        assert self._database is not None, "the work is finished, or was not entered"
        try:
            yield self._database
        except sqlite3.Error as error:
            damage = StoreError(f"{self._path} is damaged or not a journal of runnel ({error}); move it away")
            full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path)) if full else damage from error

    def _remove(self) -> None:
        for ending in _FILES:
            sibling(self._path, ending).unlink(missing_ok=True)
        self._count = None
