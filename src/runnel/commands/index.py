"""`runnel index`: bring an index up to date with files and folders."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.commands.display import Meter, note_compiling, print_json, say
from runnel.errors import InputError

if TYPE_CHECKING:
    from runnel.search.index import Changes, Index


def run(
    paths: Sequence[str],
    *,
    to: str,
    model: str | None,
    fields: Sequence[str],
    passage_tokens: int,
    remember: bool,
    prune: bool,
    as_json: bool,
) -> int:
    """Make or open the index at `to`, add what is new, and return the exit code: 1 if a file could not be read."""
    note_compiling()
    from runnel.search.files import check_paths
    from runnel.search.index import Index
    from runnel.search.records import FIELD_TYPES

    check_paths(paths)
    kinds = {}
    for field in fields:
        name, colon, kind = field.partition(":")
        if not colon or kind not in FIELD_TYPES:
            raise InputError(f"--field is {field!r}; expected NAME:TYPE with one of the types {', '.join(FIELD_TYPES)}")
        kinds[name] = kind
    if _is_there(to):
        index = Index.open(to, model)
        if kinds and kinds != index.store.settings.fields:
            raise InputError(f"the index at {to} has the fields {dict(index.store.settings.fields)}; they cannot be changed")
        if remember and not index.store.settings.remember:
            raise InputError(f"the index at {to} was made without --remember; make a new one")
    else:
        options: dict[str, Any] = {"fields": kinds, "passage_tokens": passage_tokens, "remember": remember}
        index = Index.create(to, model or "pocket", **options)
    with index, Meter("indexing") as meter:
        changes = index.add_files(paths, prune=prune, progress=meter.add)
        if changes.added or changes.updated or changes.deleted:
            index.optimize()
        _report(index, changes, to, as_json)
    return 1 if changes.failed else 0


def _is_there(place: str) -> bool:
    """Whether there is something that should be an index: an empty folder is not."""
    if "://" in place:
        from runnel.search.lance import holds_index

        return holds_index(place)
    return Path(place).is_dir() and any(Path(place).iterdir())


def _report(index: Index, changes: Changes, to: str, as_json: bool) -> None:
    counts = {name: len(getattr(changes, name)) for name in ("added", "updated", "unchanged", "deleted", "failed")}
    for name, reason in changes.failed.items():
        say(f"left out {name}: {' '.join(reason.split())}")
    if as_json:
        print_json({"index": to, "documents": len(index), **counts, "tokens": changes.tokens, "tokens_read": changes.tokens_read})
        return
    told = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    sys.stdout.write(f"{to}: {told or 'nothing to do'}; {len(index):,} documents, {changes.tokens_read:,} tokens read\n")
