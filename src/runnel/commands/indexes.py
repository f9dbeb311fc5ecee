"""The index of the project that holds the working directory, and what has changed in an index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.commands.display import Meter, say
from runnel.errors import StoreError, describe

if TYPE_CHECKING:
    from runnel.search.index import Changes, Index
    from runnel.search.project import Project
    from runnel.text.documents.ocr import Ocr

COUNTED = ("added", "updated", "unchanged", "deleted", "failed")


def find_project(start: Path) -> Project | None:
    """Return the project that holds the folder `start`, if any; one that is found above is named
    first.
    """
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
        what = (
            f"there is no {NAME} in {where}"
            if project is None
            else f"{project.folder / NAME} holds no index yet"
        )
        raise StoreError(
            f"{what}; run `runnel index` to index this folder, or name an index with --in"
        )
    return project


def refresh_project(project: Project, index: Index, ocr: Ocr | None = None) -> None:
    """Bring a project's index up to date before a search, with a note of what has changed, or why
    that was not possible.
    """
    place = project.place.parent
    try:
        with index, Meter("indexing") as meter:
            changes = project.update(
                index, retry=ocr is not None, keep_missing=True, ocr=ocr, progress=meter
            )
    except (StoreError, OSError) as error:  # another process writes, or the disk is full
        say(f"note: {describe(error)}; searching the last commit of {place}")
        return
    if changed := summary(changes, without=("unchanged",)):
        say(f"note: {place}: {changed}")


def summary(changes: Changes, without: Sequence[str] = ()) -> str:
    """Return the number of documents of each kind of change; "" for none."""
    counts = {name: len(getattr(changes, name)) for name in COUNTED if name not in without}
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
