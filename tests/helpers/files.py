"""Files that a test needs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_rows(path: Path, rows: list[Any]) -> Path:
    """Write jsonl, in which a text is written as it is, or parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        import pyarrow.parquet  # other tests run without it

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return path
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def read_rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_files(folder: Path, files: Mapping[str, str | bytes | list[Any]]) -> None:
    """Write the content of each name, rows as `write_rows` does, and the folders it is in."""
    for name, content in files.items():
        path = folder / name
        if isinstance(content, list):
            write_rows(path, content)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
