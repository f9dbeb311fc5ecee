"""`runnel index`: bring an index up to date with files and folders, on this machine or on a Ray
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from runnel.commands import display
from runnel.commands.find import select
from runnel.commands.indexes import COUNTED, expect_project, find_project, summary
from runnel.errors import InputError, StoreBusy, counted, describe
from runnel.jobs.loading import note_compiling
from runnel.text.documents.document import Limits
from runnel.text.documents.ocr import Ocr

if TYPE_CHECKING:
    from runnel.search.index import Changes, Index
    from runnel.search.records import FieldType
    from runnel.text.folders import Selection

Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="Files, folders, globs, of all kinds that find reads."),
]
Place = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE", help="Folder or URI of the index (default: the project's, .runnel)."
    ),
]
Fields = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        metavar="NAME:TYPE",
        help="Metadata to filter by, e.g. kind:str. For a new index.",
    ),
]
PassageTokens = Annotated[
    int | None,
    typer.Option(min=8, help="New index: most tokens of a passage (default: by the model)."),
]
Remember = Annotated[
    bool,
    typer.Option(
        "--remember", help="New index: keep recurrent models' states to rerank documents."
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE",
        help="Read on Ray: local, auto (this machine's cluster) or an address. Needs --to.",
    ),
]
WorkerGpus = Annotated[
    float | None,
    typer.Option(min=0, help="With --ray: GPUs of each, 0.5 for two on one (default: 0)."),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check", help="Only verify what the index at --to stores; exit code 1 if it is damaged."
    ),
]


def index(
    context: typer.Context,
    paths: Paths = None,
    *,
    model: display.ModelOfIndex = None,
    to: Place = None,
    fields: Fields = None,
    passage_tokens: PassageTokens = None,
    include: display.Include = None,
    exclude: display.Exclude = None,
    no_ignore: display.NoIgnore = False,
    ocr: display.OcrOption = None,
    parse_seconds: display.ParseSeconds = display.PARSE_SECONDS,
    remember: Remember = False,
    keep_missing: Annotated[
        bool, typer.Option("--keep-missing", help="Keep documents of removed files. Needs --to.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Stay, and index files again when they change, until Ctrl-C."),
    ] = False,
    ray: Ray = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="With --ray: processes (default: as many as fit).")
    ] = None,
    worker_cpus: Annotated[
        int | None, typer.Option(min=1, help="With --ray: cores of each (default: 1).")
    ] = None,
    worker_gpus: WorkerGpus = None,
    check: Check = False,
    as_json: display.Json = False,
) -> int:
    """Create or update an index of files: read new and changed ones, and delete documents of
    removed ones.

    Writes the project's own index, or the one at --to; prints the number of changes of each kind.
    Example: runnel index notes/ --to library

    The project's own index is in the folder .runnel of the working directory or of one above it.
    PATHs are added to its paths (without any: the whole folder), and `runnel search` keeps it up to
    date. Files that .gitignore files ignore are not read. Of a long file that has grown, only the
    new text is read. With --ray, many processes or machines read the files.
    """
    if check:
        display.refuse_others(context, "--check", _verify)
        return _verify(to, as_json)
    display.refuse(
        {"--keep-missing": keep_missing and not to, "--ray": ray and not to}, "needs --to"
    )
    display.refuse({"PATH": to and not paths}, "to read is needed with --to")
    if ray is None:
        display.refuse(
            {"--workers": workers, "--worker-cpus": worker_cpus, "--worker-gpus": worker_gpus},
            "needs --ray",
        )
    display.refuse(
        {"--json": as_json and watch, "--ray": ray and watch}, "cannot be given with --watch"
    )
    display.refuse(
        {"--device": ray and context.params["device"] != "auto"},
        "has no effect with --ray; give --worker-gpus",
    )
    new = {
        "fields": parse_fields(fields or []),
        "passage_tokens": passage_tokens,
        "remember": remember,
    }
    reading = {"limits": Limits(seconds=parse_seconds), "ocr": None if ocr is None else Ocr(ocr)}
    selection = select(include, exclude, no_ignore)
    if to is None:
        files = _project_files(paths or [], selection, watch)
    else:
        size = {"workers": workers, "cpus": worker_cpus or 1, "gpus": worker_gpus or 0.0}
        cluster = None if ray is None else {"address": None if ray == "local" else ray, **size}
        files = _named_files(to, paths or [], selection, not keep_missing, watch, cluster)
    note_compiling()
    with _open(files.place, model, new) as opened:

        def update() -> Changes:
            with display.Meter("indexing") as meter:
                return files.update(opened, progress=meter, **reading)

        return (
            _watch(opened, update, files)
            if watch
            else _finish(opened, update(), files.shown, as_json)
        )


class _Files(NamedTuple):
    """The files of an index: its place, its name in the output, and what reads the files, and looks
    whether they have changed.
    """

    place: str
    shown: str
    update: Callable[..., Changes]
    look: Callable[[], dict[str, tuple[int, int, int]]]


def _project_files(paths: Sequence[str], selection: Selection | None, watch: bool) -> _Files:
    """Return the files of the project that holds the working directory, to
    which paths are added.
    """
    from runnel.search.files import check_paths
    from runnel.search.project import Project, signatures

    check_paths(paths)
    project = (find_project(Path.cwd()) or Project(Path.cwd().resolve())).extend(paths, selection)
    project.save()
    update = partial(project.update, retry=True, keep_missing=watch)
    look = partial(signatures, [project.folder / path for path in project.paths], project.selection)
    return _Files(str(project.place), str(project.place.parent), update, look)


def _named_files(
    to: str,
    paths: Sequence[str],
    selection: Selection | None,
    prune: bool,
    watch: bool,
    cluster: Mapping[str, Any] | None,
) -> _Files:
    """Return the files for the index at `to`, which a Ray cluster reads if there is one."""
    from runnel.search.files import FileHashes, check_paths
    from runnel.search.project import signatures
    from runnel.text.folders import EVERYTHING

    check_paths(paths)
    selected, hashes = selection or EVERYTHING, FileHashes() if watch else None

    def update(index: Index, **reading: Any) -> Changes:
        reading |= {"selection": selected, "prune": prune}
        if cluster is not None:
            from runnel.integrations.ray import index_files

            changes = index_files(index, paths, **reading, **cluster)
            if changes:
                index.optimize()
            return changes
        if hashes is not None:
            hashes.failures.clear()
        return index.add_files(paths, hashes=hashes, **reading)

    return _Files(to, to, update, partial(signatures, paths, selected))


def _open(to: str, model: str | None, new: Mapping[str, Any]) -> Index:
    """Open the index at `to`, or create it there with the options `new` of `Index.create`."""
    from runnel.search.index import Index
    from runnel.search.stores import holds_index

    if not holds_index(to):
        return Index.create(to, model or "pocket", **new)
    index = Index.open(to, model)
    settings = index.store.settings
    made = {
        f"the fields {dict(settings.fields)}": new["fields"] and new["fields"] != settings.fields,
        "been made without --remember": new["remember"] and not settings.remember,
        f"passages of {settings.passage_tokens} tokens": (
            new["passage_tokens"] not in (None, settings.passage_tokens)
        ),
    }
    if other := [what for what, differs in made.items() if differs]:
        raise InputError(
            f"the index at {to} has {' and '.join(other)}, which cannot be changed; make a new one"
        )
    return index


def _watch(index: Index, update: Callable[[], Changes], files: _Files) -> int:
    """Update the index, and again after every change of files, until Ctrl-C."""
    from runnel.search.project import watch

    noted = ""

    def updated() -> bool:
        nonlocal noted
        try:
            changes = update()
            if summary(changes, without=("unchanged",)) or not noted:
                _finish(index, changes, files.shown, as_json=False)
        except (StoreBusy, InputError) as error:
            # InputError: a file or folder that was named is gone
            if describe(error) != noted:
                display.say(f"note: {describe(error)}; trying again")
            noted = describe(error)
            return False
        finally:
            index.close()  # other processes may write
        noted = "updated"
        return True

    try:
        display.say("watching for changes; end with Ctrl-C")
        watch(updated, files.look)
    except KeyboardInterrupt:
        display.say("stopped watching")
    return 0


def _finish(index: Index, changes: Changes, to: str, as_json: bool) -> int:
    if as_json:
        counts = {name: len(getattr(changes, name)) for name in COUNTED}
        facts = {"index": to, "documents": len(index), **counts, "left_out": changes.failed}
        display.print_json(facts | {"tokens": changes.tokens, "tokens_read": changes.tokens_read})
    else:
        shown = summary(changes) or "no documents found"
        display.print_text(
            f"{to}: {shown}; {counted(len(index), 'document')},"
            f" {counted(changes.tokens_read, 'token')} read"
        )
    return 1 if changes.failed else 0


def _verify(to: str | None, as_json: bool) -> int:
    """Verify an index, print all damage, and return the exit code: 1 if there is any."""
    from runnel.search.check import check
    from runnel.search.stores import open_store

    place = to or str(expect_project().place)
    store = open_store(place)
    commit, damage = store.last_commit(), check(store)
    for one in damage:
        display.say(
            one.reason if one.document is None else f"damaged: {one.document}: {one.reason}"
        )
    if as_json:
        counts = {"index": place, "documents": commit.documents, "passages": commit.passages}
        display.print_json(counts | {"damaged": [asdict(one) for one in damage]})
    elif damage:
        advice = (
            "restore it from a copy, or delete damaged documents (Index.delete) and index them"
            " again"
        )
        display.print_text(f"{place}: {len(damage):,} damaged; {advice}")
    else:
        whole = f"{counted(commit.documents, 'document')}, {counted(commit.passages, 'passage')}"
        display.print_text(f"{place}: {whole}, none damaged")
    return 1 if damage else 0


def parse_fields(fields: Sequence[str]) -> dict[str, FieldType]:
    """Parse NAME:TYPE to {name: type}."""
    from runnel.search.records import FIELD_TYPES

    kinds: dict[str, FieldType] = {}
    for field in fields:
        name, colon, kind = field.partition(":")
        if not colon or kind not in FIELD_TYPES:
            raise InputError(
                f"--field is {field!r}; expected NAME:TYPE with one of the types"
                f" {', '.join(FIELD_TYPES)}"
            )
        kinds[name] = cast("FieldType", kind)
    return kinds
