"""BAMBOO: numbers in documents, speakers of meetings, and multiple choice about meetings and papers.

altqa: "content" has an instruction, the document after a line "Document:" and the question after a line "Question:", in either
order; "answer" is a number. meetingpred: "content" is a meeting that ends in `said by `, "answer" the speaker; the question is
ours and has the last words of the meeting. meetingqa and paperqa: "content" is the document, with "question", "options" and the
letter of the right one as "answer".

The published files have faults: options that are missing, evidence among the options, control characters inside texts, and a line
that is not JSON. Choices are the options with the letters from A on; a question whose options begin otherwise, or lack the right
letter, is left out. Notes have the counts. This leaves paper E's 86 questions of meetingqa_4k and 90 of paperqa_16k, but 91 of
paperqa_4k, where paper E has 82.

Source: https://github.com/RUCAIBox/BAMBOO (datasets, prompt.json).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from runnel.errors import InputError
from runnel.evaluation.benchmarks import read_rows
from runnel.evaluation.qa.building import SetBuilder
from runnel.evaluation.qa.records import QaSet
from runnel.evaluation.qa.sets import SetFacts
from runnel.text.lines import parse_object, read_lines, text_of, texts_of

_PARTS = re.compile(r"^(Document|Question):[ \t]*\n", re.MULTILINE)
_END = "said by"


def read(files: list[Path], facts: SetFacts) -> QaSet:
    """Read a set.

    Raises:
        InputError, ReadError: a row has another form; the message has its place.
    """
    builder = SetBuilder(facts)
    kind = facts.task.partition("_")[0]
    for number, (where, row) in enumerate(_rows(files, builder), start=1):
        content, answer = text_of(row, "content", where), text_of(row, "answer", where)
        choices: tuple[str, ...] = ()
        if kind == "altqa":
            content, question = _split(content, where)
        elif kind == "meetingpred":
            question = _last_words(content, where)
        else:
            choices = _choices(row, builder, where)
            right = [choice for choice in choices if choice.startswith(answer[:1])]
            if len(answer) != 1 or not right:
                builder.leave_out("questions without usable options", where)
                continue
            question, answer = "\n".join([text_of(row, "question", where).strip(), *choices]), right[0]
        builder.add(where, content, question, [answer], id=str(number), choices=choices)
    return builder.build()


def _rows(files: list[Path], builder: SetBuilder) -> Iterator[tuple[object, Mapping[str, Any]]]:
    """Yield rows; control characters inside texts are allowed."""
    if files[0].suffix == ".parquet":
        yield from read_rows(files)
        return
    for where, line in read_lines(files[0]):
        try:
            row = json.loads(line, strict=False)
        except ValueError:
            builder.leave_out("lines that are not JSON", where)
            continue
        yield where, row if isinstance(row, dict) else parse_object(line, where)  # which raises


def _split(content: str, where: object) -> tuple[str, str]:
    """Return the document and the question of altqa; the instruction says that the answer is a number."""
    marks = list(_PARTS.finditer(content))
    if sorted(mark[1] for mark in marks) != ["Document", "Question"]:
        raise InputError(f'{where}: expected one line "Document:" and one line "Question:" in "content"')
    first, second = marks
    parts = {first[1]: content[first.end() : second.start()], second[1]: content[second.end() :]}
    return parts["Document"].strip(), f"{parts['Question'].strip()}\nThe answer is a number."


def _last_words(content: str, where: object) -> str:
    text = content.rstrip()
    if not text.endswith(_END):
        raise InputError(f'{where}: expected "content" to end in "{_END}", got {text[-40:]!r}')
    words = text.removesuffix(_END).rstrip().rpartition("\n")[2].strip()
    return f"Which of the speakers says this at the end of the meeting: {words}"


def _choices(row: Mapping[str, Any], builder: SetBuilder, where: object) -> tuple[str, ...]:
    """Return the options with the letters from A on, up to the first without."""
    options = [option.strip() for option in texts_of(row, "options", where)]
    letters = (chr(ord("A") + i) for i in range(len(options)))
    pairs = takewhile(lambda pair: re.match(rf"{pair[1]}[.:]", pair[0]), zip(options, letters, strict=True))
    choices = tuple(option for option, _ in pairs)
    if len(choices) < min(len(options), 4):
        return ()
    if len(choices) < len(options):
        builder.leave_out("texts after the options", where)
    return choices
