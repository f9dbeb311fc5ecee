"""Filters on metadata: {"year": {">=": 2020}, "language": ["en", "de"], "draft": False}; all conditions must hold.

A value means equality, a list means one of them, a mapping means comparisons. They run in Python over the documents, or
inside a store as SQL.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from runnel.errors import InputError
from runnel.search.records import FIELD_TYPES, FieldType

Filter = Mapping[str, Any]
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
Condition = tuple[str, str, Any]  # field, comparison or "in", value


def conditions(given: Filter, fields: Mapping[str, FieldType]) -> list[Condition]:
    """The parts of a filter.

    Raises:
        InputError: a field that the index does not know, an unknown comparison, or a value of another type.
    """
    found: list[Condition] = []
    for name, value in given.items():
        if name not in fields:
            known = ", ".join(sorted(fields)) or "none; give fields= when the index is created"
            raise InputError(f"this index cannot filter by {name!r}; its fields are: {known}")
        if isinstance(value, Mapping):
            for sign, bound in value.items():
                if sign not in _COMPARE:
                    raise InputError(f"unknown comparison {sign!r} for {name!r}; known are {', '.join(_COMPARE)}")
                found.append((name, sign, typed(name, bound, fields[name])))
        elif isinstance(value, list | tuple | set | frozenset):
            found.append((name, "in", [typed(name, item, fields[name]) for item in value]))
        else:
            found.append((name, "=", typed(name, value, fields[name])))
    return found


def typed(name: str, value: Any, kind: FieldType) -> Any:
    """The value of a field, checked. An int is accepted where a float is wanted, a bool is not a number."""
    wanted = FIELD_TYPES[kind]
    if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (kind in ("int", "float") and isinstance(value, bool)):
        raise InputError(f"field {name!r} is of type {kind}, got {value!r} of type {type(value).__name__}")
    return value


def matches(wanted: list[Condition], metadata: Mapping[str, Any]) -> bool:
    """Whether metadata fulfils all conditions. A document without a field fulfils no condition on it."""
    for name, sign, value in wanted:
        have = metadata.get(name)
        if have is None or not (have in value if sign == "in" else _COMPARE[sign](have, value)):
            return False
    return True


def to_sql(wanted: list[Condition], prefix: str = "") -> str:
    """The same as an SQL expression over columns named `prefix` + field."""
    parts = []
    for name, sign, value in wanted:
        if sign == "in":
            parts.append(f"`{prefix}{name}` IN ({', '.join(map(literal, value))})" if value else "false")
        else:
            parts.append(f"`{prefix}{name}` {sign} {literal(value)}")
    return " AND ".join(parts)


def literal(value: Any) -> str:
    """A value in SQL."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower() if isinstance(value, bool) else repr(value)
