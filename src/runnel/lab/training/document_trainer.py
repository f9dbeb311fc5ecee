"""Train on documents: the bases of the Trainers, and the Trainer for sentence retrievers.

In: items of documents with their lengths. Out: losses and recalls, in steps of the transformers
Trainer. In the order of this file: losses; `TokenBatches`, which fills batches; `DocumentTrainer`,
with the mean loss over the documents of a step; `AveragedTrainer`, for a part of a model;
`PackedTrainer`, for a whole model; `SentenceTrainer`, with the loss of paper E (docs/papers.md).

A document of the data is an item: what the trained module takes, such as a query and a document
with labels of its sentences (`Item`; the same document for another query is then another item).
Where batches are filled, an item is a row of T tokens.

Batches have rows of about equal length, filled up to a budget of tokens, the same on every machine
for one seed and epoch. A row of T tokens joins the group where k = max_tokens // T rows fill a
batch, so any k rows of the group fit the budget: rows can be shuffled for every epoch while the
number of batches stays the same, which schedules, progress and resuming rely on.

n  documents of a batch   S  sentences of a document
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput

from runnel.errors import CheckpointError
from runnel.lab.training.forward import sentence_scores, unfreeze
from runnel.lab.training.progress import Watched
from runnel.models.items import Item
from runnel.models.model import Model
from runnel.models.recurrent.adapters import load_adapter, save_adapter
from runnel.models.recurrent.graph import Long

# Groups by the number of rows that fill a batch: up to 8 rows, each number is a group; larger
# numbers are rounded down to multiples of 1/8 of a power of 2. So 21 rows are in the group of 20.
_FINE = 8
_MOST_KEPT = 0.995  # the share of the averaged weights that a step keeps, less in the first steps
_EVALUATION_SEGMENT = 4096  # tokens of a segment; without gradients, segments only limit memory


def sentence_loss(scores: Tensor, labels: Tensor, *, as_code: bool = False) -> Tensor:
    """Return the binary cross-entropy over the sentences (S,) of one document, in which positives
    and others weigh 1/2 each.

    If all sentences are of one class, that class still gets 1/2: a document without an answer
    teaches low scores, at half the weight of a document with both.

    With `as_code` the result is multiplied by twice the share of negatives. That is the mean over
    sentences, in which a positive has the weight (number of negatives) / (number of positives).

    Source: paper E, appendix F (w_i), and its authors' code (`pos_weight`): docs/papers.md.
    """
    positive = labels.bool()
    negative = ~positive
    shares = positive / positive.sum().clamp(min=1) + negative / negative.sum().clamp(min=1)
    half = negative.float().mean() if as_code else 0.5
    return F.binary_cross_entropy_with_logits(
        scores.float(), labels.float(), weight=half * shares.float(), reduction="sum"
    )


def span_loss(scores: Tensor, evidence: Sequence[tuple[int, int]]) -> Tensor:
    """Return the mean over evidence spans, sentences [first, last), of -log of a span's share in
    the softmax of scores (S,).
    """
    share = F.log_softmax(scores, 0)
    return -torch.stack([torch.logsumexp(share[first:last], 0) for first, last in evidence]).mean()


def yes_or_no_loss(scores: Tensor, answers: Tensor) -> Tensor:
    """Return the binary cross-entropy of every sentence (S,), summed, and divided by the root of
    their number.
    """
    return F.binary_cross_entropy_with_logits(scores, answers, reduction="sum") / len(scores) ** 0.5


class DocumentData(Protocol):
    """Training data of a `DocumentTrainer`."""

    lengths: NDArray[np.int64]  # (n,) the tokens of each document, by which batches are filled

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[str, Any]:
        """Return the name and the item of a document; an item has `tokens`."""


class TokenBatches(Sampler[list[int]]):
    """Lists of row numbers, as a `DataLoader`'s `batch_sampler`: in an epoch each row is in exactly
    one batch of one process.

    No batch has more than `max_tokens` tokens, except a single row that is longer. All processes
    get the same number of batches, and the batches of one step have rows of about the same length;
    if there are too few rows for that, some batches are empty.
    """

    def __init__(
        self,
        lengths: Sequence[int] | NDArray[np.int64],
        max_tokens: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        max_rows: int | None = None,
        world: int = 1,
        rank: int = 0,
    ) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.seed = seed
        self.shuffle = shuffle
        self.world = world
        self.rank = rank
        self.epoch = 0
        most = max_rows or len(self.lengths) or 1
        # for each row, how many rows of its length fit the budget, rounded down as at `_FINE`
        fitting = np.clip(max_tokens // np.maximum(self.lengths, 1), 1, most)
        eighths = np.maximum(fitting // _FINE, 1)
        step = 2 ** np.log2(eighths).astype(np.int64)
        self._rows = fitting // step * step  # for each row, how many of its group fill a batch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._all(0)) // self.world

    def __iter__(self) -> Iterator[list[int]]:
        return (batch.tolist() for batch in self._all(self.epoch)[self.rank :: self.world])

    def _all(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the batches of all processes, with the batches of one step next to each other."""
        rng = np.random.default_rng((self.seed, epoch if self.shuffle else 0))
        count = len(self.lengths)
        order = rng.permutation(count) if self.shuffle else np.arange(count)
        batches: list[NDArray[np.int64]] = []
        rest = order[:0]
        # Groups of short rows first: the rows that fill no batch join groups of longer rows.
        for rows in np.unique(self._rows)[::-1].tolist():
            if len(rest) > rows:
                batches.append(rest)
                rest = order[:0]
            members = np.concatenate([rest, order[self._rows[order] == rows]])
            filled = len(members) // rows * rows
            batches.extend(members[:filled].reshape(-1, rows))
            rest = members[filled:]
        if len(rest):
            batches.append(rest)
        batches = _divisible(batches, self.world)
        if self.shuffle:
            steps = rng.permutation(len(batches) // self.world) * self.world
            batches = [batch for at in steps for batch in batches[at : at + self.world]]
        return batches


def _divisible(batches: list[NDArray[np.int64]], world: int) -> list[NDArray[np.int64]]:
    """Make the number of batches divisible by `world`: cut the largest in two, or add empty ones if
    none can be cut.
    """
    while len(batches) % world:
        largest = max(range(len(batches)), key=lambda i: len(batches[i]))
        rows = batches[largest]
        half = max(1, len(rows) // 2)
        batches[largest : largest + 1] = [rows[:half], rows[half:]]
    return batches


class DocumentTrainer(Watched):
    """A Trainer whose module maps items to the loss of each document (n,) and the scores (S,) of
    each document's sentences.

    Its data are pairs of a name and an item, which has `tokens` for progress; their `lengths` (n,)
    int64 fill batches. The loss of a step is the sum over its documents, on all devices, divided by
    the sum of their weights.
    """

    model: Any  # the module

    def __init__(
        self,
        module: nn.Module,
        args: TrainingArguments,
        train: DocumentData,
        evaluation: DocumentData | None = None,
        *,
        max_tokens: int,
        max_rows: int | None = None,
        top_k: Sequence[int] = (),
    ) -> None:
        self.top_k = tuple(top_k)
        self._max_tokens = max_tokens
        self._max_rows = max_rows
        super().__init__(module, args, train_dataset=train, eval_dataset=evaluation)
        # the Trainer must not divide the loss by the batches of a step, its gradient accumulation
        # ("ga"): `compute_loss` divides by the weight of all of them
        self.loss_is_scaled_for_ga = True

    def weight(self, item: Any) -> int:
        """Return the weight of a document in the mean loss."""
        return 1

    def recalls(self, scores: Any, item: Any) -> list[float] | None:
        """Return the recall at each of `top_k`, or None for a document without an answer."""
        return None

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self._loader(self.train_dataset, shuffle=True)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        return self._loader(
            self.eval_dataset if eval_dataset is None else eval_dataset, shuffle=False
        )

    def _loader(self, data: Any, *, shuffle: bool) -> DataLoader[Any]:
        """Return a loader that is not prepared by accelerate, which would share the batches among
        the processes once more.
        """
        args = self.args
        batches = TokenBatches(
            data.lengths,
            self._max_tokens,
            seed=args.seed,
            shuffle=shuffle,
            max_rows=self._max_rows,
            world=args.world_size,
            rank=args.process_index,
        )
        loader = DataLoader(data, batch_sampler=batches, collate_fn=partial(_collate, data=data))
        loader.set_epoch = batches.set_epoch  # the Trainer calls it
        return loader

    def get_batch_samples(
        self, epoch_iterator: Iterator[object], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], Tensor | int | None]:
        """Return the batches of a step, and the weight of all documents in
        them, over all devices.
        """
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        # not of the item that fills an empty batch (`_collate`)
        weights = [
            self.weight(item) for batch in batches for item in batch["items"][: len(batch["ids"])]
        ]
        weight = torch.tensor(sum(weights), device=device)
        if self.args.world_size > 1:
            dist.all_reduce(weight)
        return batches, weight

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, object],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the part of these items in the step's loss, times the number of devices, because
        DDP takes the mean over devices.
        """
        losses, _ = model(inputs["items"])
        # An item without an id only fills a batch that other processes wait for.
        if not inputs["ids"]:
            return losses.sum() * 0.0
        assert num_items_in_batch is not None
        return losses.sum() * (self.args.world_size / num_items_in_batch)

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Return the mean loss, and the mean recall of the documents that have an answer."""
        self.model.eval()
        # documents, their weights, their losses, those with an answer, and their recalls
        sums = torch.zeros(4 + len(self.top_k), dtype=torch.float64, device=self.args.device)
        for batch in dataloader:
            with torch.no_grad():
                losses, scores = self.model(batch["items"])
            # without the item that fills an empty batch, which has no id (`_collate`)
            for _, loss, score, item in zip(
                batch["ids"], losses, scores, batch["items"], strict=False
            ):
                recalls = self.recalls(score, item)
                counts = [1.0, self.weight(item), float(loss), float(recalls is not None)]
                sums += torch.tensor([*counts, *(recalls or [0.0] * len(self.top_k))]).to(sums)
            self.control = self.callback_handler.on_prediction_step(
                self.args, self.state, self.control
            )
        if self.args.world_size > 1:
            dist.all_reduce(sums)
        documents, weight, loss_sum, answered, *recall_sums = sums.tolist()
        metrics = {f"{metric_key_prefix}_loss": loss_sum / max(weight, 1)} | {
            f"{metric_key_prefix}_recall_at_{k}": total / max(answered, 1)
            for k, total in zip(self.top_k, recall_sums, strict=True)
        }
        return EvalLoopOutput(
            predictions=np.zeros(0), label_ids=None, metrics=metrics, num_samples=int(documents)
        )


class AveragedTrainer(DocumentTrainer):
    """A Trainer of a part of a model, in batches of `args.per_device_train_batch_size` items of
    equal weight. The result has the average of the weights over the last steps.

    Args:
        module: computes with `trained` in training, and in evaluation with its submodule "mean", a
            copy of `trained` that gets the averaged weights.
        data: all lengths are 1, so that the budget of tokens is the number of items.
    """

    def __init__(
        self,
        module: nn.Module,
        trained: nn.Module,
        args: TrainingArguments,
        *data: Any,
        top_k: Sequence[int],
    ) -> None:
        self._weights = trained
        self._mean = module.get_submodule("mean")
        super().__init__(
            module, args, *data, max_tokens=args.per_device_train_batch_size, top_k=top_k
        )
        self.add_callback(_Average(self._weights, self._mean))

    def use_average(self) -> None:
        """Set the trained part to the averaged weights."""
        self._weights.load_state_dict(self._mean.state_dict())


class _Average(TrainerCallback):
    def __init__(self, trained: nn.Module, mean: nn.Module) -> None:
        self._trained = trained
        self._mean = mean

    @torch.no_grad()
    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        # the usual start of a moving average, (1 + t) / (10 + t) after t earlier steps
        keep = min(_MOST_KEPT, state.global_step / (state.global_step + 9))
        for mean, new in zip(self._mean.parameters(), self._trained.parameters(), strict=True):
            mean.mul_(keep).add_(new, alpha=1 - keep)


def _collate(rows: Sequence[tuple[str, Any]], *, data: DocumentData) -> dict[str, object]:
    """Return {"items": the documents, "ids": their names, "tokens": the number of their tokens}.

    An empty batch, which other processes wait for, gets the shortest document, without a name.
    """
    items = [item for _, item in rows] or [data[int(data.lengths.argmin())][1]]
    return {
        "items": items,
        "ids": [name for name, _ in rows],
        "tokens": sum(item.tokens for _, item in rows),
    }


class ModelModule(nn.Module):
    """The parameters of a model as a module for the Trainer. Its `forward` maps items to their
    losses (n,) and scores. Of the heads, only `heads` are trained.
    """

    def __init__(self, model: Model, long: Long, heads: Collection[str]) -> None:
        super().__init__()
        self.model = model
        self._long = long
        self.backbone = model.backbone
        self.heads = model.heads
        unfreeze(model)
        for name, head in model.heads.items():
            head.requires_grad_(name in heads)

    @property
    def long(self) -> Long:
        """How items are read: as training does, or, where no gradients are computed, in segments:
        parts of a long item that are read one after another, to limit memory.
        """
        measuring = self.backbone.recurrent and not torch.is_grad_enabled()
        if measuring and self._long.segment_tokens is None:
            return Long(segment_tokens=_EVALUATION_SEGMENT, bf16=self._long.bf16)
        return self._long


class PackedTrainer(DocumentTrainer):
    """A Trainer of a whole model. The items of a batch are packed: read side by side in one tensor,
    without padding.

    Batching, devices and accumulation change only speed and memory, as long as the items of a step
    are the same. Checkpoints are model folders with the Trainer's own files (for a model with
    adapters: the adapters and the heads).
    """

    module: ClassVar[type[Any]]  # the class of the `ModelModule` that is trained

    def __init__(
        self,
        model: Model,
        args: TrainingArguments,
        *data: Any,
        long: Long | None = None,
        **others: Any,
    ) -> None:
        self.runnel_model = model
        super().__init__(
            self.module(model, replace(long or Long(), bf16=args.bf16)), args, *data, **others
        )

    def _save(self, output_dir: str | None = None, state_dict: object = None) -> None:
        """Write a model folder, or adapters and heads."""
        if not self.args.should_save:
            return
        folder = output_dir or str(self.args.output_dir)
        if self.runnel_model.backbone.adapted:
            save_adapter(self.runnel_model, folder)
        else:
            self.runnel_model.save(folder)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        """Load the weights of a checkpoint, which must be exactly the model's."""
        if self.runnel_model.backbone.adapted:
            load_adapter(self.runnel_model, resume_from_checkpoint)
            return
        path = Path(resume_from_checkpoint) / "model.safetensors"
        try:
            (model or self.model).load_state_dict(load_file(path))
        except RuntimeError as error:
            difference = str(error).splitlines()[1].strip()[:200]
            raise CheckpointError(
                f"{resume_from_checkpoint} is a checkpoint of another model than the one to be"
                f" trained ({self.runnel_model.backbone.title}): {difference}; use another run"
                " folder"
            ) from error


class SentenceModule(ModelModule):
    """The parameters of a model as a module for the Trainer. Only the backbone and the heads for
    sentence scores are trained: "sentences", and "features", the weights and marks of tokens, if
    the head compares matching tokens (its inputs are "matches", see `models/head.py`).
    """

    as_code = False  # see `sentence_loss`

    def __init__(self, model: Model, long: Long) -> None:
        heads = ["sentences"]
        if model.head("sentences").inputs == "matches":
            heads.append("features")
        super().__init__(model, long, heads)

    def forward(self, items: Sequence[Item]) -> tuple[Tensor, list[Tensor]]:
        """Return the loss of each document (n,), and the scores (S,) of its sentences."""
        # the heads stay in fp32; `Long.bf16` is for the backbone
        with torch.autocast(self.backbone.device.type, enabled=False):
            scores = sentence_scores(self.model, items, self.long)
            losses = []
            for item, score in zip(items, scores, strict=True):
                # the sentences with a token; the others have no score (-inf)
                full = torch.from_numpy(item.full).to(score.device)
                labels = _labels(item, score.device)[full]
                losses.append(sentence_loss(score[full], labels, as_code=self.as_code))
        return torch.stack(losses), scores


class SentenceTrainer(PackedTrainer):
    """The Trainer for sentence retrievers. The loss of a step is the mean over its documents, on
    all devices.
    """

    module = SentenceModule

    def __init__(
        self,
        model: Model,
        *data: Any,
        top_k: Sequence[int] = (10, 50),
        as_code: bool = False,
        **others: Any,
    ) -> None:
        super().__init__(model, *data, top_k=top_k, **others)
        self.model.as_code = as_code

    def recalls(self, scores: Tensor, item: Item) -> list[float] | None:
        """Return the share of the positive sentences among the k best, ties in document order; None
        without positives.
        """
        labels = _labels(item, scores.device)
        if not bool(labels.any()):
            return None
        ranked = labels[scores.argsort(descending=True, stable=True)]
        return [float(ranked[:k].sum() / labels.sum()) for k in self.top_k]


def _labels(item: Item, device: torch.device) -> Tensor:
    assert item.labels is not None
    return torch.from_numpy(item.labels).to(device)
