"""Training of sentence retrievers with transformers' Trainer: paper E's loss on packed batches with a token budget.

n  documents of a batch   S  sentences of a document
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from runnel.lab.training.document_trainer import ModelModule, PackedTrainer, sentence_loss, sentence_weights
from runnel.lab.training.forward import sentence_scores, sentence_segments
from runnel.models.base import Model
from runnel.models.graph import Long
from runnel.models.items import Item


class SentenceModule(ModelModule):
    """The parameters of a model as a module for the Trainer. Only the backbone and the parts for sentence scores are trained."""

    def __init__(self, model: Model, long: Long) -> None:
        super().__init__(model, long, ("sentences", *["features"] * (model.head("sentences").inputs == "matches")))

    def forward(self, items: Sequence[Item]) -> tuple[Tensor, list[Tensor]]:
        """Return the loss of each document (n,), and the scores (S,) of its sentences."""
        with torch.autocast(self.backbone.device.type, enabled=False):  # the heads stay in fp32; `Long.bf16` is for the backbone
            scores = sentence_scores(self.model, items, self.long)
            losses = [
                sentence_loss(score[full], _labels(item, score.device)[full])
                for item, score in zip(items, scores, strict=True)
                for full in [torch.from_numpy(item.full).to(score.device)]
            ]
        return torch.stack(losses), scores

    def pieces(self, items: Sequence[Item]) -> Iterator[Tensor]:
        """Yield the loss of the sentences that end in each part; see the base."""
        device = self.backbone.device
        first = np.cumsum([0, *(len(item.full) for item in items)])  # of each document's sentences, in all of them
        labels = torch.cat([_labels(item, device) for item in items])
        weights = torch.zeros_like(labels)
        for item, start, stop in zip(items, first[:-1], first[1:], strict=True):
            full = torch.from_numpy(item.full).to(device)
            weights[start:stop][full] = sentence_weights(labels[start:stop][full])
        for piece in sentence_segments(self.model, items, self.long):
            at = torch.from_numpy(first[piece.item] + piece.sentence).to(device)
            yield F.binary_cross_entropy_with_logits(piece.scores, labels[at], weight=weights[at], reduction="sum")


class SentenceTrainer(PackedTrainer):
    """The Trainer for sentence retrievers. The loss of a step is the mean over its documents, on all devices."""

    module = SentenceModule

    def __init__(self, model: Model, *data: Any, top_k: Sequence[int] = (10, 50), **others: Any) -> None:
        super().__init__(model, *data, top_k=top_k, **others)

    def recalls(self, scores: Tensor, item: Item) -> list[float] | None:
        """Return the share of the positive sentences among the k best, ties in document order; None without positives."""
        labels = _labels(item, scores.device)
        if not bool(labels.any()):
            return None
        ranked = labels[scores.argsort(descending=True, stable=True)]
        return [float(ranked[:k].sum() / labels.sum()) for k in self.top_k]


def _labels(item: Item, device: torch.device) -> Tensor:
    assert item.labels is not None
    return torch.from_numpy(item.labels).to(device)
