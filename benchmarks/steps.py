"""A worker's other requests: training steps, gradients to compare, and reranking with remembered
documents.

T  tokens of a text      B  texts      D  width of hidden vectors
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.shapes import SHAPES
from benchmarks.subject import IDS, Subject, plain_backbone
from benchmarks.systems import EqualBert, System
from runnel.backbones.base import Backbone
from runnel.engine import Engine, Request
from runnel.errors import CheckpointError, InputError
from runnel.models.reranker import Reranker
from runnel.request import as_tensor

_PLACES = 64  # of every weight's gradient are compared
_QUERY = "when is the finally clause executed if a return statement is reached"
_QUERY_TOKENS = 16


# ---- training ------------------------------------------------------------------------------------


class Trainer:
    """Training steps of a system: forward, backward and AdamW over all weights, or over adapters
    (`lora`), one vector a text.
    """

    def __init__(self, system: System, lora: int | None = None) -> None:
        self._module = _trainable(system) if lora is None else _adapted(system, lora)
        self._optimizer = torch.optim.AdamW(
            [p for p in self._module.parameters() if p.requires_grad], lr=1e-5
        )

    def step(self, ids: Tensor) -> None:
        """Run one step on ids (B, T)."""
        self._optimizer.zero_grad(set_to_none=True)
        _loss(self._module, ids).backward()
        self._optimizer.step()


def gradient(system: System, ids: Tensor, *, plain: bool) -> np.ndarray:
    """Return the gradient at some places of every weight, float64 (n,), of the timed path or of the
    plain one in fp64.
    """
    if not plain:
        return _gradient(_trainable(system), ids)
    if isinstance(system, Subject):
        with plain_backbone(system.name, system.device) as backbone:
            return _gradient(backbone.train().requires_grad_(True), ids)
    assert isinstance(system, EqualBert)
    return _gradient(system.plain().train().requires_grad_(True), ids)


def _gradient(module: nn.Module, ids: Tensor) -> np.ndarray:
    module.zero_grad(set_to_none=True)
    _loss(module, ids).backward()
    found = []
    for _, parameter in sorted(module.named_parameters()):
        if parameter.grad is not None:
            flat = parameter.grad.flatten()
            found.append(flat[:: max(1, flat.numel() // _PLACES)][:_PLACES].double().cpu())
    return torch.cat(found).numpy()


def _trainable(system: System) -> nn.Module:
    if isinstance(system, Subject):
        return system.backbone.train().requires_grad_(True)
    if isinstance(system, EqualBert):
        return system.model.train().requires_grad_(True)
    raise InputError(f"{system.title} is not trained here")


def _adapted(system: System, rank: int) -> nn.Module:
    """Freeze the weights of a system and add adapters to its linear layers."""
    from runnel.models.recurrent.adapters import add_lora

    if not isinstance(system, Subject):
        raise InputError(
            f"{system.title} is not trained with adapters here; name a transformer such as"
            " pythia-410m as a model"
        )
    # all that it needs
    model: Any = SimpleNamespace(
        backbone=system.backbone.train().requires_grad_(False), source=system.name
    )
    add_lora(model, rank, rank)
    return system.backbone


def _loss(module: nn.Module, ids: Tensor) -> Tensor:
    """Return the mean product of the texts' vectors with a fixed direction: its gradient reaches
    every weight.
    """
    batch, tokens = ids.shape
    if isinstance(module, Backbone):
        hidden, _ = module(
            ids.flatten().to(module.device), torch.arange(0, batch * tokens + 1, tokens)
        )
        vectors = hidden[tokens - 1 :: tokens]
    else:
        device = next(module.parameters()).device
        vectors = module(ids.to(device)).last_hidden_state[:, 0]
    direction = torch.linspace(-1, 1, vectors.shape[1], device=vectors.device, dtype=vectors.dtype)
    return (vectors @ direction).mean()


# ---- remembered documents ------------------------------------------------------------------------


def rerank(system: System, request: dict[str, Any]) -> dict[str, Any]:
    """Measure scoring documents for one query: as whole pairs, and from remembered documents.

    A model with a rerank head is used through `Reranker`; of other models the hidden vector at the
    end of each pair is taken.

    Returns:
        "seconds": way -> one number for each round; "agreement": way -> correlation with whole
        pairs.
    """
    assert isinstance(system, Subject)
    if not system.backbone.recurrent:
        raise InputError(f"a {system.backbone.title} has no state, so nothing is remembered")
    documents = request["documents"]
    tokens = request["tokens"]
    rounds = request["rounds"]
    try:
        reranker = (
            None
            if system.name in SHAPES
            else Reranker.load(system.name, system.dtype, system.device)
        )
    except CheckpointError:  # it has no such head
        reranker = None
    ways = (
        _with_head(reranker, documents, tokens)
        if reranker
        else _with_states(system, documents, tokens)
    )
    whole = ways["whole pairs"]().ravel()
    agreement = {name: float(np.corrcoef(whole, way().ravel())[0, 1]) for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    return {"seconds": seconds, "agreement": agreement}


def _with_head(
    reranker: Reranker, documents: int, tokens: int
) -> dict[str, Callable[[], np.ndarray]]:
    texts = real_documents(reranker, documents, tokens)
    memories = {
        f"{precision} states": reranker.remember(texts, dtype=precision)
        for precision in ("fp32", "bf16", "int8")
    }
    ways: dict[str, Callable[[], np.ndarray]] = {
        "whole pairs": lambda: reranker.score(_QUERY, texts)
    }
    for name, memory in memories.items():
        ways[name] = lambda memory=memory: reranker.score(_QUERY, memory)  # type: ignore[misc]
    return ways


def _with_states(
    system: Subject, documents: int, tokens: int
) -> dict[str, Callable[[], np.ndarray]]:
    generator = np.random.default_rng(4)
    texts = generator.integers(0, IDS, (documents, tokens))
    query = generator.integers(0, IDS, _QUERY_TOKENS)
    engine = Engine(system.backbone)
    states = [
        result.state for result in engine.map(Request(text, keep_state=True) for text in texts)
    ]

    def read(requests: Sequence[Request]) -> np.ndarray:
        return (
            torch.cat([as_tensor(result.hidden) for result in engine.run(requests)]).float().numpy()
        )

    return {
        "whole pairs": lambda: read([Request(np.concatenate([text, query])) for text in texts]),
        "fp32 states": lambda: read([Request(query, state=state) for state in states]),
    }


def real_documents(reranker: Reranker, documents: int, tokens: int) -> list[str]:
    """Return pieces of the Python reference of exactly `tokens` tokens each.

    Raises:
        InputError: the reference is too short.
    """
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    encoded = reranker.model.tokenizer.encode(text)
    if documents * tokens > len(encoded.ids):
        raise InputError(
            f"the text has {len(encoded.ids):,} tokens, {documents} documents of {tokens} need more"
        )
    return [
        text[encoded.starts[tokens * i] : encoded.ends[tokens * (i + 1) - 1]]
        for i in range(documents)
    ]
