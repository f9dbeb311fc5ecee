import json
import logging
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.children import PATHS, PROGRAMS
from helpers.tiny import tiny_model
from programs.training_workers import go_on, resumable
from transformers import TrainerState

from runnel.backbones.rwkv7.model import Rwkv7, Rwkv7Config
from runnel.errors import CheckpointError
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.training.checkpoints import find_whole_checkpoint
from runnel.training.sentences import SentenceTrainer

pytestmark = pytest.mark.usefixtures("one_thread")


def losses(folder: Path) -> list[list[float]]:
    lines = (folder / "losses.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


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
        while process.poll() is None and (not (tmp_path / "losses.jsonl").exists() or len(losses_so_far(tmp_path)) < steps):
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
    killed = losses_so_far(tmp_path)
    (tmp_path / "losses.jsonl").unlink()
    go_on(tmp_path)
    assert losses(tmp_path) == unbroken[begun:]
    assert killed == unbroken[: len(killed)]
    SentenceRetriever.load(find_whole_checkpoint(tmp_path / "run") or "").score("the cat", "A cat. A dog.")


def losses_so_far(folder: Path) -> list[list[float]]:
    """What a process that may be writing has written."""
    text = (folder / "losses.jsonl").read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


@pytest.mark.parametrize("most", [40_000, 120_000])
def test_a_full_disk_leaves_the_last_checkpoint_whole(
    tmp_path: Path, unbroken: list[list[float]], most: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Files may not grow over `most` bytes from step 5 on: too few for the weights, or for the optimizer's state."""
    trainer = resumable(tmp_path)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    original = trainer.save_model

    def save(*args: Any, **kwargs: Any) -> None:
        if trainer.state.global_step > 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
        original(*args, **kwargs)

    trainer.save_model = save  # type: ignore[method-assign]
    try:
        with pytest.raises((RuntimeError, OSError), match=r"File too large|unexpected pos"):
            trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert (tmp_path / "run" / "checkpoint-6").exists()
    with caplog.at_level(logging.WARNING, "runnel"):
        whole = find_whole_checkpoint(tmp_path / "run")
    assert whole == tmp_path / "run" / "checkpoint-3"
    assert "checkpoint-6 is incomplete" in caplog.text
    (tmp_path / "losses.jsonl").unlink()
    go_on(tmp_path)
    assert losses(tmp_path) == unbroken[3:]


@pytest.mark.parametrize("stage", ["save_model", "_save_optimizer_and_scheduler", "_save_rng_state", "save_to_json"])
def test_wherever_writing_stops_the_last_checkpoint_is_found(tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = resumable(tmp_path)
    owner: Any = TrainerState if stage == "save_to_json" else SentenceTrainer
    original = getattr(owner, stage)

    def stops(self: Any, *args: Any, **kwargs: Any) -> None:
        if trainer.state.global_step > 3:
            if stage == "save_to_json":
                Path(args[0]).write_text('{"global_step": 6, "ep')
            raise OSError(28, "No space left on device")
        original(self, *args, **kwargs)

    monkeypatch.setattr(owner, stage, stops)
    with pytest.raises(OSError, match="No space left"):
        trainer.train()
    assert find_whole_checkpoint(tmp_path / "run") == tmp_path / "run" / "checkpoint-3"


def test_adapters_go_on_too(tmp_path: Path) -> None:
    for name in ("whole", "broken"):
        go_on(tmp_path / name, adapters=True, max_steps=6, save_total_limit=2)
    saved = tmp_path / "broken" / "run" / "checkpoint-6"
    assert (saved / "adapter.safetensors").exists()
    (saved / "trainer_state.json").unlink()
    (tmp_path / "broken" / "losses.jsonl").unlink()
    trainer = resumable(tmp_path / "broken", adapters=True, max_steps=6, save_total_limit=2)
    trainer.train(resume_from_checkpoint=str(tmp_path / "broken" / "run" / "checkpoint-3"))
    assert losses(tmp_path / "broken") == losses(tmp_path / "whole")[3:]


def test_the_newest_whole_checkpoint_is_found_by_number(tmp_path: Path) -> None:
    assert find_whole_checkpoint(tmp_path / "missing") is None
    for name, step in {"checkpoint-9": 9, "checkpoint-10": 10, "checkpoint-best": 11, "checkpoint-12": 5}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (tmp_path / "checkpoint-30").write_text("a file")
    assert find_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-10"


def test_a_checkpoint_of_another_architecture_is_an_error(tmp_path: Path) -> None:
    trainer = resumable(tmp_path, max_steps=3)
    trainer.train()
    backbone = Rwkv7(Rwkv7Config(128, 32, 2, head_size=16, decay_rank=4, a_rank=4, v_rank=4, gate_rank=4))
    other = tiny_model(tmp_path / "other", backbone=backbone)
    another = SentenceTrainer(other, trainer.args, trainer.train_dataset, max_tokens=150)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"checkpoint-3 is a checkpoint of another model than .*RWKV-7.*: Missing key"):
        another.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors"):
        another.train(resume_from_checkpoint=str(tmp_path))
