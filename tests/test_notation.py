"""docs/contributing.md has every letter that a legend at the top of a file explains, and every paper that is called by letter."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/contributing.md").read_text(encoding="utf-8")
EXPLAINED = {name for row in re.findall(r"^\| ([\w, ]+) \|", PAGE, re.MULTILINE) for name in row.split(", ")}
LEGEND = re.compile(r"(?:^ {4}|  +|, )([A-Za-z][a-z]?)(?=  +\w|, [A-Z][a-z]?  +\w| += | \w+, a multiple)")


def legends() -> dict[str, set[str]]:
    """Letters by file, from lines such as `    T  tokens   S  sequences`."""
    found = {}
    for path in (ROOT / "src/runnel").rglob("*.py"):
        lines = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False) or "").splitlines()
        letters = {letter for line in lines if re.match(r" {4}[A-Za-z]  +\w", line) for letter in LEGEND.findall(line)}
        if letters:
            found[path.relative_to(ROOT).as_posix()] = letters
    return found


def test_every_letter_of_a_legend_is_explained():
    found = legends()
    assert len(found) > 15 and found["src/runnel/backbones/mamba1/kernels.py"] == {*"STRLNwW", "Di"}
    assert {file: letters - EXPLAINED for file, letters in found.items() if letters - EXPLAINED} == {}


def test_every_paper_is_named():
    called = set()
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md")):
        called |= set(re.findall(r"\bpaper ([A-Z])\b", path.read_text(encoding="utf-8")))
    rows = dict(re.findall(r"^\| ([A-Z]) \| (.*\*.*\*.*) \|$", PAGE, re.MULTILINE))
    assert called <= set(rows) == set("ABCDE")
