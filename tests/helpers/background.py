"""Commands in processes of their own, with and without a background process."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.children import PATHS
from helpers.waiting import GIVE_UP_S

from runnel.commands import background


def without_progress(err: bytes) -> bytes:
    """Remove the lines that a command writes on a slow machine, such as "runnel: reading: 5 s"."""
    return re.sub(rb"runnel: [a-z ]+: ([\d,]+ .*, )?[\d,]+ s\n", b"", err)


class CommandLine:
    """Runs `python -m runnel`; with `warm` it finds the background process of the folder `runtime`.

    Args:
        folder: the folder that commands run in; its subfolders "runtime" and "none" hold sockets.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.runtime = folder, folder / "runtime"
        self.runtime.mkdir()

    def environment(self, *, warm: bool = True, **more: str) -> dict[str, str]:
        place = self.runtime if warm else self.folder / "none"
        return os.environ | PATHS | {"XDG_RUNTIME_DIR": str(place), "RUNNEL_CACHE": str(self.folder / "cache")} | more

    def popen(
        self, *arguments: object, warm: bool = True, cwd: Path | None = None, environment: Mapping[str, str] | None = None,
        **streams: int,
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        command = [sys.executable, "-m", "runnel", *map(str, arguments)]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | streams
        variables = self.environment(warm=warm, **(environment or {}))
        return subprocess.Popen(command, cwd=cwd or self.folder, env=variables, **streams)  # type: ignore[call-overload]

    def __call__(self, *arguments: object, data: bytes = b"", **options: Any) -> tuple[int, bytes, bytes]:
        """Return exit code, stdout and stderr of a command, without progress."""
        with self.popen(*arguments, **options) as process:
            out, err = process.communicate(data, timeout=GIVE_UP_S)
        return process.returncode, out, without_progress(err)

    def status(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any] | None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(self.runtime))
        return background.status()
