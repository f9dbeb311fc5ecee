import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers.children import PATHS, PROGRAMS
from helpers.tiny_training import training_model
from programs.training_workers import go_on, resumable

from runnel.errors import CheckpointError
from runnel.lab.training.document_trainer import SentenceTrainer
from runnel.lab.training.progress import find_whole_checkpoint
from runnel.models.sentence_retriever import SentenceRetriever

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def losses(folder: Path) -> list[list[float]]:
    """Read the losses written so far, without a line that is only begun."""
    text = (folder / "losses.jsonl").read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> list[list[float]]:
    folder = tmp_path_factory.mktemp("unbroken")
    before = torch.get_num_threads()
    go_on(folder)
    torch.set_num_threads(before)
    found = losses(folder)
    assert len(found) > 15
    return found


def test_a_run_killed_anywhere_goes_on_as_if_nothing_had_happened(tmp_path: Path, unbroken: list[list[float]]) -> None:
    steps, pause = random.randrange(4, 11), random.random() * 0.05  # well before its end
    worker = PROGRAMS / "training_workers.py"
    environment = os.environ | PATHS | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, worker, "resumable", tmp_path], env=environment, stdout=subprocess.DEVNULL)
    try:
        while process.poll() is None and (not (tmp_path / "losses.jsonl").exists() or len(losses(tmp_path)) < steps):
            time.sleep(0.005)
        time.sleep(pause)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -9, "it was to be killed in the middle"
    whole = find_whole_checkpoint(tmp_path / "run")
    assert whole is not None
    begun = int(whole.name.removeprefix("checkpoint-"))
    assert begun >= steps - 3
    killed = losses(tmp_path)
    (tmp_path / "losses.jsonl").unlink()
    go_on(tmp_path)
    assert losses(tmp_path) == unbroken[begun:]
    assert killed == unbroken[: len(killed)]
    SentenceRetriever.load(find_whole_checkpoint(tmp_path / "run") or "").score("the cat", "A cat. A dog.")


def test_the_newest_whole_checkpoint_is_found_by_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert find_whole_checkpoint(tmp_path / "missing") is None
    for name, step in {"checkpoint-9": 9, "checkpoint-10": 10, "checkpoint-best": 11, "checkpoint-12": 5}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (tmp_path / "checkpoint-20").mkdir()
    (tmp_path / "checkpoint-20" / "trainer_state.json").write_text('{"global_step": 20, "ep')  # writing it was interrupted
    (tmp_path / "checkpoint-30").write_text("a file")
    assert find_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    assert "checkpoint-20 is incomplete" in caplog.text


def test_a_checkpoint_of_another_architecture_is_an_error(tmp_path: Path) -> None:
    trainer = resumable(tmp_path, max_steps=3)
    trainer.train()
    other = training_model(tmp_path / "other", "rwkv7")
    another = SentenceTrainer(other, trainer.args, trainer.train_dataset, max_tokens=150)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"checkpoint-3 is a checkpoint of another model than .*RWKV-7.*: Missing key"):
        another.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        another.train(resume_from_checkpoint=str(tmp_path))
