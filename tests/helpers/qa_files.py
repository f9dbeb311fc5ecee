"""Made-up files of question answering in the layouts of the suites, a few rows each."""

import json
from pathlib import Path
from typing import Any

from runnel.lab.evaluation.qa.loading import QaSet, read_qa_sets

ATTIC = "The letters are in the attic. Ada found them in 1912."
CELLAR = "The wine is in the cellar. Nobody has counted it."


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


def read_one(path: Path) -> QaSet:
    (one,) = read_qa_sets(path)
    return one


def shown(one: QaSet) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Return (id, document, question, answers) of a set's questions."""
    return [(q.id, one.documents[q.document].text, q.question, q.answers) for q in one.questions]
