"""What the machine offers is read, not guessed."""

import os

from runnel import hardware


def test_cores_and_memory_are_plausible() -> None:
    assert 1 <= hardware.cores() <= (os.cpu_count() or 1)
    assert 1 << 20 < hardware.available_memory() < 1 << 50
