"""Training of an encoder's sentence layers through a head over their vectors (`VectorScore`), which stays as it is.

The vectors may not move far from those that the run started from: with few questions, that keeps what its weights know.

T  tokens of a document   S  sentences   Q  questions about it   D  width of the vectors   F  features of a sentence
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import TrainingArguments

from runnel.backbones.encoder.model import Encoder, lay_out
from runnel.lab.training.document_trainer import AveragedTrainer, Documents
from runnel.lab.training.losses import span_loss
from runnel.lab.training.vector_data import ReadQuestion, VectorData
from runnel.lab.training.vectors import span_recalls
from runnel.models.base import Model
from runnel.models.heads import VectorScore

QUESTIONS = 8  # about a document in one step
_KEEP = 1.0  # weight of the distance to the vectors as they were


@dataclass(frozen=True, eq=False)
class LayerItem:
    """A document and questions about it."""

    ids: Tensor  # (R,) int64, the document in blocks (`encoder.model.lay_out`)
    cu_seqlens: Tensor  # (N+1,) where each block begins
    text: Tensor  # (R,) 1 for tokens of the text, 0 for markers
    starts: Tensor  # (S,) int64, the first token of each sentence that has one
    ends: Tensor  # (S,) int64
    queries: tuple[tuple[Tensor, Tensor], ...]  # ids and cu_seqlens of each question
    features: tuple[Tensor, ...]  # (S, F) for each question
    vectors: Tensor  # (S, D), unit vectors of the weights that the run started from
    query_vectors: Tensor  # (Q, D), the same
    evidence: tuple[tuple[tuple[int, int], ...], ...]  # sentences [first, last) of each evidence span, for each question
    tokens: int  # of the document


class LayerData(Dataset[tuple[str, LayerItem]]):
    """Documents with at most `QUESTIONS` questions each; a document with more is several items. An item is made on access."""

    def __init__(self, read: Sequence[VectorData], model: Model) -> None:
        self._documents, self._model = read[0].documents, model
        by_document: dict[str, list[ReadQuestion]] = {}
        for question in itertools.chain.from_iterable(part.questions for part in read):
            if question.evidence:
                by_document.setdefault(question.document, []).append(question)
        self._groups = [qs[at : at + QUESTIONS] for qs in by_document.values() for at in range(0, len(qs), QUESTIONS)]
        self.lengths: np.ndarray = np.ones(len(self._groups), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: int) -> tuple[str, LayerItem]:
        group = self._groups[index]
        document = self._documents.load(group[0].document)
        inputs = [self._documents.scorer.inputs(one.query, document) for one in group]
        full, vectors, _ = inputs[0]
        row = self._lay_out(document.ids, document.bounds)
        item = LayerItem(
            *self._blocks(row.ids),
            torch.from_numpy(~np.isin(row.ids, self._model.tokenizer.markers())).float(),
            torch.from_numpy(row.starts[full]),
            torch.from_numpy(row.ends[full]),
            tuple(self._blocks(self._lay_out(one.query.ids, np.array([0, len(one.query.ids)])).ids) for one in group),
            tuple(features for _, _, features in inputs),
            vectors,
            torch.stack([one.query.vector for one in group]),
            tuple(one.evidence for one in group),
            len(document.ids),
        )
        return group[0].name, item

    def _lay_out(self, ids: np.ndarray, bounds: np.ndarray) -> Any:
        return lay_out(ids, bounds, self._model.backbone, self._model.tokenizer.markers())

    def _blocks(self, ids: np.ndarray) -> tuple[Tensor, Tensor]:
        encoder = self._model.backbone
        assert isinstance(encoder, Encoder)
        ends = encoder.block_ends(ids)
        return torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(np.append(0, ends).astype(np.int64))


class LayerModule(nn.Module):
    """The trained layers, and their average over the last steps, which evaluation uses and the run saves."""

    def __init__(self, encoder: Encoder, head: VectorScore, *, bf16: bool = False) -> None:
        super().__init__()
        self._bf16 = bf16
        encoder.requires_grad_(False)
        self.layers = encoder.sentence_layers.requires_grad_(True)
        self.mean = copy.deepcopy(self.layers).requires_grad_(False)
        self._inside = encoder, head.requires_grad_(False)  # in a tuple: no parameters of this module

    def forward(self, items: Sequence[LayerItem]) -> tuple[Tensor, list[list[Tensor]]]:
        """Return the loss of each document (n,), and the scores (S,) of its sentences for each question."""
        losses, scores = [], []
        for item in items:
            vectors, queries = self._vectors(item)
            _, head = self._inside
            found = [head.uncalibrated(q, vectors, features) for q, features in zip(queries, item.features, strict=True)]
            loss = torch.stack([span_loss(score, spans) for score, spans in zip(found, item.evidence, strict=True)]).mean()
            moved = (1 - (vectors * item.vectors).sum(1)).mean() + (1 - (queries * item.query_vectors).sum(1)).mean()
            losses.append(loss + _KEEP * moved)
            scores.append(found)
        return torch.stack(losses), scores

    def _vectors(self, item: LayerItem) -> tuple[Tensor, Tensor]:
        """Return the unit vectors of sentences (S, D) and questions (Q, D)."""
        encoder, _ = self._inside
        layers = self.layers if self.training else self.mean
        with torch.autocast(item.ids.device.type, torch.bfloat16, enabled=self._bf16):
            hidden = encoder.read_with(layers, item.ids, item.cu_seqlens)
            read = [encoder.read_with(layers, *blocks).mean(0) for blocks in item.queries]
        sums = F.pad((hidden * item.text[:, None]).cumsum(0), (0, 0, 1, 0))
        return F.normalize(sums[item.ends] - sums[item.starts], dim=-1), F.normalize(torch.stack(read), dim=-1)


class LayerTrainer(AveragedTrainer):
    """The Trainer for an encoder's sentence layers.

    The loss of a question is a softmax over the sentences of its document for each evidence span; that of a document is the mean
    over its questions and the distance of all vectors (1 - cosine) to those of the weights that the run started from.
    """

    def __init__(
        self,
        model: Model,
        args: TrainingArguments,
        train: Documents,
        evaluation: Documents | None = None,
        *,
        bf16: bool = False,
        top_k: Sequence[int] = (10,),
    ) -> None:
        encoder, head = model.backbone, model.head("sentences")
        assert isinstance(encoder, Encoder) and isinstance(head, VectorScore)
        module = LayerModule(encoder, head, bf16=bf16)
        super().__init__(module, module.layers, args, train, evaluation, top_k)

    def recalls(self, scores: Any, item: LayerItem) -> list[float] | None:
        """Return the mean over the questions of `span_recalls`."""
        found = [span_recalls(score, spans, self.top_k) for score, spans in zip(scores, item.evidence, strict=True)]
        return [float(value) for value in np.mean([one for one in found if one is not None], axis=0)]
