"""Shards on a Ray cluster of four logical CPUs: killed workers and killed drivers lose nothing and repeat nothing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.children import PATHS, PROGRAMS
from helpers.tiny import tiny_model
from programs.ray_worker import PART, LoggedWorker, hang_of, parts_begun

from runnel import Embedder
from runnel.errors import BackendUnavailable, CheckpointError, InputError
from runnel.integrations import ray as runnel_ray
from runnel.integrations.ray import ShardProgress, encode_shards
from runnel.search import encoding
from runnel.search.encoding import new_settings
from runnel.text.shards import Shard

ray = pytest.importorskip("ray")
RayError, RayTaskError = ray.exceptions.RayError, ray.exceptions.RayTaskError
parquet = pytest.importorskip("pyarrow.parquet")
SHARDS = [Shard(n, 6) for n in range(1, 7)]
DOCUMENTS = 96
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", PATHS["PYTHONPATH"])
        patch.setenv("OMP_NUM_THREADS", "3")  # Ray leaves it alone then; a worker must not
        ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
        yield
        ray.shutdown()


@pytest.fixture(autouse=True)
def logged(monkeypatch):
    monkeypatch.setattr(runnel_ray, "Worker", LoggedWorker)
    monkeypatch.setattr(runnel_ray, "_TICK_S", 0.1)
    monkeypatch.setattr(runnel_ray, "_BUSY_S", 0.2)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    Embedder(tiny_model(folder / "made")).save(folder / "tiny")
    return folder / "tiny"


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "rows.jsonl"
    rows = [{"id": f"{n:03}", "text": f"the river runs to the sea. cat {n:03} sat on the mat."} for n in range(DOCUMENTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def alone(model, file, tmp_path_factory) -> Path:
    """The shards made one after the other in this process."""
    from runnel.search.shards import encode_shard

    embedder = Embedder.load(model)
    settings = new_settings(embedder)
    folder = tmp_path_factory.mktemp("alone") / "shards"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "_BATCH_DOCUMENTS", PART)
        for shard in SHARDS:
            encode_shard([file], folder, shard, embedder, settings=settings)
    return folder


def rows_of(folder: Path, kind: str) -> list[dict]:
    files = sorted(folder.glob(f"*-of-*/{kind}-*.parquet"))
    return [row for path in files for row in parquet.read_table(path).to_pylist()]


def check_same(folder: Path, alone: Path) -> None:
    """The shards hold the same documents and passages, each once, in the same files."""
    names = [row["id"] for row in rows_of(folder, "documents")]
    assert len(set(names)) == len(names) == DOCUMENTS
    assert rows_of(folder, "documents") == rows_of(alone, "documents")
    made, wanted = rows_of(folder, "passages"), rows_of(alone, "passages")
    vectors = [np.array([row.pop("vector") for row in rows]) for rows in (made, wanted)]
    np.testing.assert_allclose(*vectors, atol=1e-5)
    assert made == wanted
    files = [{path.relative_to(place) for path in place.rglob("*") if path.is_file()} for place in (folder, alone)]
    assert files[0] == files[1]


def repeated(folder: Path) -> dict[str, int]:
    """Parts that were begun more than once: id of their first document -> how often."""
    return {first: times for first, times in Counter(part.first for part in parts_begun(folder)).items() if times > 1}


def processes(folder: Path) -> set[int]:
    return {part.process for part in parts_begun(folder)}


def last_part_of(folder: Path, process: int) -> str:
    return [part.first for part in parts_begun(folder) if part.process == process][-1]


def started_by(process: int) -> list[int]:
    """All processes below a process."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    below = [process]
    for one in below:
        below += [child for child, parent in parents.items() if parent == one]
    return below[1:]


def parts(alone: Path) -> int:
    return len(list(alone.glob("*-of-*/documents-*.parquet")))


def test_a_run_makes_what_one_process_makes(cluster, model, file, alone, tmp_path):
    """With more workers asked for than there is room for, and two threads each."""
    folder = tmp_path / "shards"
    told: list[ShardProgress] = []
    outcome = encode_shards([file], folder, SHARDS, model, workers=9, cpus=2, progress=told.append)
    check_same(folder, alone)
    assert not outcome.failed and not outcome.not_begun and len(outcome.manifests) == 6
    assert sum(manifest.documents for manifest in outcome.manifests) == DOCUMENTS
    assert repeated(folder) == {} and len(parts_begun(folder)) == parts(alone) > 2 * len(SHARDS)
    assert len(processes(folder)) <= 2 and max(p.workers for p in told) <= 2
    assert {part[1:3] for part in parts_begun(folder)} == {(2, 2)}
    assert told[-1].done == told[-1].count == 6 and told[-1].tokens_left == 0
    assert told[-1].tokens == outcome.tokens == sum(manifest.tokens for manifest in outcome.manifests) > 0
    assert [p.tokens for p in told] == sorted(p.tokens for p in told)


def test_a_killed_worker_costs_the_part_that_it_was_at(cluster, model, file, alone, tmp_path, caplog):
    folder = tmp_path / "shards"
    hang = hang_of(folder)
    hang.write_text("3")
    victims: list[int] = []

    def kill(progress: ShardProgress) -> None:
        """The first process to begin a third part."""
        begun = Counter(part.process for part in parts_begun(folder))
        if not victims and 3 in begun.values():
            victims.append(next(process for process, times in begun.items() if times == 3))
            os.kill(victims[0], signal.SIGKILL)
            hang.unlink()

    with caplog.at_level("INFO", logger="runnel"):
        outcome = encode_shards([file], folder, SHARDS, model, workers=2, progress=kill)
    assert len(outcome.manifests) == 6 and not outcome.failed
    check_same(folder, alone)
    assert repeated(folder) == {last_part_of(folder, victims[0]): 2}
    assert outcome.tokens <= sum(manifest.tokens for manifest in outcome.manifests)  # of the killed: what it had told
    assert processes(folder) <= {int(number) for number in re.findall(r"process (\d+) is ready", caplog.text)}
    assert len(re.findall(r"shard ./6 goes to another worker", caplog.text)) == 1
    assert {part[1:3] for part in parts_begun(folder)} == {(1, 1)}


def test_a_driver_goes_on_where_another_was_killed(cluster, model, file, alone, tmp_path, caplog):
    """The second one starts while the first still works, and does without the shard that is busy until it is free."""
    folder = tmp_path / "shards"
    hang = tmp_path / "first.hang"
    hang.write_text(str(parts(alone) // 6 + 2))  # in the second shard
    command = [sys.executable, str(PROGRAMS / "ray_driver.py"), str(model), str(file), str(folder), "6"]
    environment = os.environ | PATHS | {"HANG": str(hang)}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as first:
        while len(parts_begun(folder)) < int(hang.read_text()):
            assert first.poll() is None
            time.sleep(0.1)
        finished = list(folder.glob("*/manifest.json"))
        (worker,) = processes(folder)
        left = started_by(first.pid)

        def kill(progress: ShardProgress) -> None:
            if progress.done == 5 and first.poll() is None and "shard 2/6 is being read by another process" in caplog.text:
                first.send_signal(signal.SIGKILL)
                first.wait()

        outcome = encode_shards([file], folder, SHARDS, model, workers=2, progress=kill)
    assert first.returncode == -signal.SIGKILL and len(finished) == 1
    assert len(outcome.manifests) == 6 and not outcome.failed
    check_same(folder, alone)
    assert repeated(folder) == {last_part_of(folder, worker): 2}
    assert worker in left
    with pytest.raises(ProcessLookupError):  # workers end with their driver
        for _ in range(100):
            os.kill(worker, 0)
            time.sleep(0.1)
    for process in left:  # two of Ray's stay for minutes when their driver was killed
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def test_what_no_worker_can_do_is_told_as_it_is(cluster, model, file, tmp_path):
    with pytest.raises(CheckpointError, match="nowhere"):
        encode_shards([file], tmp_path / "shards", SHARDS, tmp_path / "nowhere", workers=1)
    with pytest.raises(InputError, match="there is no file or folder"):
        encode_shards([tmp_path / "missing"], tmp_path / "shards", SHARDS, model)
    with pytest.raises(InputError, match=r"workers and cpus must be at least 1 and gpus at least 0, got 0, 1 and 0\.0"):
        encode_shards([file], tmp_path / "shards", SHARDS, model, workers=0)
    with pytest.raises(InputError, match="no shards to read; give at least one"):
        encode_shards([file], tmp_path / "shards", [], model)


class Lent:
    """A stand-in for Ray whose workers do at once what `does` says: return it, or raise it if it is an error."""

    def __init__(self, does: Callable[[Shard | None], object]) -> None:
        self.does, self.killed, self.given = does, 0, []

    def worker(self) -> SimpleNamespace:
        methods = {"load": lambda job: (None,), "encode": lambda shard: (shard,), "tokens": lambda: ((7, 7),)}
        return SimpleNamespace(**{name: SimpleNamespace(remote=make) for name, make in methods.items()})

    def wait(self, tasks, **options):
        return tasks[-1:], tasks[:-1]

    def get(self, task):
        if isinstance(task[0], tuple):
            return task[0]
        self.given.append(task[0])
        result = self.does(task[0])
        if isinstance(result, Exception):
            raise result
        return "here" if task[0] is None else (result, 7)

    def kill(self, worker):
        self.killed += 1


def run_with(lent: Lent, workers: int = 1) -> runnel_ray.ShardOutcome:
    return runnel_ray._Run(lent, None, SHARDS, lent.worker, workers, None).run()


def failed(error: Exception) -> RayTaskError:
    return RayTaskError("encode", "Traceback", error)


def made(shard: Shard | None) -> SimpleNamespace:
    return SimpleNamespace(tokens=7)


def test_a_shard_with_an_error_does_not_stop_the_others():
    bad = SHARDS[3]
    outcome = run_with(Lent(lambda shard: failed(ValueError("no good")) if shard == bad else made(shard)))
    assert outcome.failed == {bad: "ValueError: no good"}
    assert len(outcome.manifests) == 5 and not outcome.not_begun


def test_after_three_errors_nothing_is_begun():
    lent = Lent(lambda shard: failed(OSError("disk full")) if shard else None)
    outcome = run_with(lent)
    assert list(outcome.failed) == SHARDS[:3] and outcome.not_begun == SHARDS[3:] and not outcome.manifests
    assert lent.given == [None, *SHARDS[:3]] and lent.killed == 1


def test_a_shard_that_kills_its_workers_is_given_up():
    bad = SHARDS[0]
    lent = Lent(lambda shard: RayError("The actor died.") if shard == bad else made(shard))
    outcome = run_with(lent)
    assert outcome.failed == {
        bad: "BackendUnavailable: its worker was killed 5 times (The actor died.); is there memory for it?",
    }
    assert lent.given.count(bad) == 5 and len(outcome.manifests) == 5 and lent.killed == lent.given.count(None) == 6


def test_workers_that_never_start_are_told():
    with pytest.raises(BackendUnavailable, match=r"workers end while they load the model \(The actor died\.\)"):
        run_with(Lent(lambda shard: RayError("The actor died.")))
    with pytest.raises(BackendUnavailable, match=r"a worker cannot start \(ModuleNotFoundError: runnel\); install runnel"):
        run_with(Lent(lambda shard: RayError("died in its creation task\n...\nModuleNotFoundError: runnel")))
