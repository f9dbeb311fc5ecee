"""python -m tools.train_pocket STEP --data FOLDER --out FOLDER [--teacher FOLDER] [...]: see README.md."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

os.environ.setdefault("NUMBA_NUM_THREADS", "1")  # before numba is imported: each training thread has one core

import torch


def main() -> None:
    """Run one step of the training."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_pocket", description=__doc__)
    parser.add_argument("step", choices=("teach", "distill", "finetune", "settle", "export", "measure"))
    parser.add_argument("--data", type=Path, required=True, help="folder with evidence/, retrieval/, raw/ and pairs/")
    parser.add_argument("--out", type=Path, default=Path("runs/pocket"), help="work folder (default runs/pocket)")
    parser.add_argument("--teacher", type=Path, help="folder of all-MiniLM-L6-v2 (default: the installed package's)")
    parser.add_argument(
        "--model", type=Path, default=Path("src/runnel/models/pocket"), help="model folder to write or to measure"
    )
    parser.add_argument("--texts", type=int, default=150_000, help="how many distillation texts")
    parser.add_argument("--steps", type=int, help="optimizer steps of this stage")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(options.threads if options.step in ("teach", "measure") else 1)
    from tools.train_pocket import teacher

    folder = options.teacher or teacher.default_folder()
    if options.step == "teach":
        teacher.prepare(options.data, options.out / "distill", folder, options.texts, options.seed)
    elif options.step == "distill":
        from tools.train_pocket.distill import STEPS, distill

        distill(options.out, folder, options.steps or STEPS, options.seed, options.threads)
    elif options.step == "finetune":
        from tools.train_pocket.finetune import STEPS, finetune

        finetune(options.data, options.out, folder, options.steps or STEPS, options.seed, options.threads)
    elif options.step == "settle":
        from tools.train_pocket.finetune import SETTLE_STEPS, settle

        settle(options.data, options.out, folder, options.steps or SETTLE_STEPS, options.seed, options.threads)
    elif options.step == "export":
        from tools.train_pocket.export import export

        card = (Path(__file__).parent / "card.md").read_text(encoding="utf-8")
        export(options.out / "stage3" / "checkpoint.pt", folder, options.model, card)
    else:
        from tools.train_pocket.measure import measure

        measure(options.data, options.out, folder, options.model)


if __name__ == "__main__":
    main()
