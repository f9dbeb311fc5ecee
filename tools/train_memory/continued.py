"""Pocket-mamba2 continued: it reads the question first and learns pocket's scores of sentences.

S  sentences   T  tokens
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.lab.training.forward import sentence_scores, unfreeze
from runnel.models.folder import load_model
from runnel.models.items import Item
from runnel.models.recurrent.scanner import ItemMaker
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.text.sentences import TokenUnits
from tools.train_memory.documents import Document, Question
from tools.train_pocket.data import EVIDENCE
from tools.train_pocket.documents import load_evidence

LATER = 32  # tokens after a sentence's end at which it is scored
_CHARACTERS = 11_000  # of the part of a document that the teacher scores
_PER_DOCUMENT = 2  # questions
_CERTAIN = 0.2  # weight of the loss of each sentence alone
_SPANS = 0.5  # weight of the loss of the sentences that answer


def taught(data: Path, documents: int) -> Iterator[Document]:
    """Yield parts of training documents whose questions have pocket's scores, with both looks, in
    the place of BM25's; the sets take turns.
    """
    teacher = SentenceRetriever.load("pocket")
    rng = np.random.default_rng(0)
    sets = [load_evidence(data, name, measure=False) for name in EVIDENCE]
    names = [list(found.texts) for found in sets]
    for number in range(documents):
        found = sets[number % len(sets)]
        name = names[number % len(sets)][number // len(sets) % len(found.texts)]
        text = found.texts[name]
        start = int(rng.integers(max(1, len(text) - _CHARACTERS)))
        part = text[start : start + _CHARACTERS]
        asked = [question for question in found.questions if question.document == name]
        (memory,) = teacher.remember([part])
        questions: list[Question] = []
        for place in rng.permutation(len(asked)).tolist():
            spans = np.array(asked[place].spans) - start
            ends, starts = memory.spans[:, 1], memory.spans[:, 0]
            overlaps = (starts < spans[:, 1:]) & (ends > spans[:, :1])
            answers = np.flatnonzero(overlaps.any(0))
            if len(answers) and len(questions) < _PER_DOCUMENT:
                scores = [s.score for s in teacher.score(asked[place].text, memory)]
                ids = teacher.model.tokenizer.encode(asked[place].text.strip()).ids
                values = np.array(scores, np.float32)
                questions.append(Question(f"{name} {place}", ids, answers, values))
        if questions:
            yield Document(f"{found.name}/{name}", memory.ids, memory.bounds, questions)


class Continued(nn.Module):
    """Pocket-mamba2, with sentences scored at their end or `LATER` tokens after it."""

    def __init__(self, later: int = LATER) -> None:
        super().__init__()
        self.model = load_model("pocket-mamba2", "float32", "cpu")
        self.backbone = self.model.backbone
        self.head = self.model.head("sentences")
        self.later = later
        self.maker = ItemMaker(self.model)
        unfreeze(self.model)

    def item(self, document: Document, question: Question) -> Item:
        """Return the row of a question and a document."""
        bounds = document.bounds
        units = TokenUnits(document.ids, bounds, np.maximum(bounds[1:] - 1, 0))
        item = self.maker.item(question.ids, units)
        assert item.request.positions is not None
        last = len(item.request.ids) - 1
        positions = np.minimum(np.asarray(item.request.positions) + self.later, last)
        return replace(item, request=replace(item.request, positions=positions))

    def forward(self, documents: Sequence[tuple[Document, Question]]) -> list[Tensor]:
        """Return the scores (S,) of each document's sentences for a question."""
        return sentence_scores(self.model, [self.item(*pair) for pair in documents])


def taught_loss(model: Continued, document: Document, question: Question) -> Tensor:
    """Return the divergence from the teacher's order, the cross-entropy with the teacher's
    probabilities, and the loss of the sentences that answer.
    """
    (scores,) = model([(document, question)])
    full = torch.isfinite(scores)
    teacher = torch.from_numpy(question.bm25).to(scores.device)[full]
    own = scores[full]
    order = F.kl_div(F.log_softmax(own, 0), F.softmax(teacher, 0), reduction="sum")
    each = F.binary_cross_entropy_with_logits(own, teacher.sigmoid(), reduction="sum")
    places = full.cumsum(0)[torch.from_numpy(question.answers)] - 1
    answers = -torch.logsumexp(F.log_softmax(own, 0)[places], 0)
    return order + _CERTAIN * each / len(own) ** 0.5 + _SPANS * answers
