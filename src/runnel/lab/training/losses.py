"""The losses that sentence-transformers lacks, for the sentences of one document: paper E's, and those of stored vectors.

S  sentences of a document
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def sentence_weights(labels: Tensor) -> Tensor:
    """Return the weight of each sentence in the loss of its document: positives share 1/2, the others share 1/2.

    If all sentences are of one class, that class still gets 1/2: a document without an answer teaches low scores, at half the
    weight of a document with both.

    Source: paper E, appendix F (w_i).
    """
    positive = labels.bool()
    count = positive.sum().clamp(min=1)
    others = (~positive).sum().clamp(min=1)
    return 0.5 * (positive / count + ~positive / others).float()


def sentence_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the binary cross-entropy over the sentences of one document, of logits (S,), weighted by `sentence_weights`."""
    weights = sentence_weights(labels)
    return F.binary_cross_entropy_with_logits(scores.float(), labels.float(), weight=weights, reduction="sum")


def span_loss(scores: Tensor, evidence: Sequence[tuple[int, int]]) -> Tensor:
    """Return the mean over evidence spans, sentences [first, last), of -log of a span's share in the softmax of scores (S,)."""
    share = F.log_softmax(scores, 0)
    return -torch.stack([torch.logsumexp(share[first:last], 0) for first, last in evidence]).mean()


def yes_or_no_loss(scores: Tensor, answers: Tensor) -> Tensor:
    """Return the binary cross-entropy of every sentence (S,), summed, and divided by the root of their number."""
    return F.binary_cross_entropy_with_logits(scores, answers, reduction="sum") / len(scores) ** 0.5
