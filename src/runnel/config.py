"""JSON, read strictly into dataclasses.

What a file holds is of the kind that its dataclass says, or an error names it.
"""

import inspect
import json
import math
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from runnel.errors import CheckpointError, InputError, RunnelError, errors_as

Row = TypeVar("Row")


def read_model_json(
    path: Path,
    *,
    expect: type = dict,
    default: object = None,
    parse: Callable[[str], Any] = json.loads,
) -> Any:
    """Return the object, or the list with `expect=list`, in a JSON file of a model folder, or
    `default` if it is missing.
    """
    if default is not None and not path.exists():
        return default
    # Each parser has errors of its own.
    with errors_as(
        CheckpointError, f"{path} cannot be read", Exception, advice="copy or download it again"
    ):
        value = parse(path.read_text(encoding="utf-8"))
    if not isinstance(value, expect):
        raise CheckpointError(
            f"{path} holds a {type(value).__name__}; expected"
            f" {'an object' if expect is dict else 'a list'}"
        )
    return value


@contextmanager
def valid_config(where: str) -> Iterator[None]:
    """Turn an InputError, which speaks of values that a user passes, into a CheckpointError for
    those of a config.
    """
    try:
        yield
    except InputError as error:
        raise CheckpointError(f"{where}: its config is not a valid model: {error}") from error


_MOST = 1 << 31  # no size, count or token id in a JSON object is larger


def arguments(
    target: type,
    values: object,
    what: str,
    given: tuple[str, ...] = (),
    *,
    defaults: bool = False,
    error: type[RunnelError] = CheckpointError,
) -> dict[str, Any]:
    """Return the values of a JSON object, which is called `what`, as the keyword arguments of
    `target` that are not `given`.

    All fields of a dataclass must be there, unless `defaults` may be left out, as those of another
    class may. Annotations are int (from 0 to 2^31), float, bool, str, None, Literal, dict, tuple,
    Any and object (any value), a dataclass, unions of these.
    """
    annotated: Any = target if is_dataclass(target) else target.__init__  # type: ignore[misc]
    hints = get_type_hints(annotated)
    named = [
        p
        for p in inspect.signature(target).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    parameters = [p for p in named if p.name not in given]
    known = {p.name for p in parameters}
    whole = is_dataclass(target) and not defaults
    needed = {p.name for p in parameters if whole or p.default is inspect.Parameter.empty}
    if not isinstance(values, Mapping) or not needed <= set(values) <= known:
        names = set(values) if isinstance(values, Mapping) else set()
        raise error(
            f"{what} is {_short(values)}; expected an object with {sorted(known)}; "
            f"unknown: {sorted(names - known)}, missing: {sorted(needed - names)}"
        )
    return {
        name: _read(value, hints[name], f"{what}: {name}", defaults, error)
        for name, value in values.items()
    }


def read_row(kind: type[Row], row: Mapping[str, object], where: object, **names: str) -> Row:
    """Return a row of a file as a dataclass, whose fields have the names of the keys, or also
    others: `names`.

    Raises:
        InputError: a key is missing or has a value of another kind. Other keys are ignored.
    """
    hints = get_type_hints(kind)
    values = {}
    for field_ in fields(kind):  # type: ignore[arg-type]
        name = names[field_.name] if names.get(field_.name, "") in row else field_.name
        if name in row or field_.default is field_.default_factory is MISSING:
            name = name if name in row else names.get(name, name)
            values[field_.name] = _read(
                row.get(name), hints[field_.name], f"{where}: {name!r}", True, InputError
            )
    return kind(**values)


def _read(value: object, kind: Any, what: str, defaults: bool, error: type[RunnelError]) -> Any:
    """Return the value if it is of this kind, a whole number as a float where one is expected."""
    origin = get_origin(kind)
    if kind in (Any, object) or (
        kind is float and isinstance(value, float) and not math.isnan(value)
    ):
        return value
    if origin in (Union, types.UnionType):
        chosen = next((part for part in get_args(kind) if part is not types.NoneType), object)
        return None if value is None else _read(value, chosen, what, defaults, error)
    if origin is Literal and value in get_args(kind) and isinstance(value, str):
        return value
    if (
        origin is tuple
        and isinstance(value, list)
        and (... in get_args(kind) or len(value) == len(get_args(kind)))
    ):
        return tuple(_read(item, get_args(kind)[0], what, defaults, error) for item in value)
    if origin is dict and isinstance(value, Mapping):
        return {
            name: _read(item, get_args(kind)[1], f"{what}.{name}", defaults, error)
            for name, item in value.items()
        }
    if inspect.isclass(kind) and is_dataclass(kind):
        return kind(**arguments(kind, value, what, defaults=defaults, error=error))
    if (
        kind in (int, float)
        and isinstance(value, int)
        and not isinstance(value, bool)
        and 0 <= value < _MOST
    ):
        return kind(value)
    if kind in (bool, str) and isinstance(value, kind):
        return value
    raise error(f"{what} is {_short(value)}; expected {_NAMES.get(kind) or _choices(kind)}")


_NAMES: dict[object, str] = {
    int: f"a whole number from 0 to {_MOST - 1:,}",
    float: "a number",
    bool: "true or false",
    str: "text",
}


def _choices(kind: object) -> str:
    if get_origin(kind) is tuple:
        return "a list" if ... in get_args(kind) else f"a list of {len(get_args(kind))}"
    return (
        f"one of {', '.join(map(str, get_args(kind)))}"
        if get_origin(kind) is Literal
        else "an object"
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
