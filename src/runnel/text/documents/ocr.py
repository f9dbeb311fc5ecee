"""Text of pages that are pictures, by a command of the user's choice (optical character recognition)."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from runnel.errors import InputError, ReadError

_IMAGE = "{image}"
_EXAMPLE = '"tesseract {image} stdout"'


@dataclass(frozen=True)
class Ocr:
    """A command that prints the text of a picture in UTF-8. No shell runs it.

    Attributes:
        command: words, quoted as in a shell; {image} becomes the name of a file in PNG, with 288 dots per inch on usual pages.
        seconds: the most time for one page.

    Raises:
        InputError: the command cannot be parsed, has no {image}, or its program is not found.
    """

    command: str
    seconds: float = 120.0

    def __post_init__(self) -> None:
        if not any(_IMAGE in word for word in self._words):
            raise InputError(f"the OCR command {self.command!r} has no {_IMAGE}; expected a command such as {_EXAMPLE}")
        if shutil.which(self._words[0]) is None:
            raise InputError(f"the OCR command's program {self._words[0]!r} is not found; install it, or give its path")

    @cached_property
    def _words(self) -> list[str]:
        try:
            return shlex.split(self.command)
        except ValueError as error:
            raise InputError(f"the OCR command {self.command!r} cannot be parsed ({error}); check its quotes") from error

    def read(self, png: bytes) -> str:
        """Return the text of a picture."""
        with tempfile.TemporaryDirectory(prefix="runnel-") as folder:
            image = Path(folder) / "page.png"
            image.write_bytes(png)
            words = [word.replace(_IMAGE, str(image)) for word in self._words]
            code, out, err = self._run(words)
        if code:
            last = (err.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
            raise ReadError(f"exit code {code}: {last.strip()[:200]}")
        try:
            return out.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ReadError(f"its output is not UTF-8 ({error})") from error

    def _run(self, words: list[str]) -> tuple[int, bytes, bytes]:
        """Run the command in a group of processes of its own, which ends with it."""
        nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
        try:
            process = subprocess.Popen(words, stdin=nothing, stdout=pipe, stderr=pipe, start_new_session=True)
        except OSError as error:
            raise ReadError(f"it does not start: {error.strerror}") from error
        try:
            out, err = process.communicate(timeout=self.seconds)
        except subprocess.TimeoutExpired as error:
            raise ReadError(f"it took more than {self.seconds:g} s") from error
        finally:
            if process.poll() is None:  # also after Ctrl-C
                _kill(process)
        return process.returncode, out, err


def _kill(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:  # Windows
        process.kill()
    process.communicate()
