"""Commands that make a file in steps: one writer at a time, and work that was stopped is never mixed with other work."""

import errno
import io
import json
import os
import random
import sys
from subprocess import PIPE, Popen

import numpy as np
import pytest
from helpers.background import without_progress
from helpers.children import PATHS, PROGRAMS
from helpers.command_line import FakeEmbedder, FakeReranker
from helpers.tiny import WORDS, tiny_model
from helpers.waiting import GIVE_UP_S

from runnel import Embedder, Reranker
from runnel.commands.resume import Output
from runnel.errors import InputError
from runnel.files import open_own

ROWS = "".join(json.dumps({"id": f"d{n}", "text": "word " * (n + 1)}) + "\n" for n in range(7))
EMBED = ("embed", "in.jsonl", "--to", "out.npy")
RERANK = ("rerank", "--queries", "queries.tsv", "--corpus", "in.jsonl", "--run", "run.trec", "--to", "out.trec")


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr("runnel.commands.embed._BLOCK_ROWS", 2)
    (tmp_path / "in.jsonl").write_text(ROWS)
    (tmp_path / "queries.tsv").write_text("q1\tword cat\nq2\tword dog\nq3\tcat\n")
    (tmp_path / "run.trec").write_text("".join(f"q{q} Q0 d{n} {n + 1} {-n} x\n" for q in (1, 2, 3) for n in range(7)))
    return tmp_path


def outputs(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("out*")) if path.suffix != ".json"}


def begin(folder, arguments):
    """The command in a process of its own, which has begun its work and waits."""
    command = [sys.executable, str(PROGRAMS / "waiting_command.py"), *arguments]
    process = Popen(command, cwd=folder, env=os.environ | PATHS, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    assert process.stdout.readline() == b"begun\n", process.communicate()[1].decode()
    return process


# ---- one writer ------------------------------------------------------------------------------------------------------


def test_a_second_process_is_refused_and_the_first_is_not_disturbed(run, fake, files):
    first = begin(files, EMBED)
    try:
        second = run(*EMBED)
        assert second.code == 1 and f"out.npy is being written by process {first.pid}" in second.err
        assert without_progress(first.communicate(b"\n" * 100, timeout=GIVE_UP_S)[1]) == b"" and first.returncode == 0
    finally:
        first.kill()
    made = outputs(files)
    for path in files.glob("out*"):
        path.unlink()
    assert run(*EMBED).code == 0 and outputs(files) == made


def test_the_lock_of_a_killed_process_is_free(run, fake, files):
    first = begin(files, EMBED)
    first.kill()
    first.communicate()
    assert run(*EMBED).code == 0
    assert sorted(outputs(files)) == ["out.ids", "out.npy"]


# ---- other settings, other input -------------------------------------------------------------------------------------


def stopped(run, fake, *arguments):
    fake.embed, fake.rerank = FakeEmbedder(stop_after=5), FakeReranker(stop_after=2)
    assert run(*arguments).code == 130
    fake.embed, fake.rerank = FakeEmbedder(), FakeReranker()


def advised(message):
    """The files that a message says to remove."""
    _, _, files = message.strip().rpartition("remove ")
    return files.removesuffix(" to start from scratch").replace(" and ", ", ").split(", ")


@pytest.mark.parametrize("all_files", [True, False], ids=["all files", "the first file"])
@pytest.mark.parametrize(
    ("arguments", "change", "named"),
    [
        (EMBED, "--query", ["out.npy.part.json", "out.npy.part", "out.npy.part.ids"]),
        (EMBED, None, ["out.npy.part.json", "out.npy.part", "out.npy.part.ids"]),
    ],
    ids=["other option", "other input"],
)
def test_the_advice_leads_to_what_a_clean_run_gives(run, fake, files, arguments, change, named, all_files):
    stopped(run, fake, *arguments)
    if change is None:
        (files / "in.jsonl").write_text(ROWS.replace("word ", "changed ", 1))
    again = [*arguments, *([change] if change else [])]
    done = run(*again)
    assert done.code == 1 and advised(done.err) == named
    for name in named if all_files else named[:1]:
        (files / name).unlink()
    done = run(*again)
    assert done.code == 0 and ("starting from scratch" in done.err) is not all_files
    made = outputs(files)
    for path in files.glob("out*"):
        path.unlink()
    run(*again)
    assert outputs(files) == made and len(made) == len(named) - 1


def test_finished_work_of_other_settings_names_all_its_files(run, fake, files):
    run(*EMBED)
    done = run(*EMBED, "--query")
    assert done.code == 1 and advised(done.err) == ["out.npy", "out.ids", "out.npy.json"]
    for name in advised(done.err):
        (files / name).unlink()
    assert run(*EMBED, "--query").code == 0


def test_standard_input_that_has_changed(run, fake, files):
    fake.embed = FakeEmbedder(stop_after=2)
    run("embed", "-", "--to", "out.npy", stdin="one\ntwo\nthree\n")
    fake.embed = FakeEmbedder()
    for other, message in (("changed\ntwo\nthree\n", "row '1' is now '1' or has another text"), ("one\n", "has 1 text, fewer")):
        done = run("embed", "-", "--to", "out.npy", stdin=other)
        assert done.code == 1 and message in done.err
        assert advised(done.err) == ["out.npy.part.json", "out.npy.part", "out.npy.part.ids"]


@pytest.mark.parametrize("killed", [False, True])
def test_a_first_try_that_has_done_nothing_leaves_nothing_in_the_way(run, fake, files, monkeypatch, killed):
    (files / "in.jsonl").write_text("{]\n")
    with monkeypatch.context() as patch:
        if killed:
            patch.setattr("runnel.commands.resume.Output._drop", lambda *_: None)
        assert run(*EMBED).code == 1
    assert killed or not list(files.glob("out*"))
    (files / "in.jsonl").write_text(ROWS)
    assert run(*EMBED).code == 0


# ---- files that are not from the command -----------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".part.lock", ".part"])
def test_nothing_is_written_through_a_link_next_to_the_output(run, fake, files, ending):
    """The link of .part is as a stranger's folder may have it: with the description of work that has begun."""
    stopped(run, fake, *EMBED)
    (files / "mine").write_bytes(before := b"mine " * 1000)
    beside = files / f"out.npy{ending}"
    beside.unlink(missing_ok=True)
    beside.symlink_to("mine")
    done = run(*EMBED)
    assert done.code == 1 and f"out.npy{ending} is a link" in done.err and len(done.err.splitlines()) == 1
    assert (files / "mine").read_bytes() == before


@pytest.mark.parametrize("name", ["out.npy.json", "out.ids"])
@pytest.mark.parametrize("content", ["mine", '{"mine": 1}'])
def test_a_file_that_would_be_replaced_with_the_output_is_refused(run, fake, files, name, content):
    (files / name).write_text(content)
    done = run(*EMBED)
    assert done.code == 1 and f"{name} exists already and is not from this command" in done.err
    assert (files / name).read_text() == content and [path.name for path in files.glob("out*")] == [name]


# ---- what resumes equals what was never stopped ----------------------------------------------------------------------


@pytest.fixture
def model(files):
    """A real model, and texts and a run of other lengths."""
    tiny_model(files / "tokenizer").save(files / "tiny")
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=draw.choice([3, 10, 40, 200]))) for _ in range(30)]
    (files / "in.jsonl").write_text("".join(json.dumps({"id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(texts)))
    lines = [f"q{q} Q0 d{n} {rank} {-rank} x\n" for q in (1, 2, 3) for rank, n in enumerate(draw.sample(range(30), 10))]
    (files / "run.trec").write_text("".join(lines))
    return "--model", "tiny"


def stopping(work, left):
    """`work`, until it is asked once more than `left` times."""
    calls = iter(range(left))

    def stop(*arguments, **options):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return work(*arguments, **options)

    return stop


@pytest.mark.parametrize(("command", "place"), [(EMBED, (Embedder, "encode_rows")), (RERANK, (Reranker, "rank"))])
def test_resumed_work_equals_unbroken_work(run, files, model, monkeypatch, command, place):
    def numbers():
        if command is EMBED:
            return (files / "out.ids").read_text().split(), np.load(files / "out.npy")
        lines = [line.split() for line in (files / "out.trec").read_text().splitlines()]
        return [(line[0], line[2]) for line in lines], [float(line[4]) for line in lines]

    assert run(*command, *model).code == 0
    names, whole = numbers()
    for path in files.glob("out*"):
        path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(*place, stopping(getattr(*place), 2))
        assert run(*command, *model).code == 130
    done = run(*command, *model)
    assert done.code == 0 and "of an earlier run" in done.err and numbers()[0] == names
    np.testing.assert_allclose(numbers()[1], whole, atol=1e-2)


# ---- the disk --------------------------------------------------------------------------------------------------------


class FullDisk(io.BufferedRandom):
    def write(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_under_the_work_so_far(run, fake, files, monkeypatch):
    def full(path):
        return FullDisk(open_own(path).detach()) if path.name == "out.npy.part" else open_own(path)

    monkeypatch.setattr("runnel.commands.resume.open_own", full)
    done = run(*EMBED)
    assert (done.code, done.err.splitlines()[-1]) == (1, "runnel: error: out.npy.part: No space left on device")


def test_a_folder_for_results_is_made_unless_a_file_is_in_its_place(run, tmp_path):
    (tmp_path / "a.md").write_text("# Water\n\nIt flows.\n")
    for folder in ("a.md", "a.md/out"):
        ended = run("synthesize", "--without-llm", "a.md", "--to", folder)
        assert ended.code == 1 and "a.md is a file" in ended.err
    run("synthesize", "--without-llm", "a.md", "--to", "new/out")
    assert (tmp_path / "new" / "out").is_dir()


def test_a_description_that_is_damaged(tmp_path):
    (tmp_path / "out.part").write_text("work")
    (tmp_path / "out.part.json").write_text("{")
    with (
        Output(tmp_path / "out") as output,
        pytest.raises(InputError, match=r"is damaged .*; remove .*out.part.json and .*out.part"),
    ):
        output.begin({})
