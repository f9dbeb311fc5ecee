"""Parts that commands about indexes share.

IndexOptions                   the options of a command that writes an index; `open` opens it
find_project, expect_project, expect_or_make_project    the project of the working directory
refresh_project                brings a project's index up to date before a search
print_changes, summary         lines about the changes of an index
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from runnel.commands import display, parameters
from runnel.errors import InputError, StoreError, counted, describe
from runnel.search.records import FIELD_TYPES, FieldType
from runnel.text.documents.ocr import Ocr

if TYPE_CHECKING:
    from runnel.search.index import Changes, Index
    from runnel.search.project import Project

RememberStates = Annotated[
    bool,
    typer.Option(
        "--remember", help="New index: keep recurrent models' states to rerank documents."
    ),
]
# what the numbers of changes are of: attributes of `Changes`
COUNTED = ("added", "updated", "unchanged", "deleted", "empty", "failed")


@dataclass(frozen=True)
class IndexOptions:
    """The place, the model and the settings of an index to write."""

    model: parameters.ModelOfIndex = None
    to: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE", help="Folder or URI of the index (default: the project's, .runnel)."
        ),
    ] = None
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--field",
            metavar="NAME:TYPE",
            help="Metadata to filter by, e.g. kind:str. For a new index.",
        ),
    ] = None
    passage_tokens: Annotated[
        int | None,
        typer.Option(min=8, help="New index: most tokens of a passage (default: by the model)."),
    ] = None

    def field_types(self) -> dict[str, FieldType]:
        """Parse each NAME:TYPE of --field to {name: type}."""
        types: dict[str, FieldType] = {}
        for field in self.fields or []:
            name, colon, kind = field.partition(":")
            if not colon or kind not in FIELD_TYPES:
                raise InputError(
                    f"--field is {field!r}; expected NAME:TYPE with one of the types"
                    f" {', '.join(FIELD_TYPES)}"
                )
            types[name] = cast("FieldType", kind)
        return types

    def open(
        self, place: str, fields: dict[str, FieldType], language: str, *, remember: bool
    ) -> Index:
        """Open the index at `place`, or create it there with these options."""
        from runnel.search.index import Index

        index = Index.open_or_create(
            place,
            self.model,
            fields=fields,
            passage_tokens=self.passage_tokens,
            remember=remember,
            language=language,
        )
        settings = index.store.settings
        stored = {
            f"the fields {dict(settings.fields)}": fields and fields != settings.fields,
            "been made without --remember": remember and not settings.remember,
            f"the language {settings.language}": language not in ("auto", settings.language),
            f"passages of {settings.passage_tokens} tokens": (
                self.passage_tokens not in (None, settings.passage_tokens)
            ),
        }  # what the index has, and whether the options ask for another
        if differences := [what for what, differs in stored.items() if differs]:
            raise InputError(
                f"the index at {place} has {' and '.join(differences)}, which cannot be changed;"
                " make a new one"
            )
        return index


def print_changes(index: Index, changes: Changes, place: str, as_json: bool) -> int:
    """Print the number of changes of each kind; return the exit code: 1 if a document failed."""
    documents = len(index)
    display.print_facts(
        as_json,
        {
            "index": place,
            "documents": documents,
            **{name: len(getattr(changes, name)) for name in COUNTED},
            "left_out": changes.failed,  # name -> error, beside "failed", their number
            "tokens": changes.tokens,
            "tokens_read": changes.tokens_read,
        },
        f"{place}: {summary(changes) or 'no documents found'};"
        f" {counted(documents, 'document')}, {counted(changes.tokens_read, 'token')} read",
    )
    return 1 if changes.failed else 0


def find_project(start: Path) -> Project | None:
    """Return the project that holds the folder `start`, if any; one that is found above is named
    first.
    """
    from runnel.search.project import Project

    project = Project.find(start)
    if project is not None and project.folder != start.resolve():
        display.say(f"note: the project is {project.folder}")
    return project


def expect_project() -> Project:
    """Return the project that holds the working directory."""
    from runnel.search.project import NAME, folders_of
    from runnel.search.stores import holds_index

    here = Path.cwd()
    project = find_project(here)
    if project is None or not holds_index(project.place):
        folders = [here, *folders_of(here)]
        above = "" if folders[-1] == here.resolve() else f" or above, up to {folders[-1]}"
        what = f"there is no {NAME} in {here}{above}"
        if project is not None:
            what = f"{project.folder / NAME} holds no index yet"
        raise StoreError(
            f"{what}; run `runnel index` to index this folder, or name an index with --in"
        )
    return project


def expect_or_make_project() -> Project:
    """Return the project that holds the working directory; make one of this folder, still without
    an index, if there is none.
    """
    from runnel.search.project import NAME, Project
    from runnel.search.stores import holds_index

    here = Path.cwd().resolve()
    project = find_project(here)
    if project is None and here in (Path.home().resolve(), Path(here.anchor)):
        # Always raises, because there is no project: hardly anybody wants an index of all that is
        # below.
        return expect_project()
    project = project or Project(here)
    if not holds_index(project.place):
        display.say(
            f"note: there is no index yet; indexing {project.folder} in {project.folder / NAME}"
        )
        project = project.extend([])  # no paths: the whole folder
    return project


def refresh_project(project: Project, index: Index, ocr: Ocr | None = None) -> None:
    """Bring a project's index up to date before a search, with a note of what has changed, or why
    that was not possible.
    """
    shown = project.place.parent
    try:
        with index, display.Meter("indexing") as meter:
            changes = project.update(
                index,
                retry=ocr is not None,  # files that failed before: OCR may read them
                keep_missing=True,
                ocr=ocr,
                progress=meter,
                through=meter.files,
            )
    except (StoreError, OSError) as error:  # another process writes, or the disk is full
        display.say(f"note: {describe(error)}; searching the last commit of {shown}")
        return
    if changed := summary(changes, without=("unchanged", "empty")):
        display.say(f"note: {shown}: {changed}")


def summary(changes: Changes, without: Sequence[str] = ()) -> str:
    """Return the number of documents of each kind of change; "" for none."""
    counts = {name: len(getattr(changes, name)) for name in COUNTED if name not in without}
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
