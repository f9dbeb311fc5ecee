"""Prepare, train and measure the pilots of a recurrent sentence retriever.

python -m tools.train_memory prepare DATA      token ids, into runs/memory (DATA: train_pocket)
python -m tools.train_memory KIND TOKENS RATE  train one of `train.make`; run again, it resumes
python -m tools.train_memory measure KIND      ranks of held-back sentences, whole and alone
"""

import logging
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from tools.train_memory.continued import taught
from tools.train_memory.documents import evidence_documents, load, save
from tools.train_memory.measure import ranks, summary
from tools.train_memory.train import Training, make
from tools.train_pocket.data import EVIDENCE

RUNS = Path("runs/memory")
_TRAIN, _HELD = 450_000, 25_000  # the most tokens of a set
_TAUGHT = 500  # documents that pocket scores


def prepare(data: Path) -> None:
    """Write the documents to train on, those held back, and those with pocket's scores."""
    RUNS.mkdir(parents=True, exist_ok=True)
    for file, measure, most in (("train", False, _TRAIN), ("held", True, _HELD)):
        documents = [
            document
            for name in EVIDENCE
            for document in evidence_documents(data, name, measure=measure, most=most)
        ]
        save(documents, RUNS / f"{file}.npz")
    save(list(taught(data, _TAUGHT)), RUNS / "taught.npz")


def train(kind: str, tokens: str, rate: str) -> None:
    """Train until `tokens` were read; `rate`: the highest learning rate."""
    training = Training(kind, RUNS / kind, int(float(tokens)), float(rate))
    training.run(load(RUNS / ("taught.npz" if kind == "continued" else "train.npz")))


def measure(kind: str) -> None:
    """Print first, first 5, first 10 and MRR of the held-back questions."""
    model = make(kind)
    weights = dict(model.named_parameters())
    for name, value in load_file(RUNS / kind / "weights.safetensors").items():
        weights[name].data.copy_(value)
    for whole in (True, False):
        found = [by_way for _, by_way in ranks(model, load(RUNS / "held.npz"), whole=whole)]
        for way in found[0]:
            reading = "whole" if whole else "alone"
            print(reading, way, summary([by_way[way] for by_way in found]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    match sys.argv[1:]:
        case ["prepare", data]:
            prepare(Path(data))
        case ["measure", kind]:
            measure(kind)
        case [kind, tokens, rate]:
            train(kind, tokens, rate)
        case _:
            sys.exit(__doc__)
