"""The 41 sets of paper E, and the suites that they are from.

`sets.tsv` has paper E's name of each set, its suite and task there, its categories, whether it is multiple-choice, and the number
of its questions and the mean length of its documents in tokens of GPT-NeoX.

Source: paper E, tables 7 and 8; its released code (rag_pipeline/evaluation.py) names the multiple-choice sets. The category of
ELITR_Bench_QA is unreadable in our copy of table 8; it is conversational, as table 7's 707 questions of this category include its
130. Only the released file says which category a question has in a set with several, which questions are in the random samples of
200, and which answers are to be paragraphs: the readers of the suites' own files ask for sentences.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files
from typing import cast

from runnel.evaluation.qa.records import Category


@dataclass(frozen=True, slots=True)
class SetFacts:
    """What is known of a set before it is read.

    Attributes:
        name: paper E's name, or the name of a user's file.
        suite: the suite in `SUITES`; "": none.
        task: the suite's name of the set.
        categories: of its documents; (): unknown.
        points: paper E's number of questions; 0: not a set of paper E.
        tokens: paper E's mean length of a document.
    """

    name: str
    suite: str = ""
    task: str = ""
    categories: tuple[Category, ...] = ()
    multiple_choice: bool = False
    points: int = 0
    tokens: int = 0


_HUB = "https://huggingface.co/datasets/"


@dataclass(frozen=True, slots=True)
class Suite:
    """A benchmark that sets are from.

    Attributes:
        source: its data set on the hub, or its repository.
        license: of its data, as its authors state it; "" if they state none.
        download: a pattern of a set's file on the hub; {task} is the task, {group} the task without its last part; "": not there.
        files: patterns of the ends of its files' paths, in any case and without .gz and .zst.
    """

    source: str
    license: str
    download: str = ""
    files: tuple[str, ...] = ("{task}.jsonl", "{task}/test*.parquet")

    @property
    def hub(self) -> str:
        """The hub id; "" if the data is elsewhere."""
        return self.source.removeprefix(_HUB) if self.download else ""


SUITES = {
    "LongBench": Suite(f"{_HUB}THUDM/LongBench", "MIT", "data.zip"),
    "InfiniteBench": Suite(f"{_HUB}xinrongzhang2022/InfiniteBench", "Apache-2.0", "{task}.jsonl"),
    "L-Eval": Suite(f"{_HUB}L4NLP/LEval", "GPL-3.0", "**/{task}.jsonl"),
    "LV-Eval": Suite(f"{_HUB}Infinigence/LVEval", "MIT", "{group}.zip"),
    "BAMBOO": Suite("https://github.com/RUCAIBox/BAMBOO", "MIT"),
    "ELITR-Bench": Suite("https://github.com/utter-project/ELITR-Bench", "CC-BY-4.0", files=("{task}.json",)),
    "DocFinQA": Suite(
        f"{_HUB}kensho/DocFinQA", "MIT", "{task}.json", files=("docfinqa/{task}.json", "docfinqa/data/{task}*.parquet")
    ),
    "MuLD": Suite(
        f"{_HUB}ghomasHudson/muld_Character_Archetype_Classification",
        "",
        "data/test-*.parquet",
        files=("{task}_test.json", "muld_character_archetype_classification/data/test*.parquet"),
    ),
}


def _read_table() -> dict[str, SetFacts]:
    lines = files("runnel.evaluation").joinpath("qa/sets.tsv").read_text(encoding="utf-8").splitlines()
    sets = {}
    for row in csv.DictReader(lines, delimiter="\t"):
        categories = cast("tuple[Category, ...]", tuple(row["categories"].split()))
        choices, points, tokens = row["choices"] == "yes", int(row["points"]), int(row["tokens"])
        sets[row["name"]] = SetFacts(row["name"], row["suite"], row["task"], categories, choices, points, tokens)
    return sets


SETS = _read_table()
"""Paper E's name -> facts, in the order of its table 8."""
