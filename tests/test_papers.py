"""docs/papers.md has every table and figure of the papers once, and its commands and links are right."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from benchmarks.__main__ import _parser
from benchmarks.reading import read_documents
from runnel.cli import app
from runnel.commands.bench import _names, _numbers
from runnel.evaluation.metrics import parse_metrics
from runnel.speed.shapes import DTYPES, SHAPES, check_name
from runnel.training import recipes

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "papers.md").read_text(encoding="utf-8")
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S) for line in block.splitlines() if line[0] != "#"
]
ROWS, REST = PAGE.partition("## Not yet")[::2]
ITEMS = {  # tables and figures of each paper
    "A": (2, 1),
    "B": (3, 1),
    "C": (11, 1),
    "D": (13, 10),
    "E": (28, 12),
}
_LIST = r"\d+(?:(?:, | and | to )\d+)*"


def items(text):
    """Return "table 3" for each table and figure of a list such as "figures 2 and 5 to 7, table 4"."""
    found = []
    for kind, numbers in re.findall(rf"(table|figure)s? ({_LIST})", text):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", numbers):
            found += [f"{kind} {n}" for n in range(int(first), int(last or first) + 1)]
    return found


@pytest.mark.parametrize("paper", ITEMS)
def test_every_table_and_figure_is_there_once(paper):
    section = re.search(rf"^## {paper}\. .*?(?=^## )", PAGE, re.M | re.S)[0]
    rows = re.findall(r"^\| ((?:table|figure).*?) \|", section, re.M)
    rows += re.findall(rf"^\| {paper}, (.*?) \|", REST, re.M)
    tables, figures = ITEMS[paper]
    expected = [f"table {n}" for n in range(1, tables + 1)] + [f"figure {n}" for n in range(1, figures + 1)]
    assert sorted(item for row in rows for item in items(row)) == sorted(expected)


def test_a_list_of_items_is_read():
    assert items("figures 2 and 5 to 7, tables 4 and 20") == [*(f"figure {n}" for n in (2, 5, 6, 7)), "table 4", "table 20"]


def test_rows_name_commands_that_are_there():
    labels = {label for line in re.findall(r"^# (.*)", "\n".join(re.findall(r"^# \w\.\d.*", PAGE, re.M)), re.M)
              for label in re.findall(r"\b[A-E]\.\d\b", line)}  # fmt: skip
    rows = [line.split(" | ") for line in ROWS.splitlines() if re.match(r"\| (table|figure)", line)]
    assert len(rows) >= 25 and all(re.search(r"\b[A-E]\.\d", row[2]) for row in rows)
    assert set(re.findall(r"\b[A-E]\.\d\b", PAGE)) == labels


@pytest.mark.parametrize("command", COMMANDS)
def test_command_can_be_run(command):
    program, *arguments = shlex.split(command, comments=True)
    if program == "python":
        assert arguments[:2] == ["-m", "benchmarks"]
        parsed = _parser().parse_args(arguments[2:])
        for name in getattr(parsed, "models", ()):
            assert name in SHAPES
        if re.fullmatch(r"\d+x\d+", getattr(parsed, "documents", "")):
            assert read_documents(parsed.documents)
        return
    assert program == "runnel"
    name, *arguments = arguments
    given = typer.main.get_command(app).commands[name].make_context(name, arguments).params
    if name == "train":
        recipe = recipes.read(given["recipe"], size=given["size"], changes=tuple(given["changes"]))
        assert recipe.data.sets
    elif name == "evaluate" and given["metrics"] is not None:
        assert parse_metrics(given["metrics"].split(","))
    elif name == "bench":
        for model in given["models"]:
            check_name(model)
        assert set(_names(given["dtypes"])) <= set(DTYPES) and _numbers("--lengths", given["lengths"])


def test_sizes_exist():
    lines = re.findall(r"^# .*also --size (.*)\n(?:runnel mine .*\n)?runnel train (\S+)", PAGE, re.M)
    assert len(lines) == PAGE.count("also --size") == 6
    for line, command in lines:
        named = [size for size in line.split(", ") if size != "..."]
        assert named and set(named) <= set(recipes.sizes(command))


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(((?!http)[^)]+)\)", PAGE))))
def test_links_lead_somewhere(link):
    name, _, anchor = link.partition("#")
    text = (DOCS / name).read_text(encoding="utf-8")
    headings = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)", text, re.M))
    assert not anchor or anchor in set(headings)
