"""docs/papers.md has every table and figure of the papers once, and its commands and links are
right.

All commands are parsed; the ones that need no training, hub, endpoint or GPU run on small stand-ins
for the published files.
"""

import random
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
from helpers.files import write_rows
from helpers.tiny import tiny_model

from benchmarks.__main__ import _parser
from benchmarks.__main__ import main as benchmarks
from benchmarks.reading import read_documents
from benchmarks.shapes import SHAPES
from runnel.cli import app, lab
from runnel.lab.evaluation import retrieval
from runnel.lab.evaluation.metrics import parse_metrics
from runnel.lab.training import recipes

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[1] / "docs" / "papers.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)
    for line in block.splitlines()
    if line[0] != "#"
]
ROWS, REST = PAGE.partition("## Not yet")[::2]
# tables and figures of each paper
ITEMS = {"A": (2, 1), "B": (3, 1), "C": (11, 1), "D": (13, 10), "E": (28, 12)}
_LIST = r"\d+(?:(?:, | and | to )\d+)*"


def items(text):
    """Return "table 3" for each table and figure of a list such as "figures 2
    and 5 to 7, table 4".
    """
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
    expected = [f"table {n}" for n in range(1, tables + 1)] + [
        f"figure {n}" for n in range(1, figures + 1)
    ]
    assert sorted(item for row in rows for item in items(row)) == sorted(expected)


def test_rows_name_commands_that_are_there():
    labels = set(re.findall(r"\b[A-E]\.\d\b", "\n".join(re.findall(r"^# [A-E]\.\d.*", PAGE, re.M))))
    rows = [line.split(" | ") for line in ROWS.splitlines() if re.match(r"\| (table|figure)", line)]
    assert len(rows) >= 25 and all(re.search(r"\b[A-E]\.\d", row[2]) for row in rows)
    assert set(re.findall(r"\b[A-E]\.\d\b", PAGE)) == labels


def test_every_row_says_what_ran_and_what_is_missing():
    rows = [line for line in ROWS.splitlines() if re.match(r"\| (table|figure)", line)]
    assert [row for row in rows if not re.search(r"\| ran: .+; missing: [^|]+ \|$", row)] == []


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
    group = app
    if arguments[0] == "lab":
        group, (_, *arguments) = lab, arguments
    name, *arguments = arguments
    given = (
        typer.main.get_command(group).get_command(None, name).make_context(name, arguments).params
    )
    if name == "train":
        assert recipes.read(
            given["recipe"], size=given["size"], changes=tuple(given["changes"])
        ).data.sets
    elif name == "evaluate" and given["metrics"] is not None:
        assert parse_metrics(given["metrics"].split(","))


def test_sizes_exist():
    lines = re.findall(
        r"^# .*also --size (.*)\n(?:runnel lab mine .*\n)?runnel lab train (\S+)", PAGE, re.M
    )
    assert len(lines) == PAGE.count("also --size") == 7
    for line, command in lines:
        named = [size for size in line.split(", ") if size != "..."]
        recipe = tomllib.loads(recipes.find(command).read_text())
        assert named and set(named) <= recipe["sizes"].keys()


# ---- commands that are run -----------------------------------------------------------------------

ELSEWHERE = (  # what the other commands need
    # a small run of every trainer is in tests/lab/training
    r"runnel (lab train|lab qa|lab synthesize|info) ",
    r"runnel lab evaluate .*(--mteb|st-code:)",  # the hub
    r"runnel lab compare qa-",  # results of `runnel lab qa`
    r"python -m benchmarks (page|control|compare|train) ",
    r"python -m benchmarks read (?!.*--count)",
)
RUN = [
    command for command in COMMANDS if not any(re.match(pattern, command) for pattern in ELSEWHERE)
]
WORDS = "the cat sat on a mat and the dog sat by a river that runs to the sea".split()
BEIR = re.search(r"^runnel lab evaluate a-130m/model (arguana .*?) --", PAGE, re.M)[1].split()


def stand_ins(folder):
    """Write small files with the names and in the forms of the published ones, and models with
    random weights.
    """
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=12)) for _ in range(40)]
    queries = [f"{n}\t{text[:20]}" for n, text in enumerate(texts[:3])]
    files = {
        "msmarco/collection.tsv": [f"{n}\t{text}" for n, text in enumerate(texts)],
        "meeting.txt": [". ".join(texts)],
    }
    files["msmarco/msmarco-docs.tsv"] = [
        f"D{n}\thttp://a.b\ttitle\t{text}" for n, text in enumerate(texts)
    ]
    names = [
        "queries.train",
        "queries.dev.small",
        "msmarco-test2019-queries",
        "msmarco-test2020-queries",
    ]
    names += ["msmarco-docdev-queries", "msmarco-doctrain-queries"]
    files |= {f"msmarco/{name}.tsv": queries for name in names}
    passages = [
        "qrels.train.tsv",
        "qrels.dev.small.tsv",
        "2019qrels-pass.txt",
        "2020qrels-pass.txt",
    ]
    documents = [
        "msmarco-doctrain-qrels.tsv",
        "msmarco-docdev-qrels.tsv",
        "2019qrels-docs.txt",
        "2020qrels-docs.txt",
    ]
    for names, letter in ((passages, ""), (documents, "D")):
        files |= {f"msmarco/{name}": [f"{n} 0 {letter}{n} 1" for n in range(3)] for name in names}
    run = [f"{n} Q0 {rank} {rank + 1} {-rank} x" for n in range(3) for rank in range(40)]
    rows = [{"_id": str(n), "text": text} for n, text in enumerate(texts)]
    files |= {
        "bm25.trec": run,
        "bge-train.trec": run,
        "documents.jsonl": rows,
        "locov0-train/corpus.jsonl": rows,
    }
    for name in BEIR:
        files |= {f"{name}/corpus.jsonl": rows[:9], f"{name}/queries.jsonl": rows[:1]}
        files[f"{name}/qrels/test.tsv"] = ["query-id\tcorpus-id\tscore", "0\t0\t1"]
    scrolls = [
        {"id": str(n), "input": text, "output": text[:9]} for n, text in enumerate(texts[:9])
    ]
    files |= {
        f"locov0/{name}/validation.jsonl": scrolls
        for name in ("summ_screen_fd", "gov_report", "qmsum")
    }
    paper = {
        "title": "A paper",
        "abstract": texts[0],
        "full_text": [{"section_name": "One", "paragraphs": texts[:2]}],
    }
    files["locov0/qasper/qasper-test-v0.3.json"] = [{"1": paper, "2": paper}]
    files["longembed/qmsum/corpus.jsonl"] = [
        {"doc_id": row["_id"], "text": row["text"]} for row in rows
    ]
    files["longembed/qmsum/queries.jsonl"] = [{"qid": "q", "text": "a cat"}]
    files["longembed/qmsum/qrels.jsonl"] = [{"qid": "q", "doc_id": "0"}]
    evidence = [
        {"id": "1", "question": "a cat", "document": ". ".join(texts), "evidence": [[0, 9]]}
    ]
    files |= {"evidence.jsonl": evidence, "qa-copied/narrativeqa.evidence.jsonl": evidence}
    for name, lines in files.items():
        write_rows(folder / name, lines)
    model = tiny_model(folder / "tokenizer", papers_heads=True)
    for name in {
        *re.findall(r"\b[a-e]-[\w.]+/model\b", "\n".join(RUN)),
        "BAAI/bge-large-en-v1.5",
        "Qwen2-1.5B",
    }:
        model.save(folder / name)


def test_commands_run_in_the_order_of_the_page(run, tmp_path):
    retrieval._model.cache_clear()
    stand_ins(tmp_path)
    assert len(RUN) > 25
    for command in RUN:
        program, *arguments = shlex.split(command, comments=True)
        if program == "runnel":
            done = run(*arguments)
            assert done.code == 0, f"{command}: {done.err}"
        else:
            assert benchmarks(arguments[2:]) == 0, command
    retrieval._model.cache_clear()


def test_no_two_commands_write_to_one_place_and_training_data_are_mined_before_or_listed():
    places = re.findall(r" --(?:to|out) (\S+)", "\n".join(COMMANDS))
    assert len(places) > 40 and sorted(places) == sorted(set(places))
    listed = set(re.findall(r"`([\w.-]+)`", "\n".join(re.findall(r"^\| (.*?) \| ", PAGE, re.M))))
    mined = {
        re.search(r" --to (\S+)", command)[1]
        for command in COMMANDS
        if command.startswith("runnel lab mine ")
    }
    trained = {
        re.search(r" --data (\S+)", command)[1]
        for command in COMMANDS
        if command.startswith("runnel lab train ")
    }
    assert len(mined) == 4 and trained <= mined | listed
