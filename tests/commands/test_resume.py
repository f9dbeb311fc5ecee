"""Commands that work in steps: killed anywhere they resume, and work that was stopped is never
mixed with other work.
"""

import json
import os
import shutil
import signal
import sqlite3
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from helpers import exams, synthesis
from helpers.children import GIVE_UP_S
from helpers.command_line import FakeEmbedder
from helpers.files import write_files
from helpers.judged_tasks import ToyEmbedder

import runnel.files
import runnel.journal
from runnel.journal import Journal
from runnel.lab.evaluation import retrieval
from runnel.models.embedder import Embedder


@dataclass(frozen=True)
class User:
    """A command that resumes, an option that changes its result, and the setting that the error
    names.
    """

    command: tuple[object, ...]
    change: tuple[object, ...] = ()
    setting: str = ""
    model: str = ""  # "": real models


EMBED = ("embed", "in.jsonl", "--to", "work/out.npy")
RERANK = (
    "rerank",
    "--queries",
    "queries.tsv",
    "--corpus",
    "in.jsonl",
    "--run",
    "run.trec",
    "--to",
    "work/out.trec",
)
ASKING = ("--threads", 1, "--llm-model", "stub")
USERS = {
    "embed": User(EMBED, ("--query",), "prompt", "fake"),
    "embed a shard": User((*EMBED, "--shard", "1/2"), ("--max-tokens", 3), "max_tokens", "fake"),
    "embed to jsonl": User(
        (*EMBED[:-1], "work/out.jsonl"), ("--precision", "ubinary"), "precision", "fake"
    ),
    "rerank": User(RERANK, ("-k", 1), "top_k", "fake"),
    "mine": User(
        ("lab", "mine", "pairs.csv", "--to", "work/out.jsonl", "-n", 2), ("--seed", 1), "seed"
    ),
    "evaluate by words": User(
        ("lab", "evaluate", "bm25", "beir", "--out", "work"), ("--k1", 1.5), "k1"
    ),
    "evaluate by vectors": User(("lab", "evaluate", "toy", "beir", "--out", "work"), model="toy"),
    "evaluate evidence": User(
        ("lab", "evaluate", "bm25", "evidence.jsonl", "--out", "work"), ("--b", 0.5), "b"
    ),
    "qa": User(("lab", "qa", "bm25", "mills.jsonl", "--out", "work", *ASKING), ("-k", 3), "top_k"),
    "synthesize": User(
        (
            "lab",
            "synthesize",
            "books",
            "--to",
            "work",
            "--limit",
            2,
            "--lengths",
            "500,100",
            *ASKING,
        )
    ),
}


@pytest.fixture(autouse=True)
def files(tmp_path, beir):
    colors = ("red", "blue")
    write_files(
        tmp_path,
        {
            "in.jsonl": [{"id": f"d{n}", "text": "word " * (n + 1)} for n in range(7)],
            "evidence.jsonl": [
                {"question": q, "document": "A red cat. A dog.", "evidence": [[0, 10]]}
                for q in ("cat", "red", "dog")
            ],
            "mills.jsonl": exams.rows(exams.mill_set(documents=1)),
            "pairs.csv": [
                "query,positive",
                *(
                    f"where is the {n} {c} cat,the {c} cat sits on {n}"
                    for n in range(9)
                    for c in colors
                ),
            ],
            "queries.tsv": ["q1\tword cat", "q2\tword dog", "q3\tcat"],
            "run.trec": [f"q{q} Q0 d{n} {n + 1} {-n} x" for q in (1, 2, 3) for n in range(7)],
            "books/long.txt": synthesis.story(400),
        },
    )
    return tmp_path


def rule(messages):  # of `stub`
    return (exams if "wheel number" in messages[-1]["content"] else synthesis).follow(messages)


@pytest.fixture(params=USERS)
def user(request, monkeypatch, stub):
    user = USERS[request.param]
    monkeypatch.setattr("runnel.jobs.embedding._BLOCK_ROWS", 2)
    if "synthesize" in user.command:
        # Weights are packed by threads, which a child that is forked afterwards does not have.
        embedder = Embedder.load("pocket")
        monkeypatch.setattr(Embedder, "load", lambda name: embedder)
    if user.model:
        models = request.getfixturevalue("fake")
        if user.model == "toy":
            models.embed = ToyEmbedder()
    return user


@pytest.fixture
def work(run, files):
    def call(*arguments):
        retrieval._model.cache_clear()
        (files / "work").mkdir(exist_ok=True)
        return run(*arguments)

    return call


def made(folder):
    return {
        path.name: "" if path.suffix == ".sqlite" else path.read_bytes()
        for path in (folder / "work").iterdir()
        if path.is_file()
    }


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def within_a_transaction():
    count = iter(range(2))
    runnel.journal.json = SimpleNamespace(
        loads=json.loads, dumps=lambda value: json.dumps(value) if next(count, 0) else die()
    )


def after_rows():
    add = Journal.add
    Journal.add = lambda journal, *rows: (add(journal, *rows), die())


def after_a_second_time():
    add = Journal.add
    first = iter([True])
    Journal.add = lambda journal, *rows: (add(journal, *rows), next(first, False) or die())


def in_a_journal():
    runnel.files.sync = die


def in_a_file():
    sync = runnel.files.sync
    runnel.files.sync = lambda path: sync(path) if ".sqlite" in path.name else die()


def before_the_end():
    Journal.finish = die


def at_the_end():
    runnel.journal.write_json = lambda *written: (runnel.files.write_json(*written), die())


PLACES = (within_a_transaction, after_rows, in_a_journal, in_a_file, before_the_end, at_the_end)


def killed(place, call):
    """Call in a process that is killed at a place; return whether it came there."""
    child = os.fork()
    if not child:
        signal.alarm(int(GIVE_UP_S))
        try:
            place()
            call()
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status == signal.SIGKILL


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.slow
def test_killed_anywhere_it_resumes_and_writes_nothing_twice(user, work, files, monkeypatch):
    log = files / "log"
    add = Journal.add

    def logged(journal, *rows):
        add(journal, *rows)
        with log.open("a") as file:
            file.writelines(f"{journal.out} {row.key}\n" for row in rows)

    monkeypatch.setattr(Journal, "add", logged)
    assert (ended := work(*user.command)).code == 0, ended.err
    whole = made(files)
    keys = sorted(log.read_text().splitlines())
    for place in PLACES:
        shutil.rmtree(files / "work")
        log.unlink()
        came = killed(place, lambda: work(*user.command))
        assert came or (place in (before_the_end, at_the_end) and "synthesize" in user.command), (
            place
        )
        assert (ended := work(*user.command)).code == 0, (place, ended.err)
        assert made(files) == whole and sorted(log.read_text().splitlines()) == keys, place


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("change", ["value = '[]'", "data = x'00'", "value = '{'"])
def test_a_row_that_has_changed_is_reported_and_made_again(user, work, files, caplog, change):
    assert work(*user.command).code == 0
    whole = made(files)
    shutil.rmtree(files / "work")
    assert killed(after_a_second_time, lambda: work(*user.command))
    expected = set()
    for path in (files / "work").glob("*.sqlite"):
        with sqlite3.connect(path) as file:
            if file.execute(f"UPDATE rows SET {change} WHERE rowid = 1").rowcount:
                name = path.relative_to(files)
                expected.add(f"{name}: changed rows are made again: 1")
        file.close()
    assert work(*user.command).code == 0
    assert expected and expected <= {*caplog.messages} and made(files) == whole


def advised(message):
    return (
        message.strip().rpartition("remove ")[2].removesuffix(" to start from scratch").split(", ")
    )


@pytest.mark.parametrize(
    "user", [name for name, user in USERS.items() if user.change], indirect=True
)
@pytest.mark.parametrize("state", ["finished", "unfinished"])
def test_another_setting_is_refused_and_the_advice_leads_to_what_a_clean_run_gives(
    user, work, files, state
):
    assert work(*user.command, *user.change).code == 0
    clean = made(files)
    shutil.rmtree(files / "work")
    if state == "finished":
        work(*user.command)
    else:
        killed(after_rows, lambda: work(*user.command))
    ended = work(*user.command, *user.change)
    assert ended.code == 1 and f" {state} work with another {user.setting} (" in ended.err, (
        ended.err
    )
    for name in advised(ended.err):
        (files / name).unlink()
    assert work(*user.command, *user.change).code == 0 and made(files) == clean


@pytest.mark.parametrize("other", ["changed\ntwo\nthree\n", "one\n"])
def test_standard_input_that_has_changed(run, fake, files, monkeypatch, other):
    monkeypatch.setattr("runnel.jobs.embedding._BLOCK_ROWS", 1)
    fake.embed = FakeEmbedder(stop_after=2)
    run("embed", "-", "--to", "out.npy", stdin="one\ntwo\nthree\n")
    fake.embed = FakeEmbedder()
    done = run("embed", "-", "--to", "out.npy", stdin=other)
    assert done.code == 1 and advised(done.err) == ["out.npy.sqlite"]
