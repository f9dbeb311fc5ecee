"""Start the processes of `worker.py` and talk to them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent  # holds this package
_KILLED = -9
_SHORT_OF_MEMORY = re.compile(
    r"memory|bad_alloc|alloc|Thread creation failed|Resource temporarily", re.IGNORECASE
)


@dataclass(frozen=True)
class Spec:
    """What a worker runs.

    Args:
        system: a key of `worker.SYSTEMS`.
        dtype: "bf16", "fp32" or "int8"; llama.cpp: "bf16" or "q8_0".
        memory_limit: bytes after which its allocations fail.
        cold: build the system and run nothing yet.
        lora: train adapters of this rank alone; None: all weights.
    """

    system: str
    model: str
    dtype: str
    device: str = "cpu"
    memory_limit: int | None = None
    cold: bool = False
    lora: int | None = None


class Worker(AbstractContextManager["Worker"]):
    """A process with one system, for use as a context. `first` is its first answer: facts about the
    system.

    Answers hold what was asked for, or one of the keys "missing" (a package, or a feature of the
    processor), "refused" (an input that the system cannot take), "out_of_memory" and "error", each
    with a line of text.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        command = [sys.executable, "-m", "benchmarks.worker", json.dumps(asdict(spec))]
        paths = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"TRANSFORMERS_VERBOSITY": "error", "PYTHONPATH": paths}
        self._stderr = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=environment,
        )
        self.first = self._read()

    def ask(self, op: str, **request: Any) -> dict[str, Any]:
        """Return one answer. A process that the system killed for its memory gives the same answer
        from then on.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **request}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        return self._read()

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._stderr.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        code = self._process.wait()
        self._stderr.seek(0)
        last = (self._stderr.read().strip().splitlines() or ["nothing on stderr"])[-1]
        # Killed by the system; or, under a limit, ended by a library that does not survive a failed
        # allocation.
        if code == _KILLED or (self.spec.memory_limit and _SHORT_OF_MEMORY.search(last)):
            return {
                "out_of_memory": "the process was killed for its memory"
                if code == _KILLED
                else last[:300]
            }
        return {"error": f"the process ended with code {code}: {last}"[:300], "kind": "Ended"}
