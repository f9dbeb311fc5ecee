"""Trainable forward passes: the vectors and scores of `Embedder`, `Reranker` and
`SentenceRetriever`, with a graph.

T  tokens of a row   S  sentences of a document   d  width of vectors   n  rows or pairs
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from runnel.models.items import Item
from runnel.models.model import Model
from runnel.models.recurrent.adapters import expect_trainable
from runnel.models.recurrent.graph import WHOLE, Long, read
from runnel.models.recurrent.units import unit_scores


def trainable(model: Model) -> None:
    """Make the backbone and the heads trainable; if the backbone has adapters, the adapters and the
    heads.

    This drops the prepared fast path, which ignores autograd and adapters. `finished` reverses it.
    """
    expect_trainable(model)
    adapted = model.backbone.adapted
    for name, parameter in model.backbone.named_parameters():
        parameter.requires_grad_(not adapted or "lora_" in name)
    model.heads.requires_grad_(True)
    model.backbone.train()
    model.heads.train()


def finished(model: Model) -> None:
    """Freeze a trained model and prepare it for inference: kernels, token weights and engine use
    the current weights.
    """
    model.backbone.requires_grad_(False).eval()
    model.heads.requires_grad_(False).eval()
    model.refresh()


def sentence_scores(model: Model, items: Sequence[Item], long: Long = WHOLE) -> list[Tensor]:
    """Return scores (S,) of each item's sentences, as from `SentenceRetriever.score`; without a
    token -inf, without gradient.
    """
    head = model.head("sentences")
    results = read(model, [item.request for item in items], long)
    scores = []
    for item, result in zip(items, results, strict=True):
        units = unit_scores(head, result)
        full = torch.from_numpy(item.full).to(units.device)
        scores.append(units.new_full((len(full),), -torch.inf).masked_scatter(full, units))
    return scores
