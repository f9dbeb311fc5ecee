"""`runnel index`: bring an index up to date with files and folders, at once or in shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.commands.display import Meter, note_compiling, print_json, print_text, say
from runnel.errors import InputError
from runnel.text.shards import Shard

if TYPE_CHECKING:
    from runnel.search.index import Changes, Index


def run(
    paths: Sequence[str],
    *,
    to: str,
    model: str | None,
    fields: Sequence[str],
    passage_tokens: int | None,
    remember: bool,
    prune: bool,
    as_json: bool,
) -> int:
    """Make or open the index at `to`, add what is new, and return the exit code: 1 if a file could not be read."""
    note_compiling()
    from runnel.search.files import check_paths
    from runnel.search.index import Index
    from runnel.search.stores import holds_index

    check_paths(paths)
    kinds = parse_fields(fields)
    if holds_index(to):
        index = Index.open(to, model)
        settings = index.store.settings
        if kinds and kinds != settings.fields:
            raise InputError(f"the index at {to} has the fields {dict(settings.fields)}; they cannot be changed")
        if remember and not settings.remember:
            raise InputError(f"the index at {to} was made without --remember; make a new one")
        if passage_tokens not in (None, settings.passage_tokens):
            raise InputError(f"the index at {to} has passages of {settings.passage_tokens} tokens; they cannot be changed")
    else:
        index = Index.create(to, model or "pocket", **index_options(kinds, passage_tokens, remember))
    with index, Meter("indexing") as meter:
        changes = index.add_files(paths, prune=prune, progress=meter.add)
        _finish(index, changes, to, as_json)
    return 1 if changes.failed else 0


def run_shard(
    paths: Sequence[str],
    *,
    to: str,
    shard: str,
    model: str | None,
    fields: Sequence[str],
    passage_tokens: int | None,
    remember: bool,
    as_json: bool,
) -> int:
    """Read one shard of `paths` into the folder `to`. Files that cannot be read are told; the exit code is 0, as it is done."""
    part, kinds = Shard.parse(shard), parse_fields(fields)
    if "://" in to:
        raise InputError(f"shards are written to a folder, which all jobs can see; got {to}")
    note_compiling()
    from runnel.models.embedder import Embedder
    from runnel.search.encoding import new_settings
    from runnel.search.files import check_paths
    from runnel.search.shards import encode_shard

    check_paths(paths)
    embedder = Embedder.load(model or "pocket")
    settings = new_settings(embedder, **index_options(kinds, passage_tokens, remember))
    with Meter(f"shard {part}") as meter:
        done = encode_shard(paths, to, part, embedder, settings=settings, progress=meter.add)
    place = Path(to) / part.name
    if not done.tokens_read and done.tokens:
        say(f"note: {place} is finished already")
        tell_failed(done.failed)
    if as_json:
        told = {name: value for name, value in asdict(done).items() if name != "settings"}
        print_json({"folder": str(place), **told})
    else:
        counts = f"{done.documents:,} documents, {done.passages:,} passages, {done.tokens:,} tokens"
        print_text(f"{place}: {counts}, {len(done.failed):,} failed; {done.tokens_read:,} tokens read")
    return 0


def run_shards(folder: str, *, to: str, model: str | None, incomplete: bool, as_json: bool) -> int:
    """Take finished shards into the index at `to`, which is made with their settings if it is not there."""
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
        options = index_options(dict(made.fields), made.passage_tokens, made.remember)
        index = Index.create(to, embedder, **options)
    with index:
        changes = index.add_shards(folder, incomplete=incomplete)
        tell_failed(changes.failed)
        _finish(index, changes, to, as_json)
    return 1 if changes.failed else 0


def run_check(place: str, *, as_json: bool) -> int:
    """Verify the index at `place`, print what is damaged, and return the exit code: 1 if something is."""
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
        advice = "restore it from a copy, or delete what is damaged (Index.delete) and index it again"
        print_text(f"{place}: {len(damage):,} damaged; {advice}")
    else:
        print_text(f"{place}: {commit.documents:,} documents, {commit.passages:,} passages, none damaged")
    return 1 if damage else 0


def parse_fields(fields: Sequence[str]) -> dict[str, str]:
    """{name: type} from NAME:TYPE.

    Raises:
        InputError: something else, or an unknown type.
    """
    from runnel.search.records import FIELD_TYPES

    kinds = {}
    for field in fields:
        name, colon, kind = field.partition(":")
        if not colon or kind not in FIELD_TYPES:
            raise InputError(f"--field is {field!r}; expected NAME:TYPE with one of the types {', '.join(FIELD_TYPES)}")
        kinds[name] = kind
    return kinds


def index_options(fields: Mapping[str, str], passage_tokens: int | None, remember: bool) -> dict[str, Any]:
    """As `Index.create` takes them."""
    return {"fields": fields, "passage_tokens": passage_tokens, "remember": remember}


def tell_failed(failed: Mapping[str, str]) -> None:
    """What other processes have left out; this one logs that when it happens."""
    from runnel.search.files import left_out

    for name, reason in failed.items():
        say(left_out(name, reason))


def _finish(index: Index, changes: Changes, to: str, as_json: bool) -> None:
    """Tidy up after changes, and tell them."""
    if changes.added or changes.updated or changes.deleted:
        index.optimize()
    counts = {name: len(getattr(changes, name)) for name in ("added", "updated", "unchanged", "deleted", "failed")}
    if as_json:
        told = {"index": to, "documents": len(index), **counts, "left_out": changes.failed}
        print_json(told | {"tokens": changes.tokens, "tokens_read": changes.tokens_read})
        return
    told_counts = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    print_text(f"{to}: {told_counts or 'nothing to do'}; {len(index):,} documents, {changes.tokens_read:,} tokens read")
