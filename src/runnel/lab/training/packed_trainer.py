"""The base of the trainers of a whole model: items are read in packed rows with a token budget, long ones in segments.

n  items of a batch
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import TrainingArguments

from runnel.errors import CheckpointError
from runnel.lab.training.document_trainer import DocumentTrainer
from runnel.lab.training.forward import trainable
from runnel.models.adapters import load_adapter, save_adapter
from runnel.models.base import Model
from runnel.models.graph import Long

_EVALUATION_SEGMENT = 4096  # tokens; without gradients, segments only limit memory


class ModelModule(nn.Module):
    """The parameters of a model as a module for the Trainer. Its `forward` maps items to their losses (n,) and scores."""

    def __init__(self, model: Model, long: Long, heads: Collection[str]) -> None:
        super().__init__()
        self.model, self._long = model, long
        self.backbone, self.heads = model.backbone, model.heads
        trainable(model)
        for name, head in model.heads.items():
            head.requires_grad_(name in heads)
        # FSDP's units: the mixers and feed-forward parts, which hold nearly all weights.
        called = {type(m).__name__ for m in self.backbone.modules() if any(isinstance(part, nn.Linear) for part in m.children())}
        self._no_split_modules = sorted(called)

    @property
    def long(self) -> Long:
        """How items are read now."""
        if not torch.is_grad_enabled() and self.backbone.recurrent and self._long.segment_tokens is None:
            return Long(segment_tokens=_EVALUATION_SEGMENT, bf16=self._long.bf16)
        return self._long

    @abstractmethod
    def pieces(self, items: Sequence[Any]) -> Iterator[Tensor]:
        """Yield the items' loss in parts, each in the memory of `gradient_segments`; run each backward before the next."""

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all parts. A backbone sharded by FSDP is not prepared with kernels for evaluation."""
        if mode or not any(isinstance(parameter, DTensor) for parameter in self.parameters()):
            return super().train(mode)
        nn.Module.train(self.backbone, False)
        self.heads.eval()
        self.training = False
        return self


class PackedTrainer(DocumentTrainer):
    """A Trainer of a whole model on items that are read in packed rows.

    Batching, devices and accumulation change only speed and memory, as long as the items of a step are the same. Checkpoints are
    model folders with the Trainer's own files (for a model with adapters: the adapters and the heads).
    """

    module: ClassVar[type[Any]]  # a `ModelModule`, made of a model and `Long`: what is trained

    def __init__(
        self,
        model: Model,
        args: TrainingArguments,
        train: Any = None,
        evaluation: Any = None,
        *,
        long: Long | None = None,
        **others: Any,
    ) -> None:
        self.runnel_model = model
        self._long = replace(long or Long(), bf16=args.bf16)
        if args.fsdp:
            _widen_scalars(model)
        self.trained: ModelModule = self.module(model, self._long)
        super().__init__(self.trained, args, train, evaluation, **others)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The part of the step's loss that these items make, as DDP and FSDP want it: times the number of devices.

        With truncated back-propagation the gradients are in place when this returns, and the Trainer's backward pass is empty.
        """
        if self._long.gradient_segments is not None and not self.is_fsdp_enabled:
            share, total = self.share(inputs, num_items_in_batch), torch.zeros((), device=self.args.device)
            for loss in self.trained.pieces(inputs["items"]):
                (loss * share).backward()
                total = total + loss.detach() * share
            self._reduce_gradients()
            return total.requires_grad_()
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def _reduce_gradients(self) -> None:
        """Average the gradients over devices: DDP does so only in the first backward pass after its forward pass."""
        if self.args.world_size == 1 or not self.accelerator.sync_gradients:
            return
        assert self.model is not None
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                dist.all_reduce(parameter.grad)
                parameter.grad /= self.args.world_size

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
