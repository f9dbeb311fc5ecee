"""kill -9 at any moment: what was acknowledged is there, whole and searchable, and the next writer goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers.children import PATHS, PROGRAMS
from programs.killed_writer import text_of

from runnel.search.lance import LanceStore
from runnel.search.records import WHOLE

pytestmark = pytest.mark.slow


def run_and_kill(uri: str, after: float) -> list[int]:
    """The versions that a writer acknowledged before it was killed, `after` seconds behind its first one."""
    command = [sys.executable, str(PROGRAMS / "killed_writer.py"), uri]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | PATHS, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        time.sleep(after)
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    return [int(line) for line in lines if line.endswith("\n")]


def check(uri: str, acknowledged: int) -> None:
    store = LanceStore.open(uri)
    documents = store.documents(list(store.content_hashes()))
    version = max(int(name[1:]) for name in documents) - 2
    assert version in (acknowledged, acknowledged + 1)  # the last commit may be done and not yet told
    assert {name: row.text for name, row in documents.items()} == {
        f"d{n}": text_of(n, version) for n in range(version, version + 3)
    }
    passages = store.passages([(name, number) for name in documents for number in (0, WHOLE)])
    assert len(passages) == 6 == len(store.nearest(np.ones(4, dtype=np.float32), 50, []))
    assert all(np.array_equal(row.vector, np.eye(4, dtype=np.float32)[version % 4]) for row in passages.values())
    found = {(one.document, one.number) for one in store.lexical(f"edition{version}", 50, [])}
    assert found == {(name, 0) for name in documents}


@pytest.mark.parametrize(
    ("kind", "times", "seconds"), [("lance", 4, 0.4), pytest.param("lance", 20, 0.4, marks=pytest.mark.release), ("s3", 2, 1.0)]
)
def test_a_killed_writer_loses_nothing_that_it_acknowledged(place_of, kind, times, seconds):
    place, rng, last = place_of(kind), random.Random(7), -1
    place.create().close()
    for _ in range(times):
        told = run_and_kill(place.uri, rng.uniform(0, seconds))
        assert told and told[0] > last
        last = told[-1]
        check(place.uri, last)
