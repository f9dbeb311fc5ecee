"""What both stages share: the optimizer, its schedule, checkpoints that resume exactly, and the log line.

A step is cut into parts, each a batch of its own. Threads with one core each take the parts in turn and the gradients are
added in the order of the parts: faster than sharing every operation among the cores, most of all on a machine that has
other work to do, and the sum does not depend on which thread was quicker.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor, nn

from tools.train_pocket.student import Pocket

log = logging.getLogger(__name__)
Outcome = tuple[Tensor, int, dict[str, float]]  # loss, tokens, figures to log
Part = Callable[[], Outcome]
_SAVE_EVERY = 120.0  # seconds


def optimizer(model: Pocket, rates: dict[str, float]) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between layers, AdamW for the rest. `rates`: "matrices", "embeddings", "heads", "other"."""
    groups: dict[str, list[nn.Parameter]] = {"matrices": [], "embeddings": [], "heads": [], "other": []}
    for name, value in model.named_parameters():
        if name.endswith(("in_proj.weight", "out_proj.weight")):
            groups["matrices"].append(value)
        elif name.startswith("backbone.embeddings"):
            groups["embeddings"].append(value)
        else:
            groups["other" if name.startswith(("backbone", "embedder")) else "heads"].append(value)
    adam = [{"params": groups[k], "lr": rates[k], "base": rates[k]} for k in ("embeddings", "heads", "other")]
    matrices = [{"params": groups["matrices"], "lr": rates["matrices"], "base": rates["matrices"]}]
    muon = torch.optim.Muon(matrices, weight_decay=0.01, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    return [torch.optim.AdamW(adam, betas=(0.9, 0.98), weight_decay=0.01, fused=True), muon]


def schedule(done: float, warm: float, floor: float) -> float:
    """Factor on the learning rates when the fraction `done` of the run is over: a linear rise, then half a cosine."""
    return min(1.0, (done + 1e-6) / warm) * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


class Run:
    """A training run of `steps` steps. `batch(step)` must depend on the step alone, so that a resumed run is the same run."""

    def __init__(
        self, model: Pocket, rates: dict[str, float], steps: int, folder: Path, *, warm: float = 0.03, floor: float = 0.02
    ) -> None:
        self.model, self.steps, self.folder, self.warm, self.floor = model, steps, folder, warm, floor
        self.optimizers = optimizer(model, rates)
        self.step = 0
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    def resume(self) -> None:
        if self.checkpoint.exists():
            saved = torch.load(self.checkpoint)
            self.model.load_state_dict(saved["model"])
            for one, state in zip(self.optimizers, saved["optimizers"], strict=True):
                one.load_state_dict(state)
            self.step = saved["step"]
            log.info("resumed at step %d", self.step)

    def save(self) -> None:
        partial = self.checkpoint.with_suffix(".partial")
        saved = {"model": self.model.state_dict(), "optimizers": [o.state_dict() for o in self.optimizers], "step": self.step}
        torch.save(saved, partial)
        partial.replace(self.checkpoint)

    def train(self, parts: Callable[[int], Sequence[Part]], threads: int) -> None:
        """`parts(step)` gives the parts of a step; its loss is their mean."""
        self.resume()
        saved = logged = time.perf_counter()
        tokens, averages = 0, _Averages()
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            while self.step < self.steps:
                for one in self.optimizers:
                    for group in one.param_groups:
                        group["lr"] = group["base"] * schedule(self.step / self.steps, self.warm, self.floor)
                for count, figures in self._gradients(pool, parts(self.step)):
                    tokens += count
                    averages.add(figures)
                for one in self.optimizers:
                    one.step()
                self.step += 1
                now = time.perf_counter()
                if self.step % 20 == 0:
                    log.info("step %d of %d, %s, %.0f tokens/s", self.step, self.steps, averages, tokens / (now - logged))
                    logged, tokens = now, 0
                if now - saved > _SAVE_EVERY:
                    self.save()
                    saved = now
        self.save()

    def _gradients(self, pool: ThreadPoolExecutor, parts: Sequence[Part]) -> list[tuple[int, dict[str, float]]]:
        """Set every parameter's gradient to the clipped mean over the parts."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]

        def work(part: Part) -> tuple[tuple[Tensor | None, ...], int, dict[str, float]]:
            loss, tokens, figures = part()
            return torch.autograd.grad(loss / len(parts), parameters, allow_unused=True), tokens, figures

        for parameter in parameters:
            parameter.grad = None
        outcomes = []
        for gradients, tokens, figures in pool.map(work, parts):
            outcomes.append((tokens, figures))
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        if not bool(torch.isfinite(norm)):
            raise ArithmeticError(f"the gradient is not finite at step {self.step}")
        return outcomes


class _Averages:
    """Running averages of logged figures."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def add(self, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            before = self.values.get(name)
            self.values[name] = value if before is None else 0.97 * before + 0.03 * value

    def __str__(self) -> str:
        return ", ".join(f"{k} {v:.3f}" for k, v in self.values.items())
