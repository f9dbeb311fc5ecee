"""Output files that are made in steps, so that a stopped command resumes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from runnel.commands.display import say
from runnel.errors import InputError
from runnel.files import naming, open_own, sweep, write
from runnel.lock import WriterLock


def sibling(out: Path, ending: str) -> Path:
    """Return OUT with `ending` after its name."""
    return out.with_name(out.name + ending)


def create_folder(path: Path) -> Path:
    """Create a folder for results, with the folders that it is in, unless it exists; return it."""
    if file := next((one for one in (path, *path.parents) if one.is_file()), None):
        raise InputError(f"{file} is a file; name a folder for the results")
    path.mkdir(parents=True, exist_ok=True)
    return path


def expect_parent(path: Path) -> None:
    """Raise InputError unless the directory that a path is in exists."""
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path}: the directory {path.parent} does not exist; create it first")


@contextmanager
def appending(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that appends bytes to a part and flushes them; errors name the part."""
    file = open_own(path)

    def write(data: bytes) -> None:
        with naming(path):
            file.write(data)
            file.flush()

    try:
        yield write
    finally:
        with suppress(OSError):  # a failed write was already reported and would fail again
            file.close()


class Output:
    """A file that one process writes, in one or several runs of a command; `also` are files that are made together with it."""

    def __init__(self, path: Path, *, parts: Sequence[str] = (".part",), also: Sequence[Path] = ()) -> None:
        if path.is_dir():
            raise InputError(f"{path} is a folder; name a file to write")
        self.path, self.parts = path, [sibling(path, ending) for ending in parts]
        self._settings: Mapping[str, object] = {}
        self._about, self._facts = sibling(path, ".part.json"), sibling(path, ".json")
        self._made = [path, *also, self._facts]
        self._lock = WriterLock(sibling(path, ".part.lock"), path)

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._lock.held:
            if not self._has_begun():
                self._drop()
            self._lock.release(remove=True)

    def check(self, settings: Mapping[str, object]) -> dict[str, object] | None:
        """Return the facts of finished work; if there is none, lock the output and return None.

        Settings that are not known yet may be omitted, here and in `begin`.
        """
        facts = self._finished(settings)
        if facts is None and not self._lock.held:
            expect_parent(self.path)
            self._lock.acquire()
            facts = self._finished(settings)  # another process may have finished it just now
        if facts is None and self._has_begun():
            self._compare(self._about, settings, "unfinished work")
        return facts

    def begin(self, settings: Mapping[str, object]) -> dict[str, object] | None:
        """Run `check`; if OUT is not finished, record the settings, after which parts may be written.

        Parts without recorded settings are removed, because their inputs are unknown.
        """
        facts = self.check(settings)
        if facts is None and not self._has_begun():
            if any(part.exists() and part.stat().st_size for part in self.parts):
                say(f"note: {self.parts[0]} has no description ({self._about.name}); starting from scratch")
            self._drop()
            write(self._about, json.dumps(settings, indent=2) + "\n")
        self._settings = settings
        return facts

    def end(self, facts: Mapping[str, object]) -> dict[str, object]:
        """Record that OUT is complete, with its settings and `facts`; remove the parts; return what was recorded."""
        facts = {**self._settings, **facts}
        write(self._facts, json.dumps(facts, indent=2) + "\n")
        self._drop()
        return facts

    def changed(self, what: str) -> InputError:
        """Return the error for work that belongs to other input; `what` says what has changed."""
        return InputError(f"{what}; {_remove([self._about, *self.parts])} to start from scratch")

    def _has_begun(self) -> bool:
        """Return whether there is usable work with recorded settings."""
        return self._about.exists() and any(file.exists() and file.stat().st_size for file in (self.path, *self.parts))

    def _drop(self) -> None:
        for file in (self._about, *self.parts):  # in this order: parts without recorded settings are ignored
            file.unlink(missing_ok=True)
        for file in (self._about, *self._made):
            sweep(file.parent, file.name)

    def _finished(self, settings: Mapping[str, object]) -> dict[str, object] | None:
        if self.path.exists() and self._facts.exists():
            return self._compare(self._facts, settings, "finished work")
        there = next((file for file in self._made if file.exists()), None)
        if there is None or self._about.exists() or _describes(self._facts, settings):  # interrupted, or OUT was removed
            return None
        raise InputError(f"{there} exists already and is not from this command; move it away or choose another name")

    def _compare(self, about: Path, settings: Mapping[str, object], what: str) -> dict[str, object]:
        advice = _remove(self._made if about is self._facts else [about, *self.parts])
        try:
            found: dict[str, object] = json.loads(about.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{about} is damaged ({error}); {advice} to start from scratch") from error
        for name, value in settings.items():
            if found.get(name) != value:
                raise InputError(
                    f"{about} describes {what} with another {name} ({found.get(name)!r}, now {value!r}); "
                    f"give the same options and input, choose another output name, or {advice}"
                )
        return found


def _describes(about: Path, settings: Mapping[str, object]) -> bool:
    try:
        found = json.loads(about.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return False
    return isinstance(found, dict) and settings.keys() <= found.keys()


def _remove(files: Sequence[Path]) -> str:
    *most, last = [str(file) for file in files if file.exists()]
    return f"remove {', '.join(most)} and {last}" if most else f"remove {last}"


def text_digest(text: str) -> str:
    """Return a short digest, to notice a changed text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def file_digest(name: str) -> str:
    """Return a short digest of a file."""
    with open(name, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def whole_lines(part: Path) -> int:
    """Cut a file back to its whole lines; return their number."""
    count = size = 0
    with open_own(part) as file:
        file.seek(0)
        for line in file:
            if line.endswith(b"\n"):
                count, size = count + 1, size + len(line)
        file.truncate(size)
    return count
