"""The losses that sentence-transformers lacks, for the sentences of one document: paper E's, and those of stored vectors.

S  sentences of a document
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from runnel.errors import InputError


def sentence_weights(labels: Tensor) -> Tensor:
    """Return the weight of each sentence in the loss of its document: positives share 1/2, the others share 1/2.

    If all sentences are of one class, that class still gets 1/2: a document without an answer teaches low scores, at half the
    weight of a document with both.

    Args:
        labels: (S,) 1 or True for the sentences that answer the query, S >= 1.

    Returns:
        (S,) fp32, which sum to 1, or to 1/2 if there is only one class.

    Raises:
        InputError: there are no sentences.

    Source: paper E, appendix F (w_i).
    """
    if labels.ndim != 1 or labels.numel() == 0:
        raise InputError(
            f"labels must be (S,) with at least one sentence, got shape {tuple(labels.shape)}; remove such documents"
        )
    positive = labels.bool()
    count = positive.sum().clamp(min=1)
    others = (~positive).sum().clamp(min=1)
    return 0.5 * (positive / count + ~positive / others).float()


def sentence_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the binary cross-entropy over the sentences of one document, weighted by `sentence_weights`.

    Its mean over documents is the training loss, which does not depend on how documents are batched.

    Args:
        scores: (S,) logits.
        labels: (S,) 1 or True for the sentences that answer the query.

    Returns:
        a scalar, fp32.

    Raises:
        InputError: there are no sentences, or the lengths differ.
    """
    if scores.shape != labels.shape:
        raise InputError(f"expected one label per score, got {tuple(labels.shape)} labels for {tuple(scores.shape)} scores")
    weights = sentence_weights(labels)
    return F.binary_cross_entropy_with_logits(scores.float(), labels.float(), weight=weights, reduction="sum")


def span_loss(scores: Tensor, evidence: Sequence[tuple[int, int]]) -> Tensor:
    """Return the mean over evidence spans of the negative log of a span's share in the softmax over the sentences.

    Args:
        scores: (S,).
        evidence: the sentences [first, last) of each span, at least one span.
    """
    share = F.log_softmax(scores, 0)
    return -torch.stack([torch.logsumexp(share[first:last], 0) for first, last in evidence]).mean()


def yes_or_no_loss(scores: Tensor, answers: Tensor) -> Tensor:
    """Return the binary cross-entropy of every sentence (S,), summed, and divided by the root of their number."""
    return F.binary_cross_entropy_with_logits(scores, answers, reduction="sum") / len(scores) ** 0.5
