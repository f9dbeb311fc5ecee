"""Training runs as programs of their own, to be killed or to work together: python training_workers.py JOB FOLDER."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType, FullyShardedDataParallelPlugin, PartialState
from datasets import Dataset
from helpers.evidence_examples import arguments, examples
from helpers.tiny import tiny_model
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import Trainer, TrainerCallback

from runnel.integrations.sentence_transformers import sentence_transformer
from runnel.lab.training.document_trainer import SentenceTrainer
from runnel.lab.training.progress import find_whole_checkpoint
from runnel.lab.training.tables import SentenceData
from runnel.models.graph import Long
from runnel.ops import backend

# A high rate: what the gradients were shows in the weights.
ONE_STEP: dict[str, Any] = {"max_steps": 1, "optim": "sgd", "learning_rate": 0.5}


class Losses(TrainerCallback):
    """Appends the loss of each step to a file, at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "loss" in logs:
            with self.path.open("a") as file:
                file.write(json.dumps([state.global_step, logs["loss"], logs["grad_norm"], logs["learning_rate"]]) + "\n")


def resumable(folder: Path, **changes: Any) -> SentenceTrainer:
    """Three epochs of shuffled batches, with a schedule and a checkpoint after every third step."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_model(folder / "start")
    data = SentenceData.write(folder / "train.arrow", model, examples(30, sentences=(4, 9)), tokens=(30, 60), seed=1)
    settings: dict[str, Any] = {"num_train_epochs": 3, "gradient_accumulation_steps": 2, "warmup_steps": 2}
    settings |= {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-3}}
    settings |= {"save_strategy": "steps", "save_steps": 3, "save_total_limit": 1}
    trainer = SentenceTrainer(model, arguments(folder / "run", **(settings | changes)), data, max_tokens=150)
    trainer.add_callback(Losses(folder / "losses.jsonl"))
    return trainer


def go_on(folder: Path, **changes: Any) -> None:
    """Start the run, or go on with it."""
    whole = find_whole_checkpoint(folder / "run")
    resumable(folder, **changes).train(resume_from_checkpoint=str(whole) if whole else None)


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
    written(trainer, [measured["eval_loss"], measured["eval_recall_at_10"]])


def contrast(folder: Path, kind: str) -> None:
    """One step of an embedder over eight pairs, each with the documents of all as negatives, on whatever processes they are."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    model = sentence_transformer(tiny_model(folder / f"start-{os.environ.get('RANK', '0')}"))
    given = examples(8, sentences=(4, 9))
    pairs = Dataset.from_dict({"anchor": [e.query for e in given], "positive": [e.document for e in given]})
    args = arguments(
        folder / f"{kind}-{world}", SentenceTransformerTrainingArguments, **ONE_STEP, per_device_train_batch_size=8 // world
    )
    loss = MultipleNegativesRankingLoss(model, gather_across_devices=world > 1)
    trainer = SentenceTransformerTrainer(model, args, train_dataset=pairs, loss=loss)
    trainer.train()
    trainer.save_model(str(args.output_dir))
    written(trainer, [])


def written(trainer: Trainer, figures: list[float]) -> None:
    """Keep the loss, the norm of the gradient and the figures; the model lies beside them."""
    if trainer.is_world_process_zero():
        row = next(row for row in trainer.state.log_history if "loss" in row)
        text = json.dumps([row["loss"], row["grad_norm"], *figures])
        (Path(str(trainer.args.output_dir)) / "figures.json").write_text(text)


def together(folder: Path) -> None:
    """Every kind of run; the last one changes what accelerate takes this machine for."""
    torch.set_num_threads(1)
    contrast(folder, "contrast")
    for kind in ("plain", "truncated", "sharded"):
        documents(folder, kind)


if __name__ == "__main__":
    {"resumable": go_on, "together": together}[sys.argv[1]](Path(sys.argv[2]))
