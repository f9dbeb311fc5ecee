"""Index files on a Ray cluster (docs/scale.md).

    `index_files`, in the driver, groups the files
    `_read`, in Ray tasks, reads a group with `read_found` and yields `_Batch`es of documents
    `_Worker`, in processes with the model, encodes a batch with `DocumentEncoder.encode`
    `index_files` commits several batches together with `Store.commit`

Batches arrive in the order of the files, so the index is the one that `Index.add_files` makes.

Only the driver writes to the store. So every kind of store works, but if the driver is killed, the
documents that were encoded since its last commit are lost, and the next run encodes them again.
"""

import logging
import math
import os
import pickle
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from runnel import __version__
from runnel.batching import grouped
from runnel.checks import expect_count
from runnel.errors import BackendUnavailable, InputError, StoreError, errors_as, needing
from runnel.models.embedder import Embedder
from runnel.models.folder import BUILT_IN
from runnel.request import Progress, TokenCount
from runnel.search.encoding import DocumentEncoder, EncodedDocuments, batches
from runnel.search.files import Scan, Stored, by_file, check_paths, left_out, read_found
from runnel.search.index import Changes, Index
from runnel.search.records import ContentHashes, DocumentRow, IndexSettings, OnCommit
from runnel.text.documents.document import Limits
from runnel.text.documents.ocr import Ocr
from runnel.text.folders import EVERYTHING, Root, Selection, find_files

log = logging.getLogger("runnel")
# The most that one task reads, except for a single larger file.
_GROUP_BYTES = 2_000_000
_GROUP_FILES = 2000
# The most that one commit takes: bytes / _COMMIT_BYTES + documents / _COMMIT_DOCUMENTS <= 1. Each
# commit compares its ids with all ids of the store, so commits should be large and few.
_COMMIT_BYTES = 1 << 28
_COMMIT_DOCUMENTS = 10_000


@dataclass(frozen=True)
class _Pool:
    """The processes that encode: the model they load, their number, and the cores and GPUs that
    each of them gets.
    """

    model: str
    settings: IndexSettings
    workers: int
    cpus: int
    gpus: float


@dataclass
class _Batch:
    """Some documents of a group of files, on their way from `_read` to the commit. The last batch
    of a group has no documents, but the group's `scan`.
    """

    # filled by `_read`: documents to encode, and the hashes of the documents that the index already
    # has from the same files, by their ids
    rows: list[DocumentRow] = field(default_factory=list)
    hashes: dict[str, ContentHashes] = field(default_factory=dict)
    scan: Scan = field(default_factory=Scan)
    # filled by `_Worker`, which leaves `rows` and `hashes` behind
    new: EncodedDocuments = field(default_factory=EncodedDocuments)
    # filled by the driver: the part of a commit that this batch takes, from 0 to 1
    share: float = 0.0


def index_files(
    index: Index,
    paths: Iterable[str | Path | Root],
    *,
    selection: Selection = EVERYTHING,
    prune: bool = True,
    limits: Limits | None = None,
    ocr: Ocr | None = None,
    workers: int | None = None,
    cpus: int = 1,
    gpus: float = 0.0,
    address: str | None = None,
    progress: Progress | None = None,
    on_commit: OnCommit | None = None,
) -> Changes:
    """Update the documents of files as `Index.add_files` does, with the processes of a Ray cluster.

    Unlike `Index.add_files`, it reads a long file that has grown from its beginning, and it logs
    the files that could not be read only at the end.

    Args:
        index: its model must be in the package, on the hub, or in a folder that all machines see.
        paths: on storage that all machines see under the same names.
        selection, prune, limits, ocr, on_commit: as for `Index.add_files`.
        workers: number of processes that hold the model; default: as many as fit the cluster. Fewer
            start if fewer fit.
        cpus: cores, and so threads, of each worker.
        gpus: GPUs of each worker; 0.5 puts two workers on one GPU.
        address: of a Ray cluster, "auto" for the one that this machine belongs to; default: Ray on
            this machine alone.
        progress: called after each batch of a worker with (tokens done, None).

    Raises:
        InputError: a path that does not exist, a number out of range, no cluster at the address.
        MissingDependency: ray is not installed.
        StoreError: another process is writing.
        BackendUnavailable: workers cannot load the model, or have another version of runnel or of
            the model.
    """
    roots = [root.resolve() for root in check_paths(paths)]
    expect_count(cpus, "cpus")
    if workers is not None:
        expect_count(workers, "workers")
    store = index.store
    scan = Scan()
    changes = Changes()
    hashes = store.content_hashes()
    stored = by_file(hashes)
    files = list(find_files(roots, selection, scan.fail_folder))
    together = grouped(
        files, lambda file: file.stat().st_size if file.is_file() else 0, _GROUP_BYTES, _GROUP_FILES
    )
    groups = [
        (group, {name: stored[name] for name in map(str, group) if name in stored})
        for group in together
    ]
    named = frozenset(root.path for root in roots)
    reading = {"named": named, "batch": index.encoder.batch_documents, "limits": limits, "ocr": ocr}
    with _cluster(address, (workers or 0) * cpus) as ray:
        model = index.embedder.model.source
        if model not in BUILT_IN and Path(model).exists():
            model = str(Path(model).resolve())  # for processes with another working directory
        pool = _Pool(model, store.settings, workers or _room(ray, cpus, gpus), cpus, gpus)
        encoded = _encoded(ray, groups, reading, pool, progress)
        for ready in grouped(encoded, lambda batch: batch.share, 1.0):
            documents = [row for batch in ready for row in batch.new.documents]
            passages = [row for batch in ready for row in batch.new.passages]
            for batch in ready:
                changes.count(batch.new, hashes)
                changes.failed |= batch.scan.failed
                scan.unchanged += batch.scan.unchanged
                scan.gone += batch.scan.gone
                scan.empty += batch.scan.empty
                scan.other_kinds += batch.scan.other_kinds
            if documents:
                commit = store.commit(documents, passages, [])
                if on_commit is not None:
                    on_commit(commit)
    for name, reason in changes.failed.items():
        log.warning("%s", left_out(name, reason))
    scan.finish(roots, stored, {str(file) for file in files})
    index.finish_files(changes, scan, prune=prune)
    return changes


def _encoded(
    ray: ModuleType,
    groups: Sequence[tuple[list[Path], Stored]],
    reading: dict[str, object],
    pool: _Pool,
    progress: Progress | None,
) -> Iterator[_Batch]:
    """Read and encode the groups on the cluster; yield their batches in the order of the files."""
    if not groups:
        return
    context = ray.data.DataContext.get_current().copy()
    # a file is complete once its last row is stored
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    # one batch in each block: the batches of one large file go to all workers
    context.target_max_block_size = 1
    with ray.data.DataContext.current(context):
        items = [{"group": pickle.dumps(group)} for group in groups]
        read = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
            _read,
            fn_kwargs=reading,
            batch_size=1,
            num_cpus=0,  # otherwise the workers could take all cores, and no task could ever start
            compute=ray.data.TaskPoolStrategy(min(pool.workers, len(items))),
        )
        encoded = read.map(
            _Worker,
            fn_constructor_args=(pool, __version__),
            num_cpus=pool.cpus,
            num_gpus=pool.gpus,
            compute=ray.data.ActorPoolStrategy(
                min_size=1, max_size=pool.workers, initial_size=pool.workers
            ),
        )
        try:
            count = TokenCount(progress)
            for row in encoded.iter_rows():
                batch: _Batch = pickle.loads(row["batch"])
                batch.share = (
                    len(row["batch"]) / _COMMIT_BYTES + len(batch.new.documents) / _COMMIT_DOCUMENTS
                )
                count.add(batch.new.tokens_read)
                yield batch
        except ray.exceptions.RayError as error:
            last = str(error).strip().splitlines()[-1]
            raise BackendUnavailable(
                f"the workers ended ({last}); remove the cause and repeat, what is committed is"
                " kept"
            ) from error


def _read(
    row: Mapping[str, Sequence[bytes]],
    *,
    named: frozenset[Path],
    batch: int,
    limits: Limits | None,
    ocr: Ocr | None,
) -> Iterator[dict[str, list[bytes]]]:
    """Read a group of files, in a Ray task; yield its pickled batches, and last one with its scan.
    `batch`: documents of a batch.
    """
    files, stored = pickle.loads(row["group"][0])
    scan = Scan()
    for rows in batches(read_found(files, stored, scan, named, None, limits, ocr), batch):
        hashes: dict[str, ContentHashes] = {}
        for source in {row.source for row in rows}:
            hashes |= stored.get(source, {})
        yield {"batch": [pickle.dumps(_Batch(rows, hashes))]}
    yield {"batch": [pickle.dumps(_Batch(scan=scan))]}


class _Worker:
    """A process that holds the model, and encodes one batch after another."""

    def __init__(self, pool: _Pool, runnel: str) -> None:
        if __version__ != runnel:
            raise StoreError(
                f"a worker has runnel {__version__}, the driver {runnel}; install one version on"
                " all machines"
            )
        # Without torch, kernels run on the threads of OMP_NUM_THREADS, which Ray sets.
        with suppress(ImportError):
            import torch

            torch.set_num_threads(pool.cpus)
        embedder = Embedder.load(pool.model, device="auto" if pool.gpus else "cpu")
        self._encoder = DocumentEncoder(embedder, pool.settings, "the index")

    def __call__(self, row: dict[str, bytes]) -> dict[str, bytes]:
        batch: _Batch = pickle.loads(row["batch"])
        failed: dict[str, str] = {}
        # `new_rows` yields the documents whose content is new. It also adds the others to `failed`,
        # or to the ids in `batch.scan.unchanged`.
        new = list(self._encoder.new_rows(batch.rows, batch.hashes, failed, batch.scan.unchanged))
        made = self._encoder.encode(new)
        made.failed |= failed
        return {"batch": pickle.dumps(_Batch(scan=batch.scan, new=made))}


@contextmanager
def _cluster(address: str | None, cpus: int) -> Iterator[ModuleType]:
    """Connect to Ray; an existing connection is reused and left open."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with needing("a cluster of workers needs ray", "ray"):
        import ray.data
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    if ray.is_initialized():
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    with warnings.catch_warnings():
        # Ray's processes replace themselves at once
        warnings.filterwarnings("ignore", "lancedb fork support", RuntimeWarning)
        if address is None:  # without "local", the variable RAY_ADDRESS would decide
            ray.init("local", num_cpus=cpus or None, include_dashboard=False, **quiet)
        else:
            with errors_as(
                InputError,
                f"no Ray cluster at {address!r}",
                ConnectionError,
                ValueError,
                advice="start one with `ray start --head`",
            ):
                ray.init(address, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()


def _room(ray: ModuleType, cpus: int, gpus: float) -> int:
    """Return how many workers fit the cluster, at least one."""
    resources = ray.cluster_resources()
    room = int(resources.get("CPU", 0) // cpus)
    if gpus:
        room = min(room, math.floor(resources.get("GPU", 0) / gpus))
    return max(1, room)
