"""Real processes: they answer, run out of memory without ending the benchmark, and report why they
ended.
"""

from dataclasses import asdict

import numpy as np
import pytest
import torch

from benchmarks.extras import training
from benchmarks.processes import Spec, Worker
from benchmarks.steps import Trainer
from benchmarks.subject import Subject
from benchmarks.worker import Job


def test_a_process_answers(tmp_path):
    with Worker(Spec("runnel", "tiny", "fp32")) as process:
        assert process.first["ready"]
        cell = {"batch": 2, "tokens": 64, "segment": 32}
        assert process.ask("parts", **cell)["parts"]["scan_heads"] > 0
        for plain in (False, True):
            assert process.ask("hidden", file=str(tmp_path / f"{plain}.npy"), plain=plain) == {
                "tokens": 200
            }
            assert process.ask("gradient", file=str(tmp_path / f"g{plain}.npy"), plain=plain) == {}
        for name in ("", "g"):
            found, expected = (np.load(tmp_path / f"{name}{plain}.npy") for plain in (False, True))
            assert found.shape == expected.shape and not np.array_equal(found, expected)
            assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
        assert 0 < process.ask("time", part="linear", **cell)["seconds"] < 10
        assert process.ask("products")["error"] < 1e-4
        peak = process.ask("peak", **cell)
        assert 50 << 20 < peak["peak_bytes"] < 4 << 30 and peak["seconds"] > 0
        assert process.ask("read", batches=[[5, 3], [7]], segment=None)["seconds"] > 0
        assert process.ask("train", batch=2, tokens=16)["seconds"] > 0
        found = process.ask("rerank", documents=3, tokens=20, rounds=1)
        assert (
            found["agreement"]["fp32 states"] > 0.9999 and len(found["seconds"]["whole pairs"]) == 1
        )


def test_a_transformer_pads_what_it_reads():
    job = Job(asdict(Spec("bert", "tiny", "fp32")))
    assert job.read({"batches": [[5, 3], [7]], "segment": None})["seconds"] > 0


@pytest.mark.parametrize("lora", [None, 4])
def test_a_step_trains_all_weights_or_adapters_alone(lora):
    system = Subject("tiny", "fp32", "cpu")
    trainer = Trainer(system, lora)
    before = {name: weight.detach().clone() for name, weight in system.backbone.named_parameters()}
    for _ in range(2):  # the product of an adapter's matrices is 0 at first
        trainer.step(torch.arange(32).view(2, 16))
    changed = {
        name
        for name, weight in system.backbone.named_parameters()
        if not torch.equal(weight, before[name])
    }
    adapters = {name for name in before if "lora" in name}
    assert changed == (adapters or set(before)) and bool(adapters) == (lora is not None)


@pytest.mark.slow
def test_a_process_that_ends_says_why():
    with Worker(Spec("no such system", "tiny", "fp32")) as process:
        assert "error" in process.first
    with Worker(Spec("runnel", "tiny", "fp32")) as process:
        process._process.kill()
        assert process.ask("time", batch=1, tokens=8, segment=None) == {
            "out_of_memory": "the process was killed for its memory"
        }


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(__import__("os"), "fork"), reason="memory limits are set on POSIX systems only"
)
def test_training_that_needs_more_memory_than_there_is():
    said = []
    found = training(
        "tiny",
        "runnel",
        (1, 2048, 4096),
        512,
        said.append,
        memory_limit=1 << 30,
        slow_s=1e9,
        rounds=1,
    )
    assert [point.outcome for point in found] == ["ok", "out of memory", "out of memory"], found
    assert found[0].to_dict()["tokens_per_s"]["median"] > 0
