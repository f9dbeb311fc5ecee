"""DocFinQA: questions about annual reports, answered by numbers.

A file is a list of objects with "Context" (the report), "Question" and "Answer"; "Program", the calculation of the answer, is not
read. The file of the test split has about 600 MB and is read piece by piece.

Source: https://huggingface.co/datasets/kensho/DocFinQA.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runnel.errors import InputError
from runnel.evaluation.benchmarks import read_rows
from runnel.evaluation.qa.building import SetBuilder
from runnel.evaluation.qa.json_values import read_values
from runnel.evaluation.qa.records import QaSet
from runnel.evaluation.qa.sets import SetFacts
from runnel.text.lines import text_of, texts_of


def read(files: list[Path], facts: SetFacts) -> QaSet:
    """Read the set.

    Raises:
        InputError, ReadError: a row has another form; the message has its place.
    """
    builder = SetBuilder(facts)
    for number, (where, row) in enumerate(_rows(files), start=1):
        answers = texts_of(row, "Answer", where)
        builder.add(where, text_of(row, "Context", where), text_of(row, "Question", where), answers, id=str(number))
    return builder.build()


def _rows(files: list[Path]) -> Iterator[tuple[object, Mapping[str, Any]]]:
    if files[0].suffix == ".parquet":
        yield from read_rows(files)
        return
    for (number,), row in read_values(files[0], 1):
        where = f"{files[0]}, item {int(number) + 1 if number.isdecimal() else number}"
        if not isinstance(row, dict):
            raise InputError(f"{where}: expected an object in braces, got {type(row).__name__}")
        yield where, row
