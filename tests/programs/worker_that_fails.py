"""The parsing process with parsers that crash, hang, take memory or talk: what a hostile file may
make a library do.
"""

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path

from runnel.text.documents import worker
from runnel.text.documents.document import Canonical, DocumentText, Limits

DEEDS: dict[str, Callable[[], object]] = {
    "segfault": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(3),
    "hang": lambda: time.sleep(1000),
    "wait": lambda: time.sleep(0.5),
    "memory": lambda: bytearray(1 << 40),
    "chatter": lambda: os.write(1, b"a library's own words\n" * 10_000),
}


def behave(path: str, limits: Limits, task: worker._Task) -> DocumentText:
    """Do what the file says."""
    for word in Path(path).read_text().partition("-->")[2].split():
        while word == "busy":
            pass
        if word == "raise":
            raise ZeroDivisionError("by the parser")
        if word == "recurse":
            behave(path, limits, task)
        if word in DEEDS:
            DEEDS[word]()
    canonical = Canonical()
    canonical.add(f"process {os.getpid()}")
    return canonical.finish("html")


worker._parse = behave
worker.main()
