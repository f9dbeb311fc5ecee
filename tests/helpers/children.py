"""Where the programs are that tests start as processes of their own, and what they import from: this tree, installed or not."""

import os
from pathlib import Path

TESTS = Path(__file__).parents[1]
PROGRAMS = TESTS / "programs"
PATHS = {"PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent / "src", TESTS, TESTS.parent)))}
