"""Steps in the training of a whole model: `unfreeze` makes it trainable; `sentence_scores` computes
the scores of a recurrent sentence retriever with autograd's graph; `freeze` prepares the trained
model for inference. (`models/recurrent/graph.py` reads texts with the graph, and has the vectors of
embedders and the scores of rerankers.)

S  sentences of a document
"""

from collections.abc import Sequence

import torch

from runnel.models.items import Item
from runnel.models.model import Model
from runnel.models.recurrent.adapters import expect_trainable
from runnel.models.recurrent.graph import WHOLE, Long, read
from runnel.models.recurrent.units import unit_scores


def unfreeze(model: Model) -> None:
    """Make the backbone and the heads trainable; if the backbone has adapters, the adapters and the
    heads.

    In training mode the backbone runs torch's operations, not the kernels that were prepared from
    its weights, which ignore autograd and adapters. `freeze` reverses it.
    """
    expect_trainable(model)
    adapted = model.backbone.adapted
    for name, parameter in model.backbone.named_parameters():
        parameter.requires_grad_(not adapted or "lora_" in name)
    model.heads.requires_grad_(True)
    model.backbone.train()
    model.heads.train()


def freeze(model: Model) -> None:
    """Freeze a trained model and prepare it for inference. What is derived from its weights, such
    as kernels and the weights of tokens in means, is made again from the trained ones.
    """
    model.backbone.requires_grad_(False).eval()
    model.heads.requires_grad_(False).eval()
    model.refresh()


def sentence_scores(model: Model, items: Sequence[Item], long: Long = WHOLE) -> list[torch.Tensor]:
    """Return the scores (S,) of each item's sentences, as `SentenceRetriever.score` does; a
    sentence without a token gets -inf, without gradient. `long`: whether long items are read in
    segments, and what is kept for the backward pass.
    """
    head = model.head("sentences")
    results = read(model, [item.request for item in items], long)
    scores = []
    for item, result in zip(items, results, strict=True):
        units = unit_scores(head, result)  # only of sentences with a token, in order
        full = torch.from_numpy(item.full).to(units.device)
        scores.append(units.new_full((len(full),), -torch.inf).masked_scatter(full, units))
    return scores
