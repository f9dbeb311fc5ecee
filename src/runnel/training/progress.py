"""Progress of a run: steps and tokens/s, metrics.jsonl, loss.png, and a check for NaN.

A loss or gradient that is not finite ends the run with an error that names the batch's rows; checkpoints are not touched.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from runnel.errors import NumericalError
from runnel.files import open_own, replacing, write
from runnel.training.checkpoints import find_whole_checkpoint

log = logging.getLogger("runnel")

METRICS, CURVE = "metrics.jsonl", "loss.png"
_DRAW_EVERY_S = 60
_NAMED = 8  # the most rows of a bad batch in the message

Show = Callable[[int, int, str | None], None]  # takes the units done, the units in total, and the speed in words or None


def _show_nothing(label: str, *, unit: str) -> AbstractContextManager[Show]:
    return nullcontext(lambda done, total, speed: None)


open_meter: Callable[..., AbstractContextManager[Show]] = _show_nothing  # the command line sets its own


@dataclass
class Watch:
    """Counts of one process: all tokens through the model, and the rows of the current step."""

    tokens: int = 0
    rows: list[str] = field(default_factory=list)

    def check(self, value: float | Tensor, what: str, args: TrainingArguments, state: TrainerState) -> None:
        """Raise NumericalError if the value is not finite."""
        if math.isfinite(float(value)):
            return
        rows = "; ".join(self.rows[:_NAMED]) + (f" and {len(self.rows) - _NAMED} more" if len(self.rows) > _NAMED else "")
        whole = find_whole_checkpoint(str(args.output_dir))
        kept = f"the checkpoint {whole} is complete" if whole else "there is no checkpoint yet"
        raise NumericalError(
            f"the {what} is {float(value)} in step {state.global_step + 1}; its batch was {rows or 'empty'}; {kept}. "
            "Check those rows, or train with a lower learning rate or in fp32"
        )


class Watched:
    """A mixin for Trainers that counts tokens, records rows and checks the loss of each batch, if `watch` is set."""

    watch: Watch | None = None

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Run the Trainer's step, and update `watch`."""
        if self.watch is None:
            step: Tensor = super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
            return step
        self.watch.rows += inputs.get("rows") or inputs.get("ids", [])
        self.watch.tokens += inputs.get("tokens", 0)
        self.watch.tokens += sum(int(value.sum()) for name, value in inputs.items() if name.endswith("attention_mask"))
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        self.watch.check(loss, "loss", self.args, self.state)  # type: ignore[attr-defined]
        return loss

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Run the Trainer's method without "rows", which it would take for a column."""
        inputs.pop("rows", None)
        return super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]


class Recorder(TrainerCallback):
    """A callback that writes metrics.jsonl and loss.png in the run folder, and shows progress.

    A line of metrics.jsonl has step, epoch, loss, learning_rate, grad_norm, tokens, tokens_per_s (over all processes) and
    seconds; a resumed run keeps the lines up to its checkpoint and appends to them.

    Args:
        folder: the run folder.
        watch: the counter of tokens.
    """

    def __init__(self, folder: Path, watch: Watch) -> None:
        self._folder, self._watch, self._shown = folder, watch, ExitStack()
        self._show: Show | None = None
        self._began, self._drawn, self._tokens_before, self._seconds_before = 0.0, 0.0, 0, 0.0
        self.rows: list[dict[str, Any]] = []  # lines of metrics.jsonl

    @property
    def seconds(self) -> float:
        """Training time, including earlier parts of a resumed run."""
        return self._seconds_before + time.monotonic() - self._began

    @property
    def tokens(self) -> int:
        """Tokens of this process, including earlier parts of a resumed run."""
        return self._tokens_before + self._watch.tokens

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Read the lines that an earlier part of the run wrote."""
        self._began = self._drawn = time.monotonic()
        if not state.is_world_process_zero:
            return
        self.rows = [row for row in read_metrics(self._folder) if row["step"] <= state.global_step]
        if self.rows:
            self._tokens_before = self.rows[-1]["tokens"] // max(args.world_size, 1)
            self._seconds_before = self.rows[-1]["seconds"]
        write(self._folder / METRICS, "".join(json.dumps(row) + "\n" for row in self.rows))
        self._show = self._shown.enter_context(open_meter("training", unit="steps"))

    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Check the gradient."""
        gradients = [p.grad for p in kwargs["model"].parameters() if p.grad is not None]
        self._watch.check(torch.nn.utils.get_total_norm(gradients) if gradients else 0.0, "gradient", args, state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Show the step."""
        self._watch.rows.clear()
        if self._show is not None:
            self._show(state.global_step, state.max_steps, f"{self._speed(args):,.0f} tokens/s")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write a line."""
        if not state.is_world_process_zero or not logs or "loss" not in logs:
            return
        row = {
            "step": state.global_step,
            **logs,
            "tokens": self.tokens * args.world_size,
            "tokens_per_s": round(self._speed(args), 1),
            "seconds": round(self.seconds, 3),
        }
        self.rows.append(row)
        with open_own(self._folder / METRICS) as file:
            file.write(json.dumps(row).encode() + b"\n")

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Draw the curve so far, at most once a minute."""
        if state.is_world_process_zero and time.monotonic() - self._drawn > _DRAW_EVERY_S:
            draw(self.rows, self._folder / CURVE)
            self._drawn = time.monotonic()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Draw the curve."""
        self.close()
        if state.is_world_process_zero:
            draw(self.rows, self._folder / CURVE)

    def close(self) -> None:
        """Stop showing progress."""
        self._shown.close()

    def _speed(self, args: TrainingArguments) -> float:
        return self._watch.tokens * args.world_size / max(time.monotonic() - self._began, 1e-9)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the lines of a run's metrics.jsonl, up to a line cut off by a crash."""
    rows: list[dict[str, Any]] = []
    path = folder / METRICS
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot loss and learning rate by step as a PNG; without matplotlib, log that instead."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        log.info("matplotlib is not installed, so %s is not drawn; run `pip install 'runnel[train]'`", path.name)
        return
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    steps = [row["step"] for row in rows]
    axes.plot(steps, [row["loss"] for row in rows], color="tab:blue", label="loss")
    axes.set(xlabel="step", ylabel="loss")
    rate = axes.twinx()
    rate.plot(steps, [row["learning_rate"] for row in rows], color="tab:gray", linewidth=0.8, linestyle="--")
    rate.set_ylabel("learning rate (dashed)")
    with replacing(path) as partial:
        figure.savefig(partial, format="png", dpi=120)


@contextmanager
def show_reading(characters: int) -> Iterator[Callable[[int], None]]:
    """Show progress while documents are read. Yields the function to call with the characters of each."""
    with open_meter("reading documents", unit="characters") as show:
        done = 0

        def advance(read: int) -> None:
            nonlocal done
            done += read
            show(done, characters, None)

        yield advance
