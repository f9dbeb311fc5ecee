"""Filters on metadata: {"year": {">=": 2020}, "language": ["en", "de"], "draft": False}; all conditions must hold.

A value means equality, a list one of its values, a mapping comparisons. A document without a field meets no condition on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from runnel.errors import InputError
from runnel.search.records import FIELD_TYPES, FieldType, check_storable

Filter = Mapping[str, Any]
_COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
Condition = tuple[str, str, Any]  # field, comparison or "in", value


def conditions(given: Filter, fields: Mapping[str, FieldType]) -> list[Condition]:
    """Check a filter against the fields of an index, and return its conditions."""
    if not isinstance(given, Mapping):
        raise InputError(f'the filter is {given!r:.80}; expected a mapping such as {{"year": {{">=": 2020}}}}')
    found: list[Condition] = []
    for name, value in given.items():
        if name not in fields:
            known = ", ".join(sorted(fields)) or "none; give fields= when the index is created"
            raise InputError(f"this index cannot filter by {name!r}; its fields are: {known}")
        if isinstance(value, Mapping):
            if not value:
                raise InputError(f'the condition on {name!r} is empty; expected a comparison such as {{">=": 2020}}, or a value')
            for sign, bound in value.items():
                if sign not in _COMPARISONS:
                    raise InputError(f"unknown comparison {sign!r} for {name!r}; known are {', '.join(_COMPARISONS)}")
                found.append((name, sign, typed(name, bound, fields[name])))
        elif isinstance(value, list | tuple | set | frozenset):
            found.append((name, "in", [typed(name, item, fields[name]) for item in value]))
        else:
            found.append((name, "=", typed(name, value, fields[name])))
    return found


def typed(name: str, value: Any, kind: FieldType) -> Any:
    """Check the value of a document's or a filter's field. An int is converted for a float; a bool is not a number."""
    wanted: Any = (int, float) if kind == "float" else FIELD_TYPES[kind]
    if isinstance(value, bool) != (kind == "bool") or not isinstance(value, wanted):
        raise InputError(f"field {name!r} is of type {kind}, got {value!r} of type {type(value).__name__}")
    if isinstance(value, str):
        check_storable(value, f"the value {value!r} of field {name!r}")
    elif kind == "int" and not -(2**63) <= value < 2**63:
        shown = value if value.bit_length() < 256 else f"a number of {value.bit_length():,} bits"
        raise InputError(f"field {name!r} is of type int, which has 64 bits, got {shown}; expected -2**63 to 2**63 - 1")
    elif kind == "float":
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise InputError(f"field {name!r} is of type float, got {value!r}; expected a finite number")
    return value


def to_sql(wanted: list[Condition], prefix: str) -> str:
    """Return conditions as an SQL expression over columns named `prefix` + field."""
    parts = []
    for name, sign, value in wanted:
        if sign == "in":
            parts.append(f"`{prefix}{name}` IN ({', '.join(map(literal, value))})" if value else "false")
        else:
            parts.append(f"`{prefix}{name}` {sign} {literal(value)}")
    return " AND ".join(parts)


def literal(value: Any) -> str:
    """Return a value as SQL."""
    if isinstance(value, int) and value == -(2**63):
        return f"({value + 1} - 1)"  # a sign and 2**63 would overflow
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower() if isinstance(value, bool) else repr(value)
