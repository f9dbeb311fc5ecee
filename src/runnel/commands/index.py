"""`runnel index`: bring an index up to date with files and folders, on this machine or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, cast

import typer

from runnel.commands.display import print_json, print_text, say
from runnel.commands.find import select
from runnel.commands.index_update import New, Room, Wanted, expect_project, update_place, update_project
from runnel.commands.options import (
    PARSE_SECONDS,
    Exclude,
    Include,
    Json,
    ModelOfIndex,
    NoIgnore,
    OcrOption,
    ParseSeconds,
    refuse,
    refuse_others,
)
from runnel.errors import InputError, counted
from runnel.text.documents.document import Limits
from runnel.text.documents.ocr import Ocr

if TYPE_CHECKING:
    from runnel.search.records import FieldType


Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="Files and folders: text, md, html, pdf, epub, Office files, jsonl, csv, tsv."),
]
Place = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE",
        help="Folder or URI of the index, created if it does not exist (default: the project's own, in .runnel).",
    ),
]
Fields = Annotated[
    list[str] | None, typer.Option("--field", metavar="NAME:TYPE", help="Metadata to filter by, e.g. kind:str. For a new index.")
]
PassageTokens = Annotated[
    int | None, typer.Option(min=8, help="Most tokens of a passage; default: the model's, else 256. For a new index.")
]
Remember = Annotated[
    bool, typer.Option("--remember", help="Keep recurrent models' states of documents for reranking. For a new index.")
]
KeepMissing = Annotated[bool, typer.Option("--keep-missing", help="Keep documents of removed files. Needs --to.")]
Watch = Annotated[bool, typer.Option("--watch", help="Stay, and index files again when they change, until Ctrl-C.")]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE", help="Read with many processes, on Ray: local, auto (this machine's cluster) or an address. Needs --to."
    ),
]
Workers = Annotated[int | None, typer.Option(min=1, help="With --ray: processes (default: as many as fit).")]
WorkerCpus = Annotated[int | None, typer.Option(min=1, help="With --ray: cores of each (default: 1).")]
WorkerGpus = Annotated[float | None, typer.Option(min=0, help="With --ray: GPUs of each, 0.5 for two on one (default: 0).")]
Check = Annotated[bool, typer.Option("--check", help="Only verify what the index at --to stores; exit code 1 if it is damaged.")]


def index(
    context: typer.Context,
    paths: Paths = None,
    *,
    model: ModelOfIndex = None,
    to: Place = None,
    fields: Fields = None,
    passage_tokens: PassageTokens = None,
    include: Include = None,
    exclude: Exclude = None,
    no_ignore: NoIgnore = False,
    ocr: OcrOption = None,
    parse_seconds: ParseSeconds = PARSE_SECONDS,
    remember: Remember = False,
    keep_missing: KeepMissing = False,
    watch: Watch = False,
    ray: Ray = None,
    workers: Workers = None,
    worker_cpus: WorkerCpus = None,
    worker_gpus: WorkerGpus = None,
    check: Check = False,
    as_json: Json = False,
) -> int:
    """Create or update an index of files: read new and changed ones, and delete documents of removed ones.

    Writes the project's own index, or the one at --to; prints the number of changes of each kind.
    Example: runnel index notes/ --to library

    The project's own index is in the folder .runnel of the working directory or of one above it. PATHs are added to its paths
    (without any: the whole folder), and `runnel search` keeps it up to date. Files that .gitignore files ignore are not read. Of
    a long file that has grown, only the new text is read. With --ray, many processes or machines read the files.
    """
    if check:
        refuse_others(context, "--check", _verify)
        return _verify(to, as_json)
    refuse({"--keep-missing": keep_missing and not to, "--ray": ray and not to}, "needs --to")
    refuse({"PATH": to and not paths}, "to read is needed with --to")
    if ray is None:
        refuse({"--workers": workers, "--worker-cpus": worker_cpus, "--worker-gpus": worker_gpus}, "needs --ray")
    refuse({"--json": as_json and watch, "--ray": ray and watch}, "cannot be given with --watch")
    refuse({"--device": ray and context.params["device"] != "auto"}, "has no effect with --ray; give --worker-gpus")
    new = New(parse_fields(fields or []), passage_tokens, remember)
    selected = select(include, exclude, no_ignore)
    reading = None if ocr is None else Ocr(ocr), Limits(seconds=parse_seconds)
    room = None if ray is None else Room(None if ray == "local" else ray, workers, worker_cpus or 1, worker_gpus or 0.0)
    wanted = Wanted(paths or [], selected, model, new, not keep_missing, watch, as_json, *reading, room)
    return update_project(wanted) if to is None else update_place(to, wanted)


def _verify(to: str | None, as_json: bool) -> int:
    """Verify an index, print all damage, and return the exit code: 1 if there is any."""
    from runnel.search.check import check
    from runnel.search.stores import open_store

    place = to or str(expect_project().place)
    store = open_store(place)
    commit, damage = store.last_commit(), check(store)
    for one in damage:
        say(one.reason if one.document is None else f"damaged: {one.document}: {one.reason}")
    if as_json:
        counts = {"index": place, "documents": commit.documents, "passages": commit.passages}
        print_json(counts | {"damaged": [asdict(one) for one in damage]})
    elif damage:
        advice = "restore it from a copy, or delete damaged documents (Index.delete) and index them again"
        print_text(f"{place}: {len(damage):,} damaged; {advice}")
    else:
        whole = f"{counted(commit.documents, 'document')}, {counted(commit.passages, 'passage')}"
        print_text(f"{place}: {whole}, none damaged")
    return 1 if damage else 0


def parse_fields(fields: Sequence[str]) -> dict[str, FieldType]:
    """Parse NAME:TYPE to {name: type}."""
    from runnel.search.records import FIELD_TYPES

    kinds: dict[str, FieldType] = {}
    for field in fields:
        name, colon, kind = field.partition(":")
        if not colon or kind not in FIELD_TYPES:
            raise InputError(f"--field is {field!r}; expected NAME:TYPE with one of the types {', '.join(FIELD_TYPES)}")
        kinds[name] = cast("FieldType", kind)
    return kinds
