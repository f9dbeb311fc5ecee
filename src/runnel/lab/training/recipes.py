"""Recipes: the settings of a training run in a small TOML file, read strictly into `training.settings.Recipe`.

In addition to the tables of `Recipe`, a recipe may have [sizes.NAME], with the differences for a model of that size (--size).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from runnel import files
from runnel.errors import InputError, ReadError
from runnel.lab.training.settings import JOBS, Job, Recipe

SHIPPED = Path(__file__).parent / "recipes"


# ---- reading ---------------------------------------------------------------------------------------------------------


def shipped() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def find(name: str) -> Path:
    """Return the file of a shipped recipe, or the path itself."""
    path = SHIPPED / f"{name}.toml"
    if path.is_file():
        return path
    if Path(name).is_file():
        return Path(name)
    near = _nearest(name, shipped())
    raise ReadError(f"no recipe {name!r}{near}; give the path of a TOML file or one of {', '.join(shipped())}")


def sizes(name: str) -> list[str]:
    """Return the sizes that a recipe has settings for."""
    return list(_table(_load(find(name)), "sizes", name))


def read(name: str, *, size: str | None = None, changes: tuple[str, ...] = ()) -> Recipe:
    """Read a recipe by name or path, with the settings of one of its sizes and then `changes`, "key=value" as TOML."""
    path = find(name)
    content = _load(path)
    by_size = _table(content, "sizes", path)
    content = {key: value for key, value in content.items() if key != "sizes"}
    build(Recipe, content, str(path))  # first, so that its errors are not reported as those of a size
    for part in by_size:
        build(Recipe, _merged(content, by_size[part]), f"{path}: sizes.{part}")  # reports errors in every size
    if size is not None:
        if size not in by_size:
            have = ", ".join(by_size) or "none"
            raise InputError(f"{path.name} has no size {size!r}{_nearest(size, by_size)}; it has {have}")
        content = _merged(content, by_size[size])
    for change in changes:
        content = _merged(content, _change(change, content["job"]))
    return parse(content, f"{path} with --set" if changes else str(path))


def parse(content: Mapping[str, Any], place: str) -> Recipe:
    """Return the recipe in a TOML table without `sizes`. `place` names it in messages."""
    recipe: Recipe = build(Recipe, content, place)
    _check(recipe, place)
    return recipe


def write(recipe: Recipe, path: Path) -> None:
    """Write a recipe as TOML, from which `read` returns an equal recipe."""
    lines: list[str] = []
    _lines(recipe, "", lines, recipe.job)
    files.write(path, "\n".join(lines) + "\n")


def differences(recipe: Recipe, other: Recipe) -> list[str]:
    """Return the settings in which two recipes differ, as "table.key: this, other"."""
    mine, theirs = (dict(_flat(dataclasses.asdict(r))) for r in (recipe, other))
    keys = [*mine, *(k for k in theirs if k not in mine)]
    return [f"{k}: {mine.get(k)!r}, {theirs.get(k)!r}" for k in keys if mine.get(k) != theirs.get(k)]


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}") from error


def _table(content: Mapping[str, Any], name: str, path: object) -> dict[str, Any]:
    value = content.get(name, {})
    if not isinstance(value, dict):
        raise InputError(f"{path}: {name} must be a table, got {value!r}")
    return dict(value)


def _merged(base: Mapping[str, Any], over: Any) -> dict[str, Any]:
    """Return `base` updated with `over`, table by table."""
    merged = dict(base)
    for key, value in dict(over).items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _change(change: str, job: Job) -> dict[str, Any]:
    """Parse "table.key=value" or "key=value" as {"table": {"key": value}}."""
    key, equals, text = change.partition("=")
    key = key.strip()
    if not equals or not key:
        raise InputError(f"--set {change!r} must be key=value, for example --set train.learning_rate=1e-4")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # an unquoted string
    table, dot, name = key.rpartition(".")
    if not dot:
        places = [f"{table}.{key}" for table, fields in _tables().items() if key in fields and job in _jobs(fields[key])]
        if len(places) != 1:
            every = {name: f"{table}.{name}" for table, fields in _tables().items() for name in fields}
            hint = f"; use one of: {', '.join(places)}" if places else _nearest(key, every, every)
            raise InputError(f"--set {key}: {'several tables have' if places else 'no table has'} that key{hint}")
        table, _, name = places[0].rpartition(".")
    return {table: {name: value}}


def _tables() -> dict[str, dict[str, dataclasses.Field[Any]]]:
    """Return the fields of each table, by name."""
    tables = {}
    for field in dataclasses.fields(Recipe):
        kind = _inner(_hints(Recipe)[field.name])
        if dataclasses.is_dataclass(kind):
            tables[field.name] = {f.name: f for f in dataclasses.fields(kind)}
    return tables


def _jobs(field: dataclasses.Field[Any]) -> tuple[str, ...]:
    return field.metadata.get("jobs", JOBS)


# ---- types -----------------------------------------------------------------------------------------------------------


def build(kind: type[Any], content: Mapping[str, Any], place: str, job: str | None = None) -> Any:
    """Return the dataclass `kind` made from a TOML table, with only settings that `job` uses. `place` names it in messages."""
    hints, fields = _hints(typing.cast(Any, kind)), {f.name: f for f in dataclasses.fields(kind)}
    if kind is Recipe:
        job = content.get("job")
        if "job" not in content:
            raise InputError(f"{place}: the key 'job' is missing; expected one of {', '.join(JOBS)}")
        _value(Job, job, f"{place}: job", None)
    values = {}
    for key, value in content.items():
        if key not in fields:
            raise InputError(f"{place}: unknown key {key!r}{_nearest(key, fields)}; expected one of {', '.join(fields)}")
        if job is not None and job not in _jobs(fields[key]):
            raise InputError(
                f"{place}: {key!r} is not used by the job {job!r}; remove it (used by {', '.join(_jobs(fields[key]))})"
            )
        values[key] = _value(hints[key], value, f"{place}: {key}", job)
    missing = [n for n, f in fields.items() if n not in values and f.default is f.default_factory is dataclasses.MISSING]
    if missing:
        raise InputError(f"{place}: the key {missing[0]!r} is missing")
    return kind(**values)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(hint: Any, value: Any, place: str, job: str | None) -> Any:
    hint = _inner(hint)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise InputError(f"{place} must be a table, got {value!r}")
        return build(typing.cast(type, hint), value, place, job)
    if typing.get_origin(hint) is Literal:
        if value not in (choices := typing.get_args(hint)):
            raise InputError(f"{place} must be one of {', '.join(choices)}, got {value!r}")
        return value
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise InputError(f"{place} must be a list, got {value!r}")
        return tuple(_value(typing.get_args(hint)[0], item, place, job) for item in value)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint or (hint is float and not math.isfinite(value)):
        raise InputError(f"{place} must be {_A[hint]}, got {value!r}")
    return value


_A = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}


_FROM_ZERO = ("data.negatives", "data.held_out", "train.seed")  # other whole numbers begin at 1
_ABOVE_ZERO = ("train.learning_rate", "train.epochs", "train.temperature", "search.learning_rates")


def _inner(hint: Any) -> Any:
    """Return X for X | None."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return next(part for part in typing.get_args(hint) if part is not types.NoneType)
    return hint


def _check(recipe: Recipe, path: str) -> None:
    """Check the constraints that types cannot express."""
    t, d = recipe.train, recipe.data
    for name, value in _flat(dataclasses.asdict(recipe)):
        for number in value if isinstance(value, tuple) else (value,):
            _check_number(name, number, path)
    if t.seed >= 1 << 32:
        raise InputError(f"{path}: train.seed must be below 2**32, got {t.seed}")
    if len(t.betas) != 2 or max(t.betas) >= 1:
        raise InputError(f"{path}: train.betas must be two numbers from 0 to below 1, got {list(t.betas)}")
    if recipe.job == "rerank" and d.negatives < 1:
        raise InputError(f"{path}: data.negatives must be at least 1, got {d.negatives}")
    if t.min_learning_rate and t.schedule != "cosine":
        raise InputError(f"{path}: train.min_learning_rate needs the cosine schedule; remove it or set train.schedule")
    if recipe.search is not None and not (recipe.search.learning_rates and d.held_out):
        raise InputError(f"{path}: [search] needs learning_rates, and data.held_out rows to compare them on")
    for table in d.sets:
        if table.instructions and "{instruction}" not in (d.prompt or ""):
            raise InputError(
                f"{path}: {table.path} has instructions, but data.prompt has no {{instruction}}; add it or remove them"
            )


def _check_number(name: str, value: object, path: str) -> None:
    """Raise InputError for a number that is too small: of whole numbers below 1, of others below 0, with exceptions."""
    if type(value) is int and value < (least := 0 if name in _FROM_ZERO else 1):
        raise InputError(f"{path}: {name} must be at least {least}, got {value}")
    if type(value) is float and (value < 0 or (value == 0 and name in _ABOVE_ZERO)):
        raise InputError(f"{path}: {name} must be {'above 0' if name in _ABOVE_ZERO else 'at least 0'}, got {value}")


def _nearest(key: str, known: Iterable[str], places: Mapping[str, str] = MappingProxyType({})) -> str:
    found = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f" (did you mean {places.get(found[0], found[0])!r}?)" if found else ""


# ---- writing ---------------------------------------------------------------------------------------------------------


def _lines(table: Any, name: str, lines: list[str], job: Job) -> None:
    """Append the lines of a table, values first, then tables; skip None and settings that the job does not use."""
    later: list[tuple[str, Any]] = []
    for field in dataclasses.fields(table):
        value = getattr(table, field.name)
        if value is None or job not in _jobs(field):
            continue
        if dataclasses.is_dataclass(value) or (field.name == "sets" and value):
            later.append((f"{name}.{field.name}".lstrip("."), value))
        else:
            lines.append(f"{field.name} = {_toml(value)}")
    for place, value in later:
        for item in value if isinstance(value, tuple) else (value,):
            lines += ["", f"[[{place}]]" if isinstance(value, tuple) else f"[{place}]"]
            _lines(item, place, lines, job)


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{prefix}.{key}".lstrip("."))
    else:
        yield prefix, value
