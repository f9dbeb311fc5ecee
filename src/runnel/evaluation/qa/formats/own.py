"""A user's own questions: jsonl with "question", "document" (its text) and "answers".

Optional: "id"; "choices", of which one is the answer; "answer_type" and "category" as in `QaQuestion`. If all questions of a file
have choices, the set is multiple-choice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runnel.errors import InputError
from runnel.evaluation.qa.building import SetBuilder, lettered
from runnel.evaluation.qa.records import QaSet
from runnel.evaluation.qa.sets import SetFacts
from runnel.text.lines import read_json, text_of, texts_of

_FIELDS = ("id", "question", "document", "answers", "choices", "answer_type", "category")


def read(path: Path, name: str) -> QaSet:
    """Read a file; plain, .gz or .zst.

    Raises:
        InputError, ReadError: a row has another form, an unknown field, or only some rows have choices; the message has the line.
    """
    rows = list(read_json(path))
    with_choices = sum("choices" in row for _, row in rows)
    if with_choices not in (0, len(rows)):
        raise InputError(f"{path}: {with_choices} of {len(rows)} questions have choices; expected all or none, in two files")
    builder = SetBuilder(SetFacts(name, multiple_choice=with_choices > 0))
    for number, (where, row) in enumerate(rows, start=1):
        if unknown := sorted(set(row) - set(_FIELDS)):
            raise InputError(f"{where}: unknown field {unknown[0]!r}; expected {', '.join(_FIELDS)}")
        question, answers = text_of(row, "question", where), texts_of(row, "answers", where)
        choices: tuple[str, ...] = ()
        if with_choices:
            choices, answers = _choose(row, answers, where)
            question = "\n".join([question.strip(), *choices])
        optional = {field: row[field] for field in ("answer_type", "category") if field in row}
        text = text_of(row, "document", where)
        builder.add(where, text, question, answers, id=str(row.get("id", number)), choices=choices, **optional)
    return builder.build()


def _choose(row: dict[str, Any], answers: list[str], where: str) -> tuple[tuple[str, ...], list[str]]:
    options = texts_of(row, "choices", where)
    if any(answer not in options for answer in answers):
        raise InputError(f"{where}: the answers are {answers}; expected some of the choices {options}")
    choices = lettered(options)
    return choices, [choices[options.index(answer)] for answer in answers]
