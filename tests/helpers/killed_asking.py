"""A command that asks a language model, killed while requests are under way."""

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from helpers.children import PATHS
from helpers.stub_endpoint import Stub
from helpers.waiting import GIVE_UP_S


def kill_while_asking(
    stub: Stub, arguments: Sequence[object], folder: Path, *, replies: int, threads: int
) -> tuple[set[str], int]:
    """Kill a command whose replies are in OUT, when `replies` are stored and each thread waits for another.

    Returns:
        the messages, as JSON, that were answered, and the number of stored replies.
    """
    rule, answered = stub.rule, list[str]()
    held, free = threading.Semaphore(0), threading.Event()

    def hold(messages: list[dict[str, str]]) -> str:
        if len(answered) >= replies:
            held.release()
            free.wait(GIVE_UP_S)
        answered.append(json.dumps(messages))
        return rule(messages)

    stub.rule = hold
    command = [sys.executable, "-m", "runnel", *map(str, arguments), "--threads", str(threads)]
    process = subprocess.Popen(command, cwd=folder, env=os.environ | PATHS, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        for _ in range(threads):
            assert held.acquire(timeout=GIVE_UP_S), "each thread waits for a reply"
        end = time.monotonic() + GIVE_UP_S
        while _stored(folder) < replies and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        process.kill()
        process.communicate()
        stub.rule, before = rule, set(answered)
        free.set()
    return before, _stored(folder)


def _stored(folder: Path) -> int:
    with sqlite3.connect(folder / "out" / "replies.sqlite") as file:
        count: int = file.execute("SELECT COUNT(*) FROM replies").fetchone()[0]
    return count
