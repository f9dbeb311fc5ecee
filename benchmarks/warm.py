"""Time of commands with and without the background process, from their start to their exit.

    python -m benchmarks.warm

Both ways are measured in turn, so that a busy machine slows both. A document of 465,000 characters is remembered, and the pages
of docs/ are indexed, before anything is measured.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from runnel.commands.display import print_text

_ROOT = Path(__file__).parents[1]
_ROUNDS = 11
_QUESTIONS = (
    "When is the finally clause executed if a return statement is reached?",
    "What does the nonlocal statement do?",
    "How are default parameter values evaluated?",
)
_COMMANDS = {
    "`find`, document remembered": ("find", "{question}", "python-reference.txt"),
    "`find`, document of 20 sentences": ("find", "{question}", "short.txt"),
    "`search`": ("search", "{question}", "--in", "library"),
    "`rerank`, 20 documents": ("rerank", "{question}", "short.txt"),
}


def measure(folder: Path) -> list[tuple[str, float, float]]:
    """Return the name of each command with its median seconds in a process of its own and through the background process."""
    alone, shared = (_environment(folder, name) for name in ("alone", "shared"))
    for environment in (alone, shared):
        Path(environment["XDG_RUNTIME_DIR"]).mkdir()
    subprocess.run([sys.executable, _ROOT / "examples" / "python_reference.py", folder / "python-reference.txt"], check=True)
    lines = (folder / "python-reference.txt").read_text(encoding="utf-8").splitlines()
    (folder / "short.txt").write_text("\n".join([line for line in lines if len(line) > 60][:20]) + "\n", encoding="utf-8")
    _run(["find", _QUESTIONS[0], "python-reference.txt", "--remember"], folder, alone)
    _run(["index", *map(str, sorted((_ROOT / "docs").glob("*.md"))), "--to", "library"], folder, alone)
    _run(["serve", "--background"], folder, shared)
    try:
        return [(name, *_medians(command, folder, (alone, shared))) for name, command in _COMMANDS.items()]
    finally:
        _run(["serve", "--stop"], folder, shared)


def _medians(command: Sequence[str], folder: Path, ways: Sequence[Mapping[str, str]]) -> tuple[float, float]:
    """Return medians over all rounds but the first, which reads files and models for the first time."""
    seconds: list[list[float]] = [[] for _ in ways]
    for number in range(1 + _ROUNDS):
        arguments = [part.format(question=_QUESTIONS[number % len(_QUESTIONS)]) for part in command]
        outputs = []
        for one, environment in zip(seconds, ways, strict=True):
            start = time.perf_counter()
            outputs.append(_run(arguments, folder, environment))
            one.append(time.perf_counter() - start)
        assert outputs[0] == outputs[1], arguments
    alone, shared = (statistics.median(one[1:]) for one in seconds)
    return alone, shared


def _environment(folder: Path, name: str) -> dict[str, str]:
    return os.environ | {"XDG_RUNTIME_DIR": str(folder / name), "RUNNEL_CACHE": str(folder / "cache")}


def _run(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> bytes:
    command = [sys.executable, "-m", "runnel", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE).stdout


def main() -> None:
    """Measure, and print the table of docs/serving.md."""
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder))
    print_text("| command | alone | with the background process | ratio |\n|---|---|---|---|")
    for name, alone, shared in rows:
        print_text(f"| {name} | {alone:.2f} s | {shared:.2f} s | {alone / shared:.1f} |")


if __name__ == "__main__":
    main()
