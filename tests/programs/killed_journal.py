"""Adds rows to a journal, two at a time, until it is killed; says the last key after each addition."""

from __future__ import annotations

import sys
from pathlib import Path

from runnel.journal import Journal, Row

if __name__ == "__main__":
    with Journal(Path(sys.argv[1]), {"work": 1}) as journal:
        journal.begin()
        while True:
            start = len(journal)
            journal.add(*(Row(n, [n], bytes([n % 256]) * 9000) for n in (start, start + 1)))
            print(start + 1, flush=True)
