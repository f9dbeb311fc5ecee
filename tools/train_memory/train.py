"""Training of the pilots: rows of glued documents with their questions, and losses.

S  sentences of a row   Q  questions   D  width of the vectors
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from runnel.files import replacing
from runnel.ops.backend import wanted_device
from tools.train_memory.continued import Continued, taught_loss
from tools.train_memory.documents import Document, Question
from tools.train_memory.measure import query_text
from tools.train_memory.models import Replaced, Text, WithMemory, packed, sentence_vectors

log = logging.getLogger(__name__)
_ROW = 2_500  # tokens of documents in a row; a longer document is cut
_QUESTIONS = 8  # of a row
_SCALE, _BACK, _KEEP = 10.0, 0.3, 0.5
# MiniLM without attention: each block learns alone up to this share of the tokens, and sentences
# are ranked from the other on
_BLOCKS, _HIDDEN = 0.3, 0.6
_WRITE = 20  # steps between checkpoints
_LOG = 10


class Row(NamedTuple):
    """Documents that are read in one step and questions, each with its document's number."""

    documents: list[Text]
    questions: list[tuple[int, Question]]
    tokens: int


def cut(document: Document, rng: np.random.Generator, most: int) -> Document:
    """Return at most about `most` tokens of a document, from a random sentence, with the questions
    that sentences of the part answer.
    """
    bounds = document.bounds
    if bounds[-1] <= most:
        return document
    last = int(np.searchsorted(bounds, bounds[-1] - most))
    first = int(rng.integers(last + 1))
    stop = max(first + 1, int(np.searchsorted(bounds, bounds[first] + most, side="right")) - 1)
    questions = []
    for question in document.questions:
        inside = (question.answers >= first) & (question.answers < stop)
        if inside.any():
            bm25 = question.bm25[first:stop]
            bm25 = (bm25 - bm25.mean()) / (bm25.std() + 1e-6)
            answers = question.answers[inside] - first
            questions.append(Question(question.name, question.ids, answers, bm25))
    part = bounds[first : stop + 1] - bounds[first]
    return Document(document.name, document.ids[bounds[first] : bounds[stop]], part, questions)


def rows(documents: Sequence[Document], seed: int) -> Iterator[Row]:
    """Yield rows without end; the sets are drawn by the square root of their questions."""
    rng = np.random.default_rng(seed)
    sets: dict[str, list[Document]] = {}
    for document in documents:
        if document.questions:
            sets.setdefault(document.name.split("/")[0], []).append(document)
    sizes = np.array([sum(len(d.questions) for d in part) for part in sets.values()]) ** 0.5
    names = list(sets)
    while True:
        chosen: list[Document] = []
        tokens = 0
        while tokens < _ROW:
            part = sets[names[rng.choice(len(names), p=sizes / sizes.sum())]]
            document = cut(part[rng.integers(len(part))], rng, _ROW)
            if document.questions and len(document.bounds) > 3:
                chosen.append(document)
                tokens += len(document.ids)
        asked = [(n, question) for n, d in enumerate(chosen) for question in d.questions]
        picked = rng.permutation(len(asked))[:_QUESTIONS]
        texts = [Text(document.ids, document.bounds) for document in chosen]
        questions = [asked[i] for i in picked.tolist()]
        read = tokens + sum(len(question.ids) for _, question in questions)
        yield Row(texts, questions, read)


def memory_loss(model: WithMemory, row: Row, *, keep: bool) -> Tensor:
    """Return the loss of a row: of each question's document, the sentences that answer must have
    the softmax over its sentences (cosine and BM25 together), and of all sentences of the row, by
    the cosine alone; with `keep` the vectors stay near those without a memory.
    """
    texts = [*row.documents, *(query_text(question) for _, question in row.questions)]
    packed_row = packed(texts, model.encoder, apart=model.apart)
    packing, hidden = model.begin(packed_row)
    vectors = model.end(packed_row, packing, hidden)
    loss = ranking_loss(row, vectors)
    if keep:
        with torch.no_grad():
            before = model.end(packed_row, packing, hidden, memory=False)
        loss = loss + _KEEP * (1 - (vectors * before).sum(1)).mean()
    return loss


def ranking_loss(row: Row, vectors: Tensor) -> Tensor:
    """Return the mean loss of a row's questions; `vectors` (S + Q, D) of sentences and queries."""
    counts = np.cumsum([0, *(len(text.bounds) - 1 for text in row.documents)])
    sentences, queries = vectors[: counts[-1]], vectors[counts[-1] :]
    cosines = queries @ sentences.T
    losses = []
    for number, (document, question) in enumerate(row.questions):
        first, stop = counts[document], counts[document + 1]
        answers = torch.from_numpy(question.answers).to(vectors.device)
        bm25 = torch.from_numpy(question.bm25).to(vectors.device)
        own = _SCALE * cosines[number, first:stop] + bm25
        losses.append(-torch.logsumexp(F.log_softmax(own, 0)[answers], 0))
        among = 2 * _SCALE * cosines[number]
        losses.append(-_BACK * torch.logsumexp(F.log_softmax(among, 0)[answers + first], 0))
    return torch.stack(losses).sum() / len(row.questions)


def replaced_loss(model: Replaced, row: Row, share: float) -> Tensor:
    """Return the loss of a row for MiniLM without attention: first each block's; then the distance
    to the encoder's hidden vectors, sentences and passages; last also that of ranked sentences.
    """
    texts = [*row.documents, *(query_text(question) for _, question in row.questions)]
    packed_row = packed(texts, model.encoder)
    if share < _BLOCKS:
        return model.block_loss(packed_row)
    hidden, wanted = model.hidden(packed_row), model.teacher(packed_row)
    sentences = sentence_vectors(hidden, packed_row)
    away = 1 - (sentences * sentence_vectors(wanted, packed_row)).sum(1)
    loss = (hidden - wanted).square().mean() / wanted.square().mean() + 5 * away.mean()
    starts, ends = packed_row.blocks[:-1], packed_row.blocks[1:]
    passages = packed_row._replace(starts=starts.to(hidden.device), ends=ends.to(hidden.device))
    away = 1 - (sentence_vectors(hidden, passages) * sentence_vectors(wanted, passages)).sum(1)
    loss = loss + 5 * away.mean()
    if share >= _HIDDEN:
        loss = loss + ranking_loss(row, sentences)
    return loss


class Pair(NamedTuple):
    """A document and a question that pocket has answered."""

    document: Document
    question: Question


def pairs(documents: Sequence[Document], seed: int) -> Iterator[Pair]:
    """Yield documents with one of their questions without end."""
    rng = np.random.default_rng(seed)
    asked = [Pair(document, question) for document in documents for question in document.questions]
    while True:
        for number in rng.permutation(len(asked)).tolist():
            yield asked[number]


def make(kind: str) -> WithMemory | Replaced | Continued:
    """Return the model of a pilot before its training, on the GPU if there is one. Its weights are
    drawn on the CPU, so that they are the same on all machines.
    """
    device = wanted_device("auto")
    if kind == "replaced":
        return Replaced().to(device)
    if kind == "continued":
        continued = Continued()
        continued.model.heads.to(device)  # also heads that are not trained
        return continued.to(device)
    return WithMemory(apart=kind == "sentences").to(device)


class Training:
    """A training that can be interrupted: weights, optimizer's state and the step are on disk. It
    runs on the GPU if there is one, and what is on disk goes on on any device.

    Args:
        kind: see `make`: "memory", "sentences" (the same, with sentences as blocks), "replaced"
            or "continued".
        tokens: how many tokens are read in all.
        bf16: compute matrix products on the CPU in bf16; weights, sums and recurrences stay fp32.
    """

    def __init__(
        self, kind: str, out: Path, tokens: int, rate: float, *, bf16: bool = False
    ) -> None:
        torch.manual_seed(0)
        self.bf16 = bf16
        self.kind, self.out, self.most, self.rate = kind, out, tokens, rate
        self.model: WithMemory | Replaced | Continued = make(kind)
        self.weights = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(self.weights.values(), lr=rate, weight_decay=0.01)
        self.step = 0
        self.read = 0
        out.mkdir(parents=True, exist_ok=True)
        if (out / "step.json").exists():
            self._restore()

    def run(self, documents: Sequence[Document]) -> None:
        """Train until the tokens are read; log the loss."""
        taught = isinstance(self.model, Continued)
        stream: Iterator[Pair | Row] = rows(documents, seed=0)
        if taught:
            stream = pairs(documents, seed=0)
        for _ in range(self.step):
            next(stream)
        losses = []
        began = time.monotonic()
        at_start = self.read
        self.model.train()
        for row in stream:
            share = self.read / self.most
            if share >= 1:
                break
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate * min(1, (self.step + 1) / 20) * max(0.05, 1 - share)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                loss, tokens = self._loss(row, share)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(list(self.weights.values()), 1.0)
            self.optimizer.step()
            self.step += 1
            self.read += tokens
            losses.append(float(loss.detach()))
            if self.step % _LOG == 0:
                speed = (self.read - at_start) / (time.monotonic() - began)
                mean = float(np.mean(losses[-5 * _LOG :]))
                log.info("%d %d tokens, %.3f, %.0f a second", self.step, self.read, mean, speed)
            if self.step % _WRITE == 0:
                self.save()
        self.save()

    def _loss(self, row: Pair | Row, share: float) -> tuple[Tensor, int]:
        """Return the loss of a row and its tokens."""
        if isinstance(row, Pair):
            assert isinstance(self.model, Continued)
            return taught_loss(self.model, row.document, row.question), len(row.document.ids)
        if isinstance(self.model, Replaced):
            return replaced_loss(self.model, row, share), row.tokens
        assert isinstance(self.model, WithMemory)
        return memory_loss(self.model, row, keep=self.step % 4 == 0), row.tokens

    def save(self) -> None:
        """Write weights, optimizer's state and the step, the step last; tensors of the CPU."""
        weights = {n: p.detach().contiguous().cpu() for n, p in self.weights.items()}
        save_file(weights, self.out / "weights.new")
        state = self.optimizer.state_dict()
        moments = {
            number: {name: tensor.cpu() for name, tensor in of_weight.items()}
            for number, of_weight in state["state"].items()
        }
        torch.save(state | {"state": moments}, self.out / "optimizer.new")
        (self.out / "weights.new").replace(self.out / "weights.safetensors")
        (self.out / "optimizer.new").replace(self.out / "optimizer.pt")
        with replacing(self.out / "step.json") as partial:
            partial.write_text(json.dumps({"step": self.step, "read": self.read}))

    def _restore(self) -> None:
        for name, value in load_file(self.out / "weights.safetensors").items():
            self.weights[name].data.copy_(value)
        self.optimizer.load_state_dict(torch.load(self.out / "optimizer.pt", weights_only=True))
        at = json.loads((self.out / "step.json").read_text())
        self.step, self.read = at["step"], at["read"]
