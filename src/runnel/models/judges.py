"""Heads of the second look (`models/second_look.py`): what the hidden vectors of a query and of a sentence say of each other.

Q  tokens of the query   T  tokens of the sentence   D  width of the vectors   F  facts of a document   S  sentences
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.models.heads import UNFIT, Head, TokenFeatures, VectorScore
from runnel.ops.backend import plain_numbers

_LEAST_IDF = 0.05  # what the commonest token counts


class LateInteraction(Head):
    """A score of a sentence from the hidden vectors of its tokens and those of the query (`models/second_look.py`).

    Each token of the query takes its best cosine among tokens of the sentence, weighted by its static idf and by what `weight`
    makes of its hidden vector. Fresh weights judge by idf alone.
    """

    inputs = "vectors"

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Linear(hidden_size, 1)
        self.mix = nn.Parameter(torch.tensor([8.0, 4.0, 8.0]))  # of the sentence's tokens, of those around it too, of means
        with torch.no_grad():
            self.weight.weight.zero_()
            self.weight.bias.zero_()

    def weigh(self, hidden: Tensor, idf: Tensor) -> Tensor:
        """Return weights (Q,) of the query's tokens: hidden (Q, D), static idf (Q,)."""
        return (idf + _LEAST_IDF) * self.weight(hidden)[:, 0].clamp(-3, 3).exp()

    def forward(self, query: Tensor, weights: Tensor, mean: Tensor, sentence: Tensor, around: Tensor) -> Tensor:
        """Score a sentence: a query's unit vectors (Q, D), their weights (Q,) of sum 1, and mean (D,); the hidden vectors of the
        sentence (T, D) and of what is read with it (any, D) -> ().
        """
        own = (F.normalize(sentence, dim=-1) @ query.T).amax(0)
        seen = own if not len(around) else torch.maximum(own, (F.normalize(around, dim=-1) @ query.T).amax(0))
        return torch.stack([own @ weights, seen @ weights, F.cosine_similarity(sentence.mean(0), mean, dim=0)]) @ self.mix


class PairJudge(LateInteraction):
    """The score of a sentence that is read together with the query, as a cross-encoder reads (`models/second_look.py`).

    Late interaction within the sequence, and what a small network makes of the first vector and the sentence's mean.
    """

    jobs = ("pair",)

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.middle, self.out = nn.Linear(2 * hidden_size, hidden_size), nn.Linear(hidden_size, 1)
        with torch.no_grad():
            self.out.weight.zero_()
            self.out.bias.fill_(-12.0)  # about what the late interaction of an untrained encoder has

    def look(self, hidden: Tensor, idf: Tensor, asked: int, sentence: slice, around: Tensor) -> Tensor:
        """Score a sequence ().

        Args:
            hidden: (T, D) of the sequence: the first marker, `asked` tokens of the query, and the rest.
            idf: (asked,) of the query's tokens.
            sentence: its tokens; around: (T,) bool, other tokens that count.
        """
        query, text = hidden[1 : 1 + asked], hidden[sentence]
        weights = self.weigh(query, idf)
        met = self(F.normalize(query, dim=-1), weights / weights.sum(), query.mean(0), text, hidden[around])
        return met + self.out(F.gelu(self.middle(torch.cat([hidden[0], text.mean(0)]))))[0]


class Judge(LateInteraction):
    """The second look's score of a sentence that is read apart from the query, and what scores say."""

    jobs = ("judge",)
    FACTS = 6  # of a document: those of `document_facts`, the best of the judge's scores and the mean of the best three

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.document = nn.Linear(self.FACTS, 1)
        self.near = nn.Parameter(torch.tensor([0.0, 16.0, 2.0, 0.0]))  # of the first four facts, to choose among documents
        self.calibration: Tensor  # factor and summand of a sentence's score
        self.register_buffer("calibration", torch.tensor(UNFIT))
        self.floor: Tensor  # the judge's score of a sentence that is not read again
        self.register_buffer("floor", torch.tensor(4.0))
        with torch.no_grad():
            self.document.weight.zero_()
            self.document.bias.zero_()

    def inside(self, scores: np.ndarray) -> np.ndarray:
        """Return the logits (S,) that sentences answer, if their document does, from the sums of both looks."""
        return float(self.calibration[0]) * scores + float(self.calibration[1])

    def answers(self, facts: np.ndarray) -> float:
        """Return the logit that a document with these facts (F,) answers."""
        return float(self.document(torch.from_numpy(facts).to(self.document.weight.dtype)))

    def nearness(self, facts: np.ndarray) -> float:
        """Return what is added to the scores of a document's sentences when the best of several documents are read again."""
        return float(torch.from_numpy(facts).to(self.near.dtype) @ self.near)


@plain_numbers()
def sentence_heads(vocab_size: int, hidden_size: int) -> dict[str, nn.Module]:
    """Return fresh heads, by name, with which any encoder finds sentences (`Model.for_sentences`).

    They add up what a sentence's vector and its words say, and the second look; nothing is calibrated. A passage begins with the
    prompt for documents, a query with that for queries. A sentence's vector is the mean of its own tokens in the passage, and a
    query's the mean of its tokens, also if the model pools the first token, which stands for the whole passage. The model's own
    pooling makes the vectors of texts and passages.
    """
    with torch.random.fork_rng(devices=[]):  # the same weights each time
        torch.manual_seed(0)
        features = TokenFeatures(vocab_size, hidden_size)
        return {"features": features, "sentences": VectorScore(hidden_size), "judge": Judge(hidden_size)}
