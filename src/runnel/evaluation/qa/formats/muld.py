"""MuLD's Character Archetype Classification: is a character of a movie script the hero or the villain?

Rows: "input", the question and then the script, and "output", the class. The question ends at its question mark, as in the
example of MuLD's card. The classes of all rows are the choices.

Source: https://github.com/ghomasHudson/muld (muld.py) and https://huggingface.co/datasets/ghomasHudson/muld, whose file is
data/character_id_test.json.bz2 (unpack it with bunzip2); the same rows in parquet:
https://huggingface.co/datasets/ghomasHudson/muld_Character_Archetype_Classification.
"""

from __future__ import annotations

import re
from pathlib import Path

from runnel.errors import InputError
from runnel.evaluation.benchmarks import read_rows
from runnel.evaluation.qa.building import SetBuilder, lettered
from runnel.evaluation.qa.records import QaSet
from runnel.evaluation.qa.sets import SetFacts
from runnel.text.lines import text_of, texts_of

_QUESTION = re.compile(r"\s*([^?\n]{1,300}\?)\s*(.*)", re.DOTALL)


def read(files: list[Path], facts: SetFacts) -> QaSet:
    """Read the set.

    Raises:
        InputError, ReadError: a row has another form, or all have one class; the message has the place.
    """
    rows = [(where, text_of(row, "input", where), texts_of(row, "output", where)) for where, row in read_rows(files)]
    classes = sorted({answer for _, _, answers in rows for answer in answers})
    if len(classes) < 2:
        raise InputError(f"{files[0]}: every output is {', '.join(map(repr, classes))}; expected several classes")
    choices = lettered(classes)
    builder = SetBuilder(facts)
    for number, (where, text, answers) in enumerate(rows, start=1):
        found = _QUESTION.match(text)
        if found is None:
            raise InputError(f'{where}: expected "input" to begin with a question that ends in "?", got {text[:60]!r}')
        right = [choices[classes.index(answer)] for answer in answers]
        builder.add(where, found[2], "\n".join([found[1], *choices]), right, id=str(number), choices=choices)
    return builder.build()
