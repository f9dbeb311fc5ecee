"""Commands in processes of their own, with and without a background process."""

import os
import subprocess
import sys
from pathlib import Path

from helpers.children import PATHS

from runnel.commands import background


class CommandLine:
    """Runs `python -m runnel`; with `warm` it finds the background process of the folder `runtime`.

    Args:
        folder: the folder that commands run in; its subfolders "runtime" and "none" hold sockets.
    """

    def __init__(self, folder: Path):
        self.folder, self.runtime = folder, folder / "runtime"
        self.runtime.mkdir()

    def environment(self, *, warm=True, **more):
        place = self.runtime if warm else self.folder / "none"
        return os.environ | PATHS | {"XDG_RUNTIME_DIR": str(place), "RUNNEL_CACHE": str(self.folder / "cache")} | more

    def popen(self, *arguments, warm=True, cwd=None, stdin=subprocess.PIPE, environment=(), **options):
        command = [sys.executable, "-m", "runnel", *map(str, arguments)]
        streams = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return subprocess.Popen(command, cwd=cwd or self.folder, env=self.environment(warm=warm, **dict(environment)), **streams)

    def __call__(self, *arguments, data=b"", **options):
        """Return exit code, stdout and stderr of a command."""
        with self.popen(*arguments, **options) as process:
            out, err = process.communicate(data, timeout=120)
        return process.returncode, out, err

    def status(self, monkeypatch):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(self.runtime))
        return background.status()
