"""What a run keeps of its progress, and that numbers which are not finite end it with the batch
named.
"""

import json

import pytest
import torch
from transformers import TrainerControl, TrainerState, TrainingArguments

from runnel.errors import NumericalError
from runnel.lab.training.progress import Recorder, Watch, find_whole_checkpoint


@pytest.fixture
def args(tmp_path):
    return TrainingArguments(output_dir=str(tmp_path / "checkpoints"), use_cpu=True, report_to=[])


def state(step, total=10):
    return TrainerState(global_step=step, max_steps=total, is_world_process_zero=True)


def test_the_newest_whole_checkpoint_is_found_by_number(tmp_path, caplog):
    assert find_whole_checkpoint(tmp_path / "missing") is None
    for name, step in {
        "checkpoint-9": 9,
        "checkpoint-10": 10,
        "checkpoint-best": 11,
        "checkpoint-12": 5,
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (tmp_path / "checkpoint-20").mkdir()
    # writing it was interrupted
    (tmp_path / "checkpoint-20" / "trainer_state.json").write_text('{"global_step": 20, "ep')
    (tmp_path / "checkpoint-30").write_text("a file")
    assert find_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    assert "checkpoint-20 is incomplete" in caplog.text


def test_tokens_and_seconds_go_on_from_a_checkpoint():
    watch = Watch(tokens=9)
    watch.begin([{"tokens": 50, "seconds": 1.0}, {"tokens": 100, "seconds": 30.0}], 1)
    watch.tokens += 7
    throughput = watch.throughput(1)
    assert (
        throughput["tokens"] == 107
        and 30 <= throughput["seconds"] < 60
        and throughput["tokens_per_s"] == pytest.approx(3.5, rel=0.5)
    )


def test_a_gradient_that_is_not_finite_ends_the_run_and_tells_of_the_checkpoint(args, tmp_path):
    whole = tmp_path / "checkpoints" / "checkpoint-4"
    whole.mkdir(parents=True)
    (whole / "trainer_state.json").write_text('{"global_step": 4}')
    layer = torch.nn.Linear(2, 2)
    layer.weight.grad = torch.zeros(2, 2)
    recorder = Recorder(Watch(rows=[f"row {i}" for i in range(20)]), lambda done, total: None)
    recorder.on_pre_optimizer_step(args, state(4), TrainerControl(), model=layer)
    layer.weight.grad[0, 1] = float("inf")
    with pytest.raises(NumericalError, match=r"row 7 and 12 more; .*checkpoint-4"):
        recorder.on_pre_optimizer_step(args, state(4), TrainerControl(), model=layer)
