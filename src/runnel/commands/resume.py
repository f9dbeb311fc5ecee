"""What lets a command go on where it was stopped: files that appear whole, and a description of the work beside them.

Work towards OUT keeps OUT.part.json while it lasts and leaves OUT.json when it is done; both say what OUT depends on.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from runnel.errors import InputError


def beside(out: Path, ending: str) -> Path:
    """OUT with `ending` put after its name."""
    return out.with_name(out.name + ending)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when all of it is on disk; nothing happens to `path` if writing fails."""
    partial = beside(path, ".partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def begin(out: Path, settings: Mapping[str, object]) -> None:
    """Write the description of the work, or check that unfinished work has the same.

    Raises:
        InputError: it has not.
    """
    about = beside(out, ".part.json")
    if about.exists():
        _check_same(about, settings, "unfinished work")
    else:
        with replacing(about) as file:
            file.write(json.dumps(settings, indent=2).encode() + b"\n")


def end(out: Path, facts: Mapping[str, object]) -> None:
    """Write OUT.json; remove OUT.part.json."""
    with replacing(beside(out, ".json")) as file:
        file.write(json.dumps(facts, indent=2).encode() + b"\n")
    beside(out, ".part.json").unlink()


def finished(out: Path, settings: Mapping[str, object]) -> dict[str, object] | None:
    """What OUT.json says if `out` is there already and was made with these settings; None if there is no `out`.

    Raises:
        InputError: `out` is there but was not made by this work.
    """
    if not out.exists():
        return None
    about = beside(out, ".json")
    if not about.exists() and beside(out, ".part.json").exists():
        return None  # stopped between the two
    if not about.exists():
        raise InputError(f"{out} exists already and is not from this command; move it away or choose another name")
    return _check_same(about, settings, "finished work")


def check(out: Path, settings: Mapping[str, object]) -> None:
    """Refuse settings that work on `out`, finished or not, does not have; those that are not given are not compared.

    Raises:
        InputError: as `begin` and `finished`.
    """
    about = beside(out, ".part.json")
    if finished(out, settings) is None and about.exists():
        _check_same(about, settings, "unfinished work")


def text_digest(text: str) -> str:
    """A short digest by which a changed text is noticed."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def file_digest(name: str) -> str:
    """The same of a file."""
    with open(name, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def _check_same(about: Path, settings: Mapping[str, object], what: str) -> dict[str, object]:
    try:
        found: dict[str, object] = json.loads(about.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{about} is damaged ({error}); remove it and start again") from error
    for name, value in settings.items():
        if found.get(name) != value:
            raise InputError(
                f"{about} describes {what} with another {name} ({found.get(name)!r}, now {value!r}); "
                "give the same options and input, choose another output name, or remove those files"
            )
    return found
