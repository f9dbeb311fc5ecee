"""Train pocket, or another encoder, to find sentences: a head that scores stored vectors, or the
layers that make these vectors.

The head, a `VectorScore` (`models/pocket/heads.py`), scores the sentences of a document for a query
from their vectors, which the encoder computed before, and from lexical features. The encoder's
`sentence_layers` replace its last layers when it reads for sentences. In the order of this file:

    head     VectorItem, VectorModule, VectorTrainer, calibrate: the documents are read once, and
             their vectors are stored in the run folder; only the head is trained
    data     `read_vector_data` reads the documents and questions, and splits them: `VectorData`
    layers   LayerItem, LayerData, LayerModule, LayerTrainer: each step reads documents again; the
             head stays as it is. The vectors may not move far from the vectors that the run started
             from: with few questions, that keeps what the weights know.

A head is calibrated if its scores, by a factor and a summand, have been made the logits of the
probability that a sentence answers (`calibrate`).

An encoder reads a limited number of tokens at once. So a document is laid out in blocks, each of
them between two markers, such as [CLS] and [SEP] (`models/pocket/layout.py`).

n  questions of a batch      S  sentences of a document      D  width of the vectors
K  known columns of a sentence (`vector_scores.known_columns`)       F  its lexical features
Q  questions about a document        R  its tokens in blocks, markers included       N  its blocks
"""

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from runnel.backbones.encoder.model import Encoder
from runnel.files import digest, sweep, write
from runnel.jobs.progress import inform, notify, open_progress
from runnel.lab.training.data import Evidence
from runnel.lab.training.document_trainer import AveragedTrainer, span_loss, yes_or_no_loss
from runnel.lab.training.tables import expect_left, expect_tokens, label_sentences
from runnel.lab.training.vector_scores import combine, known_columns, uncalibrated
from runnel.models.model import Model
from runnel.models.pocket.heads import UNFIT
from runnel.models.pocket.layout import lay_out
from runnel.models.pocket.scorer import VectorQuery, VectorScorer
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.models.recurrent.heads import HeldHead

# of a longer document, a step has this number of random sentences, the best, and the answers
# (`thin`)
_SENTENCES = 300
_BEST = 40  # sentences, the best by the sum of z-scores
_YES_OR_NO = 0.2  # weight of the loss of each sentence alone
_LOADED = 64  # documents held in memory
_ELSEWHERE = 4  # one question in 4 is also asked about a document that does not answer it
_ASIDE = 10  # one document in 10 is not trained on, but calibrates the head
QUESTIONS = 8  # about a document in one step
_KEEP = 1.0  # weight of the distance to the vectors as they were


@dataclass(frozen=True, eq=False)
class VectorItem:
    """A question and a document that has been read, as a `VectorScore` head sees them."""

    query: Tensor  # (D,), a unit vector
    vectors: Tensor  # (S, D), unit vectors of the sentences, S >= 1
    known: Tensor  # (S, K), see `vector_scores.known_columns`
    # sentences [first, last) of each evidence span; empty if the document does not answer
    evidence: tuple[tuple[int, int], ...]
    tokens: int = 0  # of the document


def make_vector_item(
    query: np.ndarray | Tensor,
    vectors: np.ndarray | Tensor,
    features: np.ndarray | Tensor,
    evidence: Sequence[tuple[int, int]],
    tokens: int = 0,
) -> VectorItem:
    """Return the item of a query (D,), vectors (S, D), `sentence_features` (S, F) and evidence."""
    query, vectors, features = map(torch.as_tensor, (query, vectors, features))
    return VectorItem(
        query, vectors, known_columns(query, vectors, features), tuple(evidence), tokens
    )


def mark_answers(sentences: int, evidence: Sequence[tuple[int, int]]) -> Tensor:
    """Return (S,) fp32: 1 for sentences of an evidence span."""
    answers = torch.zeros(sentences)
    for first, last in evidence:
        answers[first:last] = 1
    return answers


def thin(item: VectorItem, rng: np.random.Generator) -> VectorItem:
    """Reduce a long document to its answers, its best sentences by the sum of z-scores, and random
    others.
    """
    if len(item.known) <= _SENTENCES:
        return item
    keep = np.zeros(len(item.known), bool)
    keep[rng.choice(len(keep), _SENTENCES, replace=False)] = True
    # columns 1 and 2: the z-scores of the cosine and of the BM25 share
    keep[torch.topk(item.known[:, 1] + item.known[:, 2], _BEST).indices.numpy()] = True
    for first, last in item.evidence:
        keep[first:last] = True
    place = np.concatenate([[0], keep.cumsum()])  # of each sentence among those that are kept
    chosen = torch.from_numpy(np.flatnonzero(keep))
    evidence = tuple((int(place[first]), int(place[last])) for first, last in item.evidence)
    return VectorItem(item.query, item.vectors[chosen], item.known[chosen], evidence, item.tokens)


def score_items(head: Any, items: Sequence[VectorItem]) -> list[Tensor]:
    """Return the uncalibrated scores (S,) of each item, computed in one pass. Here and below,
    `head` is the `HeldHead` of a `VectorScore`.
    """
    device = head.direct.device
    sizes = [len(item.vectors) for item in items]
    projected = head.query(torch.stack([item.query for item in items]).to(device))
    projected = projected.repeat_interleave(torch.tensor(sizes, device=device), 0)
    vectors = torch.cat([item.vectors for item in items]).to(device)
    columns = torch.cat([item.known for item in items]).to(device)
    return list(combine(head, projected, vectors, columns).split(sizes))


def span_recalls(
    scores: Tensor, evidence: Sequence[tuple[int, int]], top_k: Sequence[int]
) -> list[float] | None:
    """Return the share of evidence spans that one of the k best sentences overlaps, ties in
    document order; None without any.
    """
    if not evidence:
        return None
    # the rank of each sentence, from 0, and of the best sentence of each span
    ranks = scores.argsort(descending=True, stable=True).argsort().cpu().numpy()
    best = np.array([ranks[first:last].min() for first, last in evidence])
    return [float(np.mean(best < k)) for k in top_k]


class VectorModule(nn.Module):
    """The trained weights, and their average over the last steps, which evaluation uses and the run
    saves.
    """

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head = head.requires_grad_(True)
        self.mean = copy.deepcopy(head).requires_grad_(False)
        start = head.calibration.detach().clone()
        fresh = bool((start == torch.tensor(UNFIT)).all())
        # The factor and the summand that make a score the logit of an answer, learned with the
        # head. A new head begins low, sigmoid(-4) = 0.02, because few sentences answer.
        self.calibration = nn.Parameter(torch.tensor([1.0, -4.0]) if fresh else start)

    def forward(self, items: Sequence[VectorItem]) -> tuple[Tensor, list[Tensor]]:
        """Return the loss of each document (n,), and the scores (S,) of its sentences."""
        scores = score_items(self.head if self.training else self.mean, items)
        losses = []
        for score, item in zip(scores, items, strict=True):
            answers = mark_answers(len(score), item.evidence).to(score.device)
            logits = score * self.calibration[0] + self.calibration[1]
            losses.append(_YES_OR_NO * yes_or_no_loss(logits, answers))
            if item.evidence:
                losses[-1] = losses[-1] + span_loss(score, item.evidence)
        return torch.stack(losses), scores


class VectorTrainer(AveragedTrainer):
    """The Trainer for a `VectorScore` head.

    The loss is a softmax over the sentences of a document for each evidence span, and a share of
    the binary cross-entropy of every sentence, which is the only one for a document that does not
    answer.
    """

    def __init__(self, head: Any, *data: Any, top_k: Sequence[int]) -> None:
        super().__init__(VectorModule(head), head, *data, top_k=top_k)

    def recalls(self, scores: Tensor, item: VectorItem) -> list[float] | None:
        return span_recalls(scores, item.evidence, self.top_k)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the part of the step's loss that these questions make; long
        documents are thinned.
        """
        rng = np.random.default_rng(
            (self.args.seed, self.state.global_step, self.args.process_index)
        )
        items = [thin(item, rng) for item in inputs["items"]]
        return super().compute_loss(
            model, {**inputs, "items": items}, return_outputs, num_items_in_batch
        )

    def calibrate(self, aside: "VectorData | None") -> None:
        """Calibrate the head on the documents aside, which were not trained on; without any it
        keeps the calibration that was learned with the weights.
        """
        head = self.model.head
        with torch.no_grad():
            head.calibration.copy_(self.model.calibration)
        if aside is not None and len(aside):
            calibrate(head, [aside[index][1] for index in range(len(aside))])


def calibrate(
    head: Any, items: Sequence[VectorItem], weights: Sequence[float] | None = None
) -> None:
    """Set factor and summand so that the sigmoid of a score is the share of such sentences that
    answer. `weights`: for each item, how much each of its sentences counts; default: equal.

    If the items do not determine them (no sentence answers, or a larger score means a smaller
    share), they stay as they are.

    Source: Platt 1999.
    """
    with torch.no_grad():
        score = torch.cat([score_items(head, [item])[0] for item in items]).double().cpu()
    answers = torch.cat([mark_answers(len(item.vectors), item.evidence) for item in items]).double()
    shares = [1.0 / len(items)] * len(items) if weights is None else weights
    sizes = torch.tensor([len(item.vectors) for item in items])
    weight = torch.tensor(shares, dtype=torch.float32).repeat_interleave(sizes).double()
    factors = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([factors], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(
            score * factors[0] + factors[1], answers, weight, reduction="sum"
        )
        loss.backward()
        return loss

    optimizer.step(closure)
    fitted = factors.detach()
    if not bool(answers.any()) or not bool(fitted.isfinite().all()) or float(fitted[0]) <= 0:
        notify(
            "the documents kept aside do not determine the calibration of scores; it stays as it"
            " was learned"
        )
        return
    with torch.no_grad():
        head.calibration.copy_(fitted)


@dataclass(frozen=True, eq=False)
class ReadQuestion:
    """A question that the encoder has read, about a document; a document without evidence does not
    answer it.
    """

    name: str
    text: str
    query: VectorQuery
    document: str  # the digest of its text
    evidence: tuple[tuple[int, int], ...]  # sentences [first, last) of those with a token


class VectorData(Dataset[tuple[str, VectorItem]]):
    """Questions about documents that have been read; an item is made on access."""

    def __init__(
        self,
        scorer: VectorScorer,
        load: Callable[[str], SentenceVectors],
        questions: Sequence[ReadQuestion],
    ) -> None:
        self.scorer = scorer
        self.load = load
        self.questions = list(questions)
        # batches have equally many questions
        self.lengths: NDArray[np.int64] = np.ones(len(self.questions), dtype=np.int64)

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: int) -> tuple[str, VectorItem]:
        question = self.questions[index]
        document = self.load(question.document)
        # without the mask of the sentences that have a token: `evidence` counts only these
        _, vectors, features = self.scorer.inputs(question.query, document)
        return question.name, make_vector_item(
            question.query.vector, vectors, features, question.evidence, len(document.ids)
        )


def read_vector_data(
    scorer: VectorScorer, examples: Iterable[Evidence], folder: Path, held_out: int, *, write: bool
) -> tuple[VectorData, VectorData | None, VectorData]:
    """Read the documents that `folder` lacks, and return the questions trained on, those held out,
    and those aside, which calibrate (`split_documents`).

    No document is in two of them. Texts and questions are held in memory, sentence vectors are not.
    """
    # 1. Collect the texts, each once.
    texts: dict[str, str] = {}
    keyed: list[tuple[str, Evidence]] = []
    for example in examples:
        key = digest(example.document)
        keyed.append((key, replace(example, document=texts.setdefault(key, example.document))))
    if unused := sum(bool(example.units) for _, example in keyed):
        notify(
            f"the units of {unused} examples are not used: documents are read once, in the"
            " sentences of the model"
        )
    # 2. Read the documents.
    if write:
        _write_vectors(scorer, texts, folder)

    @lru_cache(_LOADED)
    def load(document: str) -> SentenceVectors:
        return SentenceVectors.from_bytes((folder / document).read_bytes(), texts[document])

    # 3. Read the questions.
    questions = [
        _question(number, key, example, scorer.read_query(example.query), load(key))
        for number, (key, example) in enumerate(keyed)
    ]
    # 4. Split them by document.
    train, held, aside = split_documents(questions, held_out)
    expect_left(train, f"{len(keyed)} examples", held_out)
    inform(
        f"{len(train)} questions to train on, {len(held)} held out, {len(aside)} for the"
        " calibration"
    )
    return (
        VectorData(scorer, load, [*train, *ask_elsewhere(train)]),
        VectorData(scorer, load, held) if held else None,
        VectorData(scorer, load, [*aside, *ask_elsewhere(aside)]),
    )


def _write_vectors(scorer: VectorScorer, texts: Mapping[str, str], folder: Path) -> None:
    """Write the files of the documents that have none; an interrupted run reads the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    sweep(folder)
    missing = {key: text for key, text in texts.items() if not (folder / key).exists()}
    done = 0
    total = sum(map(len, missing.values()))
    with open_progress("reading documents", "characters") as show:
        for key, vectors in zip(missing, scorer.remember(missing.values()), strict=True):
            write(folder / key, vectors.to_bytes())
            done += len(vectors.text)
            show(done, total)


def _question(
    number: int, key: str, example: Evidence, query: VectorQuery, document: SentenceVectors
) -> ReadQuestion:
    name = example.id or f"example {number + 1}"
    full = np.diff(document.bounds) > 0
    place = np.concatenate([[0], full.cumsum()])  # of each sentence among those with a token
    expect_tokens(full, name)
    evidence = []
    for span in example.spans:
        rows = np.flatnonzero(label_sentences(document.text, document.spans, [span]))
        first, last = place[[rows[0], rows[-1] + 1]].tolist()
        if last > first:
            evidence.append((first, last))
    return ReadQuestion(name, example.query.strip(), query, key, tuple(evidence))


def split_documents(
    questions: Sequence[ReadQuestion], held_out: int
) -> tuple[list[ReadQuestion], ...]:
    """Return the questions to train on, at least `held_out` to hold out, and those of one other
    document in ten to calibrate.
    """
    count = Counter(question.document for question in questions)
    order = sorted(count)  # digests: an order that has nothing to do with the texts
    held = count_held_back(order, count, held_out)
    # 0: trained on, 1: held out, 2: calibrates
    part_of = dict.fromkeys(order, 0) | dict.fromkeys(order[:held], 1)
    part_of |= dict.fromkeys(order[held:][_ASIDE - 1 :: _ASIDE], 2)
    parts: tuple[list[ReadQuestion], ...] = ([], [], [])
    for question in questions:
        parts[part_of[question.document]].append(question)
    return parts


def count_held_back(order: Sequence[str], count: Mapping[str, int], held_out: float) -> int:
    """Return how many documents, the first of the order, have at least `held_out` questions;
    `count` has the questions of each.
    """
    before = np.cumsum([0, *(count[document] for document in order)])[:-1]
    return int(np.count_nonzero(before < held_out))


def ask_elsewhere(questions: Sequence[ReadQuestion]) -> list[ReadQuestion]:
    """Return one question in four, asked about another document, if it is about only one."""
    documents = list(dict.fromkeys(question.document for question in questions))
    following = dict(zip(documents, [*documents[1:], *documents[:1]], strict=True))
    asked = Counter(
        text for text, _ in {(question.text, question.document) for question in questions}
    )
    return [
        replace(question, document=following[question.document], evidence=())
        for question in questions[::_ELSEWHERE]
        if asked[question.text] == 1 and len(documents) > 1
    ]


@dataclass(frozen=True, eq=False)
class LayerItem:
    """A document and questions about it, as `LayerModule` reads them."""

    ids: Tensor  # (R,) int64, the document in blocks (`models.pocket.layout.lay_out`)
    cu_seqlens: Tensor  # (N+1,) where each block begins, and the last one ends
    text: Tensor  # (R,) 1 for tokens of the text, 0 for markers
    starts: Tensor  # (S,) int64, the first token of each sentence that has one
    ends: Tensor  # (S,) int64, the token after its last
    queries: tuple[tuple[Tensor, Tensor], ...]  # ids and cu_seqlens of each question
    features: tuple[Tensor, ...]  # (S, F) for each question
    vectors: Tensor  # (S, D), unit vectors of the weights that the run started from
    query_vectors: Tensor  # (Q, D), the same
    # sentences [first, last) of each evidence span, for each question
    evidence: tuple[tuple[tuple[int, int], ...], ...]
    tokens: int  # of the document


class LayerData(Dataset[tuple[str, LayerItem]]):
    """Documents with at most `QUESTIONS` questions each; a document with more is several items. An
    item is made on access. Questions without evidence are left out.

    Args:
        read: from one `read_vector_data`, so the first one's scorer and `load` serve all.
        model: the model that is trained.
    """

    def __init__(self, read: Sequence[VectorData], model: Model) -> None:
        self._scorer = read[0].scorer
        self._load = read[0].load
        self._model = model
        by_document: dict[str, list[ReadQuestion]] = {}
        for question in itertools.chain.from_iterable(part.questions for part in read):
            if question.evidence:
                by_document.setdefault(question.document, []).append(question)
        self._groups = [
            questions[start : start + QUESTIONS]
            for questions in by_document.values()
            for start in range(0, len(questions), QUESTIONS)
        ]
        self.lengths: NDArray[np.int64] = np.ones(len(self._groups), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: int) -> tuple[str, LayerItem]:
        group = self._groups[index]
        document = self._load(group[0].document)
        inputs = [self._scorer.inputs(question.query, document) for question in group]
        full, vectors, _ = inputs[0]  # of the document, the same for each question
        encoder = self._model.backbone
        assert isinstance(encoder, Encoder)
        markers = self._model.tokenizer.markers()
        row = lay_out(document.ids, document.bounds, encoder, markers)
        words = [question.query.ids for question in group]
        asked = [lay_out(ids, np.array([0, len(ids)]), encoder, markers) for ids in words]
        ids, cu_seqlens = _blocks(row.ids, encoder)
        return group[0].name, LayerItem(
            ids=ids,
            cu_seqlens=cu_seqlens,
            text=torch.from_numpy(~np.isin(row.ids, markers)).float(),
            starts=torch.from_numpy(row.starts[full]),
            ends=torch.from_numpy(row.ends[full]),
            queries=tuple(_blocks(question.ids, encoder) for question in asked),
            features=tuple(torch.from_numpy(features) for _, _, features in inputs),
            vectors=torch.from_numpy(vectors),
            query_vectors=torch.from_numpy(np.stack([q.query.vector for q in group])),
            evidence=tuple(question.evidence for question in group),
            tokens=len(document.ids),
        )


def _blocks(ids: np.ndarray, encoder: Encoder) -> tuple[Tensor, Tensor]:
    """Return a laid-out text as tensors: its ids, and where each of its blocks begins."""
    bounds = np.append(0, encoder.block_ends(ids)).astype(np.int64)
    return torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(bounds)


class LayerModule(nn.Module):
    """The trained layers, and their average over the last steps, which evaluation uses and the run
    saves.
    """

    def __init__(self, encoder: Encoder, head: Any, *, bf16: bool = False) -> None:
        super().__init__()
        self._bf16 = bf16
        encoder.requires_grad_(False)
        self.layers = encoder.sentence_layers.requires_grad_(True)
        self.mean = copy.deepcopy(self.layers).requires_grad_(False)
        # in a tuple, where torch does not find them: only the layers are parts of this module
        self._inside = (encoder, head.requires_grad_(False))

    def forward(self, items: Sequence[LayerItem]) -> tuple[Tensor, list[list[Tensor]]]:
        """Return the loss of each document (n,), and the scores (S,) of its sentences for each
        question.
        """
        losses = []
        scores = []
        for item in items:
            vectors, queries = self._vectors(item)
            _, head = self._inside
            by_question = [
                uncalibrated(head, query, vectors, features)
                for query, features in zip(queries, item.features, strict=True)
            ]
            loss = torch.stack(list(map(span_loss, by_question, item.evidence))).mean()
            # how far the vectors are from the vectors of the start, 1 - cosine
            moved = (1 - (vectors * item.vectors).sum(1)).mean()
            moved = moved + (1 - (queries * item.query_vectors).sum(1)).mean()
            losses.append(loss + _KEEP * moved)
            scores.append(by_question)
        return torch.stack(losses), scores

    def _vectors(self, item: LayerItem) -> tuple[Tensor, Tensor]:
        """Return unit vectors (S, D) of the sentences, from the sums over their tokens, and (Q, D)
        of the questions, from the means over all their tokens and markers, as `VectorScorer` does.
        """
        encoder, _ = self._inside
        layers = self.layers if self.training else self.mean
        with torch.autocast(item.ids.device.type, torch.bfloat16, enabled=self._bf16):
            hidden = encoder.read_with(layers, item.ids, item.cu_seqlens)
            queries = [encoder.read_with(layers, *blocks).mean(0) for blocks in item.queries]
        sums = F.pad((hidden * item.text[:, None]).cumsum(0), (0, 0, 1, 0))
        vectors = F.normalize(sums[item.ends] - sums[item.starts], dim=-1)
        return vectors, F.normalize(torch.stack(queries), dim=-1)


class LayerTrainer(AveragedTrainer):
    """The Trainer for an encoder's sentence layers.

    The loss of a question is a softmax over the sentences of its document for each evidence span;
    that of a document is the mean over its questions and the distance of all vectors (1 - cosine)
    to those of the weights that the run started from.
    """

    def __init__(self, model: Model, *data: Any, bf16: bool, top_k: Sequence[int]) -> None:
        encoder = model.backbone
        head = model.heads["sentences"]
        assert isinstance(encoder, Encoder) and isinstance(head, HeldHead)
        module = LayerModule(encoder, head, bf16=bf16)
        super().__init__(module, module.layers, *data, top_k=top_k)

    def recalls(self, scores: Sequence[Tensor], item: LayerItem) -> list[float] | None:
        by_question = [
            span_recalls(score, spans, self.top_k) or []
            for score, spans in zip(scores, item.evidence, strict=True)
        ]
        return [float(value) for value in np.mean(by_question, axis=0)]
