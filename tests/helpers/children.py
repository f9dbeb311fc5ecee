"""Processes that tests start: where the programs are, what they import (this tree, installed or not), and a server."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from helpers.waiting import GIVE_UP_S

TESTS = Path(__file__).parents[1]
PROGRAMS = TESTS / "programs"
PATHS = {"PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent / "src", TESTS, TESTS.parent)))}


@contextmanager
def server(*arguments: object, cwd: Path, stdout: int | None = None, **environment: str) -> Iterator[tuple[Any, httpx.Client]]:
    """Start `runnel serve` as a process; yield it and a client, when it is ready. Its other lines are in `lines`."""
    command = [sys.executable, "-m", "runnel", "serve", "--port", "0", *map(str, arguments)]
    streams: Any = {"stdout": stdout, "stderr": subprocess.PIPE, "text": True}
    process: Any = subprocess.Popen(command, cwd=cwd, env=os.environ | PATHS | environment, **streams)
    process.lines = []
    try:
        for line in process.stderr:
            process.lines.append(line)
            if match := re.search(r"serving .* at (http://\S+)", line):
                break
        else:
            raise AssertionError(f"exit code {process.wait()}: {''.join(process.lines)}")
        reader = threading.Thread(target=lambda: process.lines.extend(process.stderr))
        reader.start()
        with httpx.Client(base_url=match[1], timeout=GIVE_UP_S, trust_env=False) as client:
            yield process, client
        process.send_signal(signal.SIGTERM)
        assert process.wait(GIVE_UP_S) == 0
        reader.join()
    finally:
        process.kill()
        process.wait()
        for stream in filter(None, (process.stdout, process.stderr)):
            stream.close()
