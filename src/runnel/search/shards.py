"""Shards of an index: many jobs each read a fixed share of the same files, and an index imports their results.

    folder/00002-of-00008/
        begun.json                 the inputs and settings of an unfinished shard
        passages-00000.parquet     rows of the index, a pair of files for each batch; the documents' file is written
        documents-00000.parquet    last, so a part is complete if it exists
        manifest.json              written when the shard is finished

The same files and settings give the same parts, so an interrupted job resumes after its last part.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runnel.errors import StoreError, needing
from runnel.files import sweep, write
from runnel.lock import WriterLock
from runnel.models.embedder import Embedder
from runnel.search.encoding import DocumentEncoder, EncodedDocuments, same_model
from runnel.search.files import check_paths
from runnel.search.records import DocumentRow, IndexSettings
from runnel.search.tables import document_table, passage_table
from runnel.search.units import ShardPlan, Unit, read_units, unit_changed, units_digest
from runnel.text.shards import Shard

_FORMAT = 1
_BEGUN, _MANIFEST = "begun.json", "manifest.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content and the inputs of a finished shard.

    Attributes:
        plan: digest of the names and weights of all files, equal for all shards of a set.
        input: digest of the names and contents of this shard's input.
        fingerprint: of the backbone's weights (`Backbone.fingerprint`).
        bytes: of the input.
        passages: without the vectors of whole documents.
        failed: file or document -> why it could not be read.
        parts: pairs of files.
        tokens_read: by the run that finished the shard; 0 from `encode_shard` if it was finished before.
        seconds: duration of that run.
    """

    shard: int
    count: int
    plan: str
    input: str
    fingerprint: str
    settings: IndexSettings
    bytes: int
    documents: int
    passages: int
    tokens: int
    failed: Mapping[str, str]
    parts: int
    tokens_read: int
    seconds: float
    format: int = _FORMAT


def encode_shard(
    paths: Iterable[str | Path],
    folder: str | Path,
    shard: Shard,
    embedder: Embedder,
    *,
    settings: IndexSettings,
    progress: Callable[[int], None] | None = None,
) -> Manifest:
    """Encode a shard of files and folders into its own folder below `folder`.

    A finished shard is kept, an unfinished one resumes after its last part. Files that cannot be read are in
    `Manifest.failed`, and logged.

    Args:
        paths: the same for all shards, with the same files.
        settings: of the index that will import the shards (`encoding.new_settings`).
        progress: called with the number of tokens just read.

    Raises:
        InputError: a path does not exist.
        StoreError: the shard was begun with other files, settings or another model; its files change while they are read;
            or another process is at it.
    """
    started = time.monotonic()
    plan = ShardPlan(check_paths(paths))
    units = plan.units(shard)
    place = Path(folder) / shard.name
    place.mkdir(parents=True, exist_ok=True)
    lock = WriterLock(place / "writer.lock", place)
    lock.acquire()
    try:
        work = _Work(place, shard, plan.digest, units_digest(units), settings, embedder.model.backbone.fingerprint())
        done = work.begin()
        if done is not None:
            return replace(done, tokens_read=0)
        parts, tokens_read, failed = _encode(place, units, DocumentEncoder(embedder, settings, str(place)), progress)
        changed = next((unit.file for unit in units if unit_changed(unit)), None)
        if changed is not None:
            raise StoreError(f"{changed} changed while shard {shard} was made of it; remove {place} and run the shard again")
        return work.finish(parts, sum(unit.size for unit in units), tokens_read, failed, time.monotonic() - started)
    finally:
        lock.release()


def _encode(
    place: Path, units: Sequence[Unit], encoder: DocumentEncoder, progress: Callable[[int], None] | None
) -> tuple[list[_PartFacts], int, dict[str, str]]:
    """Write missing parts; return all parts, the number of tokens read, and the failed files."""
    sweep(place)
    failed: dict[str, str] = {}
    parts: list[_PartFacts] = []
    tokens_read = 0
    for number, batch in enumerate(encoder.batches(encoder.rows(read_units(units, failed), failed))):
        part = _PartFacts.read(place, number)
        if part is None:
            new = encoder.encode(batch, progress=progress)
            tokens_read += new.tokens_read
            part = _PartFacts.write(place, number, batch, new, encoder.settings)
        elif part.batch != _batch_digest(batch):
            raise StoreError(
                f"{place} has parts that were cut otherwise, by another version of runnel; remove it and start again"
            )
        parts.append(part)
    return parts, tokens_read, failed


# ---- a shard's folder ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _PartFacts:
    """A part's metadata, stored in its Parquet schema. `batch` is the digest of its input rows."""

    batch: str
    documents: int
    passages: int
    tokens: int
    failed: Mapping[str, str]

    @classmethod
    def read(cls, place: Path, number: int) -> _PartFacts | None:
        """Return a part, or None if it does not exist."""
        documents, passages = part_files(place, number)
        if not (documents.exists() and passages.exists()):
            return None
        return cls(**json.loads(parquet().read_schema(documents).metadata[b"runnel"]))

    @classmethod
    def write(
        cls, place: Path, number: int, batch: Sequence[DocumentRow], new: EncodedDocuments, settings: IndexSettings
    ) -> _PartFacts:
        count = len(new.documents)
        part = cls(_batch_digest(batch), count, len(new.passages) - count, new.tokens, new.failed)
        documents, passages = part_files(place, number)
        metadata = {row.id: row.metadata for row in new.documents}
        _write_table(passages, passage_table(new.passages, metadata, settings))
        about = {b"runnel": json.dumps(asdict(part)).encode()}
        _write_table(documents, document_table(new.documents, settings).replace_schema_metadata(about))
        return part


@dataclass(frozen=True, slots=True)
class _Work:
    """The inputs and settings of a shard, as stored in its folder."""

    place: Path
    shard: Shard
    plan: str
    input: str
    settings: IndexSettings
    fingerprint: str

    def begin(self) -> Manifest | None:
        """Return the manifest of a finished shard; otherwise record the inputs and settings, or compare them with the recorded
        ones.

        Raises:
            StoreError: the shard was begun with other inputs or settings.
        """
        done = read_manifest(self.place)
        if done is not None:
            self._check(done.plan, done.input, done.settings)
            lost = [n for n in range(done.parts) if _PartFacts.read(self.place, n) is None]
            if lost:
                raise StoreError(f"{self.place} lacks files of its parts {lost}; remove it and run the shard again")
            return done
        about = self.place / _BEGUN
        if about.exists():
            found = _load(about)
            self._check(found["plan"], found["input"], IndexSettings(**found["settings"]))
        else:
            inputs = {"format": _FORMAT, "plan": self.plan, "input": self.input}
            inputs |= {"settings": asdict(self.settings), "fingerprint": self.fingerprint}
            _write(about, json.dumps(inputs, indent=2).encode())
        return None

    def _check(self, plan: str, input: str, settings: IndexSettings) -> None:
        again = f"; give the same, or remove {self.place} and run the shard again"
        if plan != self.plan:
            raise StoreError(
                f"shard {self.shard} was begun with other files: some have been added, removed or changed in size since{again}"
            )
        if input != self.input:
            raise StoreError(f"the files of shard {self.shard} have changed since it was begun{again}")
        check_settings(settings, self.settings, f"shard {self.shard}", again)

    def finish(
        self, parts: Sequence[_PartFacts], size: int, tokens_read: int, failed: Mapping[str, str], seconds: float
    ) -> Manifest:
        everything = dict(failed)
        for part in parts:
            everything |= part.failed
        manifest = Manifest(
            shard=self.shard.number,
            count=self.shard.count,
            plan=self.plan,
            input=self.input,
            fingerprint=self.fingerprint,
            settings=self.settings,
            bytes=size,
            documents=sum(part.documents for part in parts),
            passages=sum(part.passages for part in parts),
            tokens=sum(part.tokens for part in parts),
            failed=everything,
            parts=len(parts),
            tokens_read=tokens_read,
            seconds=round(seconds, 3),
        )
        _write(self.place / _MANIFEST, json.dumps(asdict(manifest), indent=2).encode() + b"\n")
        (self.place / _BEGUN).unlink(missing_ok=True)
        return manifest


def read_manifest(place: Path) -> Manifest | None:
    """Return the manifest in a shard's folder, or None if the shard is not finished.

    Raises:
        StoreError: damaged, or of a newer format.
    """
    about = place / _MANIFEST
    if not about.exists():
        return None
    found = _load(about)
    return Manifest(**found | {"settings": IndexSettings(**found["settings"])})


def part_files(place: Path, number: int) -> tuple[Path, Path]:
    """Return the files of documents and of passages."""
    return place / f"documents-{number:05d}.parquet", place / f"passages-{number:05d}.parquet"


def check_settings(found: IndexSettings, wanted: IndexSettings, what: str, advice: str) -> None:
    """Raise StoreError if settings belong to different indexes, or to models with different vectors."""
    if found.dimension != wanted.dimension or not same_model(found.probe, wanted.probe):
        kind = "former" if found.model == wanted.model else "model"
        raise StoreError(f"{what} was made with the {kind} {found.model!r}; {wanted.model!r} gives other vectors{advice}")
    for name in ("fields", "passage_tokens", "remember"):
        have, want = getattr(found, name), getattr(wanted, name)
        if have != want:
            raise StoreError(f"{what} was made with {name} {have!r}, not {want!r}{advice}")


def parquet() -> Any:
    """pyarrow.parquet."""
    with needing("shards need pyarrow", "search"):
        import pyarrow.parquet
    return pyarrow.parquet


def _batch_digest(batch: Iterable[DocumentRow]) -> str:
    digest = hashlib.sha256()
    for row in batch:
        digest.update(f"{row.id}\0{row.content_hash}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _load(about: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(about.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StoreError(f"{about} is damaged ({error}); remove {about.parent} and run the shard again") from error
    if found.get("format") != _FORMAT:
        raise StoreError(
            f"{about} has shard format {found.get('format')!r}, this version of runnel reads {_FORMAT}; upgrade runnel"
        )
    return found


def _write_table(path: Path, table: Any) -> None:
    import pyarrow as pa

    buffer = pa.BufferOutputStream()
    parquet().write_table(table, buffer, compression="zstd", use_dictionary=False)
    _write(path, buffer.getvalue())


def _write(path: Path, data: Any) -> None:
    try:
        write(path, data)
    except OSError as error:
        why = f"{error.strerror}; what was finished before is kept. Remove the cause and run the shard again"
        raise StoreError(f"{path} cannot be written: {why}") from error
