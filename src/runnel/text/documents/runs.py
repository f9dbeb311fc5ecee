"""Runs of items that belong together."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def runs(items: Iterable[T], belongs: Callable[[list[T], T], bool]) -> list[list[T]]:
    """Return items in runs. `belongs`: of a run and the item after it, whether it is in the run."""
    found: list[list[T]] = []
    for item in items:
        if not found or not belongs(found[-1], item):
            found.append([])
        found[-1].append(item)
    return found
