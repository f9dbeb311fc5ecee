"""Stage 1: the student's vectors learn to be the teacher's."""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from tools.train_pocket.loop import Outcome, Run
from tools.train_pocket.student import Ids, Pocket, framed, initialize, pack
from tools.train_pocket.teacher import MAX_TOKENS

log = logging.getLogger(__name__)
_BATCH_TOKENS = 3072
LONGEST = 96  # tokens of a text in stage 1: more vectors to learn from per token read
PARTS = 2  # batches in a step
STEPS = 900  # one and a half times through the texts
_TEMPERATURE = 0.05
RATES = {"matrices": 2.5e-3, "embeddings": 3e-4, "heads": 5e-3, "other": 1.5e-3}


class TeacherTexts:
    """Distillation texts as token rows, with the teacher's vectors; batches of about `_BATCH_TOKENS` tokens."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, seed: int, longest: int = LONGEST) -> None:
        shards = sorted(p for p in folder.glob("vectors-*.npy") if ".partial" not in p.name)
        self.vectors: NDArray[np.float16] = np.concatenate([np.load(p) for p in shards])
        texts = json.loads((folder / "texts.json").read_text(encoding="utf-8"))[: len(self.vectors)]
        self.rows: list[Ids] = [
            framed(np.asarray(e.ids[: MAX_TOKENS - 2], np.int32)) for e in tokenizer.encode_batch(texts, add_special_tokens=False)
        ]
        order = np.random.default_rng(seed).permutation([i for i, row in enumerate(self.rows) if len(row) <= longest])
        sizes = np.cumsum([len(self.rows[i]) for i in order])
        cuts = np.searchsorted(sizes, np.arange(_BATCH_TOKENS, sizes[-1], _BATCH_TOKENS))
        self.batches = np.split(order, cuts)[:-1]
        log.info("%d texts, %.1f M tokens, %d batches", len(order), sizes[-1] / 1e6, len(self.batches))

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """ids, cu_seqlens, teacher vectors (S, 384) fp32"""
        chosen = self.batches[step % len(self.batches)]
        return *pack([self.rows[i] for i in chosen]), torch.from_numpy(self.vectors[chosen].astype(np.float32))


def distillation_loss(vectors: Tensor, target: Tensor) -> tuple[Tensor, dict[str, float]]:
    """1 - cosine to the teacher, plus 0.2 times the divergence of the similarities within the batch."""
    cosine = (vectors * target).sum(-1).mean()
    own = torch.eye(len(vectors), dtype=torch.bool)
    wanted = ((target @ target.T) / _TEMPERATURE).masked_fill(own, -1e4)
    given = ((vectors @ vectors.T) / _TEMPERATURE).masked_fill(own, -1e4)
    divergence = F.kl_div(F.log_softmax(given, -1), F.softmax(wanted, -1), reduction="batchmean")
    return 1 - cosine + 0.2 * divergence, {"cosine": float(cosine.detach()), "divergence": float(divergence.detach())}


def load_tokenizer(teacher: Path) -> Tokenizer:
    """The teacher's WordPiece tokenizer without padding or truncation."""
    tokenizer = Tokenizer.from_file(str(teacher / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def distill(out: Path, teacher: Path, steps: int, seed: int, threads: int, rates: dict[str, float] = RATES) -> Pocket:
    """Train for `steps` steps; resumes a run that was interrupted."""
    torch.manual_seed(seed)
    texts = TeacherTexts(out / "distill", load_tokenizer(teacher), seed)
    model = Pocket()
    initialize(model, teacher, texts.rows)
    run = Run(model, rates, steps, out / "stage1", floor=0.1)

    def loss(number: int) -> Outcome:
        ids, cu_seqlens, target = texts.batch(number)
        value, figures = distillation_loss(model.vectors(ids, cu_seqlens), target)
        return value, ids.numel(), figures

    run.train(lambda step: [partial(loss, PARTS * step + i) for i in range(PARTS)], threads)
    return model
