"""Training of recurrent language models to reply, with transformers' Trainer: cross entropy of the replies' tokens.

exchanges -> CompletionData.write(...) -> GeneratorTrainer(model, args, data, max_tokens=...).train()

n  completions of a batch   P  tokens of their replies   D  width of hidden vectors   V  rows of the LM head
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from runnel.models.base import Model
from runnel.models.heads import LmHead
from runnel.models.language_model import embedding_table, lm_head
from runnel.training.completions import Completion, CompletionData
from runnel.training.packed_trainer import ModelModule, PackedTrainer
from runnel.training.segments import Long, StepResult, gather, read

_LOGITS = 256  # tokens whose logits are in memory at a time: 50 MB each for logits and their gradient with 50,000 rows


def token_losses(head: LmHead, table: Tensor, hidden: Tensor, targets: Tensor) -> Tensor:
    """Return the negative log likelihood of each target token (P,) after its hidden vector (P, D).

    Only a few tokens have logits at a time; the backward pass computes them again.

    Args:
        table: (V, D) the embedding table, which a tied head uses.
    """
    pieces = zip(hidden.split(_LOGITS), targets.split(_LOGITS), strict=True)
    return torch.cat([checkpoint(_token_losses, head, table, *piece, use_reentrant=False) for piece in pieces])


def _token_losses(head: LmHead, table: Tensor, hidden: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(head(hidden, table), targets, reduction="none")


class GeneratorModule(ModelModule):
    """The parameters of a model as a module for the Trainer: the backbone and the LM head are trained."""

    def __init__(self, model: Model, long: Long) -> None:
        super().__init__(model, long, ("generate",))

    def forward(self, items: Sequence[Completion]) -> tuple[Tensor, list[tuple[()]]]:
        """Return the loss of each completion (n,), summed over its reply, and no scores."""
        parts = list(read(self.model, [item.request for item in items], self.long))
        each = self.losses(items, parts, np.arange(sum(len(item.targets) for item in items)))
        owner = torch.from_numpy(np.repeat(np.arange(len(items)), [len(item.targets) for item in items]))
        return each.new_zeros(len(items)).index_add(0, owner.to(each.device), each), [()] * len(items)

    def losses(self, items: Sequence[Completion], parts: Sequence[StepResult], chosen: np.ndarray) -> Tensor:
        """Return the losses (p,) of tokens of the replies, by their numbers (p,) over all items; all are in `parts`."""
        device = self.backbone.device
        targets = torch.from_numpy(np.concatenate([item.targets for item in items])[chosen]).to(device)
        places = torch.from_numpy(chosen).to(device)
        with torch.autocast(device.type, enabled=False):  # the head stays in fp32; `Long.bf16` is for the backbone
            hidden, _ = gather(parts, places, places[:0])
            return token_losses(lm_head(self.model), embedding_table(self.backbone), hidden, targets)


class GeneratorTrainer(PackedTrainer):
    """The Trainer for recurrent language models that reply.

    The loss of a step is the mean over the tokens of its replies, end markers included, on all devices. A checkpoint is read by
    `LanguageModel.load`.

    Source: paper E, sections 7.3 and 7.4, a conditional language modeling objective.

    Args:
        model: a model with a head "generate", from `load_generator`.
        others: see `PackedTrainer`, whose errors are raised.
    """

    data = CompletionData

    def module(self, model: Model, long: Long) -> GeneratorModule:
        """Return the module that is trained."""
        return GeneratorModule(model, long)

    def weight(self, item: Completion) -> int:
        """Return the number of tokens of the reply: each token weighs the same."""
        return len(item.targets)

    def recalls(self, scores: object, item: Completion) -> None:
        """Return None: a reply has no recall."""

    def run_backward(self, items: Sequence[Completion], share: float) -> Tensor:
        """Compute the loss and its gradients; see the base."""
        module, each = self.trained, self._long.gradient_segments
        assert isinstance(module, GeneratorModule) and each is not None
        total = torch.zeros((), device=module.backbone.device)
        parts: list[StepResult] = []
        longest = max(item.tokens for item in items)
        last = -(-longest // (self._long.segment_tokens or longest)) - 1
        for part in read(self.runnel_model, [item.request for item in items], self._long):
            parts.append(part)
            if (part.step + 1) % each and part.step < last:
                continue
            chosen = torch.cat([one.picked for one in parts]).sort().values.cpu().numpy()  # the state is cut here
            if len(chosen):
                loss = module.losses(items, parts, chosen).sum() * share
                loss.backward()
                total = total + loss.detach()
            parts = []
        return total
