"""Every script in examples/ runs, as a user would run it."""

import json
import re
from pathlib import Path

import pytest
from helpers.children import run_python

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_stream_embedding(tmp_path):
    reference = tmp_path / "python-reference.txt"
    part = tmp_path / "part.txt"
    said = run_python(EXAMPLES / "python_reference.py", reference)
    assert re.search(r"python-reference\.txt: \d+ chapters, \d\d,\d{3} words\n$", said)
    part.write_text(reference.read_text(encoding="utf-8")[:40_000], encoding="utf-8")
    said = run_python(EXAMPLES / "stream_embedding.py", part)
    assert re.search(r"after +[\d,]+ tokens, +[\d.]+ s: \[[+-]0\.\d+ ", said)
    tokens = re.search(r"^([\d,]+) tokens in", said, re.M)
    peak = re.search(r"^peak memory (\d+) MiB, of which (\d+) ", said, re.M)
    assert int(tokens[1].replace(",", "")) > 5_000
    # on Linux both may be the peak of the process that started it
    assert 0 <= int(peak[1]) - int(peak[2]) < 500


def test_finetune_pairs(tmp_path):
    before, after = re.findall(
        r"^.*: the right chapter is first for (\d+) of 32 names$",
        run_python(EXAMPLES / "finetune_pairs.py", tmp_path / "tuned"),
        re.M,
    )
    assert int(after) > int(before) + 8


def test_every_example_is_tested():
    here = Path(__file__)
    tests = here.read_text() + (here.parent / "integrations" / "test_documented.py").read_text()
    assert [p.name for p in EXAMPLES.glob("*.py") if f'"{p.name}"' not in tests] == []


def test_python_questions(tmp_path):
    """Every form that the script writes is read by `runnel lab evaluate`; with other Pythons a few
    questions may be missing.
    """
    said = run_python(EXAMPLES / "python_questions.py", tmp_path / "python")
    assert int(re.search(r"python: \d+ chapters, (\d+) questions\n$", said)[1]) > 20
    command = "-m runnel lab evaluate bm25 python python/evidence.jsonl".split()
    shown = run_python(*command, cwd=tmp_path)
    assert re.search(r"^ python +\d+ +0\.[4-9]", shown, re.M) and "bm25 as bm25: evidence" in shown
    questions = (tmp_path / "python" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    for question in map(json.loads, questions):
        chapter = (tmp_path / "python" / question["file"][0]).read_text(encoding="utf-8")
        assert " ".join(question["text"].split()) in " ".join(chapter.split())
