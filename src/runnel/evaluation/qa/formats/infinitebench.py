"""InfiniteBench: questions about books and scripts with replaced names.

Rows: "id", "context" (the document), "input" (the question), "answer" (a text or a list of true answers) and "options".
Multiple choice: four options; the answer is an option, alone or followed by its letter. The dialogue set replaces one name in a
script by $$MASK$$ and asks for it; where its "input" is empty the question is ours.

Source: https://github.com/OpenBMB/InfiniteBench (src/eval_utils.py: create_prompt, get_answer).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runnel.errors import InputError
from runnel.evaluation.benchmarks import read_rows
from runnel.evaluation.qa.building import SetBuilder, lettered
from runnel.evaluation.qa.records import QaSet
from runnel.evaluation.qa.sets import SetFacts
from runnel.text.lines import text_of, texts_of

_MASKED = (
    "A character's name in the script is replaced by $$MASK$$. Which character is it? Answer with the name before the colon."
)


def read(files: list[Path], facts: SetFacts) -> QaSet:
    """Read a set.

    Raises:
        InputError, ReadError: a row has another form; the message has its place.
    """
    builder = SetBuilder(facts)
    for number, (where, row) in enumerate(read_rows(files)):
        question, answers = text_of(row, "input", where), texts_of(row, "answer", where)
        choices: tuple[str, ...] = ()
        if facts.task == "longdialogue_qa_eng" and not question.strip():
            question = _MASKED
        if facts.multiple_choice:
            choices, answers = _choose(row, answers, where)
            question = "\n".join([question.strip(), *choices])
        builder.add(where, text_of(row, "context", where), question, answers, id=str(row.get("id", number)), choices=choices)
    return builder.build()


def _choose(row: Mapping[str, Any], answers: list[str], where: object) -> tuple[tuple[str, ...], list[str]]:
    options = texts_of(row, "options", where)
    if len(options) < 2 or not answers or answers[0] not in options:
        raise InputError(f"{where}: the answer is {answers}; expected one of the options {options}")
    choices = lettered(options)
    return choices, [choices[options.index(answers[0])]]
