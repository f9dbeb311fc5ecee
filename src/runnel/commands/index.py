"""`runnel index`: bring an index up to date with files and folders, all together or in shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from runnel.commands.display import Meter, note_compiling, print_json, print_text, report_failed, say
from runnel.commands.index_ray import New, Room, parse_shards, read_shards
from runnel.commands.options import Json, refuse
from runnel.errors import InputError
from runnel.text.shards import Shard

if TYPE_CHECKING:
    from runnel.search.index import Changes, Index
    from runnel.search.records import FieldType


Paths = Annotated[
    list[str] | None, typer.Argument(metavar="PATH", help="Files and folders: txt, md, html, pdf, docx, epub, jsonl, csv, tsv.")
]
Place = Annotated[
    str, typer.Option(help="Folder or URI of the index, created if it does not exist; with --shard, folder of shards.")
]
Reads = Annotated[
    str | None, typer.Option("--model", "-m", help="Model that reads the documents; default pocket.", show_default=False)
]
Fields = Annotated[
    list[str] | None, typer.Option("--field", metavar="NAME:TYPE", help="Metadata to filter by, e.g. kind:str. For a new index.")
]
PassageTokens = Annotated[
    int | None,
    typer.Option(min=8, help="Most tokens of a passage; default: the model's, else 256. For a new index.", show_default=False),
]
Remember = Annotated[
    bool, typer.Option("--remember", help="Keep recurrent models' states of documents for reranking. For a new index.")
]
KeepMissing = Annotated[bool, typer.Option("--keep-missing", help="Keep documents of removed files.")]
ShardOf = Annotated[
    str | None,
    typer.Option(
        metavar="I/N",
        help="Read only shard I of N (I from 1), into its own folder below --to; with --ray also I-J/N.",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE",
        help="Make the shards in parallel on Ray: local, auto (this machine's cluster) or an address.",
    ),
]
Workers = Annotated[int | None, typer.Option(min=1, help="With --ray: processes (default: as many as fit).", show_default=False)]
WorkerCpus = Annotated[int | None, typer.Option(min=1, help="With --ray: cores of each (default: 1).", show_default=False)]
WorkerGpus = Annotated[
    float | None, typer.Option(min=0, help="With --ray: GPUs of each, 0.5 for two on one (default: 0).", show_default=False)
]
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
    "--incomplete": "--shards",
    "--workers": "--ray",
    "--worker-cpus": "--ray",
    "--worker-gpus": "--ray",
    "--ray": "--shard, e.g. --shard 1-64/64",
}


def index(
    to: Place,
    paths: Paths = None,
    model: Reads = None,
    fields: Fields = None,
    passage_tokens: PassageTokens = None,
    remember: Remember = False,
    keep_missing: KeepMissing = False,
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

    Of a long file that has grown, only the new text is read. With many machines: read one shard of the files on each (--shard),
    then import all shards (--shards).
    """
    made = {"--field": fields, "--passage-tokens": passage_tokens, "--remember": remember, "--keep-missing": keep_missing}
    on_ray = {"--ray": ray, "--workers": workers, "--worker-cpus": worker_cpus, "--worker-gpus": worker_gpus}
    of_shards = {"--shards": shards, "--incomplete": incomplete}
    _check_usage({"PATH": paths, "--model": model, "--shard": shard, "--check": check, **of_shards, **made, **on_ray})
    if check:
        return _verify(to, as_json)
    if shards is not None:
        return _take_shards(shards, to, model, incomplete, as_json)
    new = New(parse_fields(fields or []), passage_tokens, remember)
    if shard is None:
        return _update(paths or [], to, model, new, not keep_missing, as_json)
    if "://" in to:
        raise InputError(f"shards are written to a folder, which all machines can see; got {to}")
    if ray is None:
        return _read_shard(paths or [], to, Shard.parse(shard), model, new, as_json)
    room = Room(None if ray == "local" else ray, workers, worker_cpus or 1, worker_gpus or 0.0)
    return read_shards(paths or [], to, parse_shards(shard), model, new, room, as_json)


def _check_usage(given: Mapping[str, object]) -> None:
    """Raise a usage error for an option that would have no effect, and without a PATH."""
    names = [name for name, value in given.items() if value]
    for mode, allowed in _MODES.items():
        if mode in names:
            refuse({name: name not in (mode, *allowed) for name in names}, f"cannot be given with {mode}")
    for name, needed in _NEEDS.items():
        if needed.split(",")[0] not in names:
            refuse({name: name in names}, f"needs {needed}")
    if not {"PATH", "--shards", "--check"} & set(names):
        raise typer.BadParameter("give a PATH to read, or --shards FOLDER to import shards")


def _update(paths: Sequence[str], to: str, model: str | None, new: New, prune: bool, as_json: bool) -> int:
    """Create or open the index at `to`, add changes, and return the exit code: 1 if a file could not be read."""
    note_compiling()
    from runnel.search.files import check_paths
    from runnel.search.index import Index
    from runnel.search.stores import holds_index

    check_paths(paths)
    if holds_index(to):
        index = Index.open(to, model)
        settings = index.store.settings
        if new.fields and new.fields != settings.fields:
            raise InputError(f"the index at {to} has the fields {dict(settings.fields)}; they cannot be changed")
        if new.remember and not settings.remember:
            raise InputError(f"the index at {to} was made without --remember; make a new one")
        if new.passage_tokens not in (None, settings.passage_tokens):
            raise InputError(f"the index at {to} has passages of {settings.passage_tokens} tokens; they cannot be changed")
    else:
        index = Index.create(to, model or "pocket", **new._asdict())
    with index, Meter("indexing") as meter:
        changes = index.add_files(paths, prune=prune, progress=meter.add)
        return _finish(index, changes, to, as_json)


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
        counts = f"{done.documents:,} documents, {done.passages:,} passages, {done.tokens:,} tokens"
        print_text(f"{place}: {counts}, {len(done.failed):,} failed; {done.tokens_read:,} tokens read")
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
        return _finish(index, changes, to, as_json)


def _verify(place: str, as_json: bool) -> int:
    """Verify the index at `place`, print all damage, and return the exit code: 1 if there is any."""
    from runnel.search.check import check
    from runnel.search.stores import open_store

    store = open_store(place)
    commit, damage = store.commits()[-1], check(store)
    for one in damage:
        say(one.reason if one.document is None else f"damaged: {one.document}: {one.reason}")
    if as_json:
        counts = {"index": place, "documents": commit.documents, "passages": commit.passages}
        print_json(counts | {"damaged": [asdict(one) for one in damage]})
    elif damage:
        advice = "restore it from a copy, or delete damaged documents (Index.delete) and index them again"
        print_text(f"{place}: {len(damage):,} damaged; {advice}")
    else:
        print_text(f"{place}: {commit.documents:,} documents, {commit.passages:,} passages, none damaged")
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


def _finish(index: Index, changes: Changes, to: str, as_json: bool) -> int:
    """Optimize the index after changes, report them, and return the exit code."""
    if changes.added or changes.updated or changes.deleted:
        index.optimize()
    counts = {name: len(getattr(changes, name)) for name in ("added", "updated", "unchanged", "deleted", "failed")}
    if as_json:
        facts = {"index": to, "documents": len(index), **counts, "left_out": changes.failed}
        print_json(facts | {"tokens": changes.tokens, "tokens_read": changes.tokens_read})
    else:
        shown = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        print_text(f"{to}: {shown or 'nothing to do'}; {len(index):,} documents, {changes.tokens_read:,} tokens read")
    return 1 if changes.failed else 0
