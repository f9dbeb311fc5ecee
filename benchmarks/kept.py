"""Measurements that are kept in FOLDER/NAME.json part by part, so that an interrupted command
measures only the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runnel.commands.doctor import machine
from runnel.errors import InputError
from runnel.files import write

FORMAT = 1
# outcomes that may be published; of other systems also "refused"
RESULTS = ("ok", "left out", "out of memory", "missing")
# what a row is of
_NAMES = ("model", "operator", "system", "way", "dtype", "chunk", "batch", "tokens")
Sections = dict[str, list[dict[str, Any]]]  # rows by section, as `failures` takes them


class Kept:
    """The parts of a measurement: those of an earlier run of the same command, and new ones.

    Args:
        folder: where NAME.json, NAME.md and NAME.png go; None: nothing is kept.
        settings: what all parts have in common, as values for JSON.

    Raises:
        InputError: no such folder, or its file has another version, other settings, or is of
            another machine.
    """

    def __init__(self, folder: Path | None, name: str, settings: Mapping[str, Any]) -> None:
        if folder is not None and not folder.is_dir():
            raise InputError(f"{folder} is not a folder; create it first")
        self._file = None if folder is None else folder / f"{name}.json"
        self.parts: dict[str, Sections] = {}
        self.machine = machine()
        self._head = {
            "format": FORMAT,
            "machine": self.machine,
            "settings": json.loads(json.dumps(settings)),
        }
        if self._file is not None and self._file.is_file():
            stored = json.loads(self._file.read_text(encoding="utf-8"))
            self.parts = stored.pop("parts")
            flat, now = ({**head.pop("settings"), **head} for head in (stored, dict(self._head)))
            different = [
                f"{key} {flat.get(key)}, now {now.get(key)}"
                for key in now
                if flat.get(key) != now[key]
            ]
            if different:
                raise InputError(
                    f"{self._file} was measured with {'; '.join(different)}; give another folder"
                )

    def part(self, key: str, measure: Callable[[], Sections]) -> Sections:
        """Return a part, measured unless it is kept. A part with a failure is not kept: the next
        run measures it again.
        """
        if key not in self.parts:
            found = measure()
            if self._file is None or failures(found):
                return found
            self.parts[key] = found
            write(self._file, json.dumps(self._head | {"parts": self.parts}, indent=1) + "\n")
        return self.parts[key]

    def publish(self, text: str, plot: Callable[[Path], None]) -> None:
        """Write NAME.md and NAME.png next to the json."""
        if self._file is not None:
            write(self._file.with_suffix(".md"), text + "\n")
            plot(self._file.with_suffix(".png"))


def joined(parts: Sequence[Sections]) -> Sections:
    """Return the rows of all parts, by section."""
    sections = dict.fromkeys(section for part in parts for section in part)
    return {
        section: [row for part in parts for row in part.get(section, [])] for section in sections
    }


def failures(result: Mapping[str, Any]) -> list[str]:
    """Name every failed check and every row without a figure whose reason is none of `RESULTS`."""
    found = []
    for section, value in result.items():
        for row in value if isinstance(value, list) else [value]:
            if isinstance(row, dict) and not (row.get("passed", True) and _is_result(row)):
                name = " ".join(str(row[key]) for key in _NAMES if row.get(key))
                found.append(
                    f"{section}: {name}: {row.get('outcome', 'check failed')}: {row['note']}"
                )
    return found


def _is_result(row: Mapping[str, Any]) -> bool:
    outcome = row.get("outcome", "ok")
    return outcome in RESULTS or (outcome == "refused" and row.get("system", "runnel") != "runnel")
