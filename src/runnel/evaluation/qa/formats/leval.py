"""L-Eval: a row is a document with all of its questions.

Rows: "input" (the document), "instructions" (the questions; options of multiple choice are lines of theirs) and "outputs" (one
answer for each). The answer to a multiple-choice question is a letter, several letters ("BD": all of them), or the option itself
("(B) ...").

Differs: legal_contract_qa and scientific_qa have some documents twice. Their repeated questions with equal answers are left out,
which leads to the 130 and 161 questions of paper E. The paper's 68 of financial_qa include its repetitions.

Source: https://github.com/OpenLMLab/LEval (README.md, "Quick use").
"""

from __future__ import annotations

import re
from pathlib import Path

from runnel.errors import InputError
from runnel.evaluation.benchmarks import read_rows
from runnel.evaluation.qa.building import SetBuilder, chosen, find_choices
from runnel.evaluation.qa.records import QaSet
from runnel.evaluation.qa.sets import SetFacts
from runnel.text.lines import text_of, texts_of

_WITHOUT_REPEATS = ("legal_contract_qa", "scientific_qa")
_LETTERS = re.compile(r"\s*\(?([A-Z]+)(?:[.):\s]|\Z)")


def read(files: list[Path], facts: SetFacts) -> QaSet:
    """Read a set.

    Raises:
        InputError, ReadError: a row has another form; the message has its place.
    """
    builder = SetBuilder(facts)
    seen: set[tuple[str, str, str]] = set()
    for number, (where, row) in enumerate(read_rows(files), start=1):
        text, questions, answers = text_of(row, "input", where), *(texts_of(row, n, where) for n in ("instructions", "outputs"))
        if len(questions) != len(answers):
            raise InputError(f"{where}: {len(questions)} instructions and {len(answers)} outputs; expected an output for each")
        for position, (question, answer) in enumerate(zip(questions, answers, strict=True), start=1):
            point = (text, question.strip(), answer)
            if facts.task in _WITHOUT_REPEATS and point in seen:
                builder.leave_out("repeated questions", where)
                continue
            seen.add(point)
            choices = find_choices(question) if facts.multiple_choice else {}
            if facts.multiple_choice:
                found = _LETTERS.match(answer)
                answer = chosen(choices, found[1] if found else answer, f"{where}, question {position}")
            builder.add(where, text, question, [answer], id=f"{number}-{position}", choices=tuple(choices.values()))
    return builder.build()
