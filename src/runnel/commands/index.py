"""`runnel index`: bring an index up to date with files and folders, once or after every change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runnel.commands import display, find, indexes, parameters
from runnel.errors import InputError, StoreBusy, describe
from runnel.search.file_hashes import FileHashes
from runnel.search.files import check_paths
from runnel.text.documents.document import Limits
from runnel.text.folders import EVERYTHING

if TYPE_CHECKING:
    from runnel.search.index import Changes, Index
    from runnel.search.indexed_files import IndexedFiles


def index(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Files, folders, globs, of all kinds that find reads."),
    ] = None,
    *,
    options: indexes.IndexOptions = indexes.IndexOptions(),
    parsing: find.ParsingOptions = find.ParsingOptions(),
    remember: indexes.RememberStates = False,
    keep_missing: Annotated[
        bool, typer.Option("--keep-missing", help="Keep documents of removed files. Needs --to.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Stay, and index files again when they change, until Ctrl-C."),
    ] = False,
    as_json: parameters.Json = False,
) -> int:
    """Create or update an index of files, without documents of removed files.

    Writes the project's own index, or the one at --to; prints the number of changes of each kind.
    Example: runnel index notes/ --to library

    The project's own index is in the folder .runnel of the working directory or of one above it.
    PATHs are added to its paths (without any: the whole folder), and `runnel search` keeps it up to
    date. Files that .gitignore and .ignore files ignore are not read. Of a long file that has
    grown, only the new text is read.
    """
    parameters.refuse(
        {
            "--keep-missing needs --to": keep_missing and not options.to,
            "PATH to read is needed with --to": options.to and not paths,
            "--json cannot be given with --watch": as_json and watch,
        }
    )
    from runnel.search.indexed_files import IndexedFiles
    from runnel.search.project import Project

    # 1. The options of a new index, and the files to read.
    fields = options.field_types()
    selection = parsing.selection()
    files = IndexedFiles(
        paths or [],
        selection or EVERYTHING,
        Limits(seconds=parsing.parse_seconds),
        parsing.reader_of_scans(),
        prune=not keep_missing,
        # kept from update to update, so that unchanged files are not read again
        hashes=FileHashes() if watch else None,
    )
    check_paths(files.paths)
    if options.to is not None:
        place = shown = options.to
    else:
        project = indexes.find_project(Path.cwd()) or Project(Path.cwd().resolve())
        project = project.extend(paths or [], selection)
        files = files.for_project(project)
        # the index is .runnel/NAME; messages name .runnel
        place = str(project.place)
        shown = str(project.place.parent)
    # 2. The index, which is created if it does not exist.
    with options.open(place, fields, parsing.language, remember=remember) as opened:
        # 3. One update, or an update after every change.
        if watch:
            return _watch(opened, files, shown)
        return indexes.print_changes(opened, _update(opened, files), shown, as_json)


def _update(index: Index, files: IndexedFiles) -> Changes:
    with display.Meter("indexing") as meter:
        return files.update(index, progress=meter, through=meter.files)


def _watch(index: Index, files: IndexedFiles, shown: str) -> int:
    """Update the index, and again after every change of files, until Ctrl-C."""
    from runnel.search.indexed_files import watch

    # the last error, which is reported once; "updated" after an update; "" before the first
    note = ""

    def update() -> bool:
        nonlocal note
        try:
            changes = _update(index, files)
            if indexes.summary(changes, without=("unchanged", "empty")) or not note:
                indexes.print_changes(index, changes, shown, as_json=False)
        except (StoreBusy, InputError) as error:
            # InputError: a file or folder that was named is gone
            if describe(error) != note:
                display.say(f"note: {describe(error)}; trying again")
            note = describe(error)
            return False
        finally:
            index.close()  # other processes may write
        note = "updated"
        return True

    try:
        display.say("watching for changes; end with Ctrl-C")
        watch(update, files.look)
    except KeyboardInterrupt:
        display.say("stopped watching")
    return 0
