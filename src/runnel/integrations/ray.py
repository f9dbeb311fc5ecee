"""Read shards on a Ray cluster: each worker is a process that loads the model and reads one shard after another.

Ray starts the processes, places them on machines and reports which have ended; nothing more is asked of it. A run resumes by
`encode_shard` and its files: a finished shard is skipped, an unfinished one resumes after its last whole part, and a lock keeps
two processes from one shard. So a killed worker costs the part that it was reading, and a killed driver can be restarted.

Differs: Ray's own restarts and retries are not used. They send a lost task back to the same actor, which may wait forever for
resources; here its shard goes to the next free worker, and a worker gets work only after it has loaded the model.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.errors import BackendUnavailable, InputError, StoreBusy, needing
from runnel.integrations.ray_worker import ShardJob, Worker
from runnel.models.base import BUILT_IN
from runnel.search.files import check_paths
from runnel.search.records import FieldType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runnel.search.shards import Manifest
    from runnel.text.shards import Shard

log = logging.getLogger("runnel")
_TICK_S = 1.0  # between polls of the workers
_BUSY_S = 5.0  # until a shard that another process is reading is tried again
_PATIENCE_S = 60.0  # without any worker, until a warning
_KILLS = 5  # of workers reading one shard, until it is given up
_ERRORS = 3  # of shards, until no other is begun: the cause is likely to affect all


@dataclass(frozen=True)
class ShardProgress:
    """Progress of a run.

    Attributes:
        done: finished shards, of `count`.
        workers: how many have loaded the model.
        tokens: read in this run.
        tokens_left: estimate for unfinished shards, from the finished ones; None until one is finished.
        seconds: since the start.
    """

    done: int
    count: int
    workers: int
    tokens: int
    tokens_left: int | None
    seconds: float


@dataclass(slots=True)
class ShardOutcome:
    """Result of a run.

    Attributes:
        manifests: of the finished shards, including those finished before this run.
        failed: shards that failed, with the reason.
        not_begun: shards skipped after too many errors.
        tokens: read in this run.
    """

    manifests: list[Manifest] = field(default_factory=list)
    failed: dict[Shard, str] = field(default_factory=dict)
    not_begun: list[Shard] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0


def encode_shards(
    paths: Iterable[str | Path],
    folder: str | Path,
    shards: Sequence[Shard],
    model: str | Path = "pocket",
    *,
    fields: Mapping[str, FieldType] | None = None,
    passage_tokens: int | None = None,
    remember: bool = False,
    workers: int | None = None,
    cpus: int = 1,
    gpus: float = 0.0,
    address: str | None = None,
    progress: Callable[[ShardProgress], None] | None = None,
) -> ShardOutcome:
    """Read documents in shards, several at a time; each shard equals what `encode_shard` alone writes.

    Several runs on one folder share the work: a shard that another process is reading is tried again later.

    Args:
        paths, folder: on storage that all machines of the cluster see under the same names.
        shards: what to read, e.g. [Shard(n, 64) for n in range(1, 65)]. Eight for each worker, or more, keep all workers busy
            until shortly before the end.
        model: name or folder.
        fields, passage_tokens, remember: as for `Index.create`.
        workers: number of processes; default: as many as fit the cluster.
        cpus: cores, and so threads, of each worker.
        gpus: of each worker; 0.5 puts two on one GPU.
        address: of a Ray cluster, "auto" for the one that this machine belongs to; default: Ray on this machine alone.
        progress: called about once a second.

    Returns:
        The outcome. A failed shard is reported there and does not stop the others; after three failures no other is begun.

    Raises:
        InputError: a path that does not exist, a number out of range, no cluster at the address.
        MissingDependency: ray is not installed.
        BackendUnavailable: the workers end before they have loaded the model.
        RunnelError: a worker cannot start, e.g. because the model does not exist.
    """
    roots = check_paths(paths)
    if cpus < 1 or gpus < 0 or (workers is not None and workers < 1):
        raise InputError(f"workers and cpus must be at least 1 and gpus at least 0, got {workers}, {cpus} and {gpus}")
    if not shards:
        raise InputError("no shards to read; give at least one")
    place = Path(folder).resolve()
    place.mkdir(parents=True, exist_ok=True)
    name = str(Path(model).resolve()) if str(model) not in BUILT_IN and Path(model).exists() else str(model)
    absolute = [str(root.path.resolve() / root.pattern) for root in roots]
    job = ShardJob(absolute, str(place), name, dict(fields or {}), passage_tokens, remember, version("runnel"))
    with _cluster(address, (workers or 0) * cpus) as ray:
        wanted = workers or _room(ray, cpus, gpus)
        kind = ray.remote(Worker).options(
            num_cpus=cpus, num_gpus=gpus, max_concurrency=2
        )  # so that `tokens` can be asked during `encode`
        return _Run(ray, job, shards, lambda: kind.remote(cpus, gpus > 0), wanted, progress).run()


@dataclass(slots=True, eq=False)
class _WorkerHandle:
    """The driver's view of a worker: its shard, and the tokens it has read."""

    actor: Any
    shard: Shard | None = None
    ready: bool = False
    tokens: int = 0
    of_shard: int = 0


class _Run:
    """The driver: assigns shards to workers."""

    def __init__(
        self,
        ray: Any,
        job: ShardJob,
        shards: Sequence[Shard],
        start: Callable[[], Any],
        workers: int,
        progress: Callable[[ShardProgress], None] | None,
    ) -> None:
        self._ray, self._job, self._start, self._workers, self._progress = ray, job, start, workers, progress
        self._count = len(shards)
        self._left = deque(shards)
        self._later: list[tuple[float, Shard]] = []  # locked by another process: (when to try again, shard)
        self._waited_for: set[Shard] = set()
        self._tasks: dict[Any, _WorkerHandle] = {}  # pending task -> its worker
        self._idle: list[_WorkerHandle] = []
        self._kills: dict[Shard | None, int] = {}  # None: while loading
        self._read_before = 0  # tokens read by workers that have ended
        self._outcome = ShardOutcome()
        self._began = time.monotonic()

    def run(self) -> ShardOutcome:
        warned = False
        try:
            while self._left or self._later or any(worker.shard for worker in self._tasks.values()):
                self._start_workers()
                self._assign()
                for task in self._wait():
                    self._collect(task)
                self._report_progress()
                if not warned and not any(h.ready for h in self._all()) and self._seconds() > _PATIENCE_S:
                    warned = True
                    log.warning("still no worker after %.0f s; the cluster has %s", _PATIENCE_S, self._ray.available_resources())
        finally:
            for worker in self._all():
                self._ray.kill(worker.actor)
        self._outcome.tokens, self._outcome.seconds = self._tokens(), self._seconds()
        return self._outcome

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _tokens(self) -> int:
        return self._read_before + sum(worker.tokens for worker in self._all())

    def _all(self) -> list[_WorkerHandle]:
        return [*self._tasks.values(), *self._idle]

    def _start_workers(self) -> None:
        """Start a worker for each unfinished shard, up to the wanted number."""
        busy = sum(worker.shard is not None for worker in self._tasks.values())
        while len(self._all()) < min(self._workers, busy + len(self._left) + len(self._later)):
            worker = _WorkerHandle(self._start())
            self._tasks[worker.actor.load.remote(self._job)] = worker

    def _assign(self) -> None:
        now = time.monotonic()
        self._left.extend(shard for when, shard in self._later if when <= now)
        self._later = [(when, shard) for when, shard in self._later if when > now]
        while self._idle and self._left:
            worker = self._idle.pop()
            worker.shard, worker.of_shard = self._left.popleft(), 0
            self._tasks[worker.actor.encode.remote(worker.shard)] = worker
        while self._idle and not self._later:  # no more work for them
            self._stop(self._idle.pop())

    def _wait(self) -> list[Any]:
        """Return the tasks that have ended, or none after a while."""
        if not self._tasks:
            time.sleep(_TICK_S)
            return []
        return self._ray.wait(list(self._tasks), timeout=_TICK_S)[0]

    def _collect(self, task: Any) -> None:
        """Handle the end of a task: a loaded model, a finished shard, an error, or a dead worker."""
        from ray.exceptions import RayError, RayTaskError

        worker = self._tasks.pop(task)
        shard, worker.shard = worker.shard, None
        try:
            result = self._ray.get(task)
        except RayTaskError as error:
            if shard is None:
                raise error.cause or error from None
            self._failed(shard, error.cause)
        except RayError as error:
            self._killed(worker, shard, error)
            return
        else:
            if shard is None:
                worker.ready = True
                log.info("worker on %s is ready", result)
            else:
                manifest, worker.tokens = result
                self._outcome.manifests.append(manifest)
        self._idle.append(worker)

    def _failed(self, shard: Shard, error: BaseException) -> None:
        if isinstance(error, StoreBusy):
            if shard not in self._waited_for:
                log.warning("shard %s is being read by another process; it is tried again later", shard)
            self._waited_for.add(shard)
            self._later.append((time.monotonic() + _BUSY_S, shard))
            return
        self._outcome.failed[shard] = f"{type(error).__name__}: {error}"
        log.warning("shard %s failed: %s", shard, error)
        if len(self._outcome.failed) >= _ERRORS:
            self._outcome.not_begun += [*self._left, *(shard for _, shard in self._later)]
            self._left.clear()
            self._later.clear()

    def _killed(self, worker: _WorkerHandle, shard: Shard | None, error: Exception) -> None:
        """Requeue the shard of a dead worker."""
        lines = str(error).strip().splitlines()
        self._kills[shard] = self._kills.get(shard, 0) + 1
        self._stop(worker)  # it may be alive but unreachable
        if shard is None:
            if "creation task" in lines[0]:  # not killed: runnel or a dependency cannot be imported there
                raise BackendUnavailable(f"a worker cannot start ({lines[-1]}); install runnel on all machines of the cluster")
            if self._kills[None] >= max(_KILLS, self._workers):
                raise BackendUnavailable(
                    f"workers end while they load the model ({lines[0]}); is there memory for {self._workers}?"
                )
        elif self._kills[shard] >= _KILLS:
            self._failed(shard, BackendUnavailable(f"its worker was killed {_KILLS} times ({lines[0]}); is there memory for it?"))
        else:
            log.warning("shard %s goes to another worker: %s", shard, lines[0])
            self._left.appendleft(shard)

    def _stop(self, worker: _WorkerHandle) -> None:
        self._read_before += worker.tokens
        self._ray.kill(worker.actor)

    def _report_progress(self) -> None:
        """Ask the workers for their tokens, and report progress."""
        from ray.exceptions import RayError

        if self._progress is None:
            return
        asked = {worker.actor.tokens.remote(): worker for worker in self._tasks.values() if worker.shard is not None}
        answered = self._ray.wait(list(asked), num_returns=len(asked), timeout=_TICK_S / 2)[0] if asked else []
        for answer in answered:
            try:
                asked[answer].tokens, asked[answer].of_shard = self._ray.get(answer)
            except RayError:  # it is gone, which `_collect` reports
                continue
        done = self._outcome.manifests
        left = None
        if done:
            mean = sum(manifest.tokens for manifest in done) / len(done)
            under_way = sum(min(worker.of_shard, mean) for worker in self._tasks.values() if worker.shard is not None)
            left = round(mean * (self._count - len(done)) - under_way)
        ready = sum(worker.ready for worker in self._all())
        self._progress(ShardProgress(len(done), self._count, ready, self._tokens(), left, self._seconds()))


@contextmanager
def _cluster(address: str | None, cpus: int) -> Iterator[Any]:
    """Connect to Ray; an existing connection is reused and left open."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with needing("a cluster of workers needs ray", "ray"):
        import ray
    if ray.is_initialized():
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:  # without "local", the variable RAY_ADDRESS would decide
        ray.init("local", num_cpus=cpus or None, include_dashboard=False, **quiet)
    else:
        try:
            ray.init(address, **quiet)
        except (ConnectionError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise InputError(f"no Ray cluster at {address!r} ({reason}); start one with `ray start --head`") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _room(ray: Any, cpus: int, gpus: float) -> int:
    """Return how many workers fit the cluster."""
    has = ray.cluster_resources()
    room = int(has.get("CPU", 0) // cpus)
    return max(1, min(room, math.floor(has.get("GPU", 0) / gpus)) if gpus else room)
