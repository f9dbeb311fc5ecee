"""How many files of the package one question passes through: whoever follows `runnel find` has to read these."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import runnel

SOURCE = Path(runnel.__file__).parent
MOST = 36
# Prints the files of runnel in which a named function is entered, from the first import to the exit code.
PROGRAM = """
import json, os, sys, threading

entered = set()

def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_flags & 1 and not code.co_name.startswith("<"):  # 1: a function, not a module or a class
        entered.add(code.co_filename)

def report(code):
    sys.setprofile(None)
    print("FILES", json.dumps(sorted(entered)), flush=True)
    end(code)

end, os._exit = os._exit, report
threading.setprofile(note)
sys.setprofile(note)
from runnel.cli import console
console()
"""


def entered_files(folder: Path) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, "find", "Where does water go?", "a.txt"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and "Rivers carry water" in done.stdout, done.stderr
    files = json.loads(done.stdout.rpartition("FILES ")[2])
    return sorted(Path(file).relative_to(SOURCE).as_posix() for file in files if Path(file).is_relative_to(SOURCE))


def test_find_passes_through_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNEL_CACHE", str(tmp_path / "cache"))  # no documents are remembered
    (tmp_path / "a.txt").write_text("The dog sleeps. Rivers carry water to the sea. Models read text.\n")
    entered_files(tmp_path)  # compiles the kernels, which enters the functions that make their code
    files = entered_files(tmp_path)
    assert {"cli.py", "commands/find.py", "engine.py", "text/sentences.py"} <= set(files)
    assert len(files) <= MOST, "\n".join(files)
