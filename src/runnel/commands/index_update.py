"""Bring an index up to date with its files: once, or whenever they change; a project's own index, or one at a given place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.commands.display import Meter, note_compiling, print_json, print_text, say
from runnel.errors import InputError, StoreBusy, StoreError, counted, describe

if TYPE_CHECKING:
    from runnel.search.index import Changes, Index
    from runnel.search.project import Project
    from runnel.search.records import FieldType
    from runnel.text.documents.document import Limits
    from runnel.text.documents.ocr import Ocr
    from runnel.text.folders import Selection

_COUNTED = ("added", "updated", "unchanged", "deleted", "failed")


class New(NamedTuple):
    """Options of a new index, as `Index.create` takes them."""

    fields: Mapping[str, FieldType]
    passage_tokens: int | None
    remember: bool


class Room(NamedTuple):
    """Resources on Ray: a cluster's address (None: Ray on this machine), and the number and size of workers."""

    address: str | None
    workers: int | None
    cpus: int
    gpus: float


@dataclass(frozen=True)
class Wanted:
    """What `runnel index` is to do with files; `paths` may be empty for a project's index."""

    paths: Sequence[str]
    selection: Selection | None
    model: str | None
    new: New
    prune: bool = True
    watch: bool = False
    as_json: bool = False
    ocr: Ocr | None = None
    limits: Limits | None = None
    room: Room | None = None  # this process reads


def update_place(to: str, wanted: Wanted) -> int:
    """Create or update the index at `to`; return exit code 1 if a file could not be read."""
    note_compiling()
    from runnel.search.file_hashes import FileHashes
    from runnel.search.files import check_paths
    from runnel.search.watching import signatures
    from runnel.text.folders import EVERYTHING

    check_paths(wanted.paths)
    selection = wanted.selection or EVERYTHING
    hashes = FileHashes() if wanted.watch else None
    with open_or_create(to, wanted.model, wanted.new) as index:

        def update() -> Changes:
            if hashes is not None:
                hashes.failures.clear()
            options: dict[str, Any] = {"selection": selection, "prune": wanted.prune, "limits": wanted.limits, "ocr": wanted.ocr}
            with Meter("indexing") as meter:
                if wanted.room is None:
                    return index.add_files(wanted.paths, hashes=hashes, progress=meter.add, **options)
                from runnel.integrations.ray import index_files

                changes = index_files(index, wanted.paths, progress=meter.add, **options, **wanted.room._asdict())
            if changes:
                index.optimize()
            return changes

        if wanted.watch:
            return _watch(index, to, update, partial(signatures, wanted.paths, selection))
        return finish(index, update(), to, wanted.as_json)


def update_project(wanted: Wanted) -> int:
    """Create or update the index of the project that holds the working directory; return exit code 1 as `update_place`."""
    from runnel.search.files import check_paths
    from runnel.search.project import Project
    from runnel.search.watching import signatures

    check_paths(wanted.paths)
    project = find_project(Path.cwd()) or Project(Path.cwd().resolve())
    note_compiling()
    project = project.extend(wanted.paths, wanted.selection)
    project.save()
    with open_or_create(str(project.place), wanted.model, wanted.new) as index:

        def update() -> Changes:
            with Meter("indexing") as meter:
                return project.update(
                    index,
                    retry=True,
                    keep_missing=wanted.watch,
                    limits=wanted.limits,
                    ocr=wanted.ocr,
                    progress=meter.add,
                )

        if wanted.watch:
            look = partial(signatures, [project.folder / path for path in project.paths], project.selection)
            return _watch(index, str(project.place.parent), update, look)
        return finish(index, update(), str(project.place.parent), wanted.as_json)


def open_or_create(to: str, model: str | None, new: New) -> Index:
    """Open the index at `to`, or create it there."""
    from runnel.search.index import Index
    from runnel.search.stores import holds_index

    if not holds_index(to):
        return Index.create(to, model or "pocket", **new._asdict())
    index = Index.open(to, model)
    settings = index.store.settings
    made = {
        f"the fields {dict(settings.fields)}": new.fields and new.fields != settings.fields,
        "been made without --remember": new.remember and not settings.remember,
        f"passages of {settings.passage_tokens} tokens": new.passage_tokens not in (None, settings.passage_tokens),
    }
    if other := [what for what, differs in made.items() if differs]:
        raise InputError(f"the index at {to} has {' and '.join(other)}, which cannot be changed; make a new one")
    return index


def find_project(start: Path) -> Project | None:
    """Return the project that holds the folder `start`, if any; one that is found above is named first."""
    from runnel.search.project import Project

    project = Project.find(start)
    if project is not None and project.folder != start.resolve():
        say(f"note: the project is {project.folder}")
    return project


def expect_project() -> Project:
    """Return the project that holds the working directory."""
    from runnel.search.project import NAME, folders_of
    from runnel.search.stores import holds_index

    here = Path.cwd()
    project = find_project(here)
    if project is None or not holds_index(project.place):
        *_, top = here, *folders_of(here)
        where = f"{here}" if top == here.resolve() else f"{here} or above, up to {top}"
        what = f"there is no {NAME} in {where}" if project is None else f"{project.folder / NAME} holds no index yet"
        raise StoreError(f"{what}; run `runnel index` to index this folder, or name an index with --in")
    return project


def refresh_project(project: Project, index: Index, ocr: Ocr | None = None) -> None:
    """Bring a project's index up to date before a search, with a note of what has changed, or why that was not possible."""
    place = project.place.parent
    try:
        with index, Meter("indexing") as meter:
            changes = project.update(index, retry=ocr is not None, keep_missing=True, ocr=ocr, progress=meter.add)
    except (StoreError, OSError) as error:  # another process writes, or the disk is full
        say(f"note: {describe(error)}; searching the last commit of {place}")
        return
    if changed := summary(changes, without=("unchanged",)):
        say(f"note: {place}: {changed}")


def finish(index: Index, changes: Changes, to: str, as_json: bool) -> int:
    """Report changes, and return the exit code: 1 if a file could not be read."""
    if as_json:
        counts = {name: len(getattr(changes, name)) for name in _COUNTED}
        facts = {"index": to, "documents": len(index), **counts, "left_out": changes.failed}
        print_json(facts | {"tokens": changes.tokens, "tokens_read": changes.tokens_read})
    else:
        shown = summary(changes) or "no documents found"
        print_text(f"{to}: {shown}; {counted(len(index), 'document')}, {counted(changes.tokens_read, 'token')} read")
    return 1 if changes.failed else 0


def summary(changes: Changes, without: Sequence[str] = ()) -> str:
    """Return the number of documents of each kind of change; "" for none."""
    counts = {name: len(getattr(changes, name)) for name in _COUNTED if name not in without}
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)


def _watch(index: Index, to: str, update: Callable[[], Changes], look: Callable[[], dict[str, tuple[int, int, int]]]) -> int:
    """Update the index, and again after every change of files, until Ctrl-C."""
    from runnel.search.watching import watch

    noted = ""

    def updated() -> bool:
        nonlocal noted
        try:
            changes = update()
            if summary(changes, without=("unchanged",)) or not noted:
                finish(index, changes, to, as_json=False)
        except (StoreBusy, InputError) as error:  # InputError: a file or folder that was named is gone
            if describe(error) != noted:
                say(f"note: {describe(error)}; trying again")
            noted = describe(error)
            return False
        finally:
            index.close()  # other processes may write
        noted = "updated"
        return True

    try:
        say("watching for changes; end with Ctrl-C")
        watch(updated, look)
    except KeyboardInterrupt:
        say("stopped watching")
    return 0
