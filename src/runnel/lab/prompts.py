"""Prompts of a user's own in place of runnel's, such as those that a paper prints: `--prompts`."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Formatter

from runnel.checks import refuse_when
from runnel.errors import InputError

_REMEDY = "docs/data.md#prompts-of-your-own has the prompts of each table and their fields"


def read_prompts(
    path: Path, table: str, ours: Mapping[str, str], used: Iterable[str]
) -> dict[str, str]:
    """Return the prompts that are used, from a table of a TOML file, as texts for `str.format`.

    Fields such as {question} are those of `ours`; all other braces in a prompt mean themselves.

    Raises:
        InputError: the file cannot be read, or a prompt is missing, unknown or lacks a field.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        texts = {name: str(text) for name, text in tables.get(table, {}).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path} cannot be read as TOML with a table [{table}]: {error}; {_REMEDY}"
        ) from error
    names = list(used)
    missing = [name for name in names if name not in texts]
    unknown = sorted(texts.keys() - ours.keys())
    refuse_when(
        (missing, f"{path}, [{table}], lacks prompts: {', '.join(missing)}; {_REMEDY}"),
        (unknown, f"{path}, [{table}], has unknown prompts: {', '.join(unknown)}; {_REMEDY}"),
    )
    return {name: _prompt(texts[name], ours[name], f"{path}, {table}.{name},") for name in names}


def _prompt(text: str, ours: str, where: str) -> str:
    prompt = text.replace("{", "{{").replace("}", "}}")
    for field in sorted({field for _, field, _, _ in Formatter().parse(ours) if field}):
        written = f"{{{field}}}"
        if written not in text:
            raise InputError(f"{where} lacks the field {written}; {_REMEDY}")
        prompt = prompt.replace(f"{{{written}}}", written)
    return prompt
