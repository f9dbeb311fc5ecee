"""Configs of backbones, checked, and JSON objects read strictly."""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from runnel.errors import CheckpointError, InputError

_MOST = 1 << 31  # no size, count or token id is larger


@dataclasses.dataclass(frozen=True)
class BackboneConfig:
    """The shape of a backbone. Sub-classes are frozen dataclasses; `unchecked` names fields that any number may be in."""

    unchecked: ClassVar[tuple[str, ...]] = ()
    if TYPE_CHECKING:

        @property
        def num_layers(self) -> int: ...  # a field or a property of every sub-class

    def __post_init__(self) -> None:
        """Raise InputError unless sizes (whole numbers) are at least 1 and scales (the others) positive and finite."""
        for field in dataclasses.fields(self):
            value, kind = getattr(self, field.name), str(field.type).removesuffix(" | None")
            if value is None or field.name in self.unchecked:
                continue
            if kind == "int" and value < 1:
                raise InputError(f"{field.name} must be at least 1, got {value}")
            if kind == "float" and not 0 < value < math.inf:
                raise InputError(f"{field.name} must be positive and finite, got {value}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the inverse of `to_dict`. Raises CheckpointError on unknown or missing names and values of another type."""
        return cls(**arguments(cls, values, "the config"))


def arguments(target: type, values: object, what: str, given: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the values of a JSON object as keyword arguments of `target`.

    Args:
        target: a dataclass, all of whose fields must be there, or another class, whose defaults may be left out. Annotations are
            int (from 0 to 2^31), float, bool, str, None, Literal, dict, Any, a dataclass, and unions of these.
        what: names the object in messages: "a Mamba-2 config".
        given: parameters that do not come from the object.

    Raises:
        CheckpointError: not an object, an unknown or missing name, or a value of another type or out of range.
    """
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{what} is {_short(values)}; expected an object with names and values")
    hints = get_type_hints(target if dataclasses.is_dataclass(target) else target.__init__)  # type: ignore[misc]
    named = [p for p in inspect.signature(target).parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    parameters = [p for p in named if p.name not in given]
    known = {p.name for p in parameters}
    needed = {p.name for p in parameters if dataclasses.is_dataclass(target) or p.default is inspect.Parameter.empty}
    unknown, missing = sorted(set(values) - known), sorted(needed - set(values))
    if unknown or missing:
        raise CheckpointError(f"{what} needs exactly {sorted(known)}; unknown: {unknown}, missing: {missing}")
    return {name: _read(value, hints[name], f"{what}: {name}") for name, value in values.items()}


def _read(value: object, kind: Any, what: str) -> Any:
    """Return the value if it is of this kind, a whole number as a float where one is expected."""
    origin = get_origin(kind)
    if kind is Any or (kind is float and isinstance(value, float) and not math.isnan(value)):
        return value
    if origin in (Union, types.UnionType):
        chosen = next((one for one in get_args(kind) if one is not types.NoneType), Any)
        return None if value is None else _read(value, chosen, what)
    if origin is Literal and value in get_args(kind) and isinstance(value, str):
        return value
    if origin is dict and isinstance(value, Mapping):
        return {name: _read(one, get_args(kind)[1], f"{what}.{name}") for name, one in value.items()}
    if inspect.isclass(kind) and dataclasses.is_dataclass(kind):
        return kind(**arguments(kind, value, what))
    if kind in (int, float) and isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST:
        return kind(value)
    if kind in (bool, str) and isinstance(value, kind):
        return value
    raise CheckpointError(f"{what} is {_short(value)}; expected {_NAMES.get(kind) or _choices(kind)}")


_NAMES: dict[Any, str] = {int: f"a whole number from 0 to {_MOST - 1:,}", float: "a number", bool: "true or false", str: "text"}


def _choices(kind: Any) -> str:
    return f"one of {', '.join(map(str, get_args(kind)))}" if get_origin(kind) is Literal else "an object"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
