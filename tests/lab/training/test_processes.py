"""Data that several processes prepare: equal to what one makes, made once, and reused; and runs of
two processes, one of which is killed.
"""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from helpers.evidence_examples import examples
from helpers.files import write_rows
from helpers.tiny import tiny_model
from helpers.tiny_examples import tiny_recipe

from runnel.errors import InputError
from runnel.lab.training import processes, recipes
from runnel.lab.training.data import Evidence
from runnel.lab.training.decontaminate import SENTENCES, Decontaminator
from runnel.lab.training.processes import in_processes
from runnel.lab.training.recipes import DataSet
from runnel.lab.training.run_data import DataFiles, read_run_data
from runnel.lab.training.tables import SentenceData
from runnel.models.recurrent.scanner import ItemMaker


def kill_at_nine(numbers):
    if 9 in numbers:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


@pytest.fixture
def few(monkeypatch):
    """The first 2 examples are made here, others 2 at a time in two processes."""
    monkeypatch.setattr(processes, "CHUNK", 2)
    monkeypatch.setattr(processes, "CHUNKS_ALONE", 1)
    monkeypatch.setattr(processes, "cores", lambda: 2)


@pytest.mark.usefixtures("few")
def test_examples_are_made_in_order_by_other_processes():
    done = list(in_processes(kill_at_nine, range(8)))
    assert [chunk for chunk, _ in done] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert done[0][1] == os.getpid() and os.getpid() not in {pid for _, pid in done[1:]}
    assert list(in_processes(kill_at_nine, [])) == []
    with pytest.raises(InputError, match=r"2 processes that prepare data was killed.*memory"):
        list(in_processes(kill_at_nine, range(20)))


def test_rows_of_several_processes_are_those_of_one(tmp_path, monkeypatch, few):
    model = tiny_model(tmp_path / "model")
    made = examples(9, sentences=(30, 31))
    several = SentenceData.write(tmp_path / "b.arrow", model, made, tokens=(40, 90), seed=1)
    monkeypatch.setattr(processes, "CHUNKS_ALONE", 99)
    SentenceData.write(tmp_path / "a.arrow", model, made, tokens=(40, 90), seed=1)
    one, other = (Dataset.from_file(str(tmp_path / f"{name}.arrow"))[:] for name in "ab")
    assert one == other
    with monkeypatch.context() as patch:  # what is read on access, without a tokenizer
        patch.setattr(ItemMaker, "read", None)
        patch.setattr(ItemMaker, "encode_query", None)
        assert [item.tokens for _, item in map(several.__getitem__, range(9))] == one["tokens"]
    monkeypatch.setattr(processes, "CHUNKS_ALONE", 1)
    bad = [*made, Evidence("cat", "", (), "x19")]
    with pytest.raises(InputError, match="evidence example x19: "):
        SentenceData.write(tmp_path / "bad.arrow", model, bad)
    assert not (tmp_path / "bad.arrow").exists()


@pytest.mark.usefixtures("few")
def test_evidence_is_compared_with_test_sets_by_other_processes(tmp_path):
    made = examples(12)
    rows_of_test = [{"query": "some other query", "document": made[n].document} for n in (3, 8, 9)]
    guard = Decontaminator([write_rows(tmp_path / "test.jsonl", rows_of_test)])
    one = list(guard.clean(made))
    assert len(one) < 10 and guard.counts[SENTENCES] == 12 - len(one)
    again = Decontaminator([tmp_path / "test.jsonl"])
    assert list(again.clean_documents(made)) == one and again.counts == guard.counts
    assert list(Decontaminator(()).clean_documents(made)) == made


def rows(count: int) -> list[dict[str, object]]:
    return [
        {"question": e.query, "document": e.document, "evidence": e.spans, "id": e.id}
        for e in examples(count)
    ]


def test_finished_data_are_reused_and_data_of_other_files_are_refused(
    tmp_path, monkeypatch, caplog
):
    caplog.set_level(logging.INFO, "runnel")
    model = tiny_model(tmp_path / "model")
    source = write_rows(tmp_path / "evidence.jsonl", rows(6))
    recipe = tiny_recipe("sentences", "data.held_out=2")
    recipe = replace(recipe, data=replace(recipe.data, sets=(DataSet(str(source)),)))
    files = DataFiles(tmp_path / "data", write=True)
    first = read_run_data(recipe, model, files)
    assert (len(first.train), len(first.held_out)) == (4, 2)
    assert "prepared already" not in caplog.text
    with monkeypatch.context() as patch:
        patch.setattr(ItemMaker, "read", None)  # nothing is tokenized again
        again = read_run_data(recipe, model, files)
        other_process = read_run_data(recipe, model, replace(files, write=False))
    assert caplog.text.count("train-1.arrow is prepared already") == 1
    for data in (again, other_process):
        for number in range(4):
            name, item = data.train[number]
            np.testing.assert_array_equal(item.request.ids, first.train[number][1].request.ids)
            assert name == first.train[number][0]
    # a shorter run of a search has its own
    assert len(read_run_data(recipe, model, replace(files, share=2)).train) == 2
    before = (tmp_path / "data" / "train-1.arrow").read_bytes()
    other = replace(recipe, data=replace(recipe.data, lengths=(50,)))
    with pytest.raises(InputError, match=r"train-1\.arrow was prepared from other.*--to.*delete"):
        read_run_data(other, model, files)
    model.unit = "clauses"
    with pytest.raises(InputError, match="prepared from other"):
        read_run_data(recipe, model, files)
    model.unit = "sentence"
    write_rows(source, rows(7))
    with pytest.raises(InputError, match="prepared from other"):
        read_run_data(recipe, model, files)
    assert (tmp_path / "data" / "train-1.arrow").read_bytes() == before


PATIENCE = 900  # seconds: on a busy machine the libraries alone take a minute to import
RUN = """
import os, sys, time
from datetime import timedelta
from pathlib import Path
from accelerate import PartialState
from transformers import Trainer
from runnel.lab.training import processes, recipes, tables
from runnel.lab.training.run import run_recipe
import logging

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    PartialState(cpu=True, timeout=timedelta(seconds=20))  # of all but the wait for data
    processes.CHUNKS_ALONE, processes.cores = 1, lambda: 2
    make_rows, slow = tables.make_rows, float(sys.argv[1])
    save_rng_state = Trainer._save_rng_state

    def slowly(*arguments):
        for table in make_rows(*arguments):
            yield table
            time.sleep(slow)

    def save_slowly(trainer, folder):
        if trainer.args.process_index == 1 and folder.endswith("checkpoint-8"):
            os.makedirs(folder, exist_ok=True)
            Path(folder, "rng_state_1.pth").touch()
            time.sleep(slow)
        save_rng_state(trainer, folder)

    tables.make_rows = slowly
    Trainer._save_rng_state = save_slowly
    run_recipe(recipes.read("tiny.toml"), "run")
"""


class Two:
    """Two processes of a run, connected by gloo, each in a session of its own."""

    def __init__(self, folder: Path, slow: float) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        (folder / "run_it.py").write_text(RUN)
        self.logs = [(folder / f"{rank}.log").open("w+") for rank in (0, 1)]
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "run_it.py", str(slow)],
                cwd=folder,
                stdout=self.logs[rank],
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ
                | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
                | {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                | {"OMP_NUM_THREADS": "1"},
            )
            for rank in (0, 1)
        ]

    def wait_for(self, condition) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end and self.ranks[0].poll() is None, self.log(0)
            time.sleep(0.1)

    def log(self, rank: int) -> str:
        self.logs[rank].seek(0)
        return self.logs[rank].read()

    def ends(self) -> list[int]:
        return [rank.wait(PATIENCE) for rank in self.ranks]

    def __enter__(self) -> "Two":
        return self

    def __exit__(self, *_: object) -> None:
        for rank, log in zip(self.ranks, self.logs, strict=True):
            rank.kill()
            rank.wait()
            log.close()


def left(session: int) -> list[str]:
    """The processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if of == str(session) and state != "Z":
            found.append(stat.parent.name)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="sessions are read from /proc")
def test_two_processes_of_which_one_is_killed(tmp_path):
    """The other one waits longer than the limit of the group, ends at once when the first is
    killed, and a repeated run makes only what is missing.
    """
    source = write_rows(tmp_path / "evidence.jsonl", rows(300))
    recipe = tiny_recipe("sentences", "train.max_steps=40", "train.batch=4")
    recipe = replace(recipe, data=replace(recipe.data, sets=(DataSet(str(source)),)), search=None)
    recipes.write(recipe, tmp_path / "tiny.toml")
    data = tmp_path / "run" / "data"
    # 1. the process that prepares is killed, with processes of its own
    with Two(tmp_path, 3.0) as two:
        session = two.ranks[0].pid
        two.wait_for(lambda: len(left(session)) >= 3)
        assert list(data.glob("train-1.arrow.*.partial"))
        assert not (data / "train-1.arrow").exists()
        two.ranks[0].kill()
        assert two.ranks[1].wait(PATIENCE) != 0
    end = time.monotonic() + PATIENCE
    while left(session) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left(session), "its processes end with it"
    # 2. again: preparing takes 30 s, the group's limit is 20 s; the other one is killed while it
    # writes its part of a checkpoint
    with Two(tmp_path, 3.0) as two:
        two.wait_for((tmp_path / "run" / "checkpoints" / "checkpoint-8" / "rng_state_1.pth").exists)
        two.ranks[1].kill()
        assert two.ranks[0].wait(PATIENCE) != 0
        assert "prepared already" not in two.log(0) and "300 examples, " in two.log(0)
    assert (data / "train-1.arrow").exists()
    # 3. again: the data are there, and the last checkpoint of which every part was written
    with Two(tmp_path, 3.0) as two:
        assert two.ends() == [0, 0], two.log(0) + two.log(1)
        assert "train-1.arrow is prepared already" in two.log(0)
        assert "checkpoint-8 is incomplete" in two.log(0)
        assert "resuming from run/checkpoints/checkpoint-4" in two.log(0)
        assert "300 examples, " not in two.log(0)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 40
    assert not data.exists()
