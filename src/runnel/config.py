"""JSON, read strictly: a value has the type that is expected, or an error names it.

    read_model_json    a file of a model folder: an object or a list, with any values
    valid_config       errors about values in a config name the config
    arguments          an object that must have the keys of a class: a model's config, a recipe
    read_row           a row of a data file as a dataclass; other keys are ignored

`arguments` and `read_row` read each value by its annotation in the class (`_read`).
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
    """Turn an InputError, which speaks of values that a user passes, into a CheckpointError: here
    the values are in a config.
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
    """Return the values of a JSON object as keyword arguments of `target`.

    Args:
        target: a dataclass, or another class; then the object has the parameters of its __init__.
        values: the object. It must not have other keys.
        what: its name in errors.
        given: fields or parameters that the object does not have: the caller passes them.
        defaults: fields of a dataclass that have a default may be missing; parameters of another
            class that have one may always be missing.
        error: what is raised if a key is missing or unknown, or a value has another type.
    """
    annotated: Any = target if is_dataclass(target) else target.__init__  # type: ignore[misc]
    hints = get_type_hints(annotated)
    parameters = [
        p
        for p in inspect.signature(target).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in given
    ]
    known = {p.name for p in parameters}
    needs_all = is_dataclass(target) and not defaults
    needed = {p.name for p in parameters if needs_all or p.default is inspect.Parameter.empty}
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
    """Return a row of a file as a dataclass. Keys that are no fields are ignored.

    Args:
        kind: the dataclass. A field with a default may be missing.
        where: the place of the row, for errors.
        names: field -> another key that it may have. With query="question" the field `query` is
            read from "question", or if the row does not have that, from "query".

    Raises:
        InputError: a key is missing or has a value of another type.
    """
    hints = get_type_hints(kind)
    values = {}
    for field_ in fields(kind):  # type: ignore[arg-type]
        keys = (names.get(field_.name, field_.name), field_.name)
        key = next((key for key in keys if key in row), keys[0])
        if key in row or field_.default is field_.default_factory is MISSING:
            values[field_.name] = _read(
                row.get(key), hints[field_.name], f"{where}: {key!r}", True, InputError
            )
    return kind(**values)


def _read(value: object, kind: Any, what: str, defaults: bool, error: type[RunnelError]) -> Any:
    """Return a value of JSON as its annotation, `kind`, says; raise `error` if it is another type.

    Annotations are Any and object (any value), int (from 0 to 2^31 - 1), float (but not NaN; a
    whole number as for int becomes a float), bool, str, Literal of texts, X | None (of more types
    the first that is not None), tuple of one type (a list), dict (an object), and dataclasses (an
    object, see `arguments`).
    """
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
        # all items have the type of the first
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
