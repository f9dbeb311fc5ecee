"""Find and read sets in downloaded files: the 41 of paper E as their authors publish them, its released file, a user's own."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from runnel.errors import InputError
from runnel.evaluation.qa.formats import bamboo, docfinqa, elitr, infinitebench, leval, longbench, muld, own, released
from runnel.evaluation.qa.hub import RELEASED, fetch, fetch_set, hub_ids, suite_of
from runnel.evaluation.qa.records import QaSet
from runnel.evaluation.qa.sets import SETS, SUITES, SetFacts
from runnel.text.lines import ENDINGS, find

_READERS: dict[str, Callable[[list[Path], SetFacts], QaSet]] = {
    "LongBench": longbench.read,
    "LV-Eval": longbench.read,
    "InfiniteBench": infinitebench.read,
    "L-Eval": leval.read,
    "BAMBOO": bamboo.read,
    "DocFinQA": docfinqa.read,
    "MuLD": muld.read,
}


def read_qa_sets(path: str | Path, only: Collection[str] = ()) -> Iterator[QaSet]:
    """Yield the sets of a folder or file, each read when it is asked for, so that only one needs to be in memory.

    Args:
        path: a folder with files of any of the suites of `SUITES`, at any depth; one such file; the test file that paper E's
            authors released, or its folder; jsonl with "question", "document" and "answers" (`formats/own.py`); or the hub id of
            a suite or of the released data (`hub_ids`), whose files are downloaded or taken from the hub's cache.
        only: paper E's names of the sets to read; (): all that are found.

    Raises:
        InputError: nothing is found, a name is unknown or its set is missing, a set has files in two places, or a row has
            another form; the message has the place.
        ReadError: a file is missing or damaged, or cannot be downloaded.
        MissingDependency: parquet needs pyarrow, zstd zstandard.
    """
    path = Path(path).expanduser()
    if path.is_dir() and (test := find(path, released.TEST)):
        path = test
    if path.is_dir():
        yield from _read_folder(path, only)
    elif not path.exists() and path.as_posix() in hub_ids():
        yield from _read_hub(path.as_posix(), only)
    else:
        yield from _expect(path, only, _read_file(path, only))


def _read_folder(folder: Path, only: Collection[str]) -> Iterator[QaSet]:
    found = find_files(folder)
    if not found:
        raise InputError(f"{folder} has no files of {', '.join(SUITES)}; docs/qa-sets.md lists the files of each set")
    for name in only:
        if name not in found:
            raise _missing(folder, name, list(found))
    for name, files in found.items():
        if not only or name in only:
            yield _reader(SETS[name].suite, folder)(files, SETS[name])


def _read_hub(hub_id: str, only: Collection[str]) -> Iterator[QaSet]:
    if hub_id == RELEASED:
        fetch(hub_id, released.BY_CATEGORY)
        yield from _expect(Path(hub_id), only, released.read(fetch(hub_id, released.TEST)[0], only))
        return
    suite = suite_of(hub_id)
    sets = {name: facts for name, facts in SETS.items() if facts.suite == suite}
    for name in only:
        if name not in sets:
            raise _missing(Path(hub_id), name, list(sets))
    for name, facts in sets.items():
        if not only or name in only:
            with fetch_set(facts) as files:
                one = _READERS[facts.suite](files, facts)
            yield one


def _read_file(path: Path, only: Collection[str]) -> Iterator[QaSet]:
    if facts := next((one for one in SETS.values() if _is_of(path, one)), None):
        yield _reader(facts.suite, path.parent)([path], facts)
    elif _plain_name(path).endswith(".json"):
        yield from released.read(path, only)
    elif _plain_name(path).endswith(".jsonl"):
        yield own.read(path, _plain_name(path).removesuffix(".jsonl"))
    elif not path.exists():
        raise InputError(f"there is no file or folder {path}, and no suite with this hub id; docs/qa-sets.md lists them")
    else:
        raise InputError(f"{path}: expected a folder, a file of a set in docs/qa-sets.md, .json of paper E's authors, or .jsonl")


def _reader(suite: str, folder: Path) -> Callable[[list[Path], SetFacts], QaSet]:
    return partial(elitr.read, folder=folder) if suite == "ELITR-Bench" else _READERS[suite]


def find_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each of paper E's sets in a folder, at any depth; hidden folders are skipped.

    Raises:
        InputError: a set has files in two places.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    paths = [path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    found = {}
    for facts in SETS.values():
        files = [path for path in paths if _is_of(path, facts)]
        if len({file.parent for file in files}) > 1 or (len(files) > 1 and {file.suffix for file in files} != {".parquet"}):
            raise InputError(f"{facts.name} is in {files[0]} and in {files[1]}; give the folder that has one of them")
        if files:
            found[facts.name] = files
    return found


def _is_of(path: Path, facts: SetFacts) -> bool:
    """Return whether a file is of a set, by its path alone. Links are not resolved: the hub's cache consists of them."""
    name = PurePosixPath((path.absolute().parent / _plain_name(path)).as_posix().lower())
    return any(name.match(pattern.format(task=facts.task).lower()) for pattern in SUITES[facts.suite].files)


def _plain_name(path: Path) -> str:
    """Return a file's name without .gz or .zst."""
    return next((path.name.removesuffix(ending) for ending in ENDINGS[1:] if path.name.endswith(ending)), path.name)


def _expect(path: Path, only: Collection[str], sets: Iterator[QaSet]) -> Iterator[QaSet]:
    """Yield the sets whose names are in `only`; raise InputError if one of these is missing."""
    names = []
    for one in sets:
        names.append(one.name)
        if not only or one.name in only:
            yield one
    for name in only:
        if name not in names:
            raise _missing(path, name, names)


def _missing(path: Path, name: str, names: list[str]) -> InputError:
    near = difflib.get_close_matches(name, names, 3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(names) or 'none'}"
    return InputError(f"{path} has no set {name!r}; {hint}")
