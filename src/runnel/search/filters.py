"""Filters on metadata: {"year": {">=": 2020}, "language": ["en", "de"], "draft": False}; all
conditions must hold.

A value means equality, a list one of its values, a mapping comparisons. A document without a field
meets no condition on it.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from runnel.checks import expect_choice, utf8
from runnel.errors import InputError
from runnel.search.records import FIELD_TYPES, FieldType

Filter = Mapping[str, object]
_COMPARISONS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda value, listed: value in listed,
}
_SIGNS = tuple(_COMPARISONS)[:-1]
# what `matches` compares a value of metadata as: whole and other numbers with each other
_KINDS: dict[type, FieldType] = {str: "str", bool: "bool", int: "float", float: "float"}
_EXPECTED = {
    "str": "text",
    "int": "a whole number of 64 bits",
    "float": "a finite number",
    "bool": "True or False",
}
_CONDITION = re.compile(r"\s*(.*?)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", re.DOTALL)
_READ: Mapping[FieldType, Callable[[str], object]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
}
Condition = tuple[str, str, Any]  # field, comparison or "in", value
IDS = ""  # stands for the ids of the documents, where a field is expected


def conditions(given: Filter, fields: Mapping[str, FieldType] | None) -> list[Condition]:
    """Check a filter against the fields of an index (None: any fields, of the types of the filter's
    values), and return its conditions.
    """
    # without fields, filters of other programs look like equality: Haystack's, and "$or"
    if not isinstance(given, Mapping) or (
        fields is None
        and ({"field", "operator"} <= given.keys() or any(str(name)[:1] == "$" for name in given))
    ):
        raise InputError(
            f'the filter is {given!r:.80}; expected a mapping such as {{"year": {{">=": 2020}}}}'
        )

    def check(name: str, value: object) -> Any:
        kind = _KINDS.get(type(value), "str") if fields is None else fields[name]
        return typed(name, value, kind)

    checked: list[Condition] = []
    for name, value in given.items():
        expect_choice(
            name,
            given if fields is None else fields,
            "a field in the filter (an index has those of Index.create)",
        )
        if isinstance(value, Mapping):
            # an empty mapping is an error, as an unknown comparison is
            for sign, bound in (value or {"": None}).items():
                expect_choice(sign, _SIGNS, f"the comparison of {name!r}")
                checked.append((name, sign, check(name, bound)))
        elif isinstance(value, list | tuple | set | frozenset):
            checked.append((name, "in", [check(name, item) for item in value]))
        else:
            checked.append((name, "=", check(name, value)))
    return checked


def matches(given: Filter, metadata: Mapping[str, object]) -> bool:
    """Return whether metadata meets a filter, on any of its keys.

    Raises:
        InputError: an unknown comparison, or a value of another type than the metadata's.
    """
    fields = {key: _KINDS[type(value)] for key, value in metadata.items() if type(value) in _KINDS}
    return given.keys() <= fields.keys() and all(
        _COMPARISONS[sign](metadata[name], value) for name, sign, value in conditions(given, fields)
    )


def parse_conditions(
    given: Sequence[str], fields: Mapping[str, FieldType]
) -> dict[str, dict[str, object]]:
    """Parse a filter from NAME=VALUE, NAME!=VALUE, NAME>=VALUE and so on; values are read as the
    field's type says.
    """
    where: dict[str, dict[str, object]] = {}
    for text in given:
        match = _CONDITION.fullmatch(text)
        name, sign, value = match.groups() if match else ("", "", "")
        try:
            where.setdefault(name, {})[sign] = _READ[fields[name]](value)
        except (KeyError, ValueError):
            known = [f"{field} ({kind})" for field, kind in sorted(fields.items())]
            raise InputError(
                f"the condition {text!r} cannot be used; expected NAME=VALUE or another comparison"
                f" with a field: {', '.join(known) or 'none'}"
            ) from None
    return where


def typed(name: str, value: Any, kind: FieldType) -> Any:
    """Check the value of a document's or a filter's field. An int is converted for a float; a bool
    is not a number.
    """
    types = (int, float) if kind == "float" else (FIELD_TYPES[kind],)
    fits = isinstance(value, bool) == (kind == "bool") and isinstance(value, types)
    if fits and kind == "int":
        fits = -(2**63) <= value < 2**63
    if fits and kind == "float":
        with suppress(OverflowError):
            value = float(value)
        fits = isinstance(value, float) and math.isfinite(value)
    if not fits:
        # Python writes no number of more than 4300 digits
        big = isinstance(value, int) and value.bit_length() > 256
        shown = f"a number of {value.bit_length():,} bits" if big else repr(value)
        raise InputError(f"field {name!r} is {shown}; expected {_EXPECTED[kind]}")
    if isinstance(value, str):
        utf8(value, f"the value {value!r} of field {name!r}")
    return value


def to_sql(where: list[Condition], prefix: str, ids: str) -> str:
    """Return conditions as an SQL expression over columns named `prefix` + field, and `ids`, the
    column of the documents' ids.
    """
    terms = []
    for name, sign, value in where:
        column = ids if name == IDS else prefix + name
        if sign == "in":
            terms.append(f"`{column}` IN ({', '.join(map(literal, value))})" if value else "false")
        else:
            terms.append(f"`{column}` {sign} {literal(value)}")
    return " AND ".join(terms)


def literal(value: object) -> str:
    """Return a value as SQL."""
    if isinstance(value, int) and value == -(2**63):
        # SQL reads a minus and then 2**63, which is too large for 64 bits
        return f"({value + 1} - 1)"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower() if isinstance(value, bool) else repr(value)
