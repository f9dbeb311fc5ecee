"""Read the finished shards of a folder, for an index to import."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runnel.errors import StoreError
from runnel.search.records import DocumentRow, IndexSettings, PassageRow
from runnel.search.shards import Manifest, check_settings, parquet, part_files, read_manifest
from runnel.search.tables import document_rows, passage_rows
from runnel.text.shards import Shard

_NAME = re.compile(r"\d{5,}-of-(\d{5,})")
_SHOWN = 10
_COMMIT_BYTES = 1 << 28  # of files: each commit compares with all ids of the index, so commits should be few
_COMMIT_DOCUMENTS = 20_000


@dataclass(frozen=True, slots=True)
class ShardPart:
    """A pair of files of a shard. `contents` is the content hash of each of its documents, by id."""

    place: Path
    number: int
    contents: dict[str, str]

    @property
    def bytes(self) -> int:
        """The size of the part's files."""
        return sum(path.stat().st_size for path in part_files(self.place, self.number))

    def rows(self, wanted: Collection[str]) -> tuple[list[DocumentRow], list[PassageRow]]:
        """Return documents by their ids, and their passages."""
        import pyarrow as pa
        import pyarrow.compute as pc

        names = pa.array(list(wanted), pa.string())
        tables = []
        for path, column in zip(part_files(self.place, self.number), ("id", "document"), strict=True):
            table = _read(path)
            tables.append(table if len(wanted) == len(self.contents) else table.filter(pc.is_in(table[column], names)))
        return document_rows(tables[0]), passage_rows(tables[1])


class ShardSet:
    """The shards in a folder, all of one set: made of the same files with the same settings.

    Args:
        incomplete: whether shards may be missing.

    Raises:
        StoreError: no shards, unfinished shards, shards of different sets, or two documents of one id.
    """

    def __init__(self, folder: str | Path, *, incomplete: bool = False) -> None:
        self.folder = Path(folder)
        self.manifests = _finished(self.folder, incomplete)
        first = self.settings = self.manifests[0].settings
        for manifest in self.manifests[1:]:
            if manifest.plan != self.manifests[0].plan:
                raise StoreError(
                    f"shards {self.manifests[0].shard} and {manifest.shard} in {folder} were made of different files: some were "
                    "added, removed or changed in size in between; remove the older ones and run them again"
                )
            what = f"shard {manifest.shard} in {folder}"
            check_settings(manifest.settings, first, what, f", as shard {self.manifests[0].shard} was; run one of them again")
        self._parts = [part for manifest in self.manifests for part in self._contents(manifest)]
        self._check_ids()

    def groups(self) -> Iterator[list[ShardPart]]:
        """Yield the parts in order, in groups that fit in memory and are committed together."""
        group: list[ShardPart] = []
        size = documents = 0
        for part in self._parts:
            if group and (size + part.bytes > _COMMIT_BYTES or documents + len(part.contents) > _COMMIT_DOCUMENTS):
                yield group
                group, size, documents = [], 0, 0
            group.append(part)
            size, documents = size + part.bytes, documents + len(part.contents)
        if group:
            yield group

    @property
    def failed(self) -> dict[str, str]:
        """Return files and documents that could not be read -> why."""
        return {name: reason for manifest in self.manifests for name, reason in manifest.failed.items()}

    def check(self, index: IndexSettings) -> None:
        """Raise StoreError if an index with these settings cannot import the shards."""
        advice = ", as the index is; run the shards again with its settings, or choose another index"
        check_settings(self.settings, index, f"the set of shards in {self.folder}", advice)

    def _contents(self, manifest: Manifest) -> Iterator[ShardPart]:
        place = self.folder / Shard(manifest.shard, manifest.count).name
        for number in range(manifest.parts):
            table = _read(part_files(place, number)[0], ["id", "content_hash"])
            yield ShardPart(place, number, dict(zip(table["id"].to_pylist(), table["content_hash"].to_pylist(), strict=True)))

    def _check_ids(self) -> None:
        owner: dict[str, Path] = {}
        for part in self._parts:
            for name in part.contents:
                other = owner.setdefault(name, part.place)
                if other != part.place:
                    raise StoreError(
                        f"document {name!r} is in two shards, {other.name} and {part.place.name}; "
                        "remove one of its rows, and run the shards again"
                    )


def _finished(folder: Path, incomplete: bool) -> list[Manifest]:
    """Return the manifests in order of number."""
    places = sorted(path for path in folder.iterdir() if path.is_dir() and _NAME.fullmatch(path.name)) if folder.is_dir() else []
    counts = sorted({int(_NAME.fullmatch(place.name)[1]) for place in places})  # type: ignore[index]
    if not counts:
        raise StoreError(f"there are no shards in {folder}; make them with `runnel index PATH --to {folder} --shard 1/N`")
    if len(counts) > 1:
        raise StoreError(f"{folder} has shards of {' and of '.join(map(str, counts))}; keep each set in a folder of its own")
    found = [manifest for place in places if (manifest := read_manifest(place)) is not None]
    have = {manifest.shard for manifest in found}
    missing = [str(number) for number in range(1, counts[0] + 1) if number not in have]
    if missing and not (incomplete and found):
        shown = ", ".join(missing[:_SHOWN]) + (f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else "")
        if 1 < len(missing) <= _SHOWN:
            shown = f"{', '.join(missing[:-1])} and {missing[-1]}"
        one = len(missing) == 1
        raise StoreError(
            f"{'shard' if one else 'shards'} {shown} of {counts[0]} {'is' if one else 'are'} not finished in {folder}; "
            f"run {'it' if one else 'them'} (again)" + (", or import the others with --incomplete" if found else "")
        )
    return found


def _read(path: Path, columns: list[str] | None = None) -> Any:
    import pyarrow as pa

    try:
        return parquet().read_table(path, columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise StoreError(f"{path} cannot be read ({error}); remove {path.parent} and run that shard again") from error
