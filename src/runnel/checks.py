"""Checks of values that users pass: each raises InputError, which says what came and what was
expected.
"""

import difflib
import operator
import os
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol, SupportsIndex, TypeVar

from runnel.errors import InputError

_MANY = 8  # choices; of more, an error names the nearest ones


def expect_text(value: object, what: str) -> None:
    """Raise InputError unless `value` is a string; `what` names it."""
    if not isinstance(value, str):
        raise InputError(f"{what} is {reprlib.repr(value)}; expected text (str)")


def expect_series(values: object, what: str, expected: str) -> None:
    """Raise InputError unless iterating over `values` yields texts in an order: not one text, a
    dict, a set or a table.
    """
    # iterating over a table yields the names of its columns
    unordered = isinstance(values, Mapping | set | frozenset) or hasattr(values, "columns")
    if (
        unordered
        or isinstance(values, str | bytes)
        or not isinstance(values, Iterable)
        or getattr(values, "ndim", 1) == 0  # an array without dimensions, a single value
    ):
        came = f"a {type(values).__name__}" if unordered else reprlib.repr(values)
        raise InputError(f"{what} are {came}; expected {expected}")


def expect_loaded(model: object, job: str) -> None:
    """Raise InputError for a name where a loaded model is expected, as other libraries accept it;
    `job` names the class.
    """
    if isinstance(model, str | os.PathLike):
        raise InputError(
            f"{job}({os.fspath(model)!r}): expected a loaded model; use"
            f" {job}.load({os.fspath(model)!r})"
        )


def expect_count(value: object, what: str, least: int = 1) -> None:
    """Raise InputError unless `value` is an integer (Python or NumPy) of at least `least`; `what`
    names it.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, SupportsIndex)
        or operator.index(value) < least
    ):
        raise InputError(f"{what} is {reprlib.repr(value)}; expected a whole number from {least}")


def refuse_when(*cases: tuple[object, str], error: type[Exception] = InputError) -> None:
    """Raise the error of the first case that holds; a case is a condition and its message."""
    for holds, message in cases:
        if holds:
            raise error(message)


def expect_choice(value: object, choices: Iterable[str], what: str) -> None:
    """Raise InputError, which names the choices or, of many, the nearest ones, unless `value` is
    one; `what` names it.
    """
    names = list(choices)
    if value not in names:
        near = difflib.get_close_matches(str(value), names, 3, 0.5) if len(names) > _MANY else []
        raise InputError(
            f"{what} is {reprlib.repr(value)}; expected one of {', '.join(near or names) or 'none'}"
        )


def utf8(text: str, what: str = "the text", error: type[InputError] = InputError) -> bytes:
    """Encode a text, which is called `what`; raise the error, with the place, for half of a
    surrogate pair.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as failure:
        raise error(
            f"{what} contains U+{ord(text[failure.start]):04X} (half of a surrogate pair) at"
            f" character {failure.start}; read the file with the right encoding, or replace it with"
            " text.encode('utf-8', 'replace').decode()"
        ) from failure


Identified = TypeVar("Identified", bound="HasId")


class HasId(Protocol):
    """What has an id."""

    @property
    def id(self) -> str:
        """The id."""


def by_id(items: Iterable[Identified], what: str) -> dict[str, Identified]:
    """Return items by their ids; raise InputError if two have the same one, or if there are none.
    `what` names them.
    """
    listed = list(items)
    counts = Counter(item.id for item in listed)
    if len(counts) < len(listed) or not listed:
        problem = f"two have the id {counts.most_common(1)[0][0]!r}" if listed else "there are none"
        raise InputError(f"{what}: {problem}; expected one at least, and each id once")
    return {item.id: item for item in listed}
