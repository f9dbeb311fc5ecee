"""The table of sets agrees with what paper E counts, and with the page that lists it."""

import json
import re
from collections import Counter
from pathlib import Path

from runnel.lab.evaluation.qa.loading import SETS, SUITES, Fields
from runnel.lab.training.data import Evidence
from runnel.lab.training.decontaminate import Decontaminator
from tests.helpers.qa_files import ATTIC, write_rows

PAGE = Path(__file__).parents[4] / "docs" / "qa.md"


def test_counts_of_table_7():
    points, choices = Counter(), Counter()
    for one in SETS.values():
        points[one.categories] += one.points
        choices[one.categories] += one.points * one.multiple_choice
    assert (len(SETS), points.total(), choices.total()) == (41, 5735, 1207)
    assert points["conversational",] == 707  # no other set has conversations
    assert {kind: choices[kind,] for kind in ("educational", "creative", "official", "conversational")} == {
        "educational": 372, "creative": 486, "official": 172, "conversational": 177
    }  # fmt: skip


def test_nine_sets_are_multiple_choice():
    names = {name for name, one in SETS.items() if one.multiple_choice}
    meetings = {"meetingqa_4k", "meetingqa_16k", "paperqa_4k", "paperqa_16k"}
    assert names == meetings | {"longbook_choice_eng", "tpo", "quality", "coursera", "muld_CAC"}


def test_every_suite_has_sets_and_fields():
    """Suites with the fields of a user's file have a function that makes them; no file belongs to two sets."""
    assert {one.suite for one in SETS.values()} == set(SUITES)
    assert all(suite.layout is not None for suite in SUITES.values() if suite.fields == Fields())
    assert len({(one.suite, one.task) for one in SETS.values()}) == len(SETS)


def test_the_page_lists_every_set():
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text(encoding="utf-8").splitlines() if "|" in line
    ]
    listed = {}
    for suite, categories, choices, *sets in (row for row in rows if row[0] in SUITES and row[2] in ("", "yes")):
        listed |= {name: [suite, categories, choices, points] for name, points in map(str.split, sets[0].split(", "))}
    assert listed == {
        name: [one.suite, ", ".join(one.categories), "yes" if one.multiple_choice else "", str(one.points)]
        for name, one in SETS.items()
    }
    suites = {row[0]: row for row in rows if row[0] in SUITES and "://" in row[1]}
    for name, suite in SUITES.items():
        assert suite.source in suites[name][1] and suites[name][2] == (suite.license or "none stated"), name


def test_the_pages_python_reads_sets_and_excludes_their_documents(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) == 2
    write_rows(tmp_path / "qa" / "qasper.jsonl", [{"input": "Where?", "context": ATTIC, "answers": ["in the attic"]}])
    monkeypatch.chdir(tmp_path)
    exec("\n".join(blocks), {})
    assert capsys.readouterr().out == "qasper 1 1 MIT 1 questions; paper E has 200\n"
    assert json.loads((tmp_path / "excluded.jsonl").read_text()) == {"text": ATTIC}
    assert Decontaminator([tmp_path / "excluded.jsonl"]).contaminated(Evidence("Where?", f"Once. {ATTIC}", ((0, 5),)))
