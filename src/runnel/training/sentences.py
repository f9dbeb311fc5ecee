"""Training of sentence retrievers with transformers' Trainer: paper E's loss on packed batches with a token budget.

evidence examples -> SentenceData.write(...) -> SentenceTrainer(model, args, data, max_tokens=...).train()

n  documents of a batch   S  sentences of a document
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainingArguments

from runnel.errors import CheckpointError, InputError
from runnel.models.base import Model
from runnel.models.match import Item
from runnel.training.adapters import load_adapter, save_adapter
from runnel.training.batches import TokenBatches
from runnel.training.document_trainer import DocumentTrainer
from runnel.training.forward import (
    Long,
    SegmentScores,
    backward_by_segment,
    sentence_scores,
    trainable,
)
from runnel.training.losses import sentence_loss, sentence_weights
from runnel.training.sentence_table import SentenceData

_EVALUATION_SEGMENT = 4096  # tokens; without gradients, segments only limit memory


class SentenceModule(nn.Module):
    """The parameters of a model as a module for the Trainer. Only the backbone and the parts for sentence scores are trained."""

    def __init__(self, model: Model, long: Long) -> None:
        super().__init__()
        self.model, self.long = model, long
        self.backbone, self.heads = model.backbone, model.heads
        trainable(model)
        used = {"sentences", "features"} if model.head("sentences").matches else {"sentences"}
        for name, head in model.heads.items():
            head.requires_grad_(name in used)
        # FSDP's units: the mixers and feed-forward parts, which hold nearly all weights.
        called = {type(m).__name__ for m in self.backbone.modules() if any(isinstance(part, nn.Linear) for part in m.children())}
        self._no_split_modules = sorted(called)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all parts. A backbone sharded by FSDP is not prepared with kernels for evaluation."""
        if mode or not any(isinstance(parameter, DTensor) for parameter in self.parameters()):
            return super().train(mode)
        nn.Module.train(self.backbone, False)
        self.heads.eval()
        self.training = False
        return self

    def forward(self, items: Sequence[Item]) -> tuple[Tensor, list[Tensor]]:
        """Return the loss of each document (n,), and the scores (S,) of its sentences."""
        long = self.long
        if not torch.is_grad_enabled() and self.backbone.recurrent and long.segment_tokens is None:
            long = Long(segment_tokens=_EVALUATION_SEGMENT, bf16=long.bf16)
        with torch.autocast(self.backbone.device.type, enabled=False):  # the heads stay in fp32; `Long.bf16` is for the backbone
            scores = sentence_scores(self.model, items, long)
            losses = [
                sentence_loss(score[full], _labels(item, score.device)[full])
                for item, score in zip(items, scores, strict=True)
                for full in [torch.from_numpy(item.full).to(score.device)]
            ]
        return torch.stack(losses), scores


class SentenceTrainer(DocumentTrainer):
    """The Trainer for sentence retrievers. The loss of a step is the mean over its documents, on all devices.

    Batching, the number of devices and accumulation change only speed and memory, as long as the documents of a step are the
    same. Checkpoints are model folders with the Trainer's own files, which `SentenceRetriever.load` reads (for a model with
    adapters: the adapters and the heads); `train(resume_from_checkpoint=...)` gives the result of an uninterrupted run, see
    `find_whole_checkpoint`.

    Args:
        model: a model with a head "sentences". Its weights are trained in place, in fp32; `args.bf16` is autocast.
        args: the Trainer's. `per_device_train_batch_size` is not used.
        train, evaluation: documents. Evaluation measures the loss, and `recall_at_k`, the share of a document's positive
            sentences among the k best.
        max_tokens: budget of one batch on one device.
        max_rows: the most documents of a batch. For the same number of documents in every step, this must be the tighter
            limit.
        long: how documents are read (`bf16` is taken from `args`). With `gradient_segments` the backward pass runs while the
            document is read, in memory that does not grow with its length (not under FSDP, which needs a single pass).
        top_k: for `recall_at_k`.
        callbacks, optimizers: the Trainer's.

    Raises:
        CheckpointError: the model has no such head.
        InputError: `args.fp16` is set, or `args.fsdp` for a model with adapters.
    """

    def __init__(
        self,
        model: Model,
        args: TrainingArguments,
        train: SentenceData | None = None,
        evaluation: SentenceData | None = None,
        *,
        max_tokens: int,
        max_rows: int | None = None,
        long: Long | None = None,
        top_k: Sequence[int] = (10, 50),
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
    ) -> None:
        if args.fp16:
            raise InputError("the range of fp16 is too small for carried state; use bf16=True, or neither")
        self.runnel_model, self.top_k = model, tuple(top_k)
        self._max_tokens, self._max_rows = max_tokens, max_rows
        self._long = replace(long or Long(), bf16=args.bf16)
        if args.fsdp:
            if model.backbone.adapted:
                raise InputError("adapters are too small for FSDP to shard; turn `fsdp` off: every device then has all of them")
            _widen_scalars(model)
        super().__init__(
            SentenceModule(model, self._long),
            args,
            train_dataset=train,
            eval_dataset=evaluation,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        self.loss_is_scaled_for_ga = True  # by `get_batch_samples`

    def batches(self, data: Any, *, shuffle: bool) -> TokenBatches:
        """Return batches of at most `max_tokens` tokens and `max_rows` documents."""
        if not isinstance(data, SentenceData):
            raise InputError(f"training and evaluation need `SentenceData` (see `SentenceData.write`), got {data!r}")
        return TokenBatches(
            data.lengths,
            self._max_tokens,
            seed=self.args.seed,
            shuffle=shuffle,
            max_rows=self._max_rows,
            world=self.args.world_size,
            rank=self.args.process_index,
        )

    def recalls(self, scores: Tensor, item: Item) -> list[float] | None:
        """Return the share of the positive sentences among the k best, ties in document order; None without positives."""
        labels = _labels(item, scores.device)
        if not bool(labels.any()):
            return None
        ranked = labels[scores.argsort(descending=True, stable=True)]
        return [float(ranked[:k].sum() / labels.sum()) for k in self.top_k]

    # ---- loss --------------------------------------------------------------------------------------------------------

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The part of the step's loss that these documents make, as DDP and FSDP want it: times the number of devices.

        With truncated back-propagation the gradients are in place when this returns, and the Trainer's backward pass is empty.
        """
        if self._long.gradient_segments is not None and not self.is_fsdp_enabled:
            return self._run_backward(inputs["items"], self.share(inputs, num_items_in_batch)).requires_grad_()
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def _run_backward(self, items: Sequence[Item], share: Any) -> Tensor:
        """Compute the same loss (detached) and its gradients in the memory of a few segments."""
        device = self.args.device
        first = np.cumsum([0, *(len(item.full) for item in items)])  # of each document's sentences, in all of them
        labels = torch.cat([_labels(item, device) for item in items])
        weights = torch.zeros_like(labels)
        for item, start, stop in zip(items, first[:-1], first[1:], strict=True):
            full = torch.from_numpy(item.full).to(device)
            weights[start:stop][full] = sentence_weights(labels[start:stop][full])

        def weighted(piece: SegmentScores) -> Tensor:
            at = torch.from_numpy(first[piece.item] + piece.sentence).to(device)
            return F.binary_cross_entropy_with_logits(piece.scores, labels[at], weight=weights[at], reduction="sum") * share

        total = backward_by_segment(self.runnel_model, items, weighted, self._long)
        if self.args.world_size > 1 and self.accelerator.sync_gradients:
            # DDP reduces gradients only in the first backward pass after its forward pass; here are several
            assert self.model is not None
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= self.args.world_size
        return total

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """Write a model folder, or adapters and heads. `state_dict` comes from FSDP, which shards parameters over devices."""
        if not self.args.should_save:
            return
        folder = output_dir or str(self.args.output_dir)
        if self.runnel_model.backbone.adapted:
            save_adapter(self.runnel_model, folder)
        else:
            model = self.runnel_model if state_dict is None else _gathered(self.runnel_model, state_dict)
            model.save(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load the weights of a checkpoint, which must be exactly the model's."""
        if self.is_fsdp_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        if self.runnel_model.backbone.adapted:
            load_adapter(self.runnel_model, resume_from_checkpoint)
            return
        path = Path(resume_from_checkpoint) / "model.safetensors"
        if not path.is_file():
            raise CheckpointError(f"{resume_from_checkpoint} is not a checkpoint of this run: it has no model.safetensors")
        module = model or self.model
        assert module is not None
        try:
            module.load_state_dict(load_file(path))
        except RuntimeError as error:
            raise CheckpointError(
                f"{resume_from_checkpoint} is a checkpoint of another model than the one to be trained "
                f"({self.runnel_model.backbone.title}): {str(error).splitlines()[1].strip()[:200]}; use another run folder"
            ) from error


def _gathered(model: Model, tensors: dict[str, Tensor]) -> Model:
    """Return the model with these tensors ("backbone.*", "heads.*") in place of FSDP's shards, for saving."""
    with torch.device("meta"):
        backbone = type(model.backbone)(model.backbone.config)  # type: ignore[call-arg]  # each architecture takes its config
    heads = copy.deepcopy(model.heads)
    for part, prefix in ((backbone, "backbone."), (heads, "heads.")):
        own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        part.load_state_dict(own, assign=True)
    return replace(model, backbone=backbone, heads=heads)


def _widen_scalars(model: Model) -> None:
    """Reshape scalar parameters to (1,), as FSDP cannot shard scalars. Files with either shape load into both."""
    for part in [*model.backbone.modules(), *model.heads.modules()]:
        for name, parameter in list(part.named_parameters(recurse=False)):
            if parameter.ndim == 0:
                setattr(part, name, nn.Parameter(parameter.detach().reshape(1)))


def _labels(item: Item, device: torch.device) -> Tensor:
    """Return the labels (S,) fp32."""
    if item.labels is None:
        raise InputError("an item without labels cannot be trained on; give `make_item` the labels of its sentences")
    return torch.from_numpy(item.labels).to(device)
