"""Train and measure the pilots: python -m tools.train_memory KIND TOKENS RATE."""

import logging
import sys
from pathlib import Path

from tools.train_memory.documents import load
from tools.train_memory.train import Training

if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    runs = Path("runs/memory")
    training = Training(
        sys.argv[1], runs / sys.argv[1], int(float(sys.argv[2])), float(sys.argv[3])
    )
    training.run(load(runs / "train.npz"))
