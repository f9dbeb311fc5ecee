"""The 41 sets of paper E, and the suites that they are from: their files, and the names of the values in their rows.

`sets.tsv` has paper E's name of each set, its suite and task there, its categories, whether it is multiple-choice, and the number
of its questions.

Source: paper E, tables 7 and 8; its released code (rag_pipeline/evaluation.py) names the multiple-choice sets. The category of
ELITR_Bench_QA is unreadable in our copy of table 8; it is conversational, as table 7's 707 questions of this category include its
130.
"""

from __future__ import annotations

import csv
from importlib.resources import files
from typing import NamedTuple, cast

from runnel.evaluation.qa.records import Category


class Fields(NamedTuple):
    """The names of a question's values in a row; the defaults are those of a user's file, which functions of `layouts` make."""

    document: str = "document"
    question: str = "question"
    answers: str = "answers"
    id: str = "id"
    choices: str = "choices"  # texts, of which some are the answers


class Suite(NamedTuple):
    """A benchmark that sets are from."""

    source: str  # its data set on the hub, or its repository
    license: str  # of its data, as its authors state it; "" if they state none
    fields: Fields = Fields()
    files: tuple[str, ...] = ("{task}.jsonl", "{task}/test*.parquet")  # ends of paths, in any case, without .gz and .zst
    rows: str | None = None  # None: jsonl or parquet; "": parquet or one list in JSON; else the list of this name in an object


class SetFacts(NamedTuple):
    """What is known of a set before it is read; `name` is paper E's or that of a user's file, `points` paper E's questions."""

    name: str
    suite: str = ""
    task: str = ""
    categories: tuple[Category, ...] = ()
    multiple_choice: bool = False
    points: int = 0


_HUB = "https://huggingface.co/datasets/"
_CAC = "muld_Character_Archetype_Classification"
_LONGBENCH, _INFINITE = Fields("context", "input", "answers", "_id"), Fields("context", "input", "answer", "id", "options")
SUITES = {
    "LongBench": Suite(f"{_HUB}THUDM/LongBench", "MIT", _LONGBENCH),
    "InfiniteBench": Suite(f"{_HUB}xinrongzhang2022/InfiniteBench", "Apache-2.0", _INFINITE),
    "L-Eval": Suite(f"{_HUB}L4NLP/LEval", "GPL-3.0"),
    "LV-Eval": Suite(f"{_HUB}Infinigence/LVEval", "MIT", _LONGBENCH),
    "BAMBOO": Suite("https://github.com/RUCAIBox/BAMBOO", "MIT", files=("{task}.jsonl",)),
    "ELITR-Bench": Suite("https://github.com/utter-project/ELITR-Bench", "CC-BY-4.0", files=("{task}.json",), rows="meetings"),
    "DocFinQA": Suite(
        f"{_HUB}kensho/DocFinQA", "MIT", Fields("Context", "Question", "Answer"),
        ("docfinqa/{task}.json", "docfinqa/data/{task}*.parquet"), "",
    ),
    "MuLD": Suite(f"{_HUB}ghomasHudson/{_CAC}", "", files=("{task}_test.json", f"{_CAC.lower()}/data/test*.parquet")),
}  # fmt: skip


def _read_table() -> dict[str, SetFacts]:
    lines = files("runnel.evaluation").joinpath("qa/sets.tsv").read_text(encoding="utf-8").splitlines()
    sets = {}
    for name, suite, task, categories, choices, points in list(csv.reader(lines, delimiter="\t"))[1:]:
        several = cast("tuple[Category, ...]", tuple(categories.split()))
        sets[name] = SetFacts(name, suite, task, several, choices == "yes", int(points))
    return sets


SETS = _read_table()
"""Paper E's name -> facts, in the order of its table 8."""
