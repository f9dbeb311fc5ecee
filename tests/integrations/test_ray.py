"""Files indexed on a Ray of two workers: the index is the one of a single process, whatever is
killed on the way.
"""

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import ray
from helpers.children import PATHS
from helpers.files import write_files
from helpers.tiny import tiny_model
from programs.ray_worker import LoggedWorker

from runnel import Embedder, Index
from runnel.errors import BackendUnavailable, InputError
from runnel.integrations import ray as runnel_ray
from runnel.integrations.ray import index_files
from runnel.search import encoding

DOCUMENTS = 40
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def cluster(work):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", PATHS["PYTHONPATH"])
        patch.setenv("RAY_WORKER_LOG", str(work))
        ray.init(
            "local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error"
        )
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def embedder(tmp_path_factory) -> Embedder:
    folder = tmp_path_factory.mktemp("model")
    Embedder(tiny_model(folder / "made")).save(folder / "tiny")
    return Embedder.load(folder / "tiny")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    rows = [
        {"id": f"{n:03}", "text": f"the river runs to the sea. cat {n:03} sat on the mat."}
        for n in range(DOCUMENTS - 2)
    ]
    files = {
        "rows.jsonl": rows,
        "one.txt": "the dog sat on one.",
        "two.txt": "the dog sat on two.",
        "empty.txt": " \n",
        "bad.pdf": b"%PDF-1.7 nothing",
        "picture.png": b"\x89PNG\r\n\x1a\n nothing",
    }
    write_files(folder, files)
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Batches of four documents, and a commit for each."""
    monkeypatch.setattr(encoding, "_BATCH_DOCUMENTS", 4)
    monkeypatch.setattr(runnel_ray, "_COMMIT_DOCUMENTS", 4)


def content(index: Index) -> tuple[list, list, np.ndarray]:
    """The documents, and the passages with their vectors, in one order."""
    documents = index.store.documents(list(index.store.content_hashes()), saved=True)
    passages = sorted(
        (row for rows in index.store.scan() for row in rows),
        key=lambda row: (row.document, row.number),
    )
    texts = [
        (row.document, row.number, row.start, row.end, row.text, row.page, row.heading)
        for row in passages
    ]
    return (
        [documents[name] for name in sorted(documents)],
        texts,
        np.stack([row.vector for row in passages]),
    )


def check_same(index: Index, alone: Index) -> None:
    made = content(index)
    wanted = content(alone)
    assert made[:2] == wanted[:2] and len(made[0]) == DOCUMENTS
    np.testing.assert_allclose(made[2], wanted[2], atol=1e-5)


def test_an_index_is_whole_when_a_worker_is_killed(
    cluster, work, embedder, files, tmp_path, monkeypatch
):
    monkeypatch.setattr(runnel_ray, "_Worker", LoggedWorker)
    hang = work / "hang"
    log = work / "log"
    hang.touch()
    victims: list[str] = []

    def kill() -> None:
        """The first process to begin a third batch, when both have begun; Ray
        starts another one.
        """
        for _ in range(3000):
            begun = (
                Counter(line.split()[0] for line in log.read_text().splitlines())
                if log.exists()
                else Counter()
            )
            if len(begun) == 2 and 3 in begun.values():
                victims.append(next(process for process, times in begun.items() if times == 3))
                os.kill(int(victims[0]), signal.SIGKILL)
                break
            time.sleep(0.1)
        hang.unlink()

    with (
        Index.create(tmp_path / "alone", embedder) as alone,
        Index.create(tmp_path / "index", embedder) as index,
    ):
        wanted = alone.add_files([files])
        killer = threading.Thread(target=kill)
        killer.start()
        changes = index_files(index, [files], workers=2)
        killer.join()
        assert victims
        check_same(index, alone)
        assert (
            changes == wanted
            and len(changes.added) == DOCUMENTS
            and list(changes.failed) == [str(files / "bad.pdf")]
            and changes.empty == [str(files / "empty.txt")]
        )
        begun = [line.split(maxsplit=1) for line in log.read_text().splitlines()]
        again = {
            first for first, times in Counter(first for _, first in begun).items() if times > 1
        }
        assert again <= {first for process, first in begun if process == victims[0]}


def test_an_interrupted_call_goes_on_after_its_last_commit(cluster, embedder, files, tmp_path):
    """And files that are gone or new since are noticed as without Ray."""

    def stop(commit) -> None:
        if commit.documents >= 12:
            raise KeyboardInterrupt

    with (
        Index.create(tmp_path / "alone", embedder) as alone,
        Index.create(tmp_path / "index", embedder) as index,
    ):
        with pytest.raises(KeyboardInterrupt):
            index_files(index, [files], workers=2, on_commit=stop)
        first = len(index)
        assert first == 12
        read: list[int] = []
        changes = index_files(
            index, [files], workers=2, progress=lambda done, total: read.append(done)
        )
        assert (len(changes.added), len(changes.unchanged)) == (DOCUMENTS - first, first)
        assert read[-1] == changes.tokens_read == changes.tokens > 0
        alone.add_files([files])
        check_same(index, alone)
        (files / "two.txt").rename(files / "three.txt")
        changes = index_files(index, [files], workers=2)
        assert changes.added == [str(files / "three.txt")] and changes.deleted == [
            str(files / "two.txt")
        ]
        assert len(changes.unchanged) == DOCUMENTS - 1 and index.check() == []


def test_what_no_worker_can_do_is_told_as_it_is(cluster, embedder, files, tmp_path, monkeypatch):
    with Index.create(tmp_path / "index", embedder) as index:
        with pytest.raises(InputError, match="there is no file or folder"):
            index_files(index, [tmp_path / "missing"])
        with pytest.raises(InputError, match="workers is 0"):
            index_files(index, [files], workers=0)
        monkeypatch.setattr(embedder.model, "source", str(tmp_path / "nowhere"))
        with pytest.raises(BackendUnavailable, match="nowhere"):
            index_files(index, [files], workers=1)
        assert len(index) == 0
