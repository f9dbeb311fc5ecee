"""What pages of the docs show: their blocks, and what is compared of an output."""

import re
from collections.abc import Iterable

_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.M | re.S)


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Return (language, name of the file or "", body) of each block of code."""
    return _BLOCK.findall(page)


def commands(body: str) -> list[tuple[str, str]]:
    """Return (command, the output shown below it) of each command of a console block."""
    return re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", body, re.M)


def printed(program: str) -> list[str]:
    """Return what a program prints by its comments `# -> text`."""
    return re.findall(r"^ *# -> (.*)$", program, re.M)


def missing(shown: Iterable[str], output: str) -> list[str]:
    """Return the lines of `shown` whose words are not in the output, without numbers; a line `...`
    is any output.
    """

    def words(text: str) -> str:
        return " ".join(re.findall(r"[A-Za-z]{2,}", text))

    return [line for line in shown if line.strip() != "..." and words(line) not in words(output)]
