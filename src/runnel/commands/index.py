"""`runnel index`: bring an index up to date with files and folders, all together or in shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from runnel.commands.display import Meter, note_compiling, print_json, print_text, report_failed, say
from runnel.commands.index_ray import New, Room, parse_shards, read_shards
from runnel.commands.index_update import Wanted, expect_project, finish, update_place, update_project
from runnel.commands.options import PARSE_SECONDS, Exclude, Include, Json, NoIgnore, OcrOption, ParseSeconds, refuse, select
from runnel.errors import InputError, counted
from runnel.text.documents.document import Limits
from runnel.text.documents.ocr import Ocr
from runnel.text.shards import Shard

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
        help="Folder or URI of the index, created if it does not exist (default: the project's own, in .runnel); "
        "with --shard, folder of shards.",
    ),
]
Reads = Annotated[str | None, typer.Option("--model", "-m", help="Model that reads the documents; default pocket.")]
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
ShardOf = Annotated[
    str | None,
    typer.Option(metavar="I/N", help="Read only shard I of N (I from 1), into its own folder below --to; with --ray also I-J/N."),
]
Ray = Annotated[
    str | None,
    typer.Option(metavar="PLACE", help="Make the shards in parallel on Ray: local, auto (this machine's cluster) or an address."),
]
Workers = Annotated[int | None, typer.Option(min=1, help="With --ray: processes (default: as many as fit).")]
WorkerCpus = Annotated[int | None, typer.Option(min=1, help="With --ray: cores of each (default: 1).")]
WorkerGpus = Annotated[float | None, typer.Option(min=0, help="With --ray: GPUs of each, 0.5 for two on one (default: 0).")]
Shards = Annotated[str | None, typer.Option(metavar="FOLDER", help="Import the finished shards of a folder instead of PATHs.")]
Check = Annotated[bool, typer.Option("--check", help="Only verify what the index at --to stores; exit code 1 if it is damaged.")]
Incomplete = Annotated[bool, typer.Option("--incomplete", help="With --shards: even if shards are missing.")]


_MODES = {
    "--check": (),
    "--shards": ("--model", "--incomplete"),
    "--shard": (
        "PATH",
        "--model",
        "--field",
        "--passage-tokens",
        "--remember",
        "--ray",
        "--workers",
        "--worker-cpus",
        "--worker-gpus",
    ),
}  # what else may be given
_NEEDS = {
    "--shard": "--to",
    "--shards": "--to",
    "--keep-missing": "--to",
    "--incomplete": "--shards",
    "--workers": "--ray",
    "--worker-cpus": "--ray",
    "--worker-gpus": "--ray",
    "--ray": "--shard, e.g. --shard 1-64/64",
}


def index(
    paths: Paths = None,
    to: Place = None,
    model: Reads = None,
    fields: Fields = None,
    passage_tokens: PassageTokens = None,
    remember: Remember = False,
    include: Include = None,
    exclude: Exclude = None,
    no_ignore: NoIgnore = False,
    ocr: OcrOption = None,
    parse_seconds: ParseSeconds = PARSE_SECONDS,
    keep_missing: KeepMissing = False,
    watch: Watch = False,
    shard: ShardOf = None,
    ray: Ray = None,
    workers: Workers = None,
    worker_cpus: WorkerCpus = None,
    worker_gpus: WorkerGpus = None,
    shards: Shards = None,
    incomplete: Incomplete = False,
    check: Check = False,
    as_json: Json = False,
) -> int:
    """Create or update an index: read new and changed files, and delete documents of removed files.

    Without --to: the project's own index, in the folder .runnel of the working directory or of one above it. PATHs are added to
    its paths (without any: the whole folder), and `runnel search` keeps it up to date. Files that .gitignore files ignore are not
    read. Of a long file that has grown, only the new text is read. With many machines: read one shard of the files on each
    (--shard), then import all shards (--shards).
    """
    made = {"--field": fields, "--passage-tokens": passage_tokens, "--remember": remember, "--keep-missing": keep_missing}
    made |= {"--include": include, "--exclude": exclude, "--no-ignore": no_ignore, "--watch": watch, "--ocr": bool(ocr)}
    made |= {"--parse-seconds": parse_seconds != PARSE_SECONDS}
    on_ray = {"--ray": ray, "--workers": workers, "--worker-cpus": worker_cpus, "--worker-gpus": worker_gpus}
    of_shards = {"--shards": shards, "--incomplete": incomplete}
    _check_usage(to, {"PATH": paths, "--model": model, "--shard": shard, "--check": check, **of_shards, **made, **on_ray})
    refuse({"--json": as_json and watch}, "cannot be given with --watch")
    if check:
        return _verify(to or str(expect_project().place), as_json)
    new = New(parse_fields(fields or []), passage_tokens, remember)
    selected = select(include, exclude, no_ignore)
    reading = None if ocr is None else Ocr(ocr), Limits(seconds=parse_seconds)
    wanted = Wanted(paths or [], selected, model, new, not keep_missing, watch, as_json, *reading)
    if to is None:
        return update_project(wanted)
    if shards is not None:
        return _take_shards(shards, to, model, incomplete, as_json)
    if shard is None:
        return update_place(to, wanted)
    _expect_shards_folder(to)
    if ray is None:
        return _read_shard(paths or [], to, Shard.parse(shard), model, new, as_json)
    room = Room(None if ray == "local" else ray, workers, worker_cpus or 1, worker_gpus or 0.0)
    return read_shards(paths or [], to, parse_shards(shard), model, new, room, as_json)


def _check_usage(to: str | None, given: Mapping[str, object]) -> None:
    """Raise a usage error for an option that would have no effect, and for --to without a PATH."""
    names = [name for name, value in given.items() if value]
    for mode, allowed in _MODES.items():
        if mode in names:
            refuse({name: name not in (mode, *allowed) for name in names}, f"cannot be given with {mode}")
    for name, needed in _NEEDS.items():
        if needed.split(",")[0] not in [*names, *(["--to"] if to else [])]:
            refuse({name: name in names}, f"needs {needed}")
    if to and not {"PATH", "--shards", "--check"} & set(names):
        raise typer.BadParameter("give a PATH to read, or --shards FOLDER to import shards")


def _expect_shards_folder(place: str) -> None:
    from runnel.text.folders import is_index

    if "://" in place:
        raise InputError(f"shards are written to a folder, which all machines can see; got {place}")
    if is_index(place):
        raise InputError(f"{place} holds an index; choose another folder for the shards, then import them (--shards)")


def _read_shard(paths: Sequence[str], to: str, part: Shard, model: str | None, new: New, as_json: bool) -> int:
    """Read one shard of `paths` into the folder `to`. Files that cannot be read are reported; the exit code is 0."""
    note_compiling()
    from runnel.models.embedder import Embedder
    from runnel.search.encoding import new_settings
    from runnel.search.files import check_paths
    from runnel.search.shards import encode_shard

    check_paths(paths)
    embedder = Embedder.load(model or "pocket")
    with Meter(f"shard {part}") as meter:
        done = encode_shard(paths, to, part, embedder, settings=new_settings(embedder, *new), progress=meter.add)
    place = Path(to) / part.name
    if not done.tokens_read and done.tokens:
        say(f"note: {place} is finished already")
        report_failed(done.failed)
    if as_json:
        facts = {name: value for name, value in asdict(done).items() if name != "settings"}
        print_json({"folder": str(place), **facts})
    else:
        counts = f"{counted(done.documents, 'document')}, {counted(done.passages, 'passage')}, {counted(done.tokens, 'token')}"
        print_text(f"{place}: {counts}, {len(done.failed):,} failed; {counted(done.tokens_read, 'token')} read")
    return 0


def _take_shards(folder: str, to: str, model: str | None, incomplete: bool, as_json: bool) -> int:
    """Import finished shards into the index at `to`, created with their settings if it does not exist."""
    note_compiling()
    from runnel.models.embedder import Embedder
    from runnel.search.encoding import expect_model
    from runnel.search.index import Index
    from runnel.search.shard_set import ShardSet
    from runnel.search.stores import holds_index

    if holds_index(to):
        index = Index.open(to, model)
    else:
        made = ShardSet(folder, incomplete=incomplete).settings
        embedder = Embedder.load(model or made.model)
        expect_model(embedder, made, folder)
        new = New(made.fields, made.passage_tokens, made.remember)
        index = Index.create(to, embedder, **new._asdict())
    with index:
        changes = index.add_shards(folder, incomplete=incomplete)
        report_failed(changes.failed)
        if changes:
            index.optimize()
        return finish(index, changes, to, as_json)


def _verify(place: str, as_json: bool) -> int:
    """Verify the index at `place`, print all damage, and return the exit code: 1 if there is any."""
    from runnel.search.check import check
    from runnel.search.stores import open_store

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
    """Parse NAME:TYPE to {name: type}.

    Raises:
        InputError: another form, or an unknown type.
    """
    from runnel.search.records import FIELD_TYPES

    kinds: dict[str, FieldType] = {}
    for field in fields:
        name, colon, kind = field.partition(":")
        if not colon or kind not in FIELD_TYPES:
            raise InputError(f"--field is {field!r}; expected NAME:TYPE with one of the types {', '.join(FIELD_TYPES)}")
        kinds[name] = cast("FieldType", kind)
    return kinds
