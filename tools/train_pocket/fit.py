"""Fitting the head over stored vectors with the package's trainer; heads merged into one, its
calibration, and its file.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import TrainingArguments

from runnel.lab.training import recipes
from runnel.lab.training.trainers import arguments, sizes_of
from runnel.lab.training.vector_scores import score
from runnel.lab.training.vectors import VectorItem, VectorTrainer, calibrate, make_vector_item
from runnel.models.pocket.heads import VectorScore
from runnel.models.recurrent.heads import HeldHead
from tools.train_pocket.examples import Example

# questions of a step, some of them asked to a document that does not answer
STEPS, _BATCH = 1000, 30
_SETTINGS = ("train.learning_rate=1e-3", "train.warmup=50")  # of new weights
_PLAIN = 0.15  # of the plain sum beside what was learned; chosen on the documents kept aside


def aside(document: str) -> bool:
    """Return True for one training document in ten, on which the head is calibrated and not
    trained.
    """
    return hashlib.blake2b(document.encode(), digest_size=4).digest()[1] % 10 == 0


def tuned_on(document: str) -> bool:
    """Return True for six training documents in ten. The sentence layers are tuned on these and the
    heads on the others, so that a head is trained on vectors of documents that are new to the
    layers.
    """
    digest = hashlib.blake2b(document.encode(), digest_size=4).digest()
    return digest[1] % 10 != 0 and digest[2] % 3 != 0


def set_weights(examples: Sequence[Example]) -> NDArray[np.float64]:
    """Return (n,) how often each example is drawn: sets by the square root of their size."""
    count = Counter(one.set for one in examples)
    weight = np.array([count[one.set] ** -0.5 for one in examples])
    return weight / weight.sum()


class DrawnExamples:
    """A data set for the trainer: examples drawn by `set_weights`."""

    def __init__(self, examples: Sequence[Example], count: int, seed: int) -> None:
        self._examples = examples
        self.lengths = np.ones(count, dtype=np.int64)
        self._drawn = np.random.default_rng(seed).choice(
            len(examples), count, p=set_weights(examples)
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[str, VectorItem]:
        one = self._examples[self._drawn[index]]
        return f"{one.set} {one.number}", item(one)


def item(one: Example) -> VectorItem:
    """Return what the head sees of an example."""
    return make_vector_item(one.query, one.vectors, one.features, one.evidence)


def train(
    examples: Sequence[Example],
    strangers: Sequence[Example],
    *,
    seed: int,
    steps: int = STEPS,
    hidden_size: int = 384,
) -> HeldHead:
    """Fit a head; `strangers`: questions to documents that do not answer."""
    changes = (
        *_SETTINGS,
        f"train.batch={_BATCH}",
        f"train.max_steps={steps}",
        f"train.seed={seed}",
    )
    torch.manual_seed(seed)
    head = HeldHead(VectorScore(hidden_size))
    drawn = DrawnExamples([*examples, *strangers], steps * _BATCH, seed)
    with TemporaryDirectory() as folder:
        recipe = recipes.read("evidence-vectors", changes=changes)
        args = TrainingArguments(**arguments(recipe, Path(folder)), **sizes_of(recipe))
        trainer = VectorTrainer(head, args, drawn, top_k=())
        trainer.train()
    trainer.use_average()
    trainer.calibrate(None)
    with torch.no_grad():
        # `calibrate_by_set` sets that of the merged head
        head.calibration.copy_(torch.tensor([1.0, 0.0]))
    return head.eval()


@torch.no_grad()
def merged(heads: Sequence[HeldHead]) -> HeldHead:
    """Return one head whose score is the mean of theirs and `_PLAIN` times the plain sum of the
    z-scores of cosine and BM25.
    """
    hidden_size = heads[0].sentence.in_features
    sizes = [h.sentence.out_features for h in heads]
    head = HeldHead(VectorScore(hidden_size, sum(sizes)))
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
def scores(head: HeldHead, examples: Sequence[Example]) -> list[Tensor]:
    """Return the scores (S,) of each example."""
    return [score(head, one.query, one.vectors, one.features) for one in examples]


def calibrate_by_set(
    head: HeldHead, examples: Sequence[Example], strangers: Sequence[Example]
) -> None:
    """Calibrate the head; every set has the weight that it was drawn with, and strangers belong to
    their set.
    """
    chosen = [*examples, *strangers]
    calibrate(head, [item(one) for one in chosen], set_weights(chosen).tolist())


def save(head: Any, out: Path, note: dict[str, object]) -> None:
    """Write `out`/head.safetensors, and its settings to `out`/head.json."""
    save_file(
        {name: tensor.contiguous() for name, tensor in head.state_dict().items()},
        out / "head.safetensors",
    )
    known = {
        "kind": "vector_score",
        "options": head.options,
        "calibration": head.calibration.tolist(),
        **note,
    }
    (out / "head.json").write_text(json.dumps(known, indent=1), encoding="utf-8")


def load(out: Path, hidden_size: int = 384) -> HeldHead:
    """Load the head that `save` wrote."""
    options = json.loads((out / "head.json").read_text(encoding="utf-8"))["options"]
    head = HeldHead(VectorScore(hidden_size, **options))
    head.load_state_dict(load_file(out / "head.safetensors"))
    return head.eval()
