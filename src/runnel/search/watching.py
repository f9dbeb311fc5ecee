"""Call a function whenever files have changed: their sizes and times tell it on network drives and in containers, too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from runnel.errors import InputError
from runnel.files import signature
from runnel.text.folders import Root, Selection, find_files

Signatures = dict[str, tuple[int, int, int]]  # of each file
_SHARE = 0.05  # of the time may be spent on looking


def watch(update: Callable[[], bool], look: Callable[[], Signatures], *, interval_s: float = 1.0) -> None:
    """Call `update` now, and after every change once the files have been the same for `interval_s`; never returns.

    If `update` returns False, it is called again after the interval, which grows if a look takes more than a twentieth of it.
    """
    before, done = look(), None
    while True:
        start = time.monotonic()
        now = look()
        pause = max(interval_s, (time.monotonic() - start) / _SHARE)
        if now == before != done and update():
            done = now  # what changes meanwhile differs from it
        before = now
        time.sleep(pause)


def signatures(paths: Iterable[str | Path | Root], selection: Selection) -> Signatures:
    """Return the signatures of all files at `paths`, without those that cannot be read."""
    known: Signatures = {}
    for path in paths:
        with suppress(InputError):  # a named path was removed
            for file in find_files([path], selection, on_error=lambda error: None):
                with suppress(OSError):  # removed meanwhile
                    known[str(file)] = signature(file)
    return known
