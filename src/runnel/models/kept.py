"""Keep loaded objects while their files are unchanged; messages logged when one was made are logged again at each use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from runnel.files import signature
from runnel.work import Recent

T = TypeVar("T")
log = logging.getLogger("runnel")


@dataclass(frozen=True)
class _Entry:
    value: Any
    messages: list[logging.LogRecord]
    state: object  # of the files that it was made from


class Kept:
    """The `most` objects that were used last."""

    def __init__(self, most: int) -> None:
        self._entries: Recent[_Entry] = Recent(lambda entry: 1, most)

    def values(self) -> list[Any]:
        return [entry.value for entry in self._entries.values()]

    def get(self, key: Hashable, state: object, make: Callable[[], T]) -> T:
        """Return the kept object if it was made from files in this state; else make and keep one."""
        entry = self._entries.pop(key)
        if entry is None or entry.state != state:
            del entry  # before another one is loaded
            entry = _Entry(*_recorded(make), state)
        else:
            _repeat(entry.messages)
        self._entries.put(key, entry)
        value: T = entry.value
        return value


def file_states(paths: Iterable[Path]) -> object:
    """Return a value that differs if any of these files has changed; missing files and folders do not count."""
    states = []
    for path in sorted(paths):
        with suppress(OSError):  # a part that this kind lacks, a file that a writer has just replaced, or a link to itself
            if not path.is_dir():
                states.append((str(path), *signature(path)))
    return states


def _recorded(make: Callable[[], T]) -> tuple[T, list[logging.LogRecord]]:
    """Record what is logged, also below the current level, because a later command may be verbose; then log it."""
    recorder, messages = logging.Handler(), list[logging.LogRecord]()
    recorder.emit = messages.append  # type: ignore[assignment,method-assign]
    level, propagate = log.level, log.propagate
    log.addHandler(recorder)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        return make(), messages
    finally:
        log.removeHandler(recorder)
        log.setLevel(level)
        log.propagate = propagate
        _repeat(messages)


def _repeat(messages: list[logging.LogRecord]) -> None:
    for record in messages:
        if log.isEnabledFor(record.levelno):
            log.handle(record)
