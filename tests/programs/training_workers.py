"""Training runs of several processes that work together: python training_workers.py FOLDER."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType, FullyShardedDataParallelPlugin, PartialState
from helpers.evidence_examples import arguments
from helpers.tiny import tiny_model
from transformers import Trainer

from runnel.lab.training.document_trainer import SentenceTrainer
from runnel.lab.training.tables import SentenceData
from runnel.models.graph import Long
from runnel.ops import backend

# A high rate: what the gradients were shows in the weights.
ONE_STEP: dict[str, Any] = {"max_steps": 1, "optim": "sgd", "learning_rate": 0.5}


def shard(trainer: Trainer) -> None:
    """FSDP2 as `TrainingArguments(fsdp=True)` gives it on accelerators; on the CPU accelerate would leave it out.

    The CPU kernels are out of its reach: numpy's view of a weight pins memory that FSDP wants to free.
    """
    backend._cpu_problem = lambda operator, x: "FSDP frees weights"
    state = trainer.accelerator.state
    state.fsdp_plugin = FullyShardedDataParallelPlugin(**trainer.args.fsdp_plugin_args)
    state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
    trainer.is_fsdp_enabled = True


def documents(folder: Path, kind: str) -> None:
    """One step of a sentence retriever over all of train.arrow; `kind` is how: "plain", "truncated" or "sharded"."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    model = tiny_model(folder / f"start-{os.environ.get('RANK', '0')}")
    data = SentenceData(model, folder / "train.arrow")
    long = {"truncated": Long(segment_tokens=24, gradient_segments=1), "sharded": Long(recompute=True)}.get(kind)
    fsdp: dict[str, Any] = {"fsdp": True} if kind == "sharded" and world > 1 else {}
    args = arguments(folder / f"{kind}-{world}", **ONE_STEP, **fsdp, gradient_accumulation_steps=50)
    trainer = SentenceTrainer(model, args, data, data, max_tokens=150, long=long)
    if fsdp:
        shard(trainer)
    trainer.train()
    measured = trainer.evaluate()
    trainer.save_model(str(args.output_dir))
    if trainer.is_world_process_zero():
        row = next(row for row in trainer.state.log_history if "loss" in row)
        text = json.dumps([row["loss"], row["grad_norm"], measured["eval_loss"], measured["eval_recall_at_10"]])
        (Path(str(trainer.args.output_dir)) / "figures.json").write_text(text)


def together(folder: Path) -> None:
    """Every kind of run; the last one changes what accelerate takes this machine for."""
    torch.set_num_threads(1)
    for kind in ("plain", "truncated", "sharded"):
        documents(folder, kind)


if __name__ == "__main__":
    together(Path(sys.argv[1]))
