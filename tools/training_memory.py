"""Measure the memory of one training step with and without `recompute`, for docs/training.md.

    python -m tools.training_memory

Each cell is measured in a process of its own on the CPU: forward and backward of one embedder step
over random token ids in fp32; peak memory less what the process held before (weights and their
gradients).
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import torch
from torch import nn

from benchmarks.machine import peak_bytes, reset_peak
from benchmarks.shapes import load_subject
from runnel.backbones.base import Backbone
from runnel.lab.training.forward import unfreeze
from runnel.models.folder import BUILT_IN
from runnel.models.recurrent.graph import Long, vectors
from runnel.models.recurrent.heads import EndVector
from runnel.models.recurrent.model import TorchModel
from runnel.text.templates import DOCUMENT
from runnel.text.tokenizers import read_tokenizer

# tokens of a text
MODELS = {"mamba2-130m": 2048, "rwkv7-0.1b": 2048, "xlstm-scaled": 2048, "bert-base": 512}
TOKENS = 2048  # of a step
LONGS = {"": Long(), "recompute": Long(recompute=True), "segments": Long(512, recompute=True)}


def backbone_of(name: str) -> Backbone:
    """A backbone with random weights: a shape of the benchmark."""
    return load_subject(name, torch.float32)


def measure(name: str, long: Long) -> str:
    """MiB of one step."""
    tokenizer = read_tokenizer(BUILT_IN["pocket"], begin=101, end=102)
    model = TorchModel(
        backbone_of(name),
        tokenizer,
        nn.ModuleDict({"embed": EndVector()}),
        {"document": DOCUMENT},
        source=name,
    )
    unfreeze(model)
    ids = (
        np.random.default_rng(0)
        .integers(4, 20_000, (TOKENS // MODELS[name], MODELS[name]))
        .astype(np.int32)
    )
    vectors(model, [ids[0, :16]]).sum().backward()  # creates the gradients
    reset_peak("cpu")
    before = peak_bytes("cpu")
    vectors(model, list(ids), long).sum().backward()
    return f"{(peak_bytes('cpu') - before) / 2**20:,.0f}"


def main() -> None:
    """Print one row for each model: without recompute, with it, and with segments of 512 tokens
    too.
    """
    if len(sys.argv) == 3:
        print(measure(sys.argv[1], LONGS[sys.argv[2]]))
        return
    # freed tensors go back to the system at once
    exact = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    for name in MODELS:
        cells = []
        for kind in LONGS if name != "bert-base" else ("", "recompute"):
            done = subprocess.run(
                [sys.executable, "-m", "tools.training_memory", name, kind],
                capture_output=True,
                text=True,
                check=True,
                env=exact,
            )
            cells.append(done.stdout.strip())
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
