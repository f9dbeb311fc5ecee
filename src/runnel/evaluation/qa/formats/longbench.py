"""LongBench and LV-Eval: a row is a question with its document.

Rows: "input" (the question), "context" (the document), "answers" (all true answers), and in LongBench "_id"; other fields are
not read.

Source: "Data Format" in https://github.com/THUDM/LongBench (LongBench/README.md) and https://github.com/infinigence/LVEval.
"""

from __future__ import annotations

from pathlib import Path

from runnel.evaluation.benchmarks import read_rows
from runnel.evaluation.qa.building import SetBuilder
from runnel.evaluation.qa.records import QaSet
from runnel.evaluation.qa.sets import SetFacts
from runnel.text.lines import text_of, texts_of


def read(files: list[Path], facts: SetFacts) -> QaSet:
    """Read a set.

    Raises:
        InputError, ReadError: a row has another form; the message has its place.
    """
    builder = SetBuilder(facts)
    for number, (where, row) in enumerate(read_rows(files), start=1):
        answers = texts_of(row, "answers", where)
        name = str(row.get("_id") or number)
        builder.add(where, text_of(row, "context", where), text_of(row, "input", where), answers, id=name)
    return builder.build()
