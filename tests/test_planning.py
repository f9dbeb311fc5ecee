"""What the machine offers, a segment for a memory budget, and that what is
planned is not exceeded.
"""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny_backbones import CONFIGS
from helpers.toy import Toy

from benchmarks.shapes import describe_subject, load_subject, random_backbone
from runnel.backbones.mamba2.model import Mamba2Config
from runnel.backbones.rwkv7.model import Rwkv7Config
from runnel.backbones.state import State
from runnel.backbones.xlstm.model import XlstmConfig
from runnel.engine import Engine, Request
from runnel.errors import InputError
from runnel.planning import ENOUGH, fit


@pytest.fixture(scope="module")
def backbone():
    return describe_subject("tiny")


def test_a_segment_fits_its_budget(backbone):
    for mib in (1, 3, 10):
        found = fit(backbone, mib << 20)
        assert 4 * found.state_bytes + found.step_bytes <= mib << 20
        assert found.segment % 64 == 0
        # One more round of tokens would not fit, unless longer is no use.
        more = (found.segment + 64) * backbone.step_bytes_per_token + 4 * found.state_bytes
        assert more > mib << 20 or found.segment == ENOUGH
    needed = 4 * backbone.state_bytes + 5 * backbone.step_bytes_per_token
    found = fit(backbone, needed)
    assert (
        found.segment
        == Engine(backbone, found).step_tokens
        == Engine(backbone, memory_bytes=needed).step_tokens
        == 5
    )
    with pytest.raises(InputError, match=r"memory_bytes=1,000 is too small.*give at least"):
        Engine.plan(backbone, 1000)


class OnGpu(Toy):
    """On a GPU while engines are made for it, on the CPU when it runs."""

    place = torch.device("cuda")
    device = property(lambda self: self.place)

    def new_state(self, rows: int) -> State:
        return State(
            {"h": torch.zeros(rows, 1, self.hidden_size)}, torch.zeros(rows, dtype=torch.int64)
        )


def test_steps_go_by_the_device(monkeypatch):
    """What paper D reads on a GPU: one text by 4,096 tokens, a batch by 32 times 512."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 1 << 40))
    assert (Engine(Toy()).step_tokens, Engine(Toy()).text_tokens) == (1024, 1024)
    assert fit(Toy(), 1 << 30).segment == 4096
    gpu = OnGpu()
    texts = [np.zeros(length, dtype=np.int64) for length in (20_000, 300, 3000)]
    engine = Engine(gpu)
    assert (engine.step_tokens, engine.text_tokens) == (16_384, 4096)
    assert fit(gpu, 1 << 30).segment == 16_384
    asked = Engine(gpu, 8000)
    assert (asked.step_tokens, asked.text_tokens) == (8000, 8000)
    gpu.place = torch.device("cpu")
    engine.run([Request(texts[1])])
    engine.run([Request(texts[0])])
    assert gpu.steps == [300, 4096, 4096, 4096, 4096, 3616]
    gpu.steps.clear()
    engine.run([Request(text) for text in texts])
    assert gpu.steps == [16_384, 4096, 2820], "the long text is alone in the end"


def test_steps_stay_within_the_memory_of_a_gpu(monkeypatch):
    toy = OnGpu()
    for tokens, expected in ((1000, (960, 960)), (9000, (8960, 4096))):
        monkeypatch.setattr(
            torch.cuda,
            "mem_get_info",
            lambda _, room=2 * tokens * toy.step_bytes_per_token: (room, 1 << 40),
        )
        assert (Engine(toy).step_tokens, Engine(toy).text_tokens) == expected


def test_the_speed_to_expect_is_measured_where_there_are_weights(backbone):
    assert Engine.plan(backbone, 1 << 20).tokens_per_s is None
    found = Engine.plan(load_subject("tiny", torch.float32), 1 << 20)
    assert found.tokens_per_s is not None and 100 < found.tokens_per_s < 1e8
    assert str(found).endswith(f", about {found.tokens_per_s:,.0f} tokens/s")
    assert found.segment == fit(backbone, 1 << 20).segment


@pytest.mark.parametrize(
    ("architecture", "chunk"),
    [("mamba2", 64), ("rwkv7", 32), ("xlstm", 64), ("mamba1", None)],
)
def test_chunks_where_plain_torch_runs(architecture, chunk):
    """Each operator's own Q, no longer than the segment; kernels have theirs built in."""
    plain = random_backbone(architecture, CONFIGS[architecture]["tiny"], torch.float64)
    found = fit(plain, 1 << 28)
    assert (found.chunk, found.segment >= 64) == (chunk, True)
    assert (f", chunks of {chunk}:" in str(found)) is (chunk is not None)
    short = fit(plain, 4 * plain.state_bytes + 11 * (found.step_bytes // found.segment))
    assert (short.segment, short.chunk) == (11, chunk and 16)
    assert (
        fit(
            random_backbone(architecture, CONFIGS[architecture]["tiny"], torch.float32), 1 << 26
        ).chunk
        is None
    )


MEASURED = """
import json, pickle, sys
import numpy as np
import torch
from runnel.engine import Engine, Request
from benchmarks.machine import reset_peak, peak_bytes
from benchmarks.shapes import random_backbone

architecture, dtype, budget = sys.argv[1], getattr(torch, sys.argv[2]), int(sys.argv[3])
backbone = random_backbone(architecture, pickle.load(sys.stdin.buffer), dtype)
numbers = np.random.default_rng(0)
Engine(backbone, 64).run([Request(numbers.integers(0, 100, 70))])
reset_peak("cpu")
before = peak_bytes("cpu")
engine = Engine(backbone, memory_bytes=budget)
about_three_steps = numbers.integers(1, engine.step_tokens // 2, 12)
for lengths in ([2 * engine.step_tokens], about_three_steps):
    engine.run([Request(numbers.integers(0, 100, length)) for length in lengths])
print(json.dumps({"taken": peak_bytes("cpu") - before, "step": engine.step_tokens}))
"""
LARGE = {
    "mamba2": Mamba2Config(256, 512, 2),
    "rwkv7": Rwkv7Config(256, 512, 2),
    "xlstm": XlstmConfig(256, 512, 2, num_heads=4, qk_size=256, v_size=512, ffn_size=1376),
}


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(),
    reason="peaks are read from /proc, which only Linux has",
)
@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [*((name, "bfloat16") for name in LARGE), ("mamba2", "plain"), ("xlstm", "plain")],
)
@pytest.mark.slow
def test_a_budget_is_not_exceeded(architecture, dtype):
    """Measured in a fresh process. What libraries make for themselves has a margin of 16 MiB; a
    step has more than that.
    """
    budget = 80 << 20
    plain = dtype == "plain"
    command = [
        sys.executable,
        "-c",
        MEASURED,
        architecture,
        "float32" if plain else dtype,
        str(budget),
    ]
    environment = os.environ | {"NUMBA_DISABLE_JIT": str(int(plain))}
    config = pickle.dumps(LARGE[architecture])
    found = json.loads(
        subprocess.run(
            command, check=True, capture_output=True, input=config, env=environment
        ).stdout
    )
    assert found["step"] >= 64
    assert budget / 5 < found["taken"] < budget + (16 << 20), found
