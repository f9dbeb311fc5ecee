"""Processes that tests start: where the programs are, what they import (this tree, installed or
not), a server, and waiting.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

TESTS = Path(__file__).parents[1]
PROGRAMS = TESTS / "programs"
PATHS = {"PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent / "src", TESTS, TESTS.parent)))}

# not a measure of speed: on a busy machine, processes have stood still for more than a minute
GIVE_UP_S = 600
Value = TypeVar("Value")


def wait_for(condition: Callable[[], Value]) -> Value:
    """Return the first value of the condition that is true."""
    deadline = time.monotonic() + GIVE_UP_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found


def run_python(*arguments: object, cwd: Path | None = None, **environment: str) -> str:
    """Run Python and return what it prints; a failure ends the test with all that it wrote."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | PATHS | environment,
        capture_output=True,
        text=True,
        timeout=GIVE_UP_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def resident_mib(process: int) -> float:
    """Return the memory that a process has in use (Linux)."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmRSS:\s*(\d+) kB", status)[0]) / 1024


@contextmanager
def server(
    *arguments: object, cwd: Path, stdout: int | None = None, **environment: str
) -> Iterator[tuple[Any, httpx.Client]]:
    """Start `runnel serve` as a process; yield it and a client, when it is ready. Its other lines
    are in `lines`.
    """
    command = [sys.executable, "-m", "runnel", "serve", "--port", "0", *map(str, arguments)]
    streams: Any = {"stdout": stdout, "stderr": subprocess.PIPE, "text": True}
    process: Any = subprocess.Popen(
        command, cwd=cwd, env=os.environ | PATHS | environment, **streams
    )
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
