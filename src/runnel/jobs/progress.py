"""What long work reports, without printing: lines for the user and progress.

notify, notify_when, inform   a line goes to the log of `runnel`, which a command shows on
                              stderr
open_progress                 the progress of a piece of work. A program says with
                              `show_progress_with` what shows it, as the commands do with their
                              `Meter`; by default nothing does
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Self, TypeVar

from runnel.redaction import redact

Item = TypeVar("Item")


class WorkProgress:
    """The progress of one piece of work: a context, called with what is done and, if it is known,
    the total, so it can be passed as `progress` to a model's methods. This one shows nothing, and
    needs no `unit`.
    """

    def __init__(self, label: str, unit: str) -> None:
        self.label = label

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...

    def __call__(self, done: int, total: int | None = None) -> None: ...

    def count(self, items: Iterable[Item], total: int | None = None) -> Iterator[Item]:
        """Yield the items. Each counts as done when the next one is asked for."""
        for done, item in enumerate(items, start=1):
            yield item
            self(done, total)


_show: ContextVar[Callable[[str, str], WorkProgress]] = ContextVar("show", default=WorkProgress)


def show_progress_with(show: Callable[[str, str], WorkProgress]) -> None:
    """Show the progress of this context's work with what `show` returns for a label and a unit."""
    _show.set(show)


def open_progress(label: str, unit: str = "tokens") -> WorkProgress:
    """Return the progress of work that is about to begin, for a `with` statement."""
    return _show.get()(label, unit)


def notify(message: str) -> None:
    """Log a line that the user is to read, without passwords; a command shows it on stderr."""
    logging.getLogger("runnel").warning("%s", redact(message))


def notify_when(*cases: tuple[object, str]) -> None:
    """Log, as `notify` does, the line of each case that holds; a case is a condition and a line."""
    for holds, message in cases:
        if holds:
            notify(message)


def inform(message: str) -> None:
    """Log a line, without passwords, that a command shows with --verbose."""
    logging.getLogger("runnel").info("%s", redact(message))
