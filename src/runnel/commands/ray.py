"""`runnel ray`: bring an index up to date with files that the workers of a Ray cluster read."""

from typing import Annotated

import typer

from runnel.commands import display, find, indexes, parameters
from runnel.search.files import check_paths
from runnel.text.documents.document import Limits
from runnel.text.folders import EVERYTHING


def ray(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Files, folders, globs, as of index.")
    ],
    *,
    options: indexes.IndexOptions = indexes.IndexOptions(),
    parsing: find.ParsingOptions = find.ParsingOptions(),
    remember: indexes.RememberStates = False,
    address: Annotated[
        str | None,
        typer.Option(
            help="Of a Ray cluster, or auto: this machine's (default: this machine alone)."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes (default: as many as fit).")
    ] = None,
    cpus: Annotated[int, typer.Option(min=1, help="Cores of each worker.")] = 1,
    gpus: Annotated[
        float, typer.Option(min=0, help="GPUs of each worker, 0.5 for two on one.")
    ] = 0.0,
    keep_missing: Annotated[
        bool, typer.Option("--keep-missing", help="Keep documents of removed files.")
    ] = False,
    as_json: parameters.Json = False,
) -> int:
    """Create or update an index of the files at PATH with many processes or machines.

    Writes the index at --to; prints the number of changes of each kind.
    Example: runnel ray corpus/ --to library --workers 8

    As `runnel index`, but the workers of a Ray cluster read the files. All machines need to see the
    files under the same names. Of a long file that has grown, all is read.
    """
    parameters.refuse({"--to is needed: the folder or URI of the index": not options.to})
    from runnel.integrations.ray import index_files

    # 1. The options, which are checked before an index is created.
    place = str(options.to)
    fields = options.field_types()
    ocr = parsing.reader_of_scans()
    check_paths(paths)
    # 2. The index, which is created if it does not exist.
    with options.open(place, fields, parsing.language, remember=remember) as index:
        # 3. The update, by the workers.
        with display.Meter("indexing") as meter:
            changes = index_files(
                index,
                paths,
                selection=parsing.selection() or EVERYTHING,
                prune=not keep_missing,
                limits=Limits(seconds=parsing.parse_seconds),
                ocr=ocr,
                workers=workers,
                cpus=cpus,
                gpus=gpus,
                address=address,
                progress=meter,
            )
            if changes:  # documents were added, updated or deleted
                index.optimize()
        return indexes.print_changes(index, changes, place, as_json)
