"""Text of pages that are pictures, by a command of the user's choice (optical character
recognition).
"""

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
        command: words, quoted as in a shell; {image} becomes the name of a file in PNG, with 288
            dots per inch on usual pages.
        seconds: the most time for one page.

    Raises:
        InputError: the command cannot be parsed, has no {image}, or its program is not found.
    """

    command: str
    seconds: float = 120.0

    def __post_init__(self) -> None:
        problem = None
        try:
            if not any(_IMAGE in word for word in self._words):
                problem = f"has no {_IMAGE}"
            elif shutil.which(self._words[0]) is None:
                problem = (
                    f"has a program, {self._words[0]!r}, that is not found; install it, or give its"
                    " path"
                )
        except ValueError as error:
            problem = f"cannot be parsed ({error}); check its quotes"
        if problem:
            raise InputError(
                f"the OCR command {self.command!r} {problem}; expected a command such as {_EXAMPLE}"
            )

    @cached_property
    def _words(self) -> list[str]:
        return shlex.split(self.command)

    def read(self, png: bytes) -> str:
        """Return the text of a picture.

        Raises:
            ReadError: the command failed: with its exit code and last line, or what kept it from
                ending.
        """
        with tempfile.TemporaryDirectory(prefix="runnel-") as folder:
            image = Path(folder) / "page.png"
            image.write_bytes(png)
            words = [word.replace(_IMAGE, str(image)) for word in self._words]
            try:
                code, out, err = self._run(words)
                if not code:
                    return out.decode()
                last = (err.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
                problem = f"exit code {code}: {last.strip()[:200]}"
            except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
                problem = str(error)
        raise ReadError(f"it failed: {problem}")

    def _run(self, words: list[str]) -> tuple[int, bytes, bytes]:
        """Run the command in a group of processes of its own, which is killed if the command does
        not end in time. Return its exit code, its output, and what it wrote to stderr.
        """
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=self.seconds)
        finally:
            if process.poll() is None:  # also after Ctrl-C
                if hasattr(os, "killpg"):
                    os.killpg(process.pid, signal.SIGKILL)
                else:  # Windows
                    process.kill()
                process.communicate()
        return process.returncode, out, err
