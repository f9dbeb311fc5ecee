"""The bases of the trainers: batches of documents, the mean loss over them, and the recall of sentences.

n  documents of a batch   S  sentences of a document
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput

from runnel.lab.training.batches import TokenBatches
from runnel.lab.training.progress import Watched

_MOST_KEPT = 0.995  # of the averaged weights in a step


class Documents(Protocol):
    """Training data of these trainers: items with their names. An item has `tokens`, which progress counts."""

    lengths: np.ndarray  # (n,) int64, by which batches are filled

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[str, Any]: ...


class DocumentTrainer(Watched, Trainer):
    """A Trainer whose module maps items to the loss of each document (n,) and the scores (S,) of its sentences.

    The loss of a step is the sum over its documents, on all devices, divided by the sum of their weights.
    """

    def __init__(
        self,
        module: nn.Module,
        args: TrainingArguments,
        train: Any,
        evaluation: Any,
        *,
        max_tokens: int,
        max_rows: int | None = None,
        top_k: Sequence[int] = (),
    ) -> None:
        self.top_k, self._max_tokens, self._max_rows = tuple(top_k), max_tokens, max_rows
        super().__init__(module, args, train_dataset=train, eval_dataset=evaluation)
        self.loss_is_scaled_for_ga = True  # by `get_batch_samples`

    def weight(self, item: Any) -> int:
        """Return the weight of a document in the mean loss."""
        return 1

    def recalls(self, scores: Any, item: Any) -> list[float] | None:
        """Return the recall at each of `top_k`, or None for a document without an answer."""
        return None

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self._loader(self.train_dataset, shuffle=True)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Return the batches of this process, in one order; `eval_dataset` replaces the Trainer's."""
        return self._loader(self.eval_dataset if eval_dataset is None else eval_dataset, shuffle=False)

    def _loader(self, data: Any, *, shuffle: bool) -> DataLoader[Any]:
        """Return a loader that is not prepared by accelerate, which would share the batches among the processes once more."""
        args = self.args
        batches = TokenBatches(
            data.lengths, self._max_tokens, seed=args.seed, shuffle=shuffle, max_rows=self._max_rows,
            world=args.world_size, rank=args.process_index,
        )  # fmt: skip
        workers = {name: getattr(args, f"dataloader_{name}") for name in ("num_workers", "persistent_workers", "prefetch_factor")}
        return _Loader(data, batch_sampler=batches, collate_fn=_Collate(data), **workers)

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], Tensor | int | None]:
        """Return the batches of a step, and the weight of all documents in them, over all devices."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        weight = torch.tensor(sum(self._weight(batch) for batch in batches), device=device)
        if self.args.world_size > 1:
            dist.all_reduce(weight)
        return batches, weight

    def _weight(self, batch: dict[str, Any]) -> int:
        return sum(self.weight(item) for item in batch["items"][: len(batch["ids"])])

    def share(self, inputs: dict[str, Any], weight: Any) -> Any:
        """Return the factor of a document's loss in the step, as DDP and FSDP want it: times the number of devices."""
        if not inputs["ids"]:  # documents that only fill an empty batch
            return 0.0
        return self.args.world_size / (self._weight(inputs) if weight is None else weight)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        losses, scores = model(inputs["items"])
        loss = losses.sum() * self.share(inputs, num_items_in_batch)
        return (loss, scores) if return_outputs else loss

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Return the mean loss, and the mean recall of the documents that have an answer."""
        model = self.model
        assert model is not None
        model.eval()
        sums = torch.zeros(4 + len(self.top_k), dtype=torch.float64, device=self.args.device)
        for batch in dataloader:
            with torch.no_grad():
                losses, scores = model(batch["items"])
            for loss, score, item in list(zip(losses, scores, batch["items"], strict=True))[: len(batch["ids"])]:
                found = self.recalls(score, item)
                counts = [1.0, self.weight(item), float(loss), float(found is not None)]
                sums += torch.tensor([*counts, *(found or [0.0] * len(self.top_k))]).to(sums)
            self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        if self.args.world_size > 1:
            dist.all_reduce(sums)
        documents, weight, loss, answered, *recalls = sums.tolist()
        metrics = {f"{metric_key_prefix}_loss": loss / max(weight, 1)}
        for k, total in zip(self.top_k, recalls, strict=True):
            metrics[f"{metric_key_prefix}_recall_at_{k}"] = total / max(answered, 1)
        return EvalLoopOutput(predictions=np.zeros(0), label_ids=None, metrics=metrics, num_samples=int(documents))


class AveragedTrainer(DocumentTrainer):
    """A Trainer of a part of a model, in batches of `args.per_device_train_batch_size` items that weigh the same."""

    def __init__(
        self,
        module: nn.Module,
        trained: nn.Module,
        args: TrainingArguments,
        train: Documents,
        evaluation: Documents | None,
        top_k: Sequence[int],
    ) -> None:
        self._weights, self._mean = trained, module.get_submodule("mean")
        super().__init__(module, args, train, evaluation, max_tokens=args.per_device_train_batch_size, top_k=top_k)
        self.add_callback(_Average(self._weights, self._mean))

    def finish(self, aside: Documents | None) -> None:
        """Set the trained part to the averaged weights, and calibrate its scores."""
        self._weights.load_state_dict(self._mean.state_dict())
        self.calibrate(aside)

    def calibrate(self, aside: Documents | None) -> None:
        """Calibrate the scores of the averaged weights, if they are a head."""


class _Average(TrainerCallback):
    def __init__(self, trained: nn.Module, mean: nn.Module) -> None:
        self._trained, self._mean = trained, mean

    @torch.no_grad()
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        keep = min(_MOST_KEPT, state.global_step / (state.global_step + 9))
        for mean, new in zip(self._mean.parameters(), self._trained.parameters(), strict=True):
            mean.mul_(keep).add_(new, alpha=1 - keep)


class _Loader(DataLoader[Any]):
    def set_epoch(self, epoch: int) -> None:
        batches = self.batch_sampler
        assert isinstance(batches, TokenBatches)
        batches.set_epoch(epoch)


class _Collate:
    """{"items": documents, "ids": their names, "tokens": their number, for counting}.

    For an empty batch, which other processes wait for: the shortest document, without a name.
    """

    def __init__(self, data: Documents) -> None:
        self._data = data

    def __call__(self, rows: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        items = [item for _, item in rows] or [self._data[int(self._data.lengths.argmin())][1]]
        return {"items": items, "ids": [name for name, _ in rows], "tokens": sum(item.tokens for _, item in rows)}
