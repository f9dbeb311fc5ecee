"""Tune the encoder's upper layers: the cosine of a question and a sentence learns to find what BM25
alone does not.

Three losses. Of the sentences of a few passages of the document, scored by a multiple of the cosine
plus the z-score of BM25, the evidence must come first. Of the passages of all questions of a step,
each as one vector, those that answer must come first. And all vectors must stay near those of the
encoder as it was. The result is an encoder, whose upper layers become sentence layers.

S  sentences of the chosen passages   P  passages of a step   D  width of the vectors
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from runnel.lab.training.document_trainer import span_loss
from runnel.lab.training.vector_scores import known_columns
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.text.sentences import passage_bounds
from runnel.text.tokenizers import read_tokenizer
from tools.train_pocket.encode import PASSAGE_TOKENS, chosen_sets, stored
from tools.train_pocket.examples import Example
from tools.train_pocket.fit import set_weights

log = logging.getLogger(__name__)
FIRST_TUNED = 3  # the layers below are not
_SCALE = 10.0  # of the cosine beside the z-score of BM25
_KEEP = 1.0  # weight of the distance to the vectors as they were
# weight of the loss of whole passages, and what it multiplies their cosines by
_WHOLE, _WHOLE_SCALE = 0.5, 20.0
_BATCH = 6  # questions
# passages of a question: that answer, that do not, and the best from which these are drawn
_ANSWERS, _OTHERS, _LEADING = 2, 3, 8
_RATE, _WARMUP, _DECAY = 6e-5, 30, 0.01
_MOST_TOKENS = 250  # of a passage or a question
_CLS, _SEP = 101, 102
_WRITE_MINUTES = 10


class _Passage(NamedTuple):
    """Ids, and of each sentence its number in the document, its first token and one past its last,
    [CLS] counted.
    """

    ids: NDArray[np.int32]
    sentences: list[tuple[int, int, int]]


def hidden(model: Any, rows: Sequence[NDArray[np.int32]]) -> tuple[Tensor, Tensor]:
    """Return hidden vectors (n, T, D) fp32 of [CLS] row [SEP], computed in bf16, and (n, T) bool,
    False for padding.
    """
    width = max(len(row) for row in rows) + 2
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row) + 2] = torch.tensor([_CLS, *row.tolist(), _SEP])
        mask[i, : len(row) + 2] = True
    with torch.autocast("cpu", torch.bfloat16):
        found = model(input_ids=ids, attention_mask=mask).last_hidden_state
    return found.float(), mask


def means(vectors: Tensor, mask: Tensor) -> Tensor:
    """Return unit vectors (n, D) of texts (n, T, D): the mean over their tokens, as the encoder was
    trained with.
    """
    return F.normalize((vectors * mask[..., None]).sum(1), dim=-1)


def chosen_passages(
    one: Example, document: SentenceVectors, rng: np.random.Generator
) -> tuple[list[_Passage], Tensor]:
    """Choose passages that answer and ones that look most like it; return them, and BM25's z-scores
    (S,) of all sentences.
    """
    numbers = known_columns(one.query, one.vectors, one.features)
    plain = (numbers[:, 1] + numbers[:, 2]).numpy()
    cuts = passage_bounds(document.bounds, PASSAGE_TOKENS)
    pairs = list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
    answers = [any(a < last and b > first for a, b in one.evidence) for first, last in pairs]
    right = rng.permutation(np.flatnonzero(answers))[:_ANSWERS]
    best = np.array(
        [
            -np.inf if a else plain[first:last].max()
            for a, (first, last) in zip(answers, pairs, strict=True)
        ]
    )
    wrong = np.argsort(-best)[: min(_LEADING, answers.count(False))]
    wrong = rng.permutation(wrong)[:_OTHERS]
    found = []
    for first, last in (pairs[i] for i in [*right, *wrong]):
        start = int(document.bounds[first])
        stop = min(int(document.bounds[last]), int(document.bounds[first]) + _MOST_TOKENS)
        edges = document.bounds[first : last + 1].clip(start, stop) - start + 1
        sentences = [
            (first + i, a, b) for i, (a, b) in enumerate(pairwise(edges.tolist())) if b > a
        ]
        found.append(_Passage(document.ids[start:stop], sentences))
    return found, numbers[:, 2]


def loss_of(
    one: Example, query: Tensor, vectors: Tensor, places: Sequence[int], bm25: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the list loss of a question (D,) and the sentences (S, D) at `places`, and the
    distance to the original vectors.
    """
    place = {number: i for i, number in enumerate(places)}
    evidence = [[place[s] for s in range(a, b) if s in place] for a, b in one.evidence]
    score = _SCALE * (vectors @ query) + bm25[list(places)]
    loss = span_loss(score, [(min(rows), max(rows) + 1) for rows in evidence if rows])
    away = (1 - (vectors * one.vectors[list(places)]).sum(1)).mean() + (1 - query @ one.query)
    return loss, away


def passage_loss(
    queries: Tensor,
    passages: Tensor,
    owner: Sequence[int],
    answers: Sequence[bool],
    documents: Sequence[str],
) -> Tensor:
    """Return the mean over queries (n, D) of the negative log of what the answering passages have
    of the softmax over all (P, D).

    Args:
        owner: of each passage, the query it was chosen for.
        answers: whether it answers that query.
        documents: of each query, its document. Passages chosen for another query to the same
            document do not count.
    """
    score = _WHOLE_SCALE * queries @ passages.T
    right = torch.tensor(
        [[answers[p] and owner[p] == q for p in range(len(passages))] for q in range(len(queries))]
    )
    same = torch.tensor(
        [
            [owner[p] != q and documents[owner[p]] == documents[q] for p in range(len(passages))]
            for q in range(len(queries))
        ]
    )
    share = F.log_softmax(score.masked_fill(same, -torch.inf), 1)
    return -torch.logsumexp(share.masked_fill(~right, -torch.inf), 1).mean()


class _Tuning:
    """The training steps over examples whose documents are stored."""

    def __init__(self, model: Any, data: Path, out: Path, examples: Sequence[Example]) -> None:
        self.model = model
        self.out = out
        self.rng = np.random.default_rng(0)
        self.sets = {one.found.name: one for one in chosen_sets(data, measure=False)}
        self.examples = [one for one in examples if len(one.vectors) > 2 * _LEADING]
        self.weight = set_weights(self.examples)
        self.tokenizer = read_tokenizer(out / "encoder")

    def losses(self) -> Tensor:
        """Return the list loss, the distance, and the loss of whole passages of a batch."""
        asked = [
            self.examples[i] for i in self.rng.choice(len(self.examples), _BATCH, p=self.weight)
        ]
        texts = [self.sets[one.set].questions[one.number].text.strip() for one in asked]
        queries = means(
            *hidden(self.model, [self.tokenizer.encode(text).ids[:_MOST_TOKENS] for text in texts])
        )
        documents = [
            stored(self.out, one.set, one.document, self.sets[one.set].found.texts[one.document])
            for one in asked
        ]
        chosen = [
            chosen_passages(one, document, self.rng)
            for one, document in zip(asked, documents, strict=True)
        ]
        vectors, mask = hidden(
            self.model, [passage.ids for passages, _ in chosen for passage in passages]
        )
        rows = iter(vectors)
        losses = []
        owner = list[int]()
        answers = list[bool]()
        for number, (one, query, (passages, bm25)) in enumerate(
            zip(asked, queries, chosen, strict=True)
        ):
            parts = []
            places = []
            for passage in passages:
                sums = F.pad(next(rows).cumsum(0), (0, 0, 1, 0))
                numbers, starts, ends = (
                    list(column) for column in zip(*passage.sentences, strict=True)
                )
                parts.append(F.normalize(sums[ends] - sums[starts], dim=-1))
                places += numbers
                owner.append(number)
                answers.append(any(a <= s < b for s in numbers for a, b in one.evidence))
            losses.append(torch.stack(loss_of(one, query, torch.cat(parts), places, bm25)))
        whole = passage_loss(
            queries,
            means(vectors, mask),
            owner,
            answers,
            [f"{one.set}/{one.document}" for one in asked],
        )
        return torch.cat([torch.stack(losses).mean(0), whole[None]])


def tune(data: Path, out: Path, folder: Path, examples: Sequence[Example], minutes: float) -> None:
    """Tune for a number of minutes; write `out`/tuned, an average over the last steps, every ten
    minutes and at the end.
    """
    from transformers import BertModel

    torch.manual_seed(0)
    model = BertModel.from_pretrained(
        str(folder), dtype=torch.float32, add_pooling_layer=False
    ).eval()
    model.requires_grad_(False)
    for layer in model.encoder.layer[FIRST_TUNED:]:
        layer.requires_grad_(True)
    weights = [p for p in model.parameters() if p.requires_grad]
    weight = torch.tensor([1.0, _KEEP, _WHOLE])
    mean = [p.detach().clone() for p in weights]
    optimizer = torch.optim.AdamW(weights, lr=_RATE, weight_decay=_DECAY)
    tuning = _Tuning(model, data, out, examples)
    began = time.monotonic()
    step = 0
    shown = []
    written = 0
    while (share := (time.monotonic() - began) / 60 / minutes) < 1:
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min(1, (step + 1) / _WARMUP) * max(0.05, 1 - share)
        losses = tuning.losses()
        optimizer.zero_grad()
        (losses * weight).sum().backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        step += 1
        keep = min(0.99, step / (step + 9))
        for kept, new in zip(mean, weights, strict=True):
            kept.mul_(keep).add_(new.detach(), alpha=1 - keep)
        shown.append(losses.detach().numpy())
        if step % 25 == 0:
            log.info(
                "step %d: loss %.3f, distance %.4f, of passages %.3f",
                step,
                *np.mean(shown[-100:], axis=0),
            )
        if share * minutes > written + _WRITE_MINUTES:
            written += _WRITE_MINUTES
            _write(model, weights, mean, folder, out / "tuned")
    _write(model, weights, mean, folder, out / "tuned")


def _write(
    model: Any, weights: Sequence[Tensor], mean: Sequence[Tensor], folder: Path, target: Path
) -> None:
    """Write the model with the mean weights, and the other files of its folder."""
    now = [new.detach().clone() for new in weights]
    with torch.no_grad():
        for kept, new in zip(mean, weights, strict=True):
            new.copy_(kept)
    shutil.copytree(folder, target, dirs_exist_ok=True)
    model.save_pretrained(target)
    with torch.no_grad():
        for kept, new in zip(now, weights, strict=True):
            new.copy_(kept)
