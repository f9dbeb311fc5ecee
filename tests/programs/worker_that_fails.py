"""The parsing process with parsers that crash, hang, take memory or talk: what a hostile file may make a library do."""

import ctypes
import os
import time
from pathlib import Path
from typing import Any

from runnel.text.documents import worker
from runnel.text.documents.document import Canonical, DocumentText


def behave(path: str, limits: Any, request: dict[str, Any]) -> DocumentText:
    """Do what the file says."""
    for word in Path(path).read_text().partition("-->")[2].split():
        if word == "segfault":
            ctypes.string_at(0)
        if word == "abort":
            os.abort()
        if word == "exit":
            os._exit(3)
        if word == "hang":
            time.sleep(1000)
        if word == "wait":
            time.sleep(0.5)
        while word == "busy":
            pass
        if word == "memory":
            bytearray(1 << 40)
        if word == "raise":
            raise ZeroDivisionError("by the parser")
        if word == "recurse":
            behave(path, limits, request)
        if word == "chatter":
            os.write(1, b"a library's own words\n" * 10_000)
    canonical = Canonical()
    canonical.add(f"process {os.getpid()}")
    return canonical.finish("html")


worker._parse = behave
worker.main()
