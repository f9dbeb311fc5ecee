"""Progress of a run: tokens and seconds in what the Trainer logs, loss.png, and an error for a loss
or gradient that is NaN.
"""

import json
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from runnel.errors import NumericalError
from runnel.files import replacing
from runnel.request import Progress

log = logging.getLogger("runnel")

STATE = "trainer_state.json"
CURVE = "loss.png"
_NAMED = 8  # the most rows of a bad batch in the message


def find_whole_checkpoint(folder: str | Path) -> Path | None:
    """Return the newest complete checkpoint, or None; newer incomplete ones are skipped with a
    warning.
    """
    return next((path for _, path in whole_checkpoints(folder)), None)


def whole_checkpoints(folder: str | Path) -> Iterator[tuple[int, Path]]:
    """Yield the steps and folders of complete checkpoints, newest first; incomplete ones are
    skipped with a warning.

    The Trainer writes `trainer_state.json` last, and removes older checkpoints only after that: so
    a checkpoint with a readable one is complete, and a run stopped while writing a checkpoint still
    has the previous one.
    """
    paths = {
        path.name.removeprefix("checkpoint-"): path
        for path in Path(folder).glob("checkpoint-*")
        if path.is_dir()
    }
    for step, path in sorted(
        ((int(step), path) for step, path in paths.items() if step.isdecimal()), reverse=True
    ):
        try:
            state = json.loads((path / STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            state = None
        if isinstance(state, dict) and state.get("global_step") == step:
            yield step, path
        else:
            log.warning(
                "%s is incomplete (its %s is missing or damaged) and is skipped", path, STATE
            )


@dataclass
class Watch:
    """Counts of one process: all tokens through the model, the rows of the current step, and the
    time that the run began.
    """

    tokens: int = 0
    rows: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic, compare=False)

    def begin(self, earlier: Sequence[dict[str, Any]], processes: int) -> None:
        """Go on from the counts of an earlier part of the run."""
        last: dict[str, Any] = earlier[-1] if earlier else {"tokens": 0, "seconds": 0.0}
        self.tokens, self.began = last["tokens"] // processes, time.monotonic() - last["seconds"]

    def figures(self, processes: int) -> dict[str, Any]:
        """Return tokens, tokens_per_s and seconds of the whole run, all processes together."""
        tokens, seconds = self.tokens * processes, time.monotonic() - self.began
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
        rows = "; ".join(self.rows[:_NAMED]) + (
            f" and {len(self.rows) - _NAMED} more" if len(self.rows) > _NAMED else ""
        )
        whole = find_whole_checkpoint(str(args.output_dir))
        kept = f"the checkpoint {whole} is complete" if whole else "there is no checkpoint yet"
        raise NumericalError(
            f"the {what} is {float(value)} in step {state.global_step + 1}; its batch was"
            f" {rows or 'empty'}; {kept}. Check those rows, or train with a lower learning rate or"
            " in fp32"
        )


class Watched:
    """A mixin for Trainers that counts and logs tokens, records rows, checks the loss of each
    batch, and prints nothing.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.watch = Watch()
        super().__init__(*args, **kwargs)
        self.remove_callback(PrinterCallback)  # type: ignore[attr-defined]  # it prints every log on stdout

    def training_step(
        self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        self.watch.rows += inputs.get("rows") or inputs.get("ids", [])
        self.watch.tokens += inputs.get("tokens", 0)
        self.watch.tokens += sum(
            int(value.sum()) for name, value in inputs.items() if name.endswith("attention_mask")
        )
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        self.watch.check(loss, "loss", self.args, self.state)  # type: ignore[attr-defined]
        return loss

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Read no batch after the last step: the Trainer takes one more when it resumes from the
        checkpoint of the last.
        """
        if self.state.global_step >= self.state.max_steps:  # type: ignore[attr-defined]
            self.control.should_training_stop, num_batches = True, 0  # type: ignore[attr-defined]
        samples: tuple[list[Any], Any] = super().get_batch_samples(
            epoch_iterator, num_batches, device
        )  # type: ignore[misc]
        return samples

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs.update(self.watch.figures(self.args.world_size))  # type: ignore[attr-defined]
        super().log(logs, start_time)  # type: ignore[misc]

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Run the Trainer's method without "rows", which it would take for a column."""
        inputs.pop("rows", None)
        return super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]


class Recorder(TrainerCallback):
    """A callback that checks gradients, shows progress, and draws loss.png in the run folder with
    each checkpoint.
    """

    def __init__(self, folder: Path, watch: Watch, show: Progress) -> None:
        self._folder, self._watch, self._show = folder, watch, show

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin to count, from the counts of the checkpoint that a run resumes from."""
        self._watch.begin(logged_steps(state.log_history), args.world_size)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        gradients = [p.grad for p in kwargs["model"].parameters() if p.grad is not None]
        self._watch.check(
            torch.nn.utils.get_total_norm(gradients) if gradients else 0.0, "gradient", args, state
        )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._watch.rows.clear()
        self._show(state.global_step, state.max_steps)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            draw(logged_steps(state.log_history), self._folder / CURVE)


def logged_steps(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what a Trainer logged of steps: step, epoch, loss, learning_rate, grad_norm, tokens,
    tokens_per_s and seconds.
    """
    return [row for row in history if "loss" in row]


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot loss and learning rate by step as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    steps = [row["step"] for row in rows]
    axes.plot(steps, [row["loss"] for row in rows], color="tab:blue", label="loss")
    axes.set(xlabel="step", ylabel="loss")
    rate = axes.twinx()
    rate.plot(
        steps,
        [row["learning_rate"] for row in rows],
        color="tab:gray",
        linewidth=0.8,
        linestyle="--",
    )
    rate.set_ylabel("learning rate (dashed)")
    with replacing(path) as partial:
        figure.savefig(partial, format="png", dpi=120)
