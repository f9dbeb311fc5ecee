"""Training of a head that scores stored sentence vectors (`VectorScore`): documents have been read, only the head is trained.

n  questions of a batch   S  sentences of a document   D  width of the vectors   K  numbers known of a sentence
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import TrainingArguments

from runnel.lab.training.document_trainer import AveragedTrainer, Documents
from runnel.lab.training.losses import span_loss, yes_or_no_loss
from runnel.models.heads import VectorScore, known

log = logging.getLogger("runnel")

_SENTENCES, _BEST = 300, 40  # of a document in one step; and of these the best by the sum of z-scores
_YES_OR_NO = 0.2  # weight of the loss of each sentence alone


@dataclass(frozen=True, eq=False)
class VectorItem:
    """A question and a document that has been read, as a `VectorScore` head sees them."""

    query: Tensor  # (D,), a unit vector
    vectors: Tensor  # (S, D), unit vectors of the sentences, S >= 1
    known: Tensor  # (S, K), see `models.heads.known`
    evidence: tuple[tuple[int, int], ...]  # sentences [first, last) of each evidence span; empty if the document does not answer
    tokens: int = 0  # of the document


def make_vector_item(
    query: Tensor, vectors: Tensor, features: Tensor, evidence: Sequence[tuple[int, int]], tokens: int = 0
) -> VectorItem:
    """Return the item of a query (D,), vectors (S, D), `sentence_features` (S, F) and evidence."""
    return VectorItem(query, vectors, known(query, vectors, features), tuple(evidence), tokens)


def mark_answers(sentences: int, evidence: Sequence[tuple[int, int]]) -> Tensor:
    """Return (S,) fp32: 1 for sentences of an evidence span."""
    answers = torch.zeros(sentences)
    for first, last in evidence:
        answers[first:last] = 1
    return answers


def thin(item: VectorItem, rng: np.random.Generator) -> VectorItem:
    """Reduce a long document to its answers, its best sentences by the sum of z-scores, and random others."""
    if len(item.known) <= _SENTENCES:
        return item
    keep = np.zeros(len(item.known), bool)
    keep[rng.choice(len(keep), _SENTENCES, replace=False)] = True
    keep[torch.topk(item.known[:, 1] + item.known[:, 2], _BEST).indices.numpy()] = True
    for first, last in item.evidence:
        keep[first:last] = True
    place = np.concatenate([[0], keep.cumsum()])
    chosen = torch.from_numpy(np.flatnonzero(keep))
    evidence = tuple((int(place[first]), int(place[last])) for first, last in item.evidence)
    return VectorItem(item.query, item.vectors[chosen], item.known[chosen], evidence, item.tokens)


def score_items(head: VectorScore, items: Sequence[VectorItem]) -> list[Tensor]:
    """Return the uncalibrated scores (S,) of each item, computed in one pass."""
    device, sizes = head.direct.device, [len(item.vectors) for item in items]
    query = head.query(torch.stack([item.query for item in items]).to(device))
    query = query.repeat_interleave(torch.tensor(sizes, device=device), 0)
    vectors, numbers = (torch.cat(part).to(device) for part in ([i.vectors for i in items], [i.known for i in items]))
    return list(head.combine(query, vectors, numbers).split(sizes))


def span_recalls(scores: Tensor, evidence: Sequence[tuple[int, int]], top_k: Sequence[int]) -> list[float] | None:
    """Return the share of evidence spans that one of the k best sentences overlaps, ties in document order; None without any."""
    ranked = scores.argsort(descending=True, stable=True).cpu().numpy()
    best = [ranked[:k] for k in top_k]
    found = [[bool(((b >= first) & (b < last)).any()) for first, last in evidence] for b in best]
    return [float(np.mean(one)) for one in found] if evidence else None


class VectorModule(nn.Module):
    """The trained weights, and their average over the last steps, which evaluation uses and the run saves."""

    def __init__(self, head: VectorScore) -> None:
        super().__init__()
        self.head, self.mean = head.requires_grad_(True), copy.deepcopy(head).requires_grad_(False)
        start = head.calibration.detach().clone()
        fresh = bool((start == torch.tensor([1.0, 0.0])).all())
        # The factor and the summand that make a score the logit of an answer.
        self.chance = nn.Parameter(torch.tensor([1.0, -4.0]) if fresh else start)

    def forward(self, items: Sequence[VectorItem]) -> tuple[Tensor, list[Tensor]]:
        """Return the loss of each document (n,), and the scores (S,) of its sentences."""
        scores = score_items(self.head if self.training else self.mean, items)
        return torch.stack([self._loss(score, item) for score, item in zip(scores, items, strict=True)]), scores

    def _loss(self, score: Tensor, item: VectorItem) -> Tensor:
        answers = mark_answers(len(score), item.evidence).to(score.device)
        loss = _YES_OR_NO * yes_or_no_loss(score * self.chance[0] + self.chance[1], answers)
        return loss + span_loss(score, item.evidence) if item.evidence else loss


class VectorTrainer(AveragedTrainer):
    """The Trainer for a `VectorScore` head.

    The loss is a softmax over the sentences of a document for each evidence span, and a share of the binary cross-entropy of
    every sentence, which is the only one for a document that does not answer.
    """

    def __init__(
        self,
        head: VectorScore,
        args: TrainingArguments,
        train: Documents,
        evaluation: Documents | None = None,
        *,
        top_k: Sequence[int] = (10,),
    ) -> None:
        super().__init__(VectorModule(head), head, args, train, evaluation, top_k)

    def recalls(self, scores: Tensor, item: VectorItem) -> list[float] | None:
        return span_recalls(scores, item.evidence, self.top_k)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the part of the step's loss that these questions make; long documents are thinned."""
        rng = np.random.default_rng((self.args.seed, self.state.global_step, self.args.process_index))
        items = [thin(item, rng) for item in inputs["items"]]
        return super().compute_loss(model, {**inputs, "items": items}, return_outputs, num_items_in_batch)

    def calibrate(self, aside: Documents | None) -> None:
        """Calibrate the head on documents that were not trained on; without any it keeps what was learned with the weights."""
        assert isinstance(self.model, VectorModule)
        head = self.model.head
        with torch.no_grad():
            head.calibration.copy_(self.model.chance)
        if aside is not None and len(aside):
            calibrate(head, [aside[index][1] for index in range(len(aside))])


def calibrate(head: VectorScore, items: Sequence[VectorItem], weights: Sequence[float] | None = None) -> None:
    """Set factor and summand so that the sigmoid of a score is the share of such sentences that answer.

    If the items do not determine them (no sentence answers, or a larger score means a smaller share), they stay as they are.

    Source: Platt 1999.
    """
    with torch.no_grad():
        score = torch.cat([score_items(head, [item])[0] for item in items]).double().cpu()
    answers = torch.cat([mark_answers(len(item.vectors), item.evidence) for item in items]).double()
    each = [1.0 / len(items)] * len(items) if weights is None else list(weights)
    weight = torch.cat([torch.full((len(item.vectors),), w) for item, w in zip(items, each, strict=True)]).double()
    factors = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([factors], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(score * factors[0] + factors[1], answers, weight, reduction="sum")
        loss.backward()
        return loss

    optimizer.step(closure)
    found = factors.detach()
    if not bool(answers.any()) or not bool(found.isfinite().all()) or float(found[0]) <= 0:
        log.warning("the documents kept aside do not determine the calibration of scores; it stays as it was learned")
        return
    with torch.no_grad():
        head.calibration.copy_(found)
