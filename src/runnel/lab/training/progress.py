"""Watch a run: add tokens and seconds to the logs of the Trainer, stop with an error when a loss or
a gradient is NaN, and find complete checkpoints.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from runnel.errors import NumericalError
from runnel.jobs.progress import notify
from runnel.request import Progress

STATE = "trainer_state.json"
_NAMED = 8  # the most rows of a bad batch that an error names


def find_whole_checkpoint(folder: str | Path) -> Path | None:
    """Return the newest complete checkpoint, or None; newer incomplete ones are skipped with a
    warning.

    The first process writes `trainer_state.json` last, after all files of all processes
    (`Watched._save_rng_state`), and removes older checkpoints only after that: so a checkpoint with
    a readable one is complete, and a run stopped while writing a checkpoint still has the previous
    one.
    """
    paths = {
        int(number): path
        for path in Path(folder).glob("checkpoint-*")
        if (number := path.name.removeprefix("checkpoint-")).isdecimal() and path.is_dir()
    }
    for step, path in sorted(paths.items(), reverse=True):
        try:
            state = json.loads((path / STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            state = None
        if isinstance(state, dict) and state.get("global_step") == step:
            return path
        notify(f"{path} is incomplete (its {STATE} is missing or damaged) and is skipped")
    return None


@dataclass
class Watch:
    """Counts of one process: all tokens through the model, the rows of the current step, and the
    time that the run began.
    """

    tokens: int = 0
    rows: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic, compare=False)

    def begin(self, earlier: Sequence[Mapping[str, float]], processes: int) -> None:
        """Continue from the counts that an earlier part of the run logged, of which this process
        takes an equal part.
        """
        last = earlier[-1] if earlier else {"tokens": 0, "seconds": 0.0}
        self.tokens = int(last["tokens"]) // processes
        self.began = time.monotonic() - last["seconds"]

    def throughput(self, processes: int) -> dict[str, Any]:
        """Return the counts of the whole run: tokens, and how fast. All processes are taken to have
        read as many tokens as this one.
        """
        tokens = self.tokens * processes
        seconds = time.monotonic() - self.began
        return {
            "tokens": tokens,
            "tokens_per_s": round(tokens / max(seconds, 1e-9), 1),
            "seconds": round(seconds, 3),
        }

    def check(
        self, value: float | Tensor, what: str, args: TrainingArguments, state: TrainerState
    ) -> None:
        """Raise NumericalError if the value is not finite."""
        if math.isfinite(float(value)):
            return
        rows = "; ".join(self.rows[:_NAMED]) or "empty"
        if len(self.rows) > _NAMED:
            rows += f" and {len(self.rows) - _NAMED} more"
        path = find_whole_checkpoint(str(args.output_dir))
        saved = f"the checkpoint {path} is complete" if path else "there is no checkpoint yet"
        raise NumericalError(
            f"the {what} is {float(value)} in step {state.global_step + 1}; its batch was {rows};"
            f" {saved}. Check those rows, or train with a lower learning rate or in fp32"
        )


class Watched(Trainer):
    """A Trainer that counts and logs tokens, records rows, checks the loss of each batch, and
    prints nothing.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.watch = Watch()
        super().__init__(*args, **kwargs)
        self.remove_callback(PrinterCallback)  # it prints every log on stdout

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        # 1. Count the rows and the tokens of the batch. Rows are named by "rows" or, by a
        # `DocumentTrainer`, "ids"; tokens are its "tokens" or, of an embedder, in attention masks.
        # (A reranker's are counted when its loss reads the pairs: `trainers`.)
        self.watch.rows += inputs.get("rows") or inputs.get("ids", [])
        self.watch.tokens += inputs.get("tokens", 0)
        masks = (values for name, values in inputs.items() if name.endswith("attention_mask"))
        self.watch.tokens += sum(int(mask.sum()) for mask in masks)
        # 2. Run the model, and add to the gradients (`compute_loss`, then backward).
        loss = super().training_step(model, inputs, num_items_in_batch)
        # 3. Check the loss; `Recorder` checks the gradients before the optimizer's step.
        self.watch.check(loss, "loss", self.args, self.state)
        return loss

    def get_batch_samples(
        self, epoch_iterator: Iterator[object], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], Tensor | int | None]:
        """Read no batch after the last step: the Trainer takes one more when it resumes from the
        checkpoint of the last.
        """
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            num_batches = 0
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs.update(self.watch.throughput(self.args.world_size))
        super().log(logs, start_time)

    def _save_rng_state(self, output_dir: str) -> None:
        """Wait until each process has written its last file of the checkpoint: the Trainer alone
        lets the first process call a checkpoint complete while others still write.
        """
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, Any]:
        """Run the Trainer's method without "rows", which it would take for a column."""
        inputs.pop("rows", None)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


class Recorder(TrainerCallback):
    """A callback that checks gradients and shows progress."""

    def __init__(self, watch: Watch, show: Progress) -> None:
        self._watch = watch
        self._show = show

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Begin to count, from the counts of the checkpoint that a run resumes from."""
        self._watch.begin(logged_steps(state.log_history), args.world_size)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        gradients = [p.grad for p in kwargs["model"].parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients) if gradients else 0.0
        self._watch.check(norm, "gradient", args, state)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        self._watch.rows.clear()
        self._show(state.global_step, state.max_steps)


def logged_steps(history: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Return the logs of a Trainer's steps: step, epoch, loss, learning_rate, grad_norm, tokens,
    tokens_per_s and seconds.
    """
    return [row for row in history if "loss" in row]
