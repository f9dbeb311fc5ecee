"""The 41 sets of paper E and the suites that they are from: their files, the names of their rows' values, and their layouts.

`sets.tsv` has paper E's name of each set, its suite and task there, its categories, whether it is multiple-choice, and the number
of its questions. A suite whose rows are no plain questions has a function that makes rows with the fields of a user's file; in
them "written" are choices that are in the question already. What published files have wrong is counted and left out.

Source: paper E, tables 7 and 8; its released code (rag_pipeline/evaluation.py) names the multiple-choice sets. The category of
ELITR_Bench_QA is unreadable in our copy of table 8; it is conversational, as table 7's 707 questions of this category include its
130. InfiniteBench, https://github.com/OpenBMB/InfiniteBench (src/eval_utils.py); L-Eval, https://github.com/OpenLMLab/LEval
(README.md); BAMBOO, https://github.com/RUCAIBox/BAMBOO (datasets, prompt.json); MuLD, https://github.com/ghomasHudson/muld
(muld.py); ELITR-Bench, https://github.com/utter-project/ELITR-Bench (README.md, preparation/extract_transcripts.py).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise, takewhile
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple, cast

from runnel.errors import InputError, ReadError
from runnel.json_objects import read_row
from runnel.lab.evaluation.qa.records import Category
from runnel.lab.training.data import Dropped
from runnel.text.lines import text_of, texts_of
from runnel.text.reading import decode, open_bytes

Row = tuple[str, dict[str, Any]]
"""Its place, for messages, and its values."""


class Fields(NamedTuple):
    """The names of a question's values in a row; the defaults are those of a user's file, which layouts make."""

    document: str = "document"
    question: str = "question"
    answers: str = "answers"
    id: str = "id"
    choices: str = "choices"  # texts, of which some are the answers


class SetFacts(NamedTuple):
    """What is known of a set before it is read; `name` is paper E's or that of a user's file, `points` paper E's questions."""

    name: str
    suite: str = ""
    task: str = ""
    categories: tuple[Category, ...] = ()
    multiple_choice: bool = False
    points: int = 0


Layout = Callable[[Iterable[Row], SetFacts, Dropped, Path], Iterator[Row]]


class Suite(NamedTuple):
    """A benchmark that sets are from."""

    source: str  # its data set on the hub, or its repository
    license: str  # of its data, as its authors state it; "" if they state none
    fields: Fields = Fields()
    files: tuple[str, ...] = ("{task}.jsonl", "{task}/test*.parquet")  # ends of paths, in any case, without .gz and .zst
    layout: Layout | None = None  # makes plain questions of rows; the folder holds further files
    rows: str | None = None  # None: jsonl or parquet; "": parquet or one list in JSON; else the list of this name in an object


_MASKED = (
    "A character's name in the script is replaced by $$MASK$$. Which character is it? Answer with the name before the colon."
)
_TWICE = ("legal_contract_qa", "scientific_qa")  # have documents twice; paper E counts 130 and 161 questions, without repetitions
_CHOICE = re.compile(r"^[ \t]*\(?([A-Z])[.):]", re.MULTILINE)
_LETTERS = re.compile(r"\s*\(?([A-Z]+)(?:[.):\s]|\Z)")
_PARTS = re.compile(r"^(Document|Question):[ \t]*\n", re.MULTILINE)
_ASKED = re.compile(r"\s*([^?\n]{1,300}\?)\s*(.*)", re.DOTALL)


def _infinitebench(rows: Iterable[Row], facts: SetFacts, dropped: Dropped, folder: Path) -> Iterator[Row]:
    """The right option may be followed by its letter; a question about a masked name may be missing."""
    for where, row in rows:
        if facts.multiple_choice:
            row["answer"] = texts_of(row, "answer", where)[:1]
        elif facts.task == "longdialogue_qa_eng" and not text_of(row, "input", where).strip():
            row["input"] = _MASKED
        yield where, row


def _leval(rows: Iterable[Row], facts: SetFacts, dropped: Dropped, folder: Path) -> Iterator[Row]:
    """A row is a document with its "instructions" and "outputs". A right choice is a letter, letters ("BD") or the choice."""
    seen: set[tuple[str, str, str]] = set()
    for number, (where, row) in enumerate(rows, start=1):
        text, questions, answers = text_of(row, "input", where), *(texts_of(row, n, where) for n in ("instructions", "outputs"))
        if len(questions) != len(answers):
            raise InputError(f"{where}: {len(questions)} instructions and {len(answers)} outputs; expected an output for each")
        for position, (question, answer) in enumerate(zip(questions, answers, strict=True), start=1):
            point = (text, question.strip(), answer)
            if facts.task in _TWICE and point in seen:
                dropped.add("repeated questions", where)
                continue
            seen.add(point)
            made: dict[str, Any] = {"id": f"{number}-{position}", "document": text, "question": question, "answers": [answer]}
            if facts.multiple_choice:
                choices, letters = _choices(question), _LETTERS.match(answer)
                if letters is None or not set(letters[1]) <= choices.keys():
                    raise InputError(f"{where}, question {position}: the right choice is {answer!r}, which the question lacks")
                made |= {"answers": ["\n".join(choices[letter] for letter in letters[1])], "written": tuple(choices.values())}
            yield where, made


def _choices(question: str) -> dict[str, str]:
    """Return the choices at the end of a question by letter: lines "A. ..." or "(A) ...", each up to the next one."""
    marks = list(_CHOICE.finditer(question))
    marks = marks[next((i for i in reversed(range(len(marks))) if marks[i][1] == "A"), len(marks)) :]
    if len(marks) < 2 or "".join(mark[1] for mark in marks) != ascii_uppercase[: len(marks)]:
        return {}
    bounds = [*(mark.start() for mark in marks), len(question)]
    return {mark[1]: question[a:b].strip() for mark, (a, b) in zip(marks, pairwise(bounds), strict=True)}


def _bamboo(rows: Iterable[Row], facts: SetFacts, dropped: Dropped, folder: Path) -> Iterator[Row]:
    """Numbers in documents (altqa), the last speaker of a meeting (meetingpred; the question is ours), or damaged options."""
    for number, (where, row) in enumerate(rows, start=1):
        content, answer = text_of(row, "content", where), text_of(row, "answer", where)
        made: dict[str, Any] = {"id": number, "document": content, "answers": [answer]}
        if facts.task.startswith("altqa"):
            _, *parts = _PARTS.split(content)  # name, text, name, text
            texts = dict(zip(parts[::2], parts[1::2], strict=True))
            fits = len(parts) == 4 and len(texts) == 2
            document, question = (texts.get(name, "").strip() for name in ("Document", "Question"))
            made |= {"document": document, "question": f"{question}\nThe answer is a number."}
        elif facts.task.startswith("meetingpred"):
            said = content.rstrip().removesuffix("said by")
            fits = said != content.rstrip()
            words = said.rstrip().rpartition("\n")[2].strip()
            made["question"] = f"Which of the speakers says this at the end of the meeting: {words}"
        else:
            choices = _usable(row, dropped, where)
            right = [choice for choice in choices if choice.startswith(answer[:1])]
            if len(answer) != 1 or not right:
                dropped.add("questions without usable options", where)
                continue
            fits, question = True, "\n".join([text_of(row, "question", where).strip(), *choices])
            made |= {"question": question, "answers": right[:1], "written": choices}
        if not fits:
            expected = 'one line "Document:" and one line "Question:", or of a meeting "said by" at the end'
            raise InputError(f'{where}: expected {expected} in "content", got {content[-60:]!r}')
        yield where, made


def _usable(row: Mapping[str, Any], dropped: Dropped, where: str) -> tuple[str, ...]:
    """Return the options with the letters from A on, up to the first without."""
    options = [option.strip() for option in texts_of(row, "options", where)]
    pairs = takewhile(lambda pair: re.match(rf"{pair[1]}[.:]", pair[0]), zip(options, ascii_uppercase, strict=False))
    choices = tuple(option for option, _ in pairs)
    if len(choices) < min(len(options), 4):
        return ()
    if len(choices) < len(options):
        dropped.add("texts after the options", where)
    return choices


def _muld(rows: Iterable[Row], facts: SetFacts, dropped: Dropped, folder: Path) -> Iterator[Row]:
    """A text is the question, up to its question mark, and the script. The classes of all rows are the choices."""
    kept = [(where, text_of(row, "input", where), texts_of(row, "output", where)) for where, row in rows]
    classes = sorted({answer for _, _, answers in kept for answer in answers})
    for where, text, answers in kept:
        asked = _ASKED.match(text)
        if asked is None:
            raise InputError(f'{where}: expected "input" to begin with a question that ends in "?", got {text[:60]!r}')
        yield where, {"document": asked[2], "question": asked[1], "answers": answers, "choices": classes}


@dataclass(frozen=True)
class _Meeting:
    id: str
    questions: tuple[dict[str, Any], ...]


def _elitr(rows: Iterable[Row], facts: SetFacts, dropped: Dropped, folder: Path) -> Iterator[Row]:
    """Transcripts are those of the ELITR Minuting Corpus: MEETING.txt, or the first MEETING/transcript_MAN*.txt."""
    for where, row in rows:
        meeting = read_row(_Meeting, row, where)
        name, paths = meeting.id, []
        if re.fullmatch(r"\w[\w.-]*", name):  # it becomes a part of a path
            paths = sorted(folder.rglob(f"{name}.txt")) or sorted(folder.rglob(f"{name}/transcript_MAN*.txt"))
        if not paths:
            raise ReadError(
                f"{folder} has no transcript of the meeting {name!r}, NAME.txt or NAME/transcript_MAN*.txt; "
                "put the ELITR Minuting Corpus (https://lindat.mff.cuni.cz/repository/xmlui/handle/11234/1-4692) into it"
            )
        with open_bytes(paths[0]) as file:
            transcript = decode(file.read(), str(paths[0])).text
        for one in meeting.questions:
            more = {"id": f"{name}-{one.get('id')}", "document": transcript, "answers": one.get("groundtruth-answer")}
            yield f"{where}, question {one.get('id')}", one | more


_HUB = "https://huggingface.co/datasets/"
_CAC = "muld_Character_Archetype_Classification"
_LONGBENCH, _INFINITE = Fields("context", "input", "answers", "_id"), Fields("context", "input", "answer", "id", "options")
SUITES = {
    "LongBench": Suite(f"{_HUB}THUDM/LongBench", "MIT", _LONGBENCH),
    "InfiniteBench": Suite(f"{_HUB}xinrongzhang2022/InfiniteBench", "Apache-2.0", _INFINITE, layout=_infinitebench),
    "L-Eval": Suite(f"{_HUB}L4NLP/LEval", "GPL-3.0", layout=_leval),
    "LV-Eval": Suite(f"{_HUB}Infinigence/LVEval", "MIT", _LONGBENCH),
    "BAMBOO": Suite("https://github.com/RUCAIBox/BAMBOO", "MIT", files=("{task}.jsonl",), layout=_bamboo),
    "ELITR-Bench": Suite(
        "https://github.com/utter-project/ELITR-Bench", "CC-BY-4.0", files=("{task}.json",), layout=_elitr, rows="meetings"
    ),
    "DocFinQA": Suite(
        f"{_HUB}kensho/DocFinQA", "MIT", Fields("Context", "Question", "Answer"),
        ("docfinqa/{task}.json", "docfinqa/data/{task}*.parquet"), rows="",
    ),
    "MuLD": Suite(
        f"{_HUB}ghomasHudson/{_CAC}", "", files=("{task}_test.json", f"{_CAC.lower()}/data/test*.parquet"), layout=_muld
    ),
}  # fmt: skip


_LINES = files("runnel.lab.evaluation").joinpath("qa/sets.tsv").read_text(encoding="utf-8").splitlines()
SETS = {
    name: SetFacts(name, suite, task, cast("tuple[Category, ...]", tuple(categories.split())), choices == "yes", int(points))
    for name, suite, task, categories, choices, points in csv.reader(_LINES[1:], delimiter="\t")
}
"""Paper E's name -> facts, in the order of its table 8."""
