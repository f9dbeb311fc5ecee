"""Training of the head over stored vectors, its calibration, and its file.

S  sentences of a document
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from runnel.models.heads import VectorScore, known
from tools.train_pocket.examples import Example

log = logging.getLogger(__name__)
STEPS = 2000
_SENTENCES, _BEST = 300, 40  # of a document in one step, and of them the best by plain sum
_BATCH, _STRANGERS = 24, 6  # questions of a step; of them asked to a document that does not answer
_RATE, _WARMUP, _DECAY = 1e-3, 50, 0.05
_PLAIN = 0.15  # of the plain sum beside what was learned; chosen on the documents kept aside
_YES_OR_NO = 0.2  # weight of the loss of each sentence alone beside that of the list


def aside(document: str) -> bool:
    """True for one training document in ten: the head is calibrated on it, not trained."""
    return hashlib.blake2b(document.encode(), digest_size=4).digest()[1] % 10 == 0


def list_loss(score: Tensor, evidence: Sequence[tuple[int, int]]) -> Tensor:
    """Softmax over the sentences (S,): the mean over evidence spans of the negative log of what a span gets."""
    share = F.log_softmax(score, 0)
    return -torch.stack([torch.logsumexp(share[a:b], 0) for a, b in evidence]).mean()


def sentence_loss(score: Tensor, answers: Tensor) -> Tensor:
    """Binary cross-entropy of every sentence (S,), summed, and divided by the root of their number."""
    return F.binary_cross_entropy_with_logits(score, answers, reduction="sum") / len(score) ** 0.5


def drawn_sets(examples: Sequence[Example]) -> tuple[list[list[Example]], np.ndarray]:
    """Examples of each set, and how often a set is drawn: by the square root of its size."""
    sets: dict[str, list[Example]] = {}
    for one in examples:
        sets.setdefault(one.set, []).append(one)
    weight = np.array([len(found) ** 0.5 for found in sets.values()])
    return list(sets.values()), weight / weight.sum()


class _Batches:
    """Draws of examples with what the head knows of their sentences, computed once; long documents are thinned out."""

    def __init__(self, head: VectorScore, examples: Sequence[Example], rng: np.random.Generator) -> None:
        self.head, self.rng = head, rng
        self.sets, self.weight = drawn_sets(examples)
        self.known: dict[int, Tensor] = {}

    def draw(self, count: int) -> list[Example]:
        """Sets by their weight, and an example of each."""
        chosen = [self.sets[i] for i in self.rng.choice(len(self.sets), count, p=self.weight)]
        return [found[self.rng.integers(len(found))] for found in chosen]

    def thinned(self, one: Example) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
        """(vectors, known, evidence) of the answers, the best by plain sum, and random ones: at most about `_SENTENCES`."""
        if id(one) not in self.known:
            self.known[id(one)] = known(one.query, one.vectors, one.features)
        numbers = self.known[id(one)]
        if len(numbers) <= _SENTENCES:
            return one.vectors, numbers, list(one.evidence)
        keep = np.zeros(len(numbers), bool)
        keep[self.rng.choice(len(keep), _SENTENCES, replace=False)] = True
        keep[torch.topk(numbers[:, 1] + numbers[:, 2], _BEST).indices.numpy()] = True
        for a, b in one.evidence:
            keep[a:b] = True
        place = np.concatenate([[0], keep.cumsum()])
        chosen = torch.from_numpy(np.flatnonzero(keep))
        return one.vectors[chosen], numbers[chosen], [(int(place[a]), int(place[b])) for a, b in one.evidence]

    def scores(self, drawn: Sequence[Example]) -> list[tuple[Tensor, list[tuple[int, int]]]]:
        """Scores and evidence of each, in one pass."""
        parts = [self.thinned(one) for one in drawn]
        sizes = [len(vectors) for vectors, _, _ in parts]
        query = self.head.query(torch.stack([one.query for one in drawn])).repeat_interleave(torch.tensor(sizes), 0)
        score = self.head.combine(query, torch.cat([v for v, _, _ in parts]), torch.cat([n for _, n, _ in parts]))
        return list(zip(score.split(sizes), [evidence for _, _, evidence in parts], strict=True))


def marked(count: int, evidence: Sequence[tuple[int, int]]) -> Tensor:
    """(count,) float: 1 for sentences of an evidence span."""
    found = torch.zeros(count)
    for a, b in evidence:
        found[a:b] = 1
    return found


def train(
    examples: Sequence[Example], strangers: Sequence[Example], *, seed: int, steps: int = STEPS, hidden_size: int = 384
) -> VectorScore:
    """Fit a head; the weights are an average over the last steps. `strangers`: questions to documents that do not answer."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    head = VectorScore(hidden_size)
    chance = nn.Parameter(torch.tensor([1.0, -4.0]))  # factor and summand in the loss of each sentence alone
    optimizer = torch.optim.AdamW([*head.parameters(), chance], lr=_RATE, weight_decay=_DECAY)
    mean = copy.deepcopy(head).requires_grad_(False)
    asked, elsewhere = _Batches(head, examples, rng), _Batches(head, strangers, rng) if strangers else None
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min(1, (step + 1) / _WARMUP) * max(0.03, 1 - step / steps)
        loss = torch.zeros(())
        for score, evidence in asked.scores(asked.draw(_BATCH)):
            loss = loss + list_loss(score, evidence)
            loss = loss + _YES_OR_NO * sentence_loss(score * chance[0] + chance[1], marked(len(score), evidence))
        for score, _ in elsewhere.scores(elsewhere.draw(_STRANGERS)) if elsewhere else ():
            loss = loss + _YES_OR_NO * sentence_loss(score * chance[0] + chance[1], torch.zeros(len(score)))
        loss = loss / _BATCH
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        keep = min(0.995, (step + 1) / (step + 10))
        for kept, new in zip(mean.parameters(), head.parameters(), strict=True):
            kept.mul_(keep).add_(new.detach(), alpha=1 - keep)
        if (step + 1) % 250 == 0:
            log.info("step %d of %d, loss %.3f", step + 1, steps, float(loss.detach()))
    return mean.eval()


@torch.no_grad()
def merged(heads: Sequence[VectorScore]) -> VectorScore:
    """One head whose score is the mean of theirs and `_PLAIN` times the plain sum of the z-scores of cosine and BM25."""
    hidden_size, sizes = heads[0].sentence.in_features, [h.sentence.out_features for h in heads]
    head = VectorScore(hidden_size, sum(sizes))
    for name in ("sentence", "query", "known"):
        layer = getattr(head, name)
        layer.weight.copy_(torch.cat([getattr(h, name).weight for h in heads]))
        layer.bias.copy_(torch.cat([getattr(h, name).bias for h in heads]))
    head.middle.weight.copy_(torch.block_diag(*[h.middle.weight for h in heads]))
    head.middle.bias.copy_(torch.cat([h.middle.bias for h in heads]))
    head.out.weight.copy_(torch.cat([h.out.weight for h in heads], 1) / len(heads))
    head.out.bias.copy_(torch.stack([h.out.bias for h in heads]).mean(0))
    head.direct.copy_(torch.stack([h.direct for h in heads]).mean(0))
    head.direct[1:3] += _PLAIN
    return head.eval()


@torch.no_grad()
def scores(head: VectorScore, examples: Sequence[Example]) -> list[Tensor]:
    """(S,) of each example."""
    return [head(one.query, one.vectors, one.features) for one in examples]


def calibrate(head: VectorScore, examples: Sequence[Example], strangers: Sequence[Example]) -> None:
    """Set factor and summand so that the sigmoid of a score is the share of such sentences that answer.

    Source: Platt 1999. Every set has the weight it was drawn with; strangers belong to their set.
    """
    head.calibration.copy_(torch.tensor([1.0, 0.0]))
    chosen = [*examples, *strangers]
    sets, drawn = drawn_sets(chosen)
    score = torch.cat([s for found in sets for s in scores(head, found)]).double()
    answers = torch.cat([marked(len(one.vectors), one.evidence) for found in sets for one in found]).double()
    weight = torch.cat([torch.full((sum(len(one.vectors) for one in f),), w / len(f)) for f, w in zip(sets, drawn, strict=True)])
    factors = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([factors], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(score * factors[0] + factors[1], answers, weight.double(), reduction="sum")
        loss.backward()
        return loss

    optimizer.step(closure)
    head.calibration.copy_(factors.detach().float())


def save(head: VectorScore, out: Path, note: dict[str, object]) -> None:
    """Write `out`/head.safetensors and what it is in `out`/head.json."""
    save_file({name: tensor.contiguous() for name, tensor in head.state_dict().items()}, out / "head.safetensors")
    known = {"kind": "vector_score", "options": head.options, "calibration": head.calibration.tolist(), **note}
    (out / "head.json").write_text(json.dumps(known, indent=1), encoding="utf-8")


def load(out: Path, hidden_size: int = 384) -> VectorScore:
    """The head that `save` wrote."""
    from safetensors.torch import load_file

    head = VectorScore(hidden_size, **json.loads((out / "head.json").read_text(encoding="utf-8"))["options"])
    head.load_state_dict(load_file(out / "head.safetensors"))
    return head.eval()
