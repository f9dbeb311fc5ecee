"""Stages 2 and 3: the three heads on one trunk.

In stage 2 every step has sentences in it, beside two of vectors for one of reranking; in stage 3 it has all of them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from runnel.text.tokenizer import Tokenizer
from tools.train_pocket.data import EVIDENCE
from tools.train_pocket.distill import TeacherTexts, distillation_loss, load_tokenizer
from tools.train_pocket.documents import load_evidence
from tools.train_pocket.loop import Outcome, Part, Run
from tools.train_pocket.passages import Pair, load_pairs
from tools.train_pocket.student import Pocket, pack
from tools.train_pocket.tasks import RerankTask, SentenceTask, TeacherLists, contrastive_loss
from tools.train_pocket.teacher import MAX_TOKENS

log = logging.getLogger(__name__)
RATES = {"matrices": 1.2e-3, "embeddings": 1.5e-4, "heads": 3e-3, "other": 8e-4}
STEPS = 1150
SETTLE_RATES = {"matrices": 7e-4, "embeddings": 1e-4, "heads": 1e-3, "other": 4e-4}
SETTLE_STEPS = 130
_PAIRS = 8  # (query, passage, hard negative) triples in a batch of vectors


class VectorTask:
    """Distillation on groups of neighboring texts, with InfoNCE on pairs."""

    def __init__(
        self, lists: TeacherLists, texts: TeacherTexts, pairs: list[Pair], seed: int, seeds: int = 6, neighbors: int = 7
    ) -> None:
        self.lists, self.texts, self.pairs, self.seed, self.seeds, self.neighbors = lists, texts, pairs, seed, seeds, neighbors

    def loss(self, model: Pocket, step: int) -> tuple[Tensor, int, dict[str, float]]:
        rng = np.random.default_rng((self.seed, 3, step))
        chosen = rng.integers(len(self.texts.rows), size=self.seeds)
        near = np.unique(self.lists.nearest(chosen, self.neighbors).numpy())
        ids, cu_seqlens = pack([self.texts.rows[i] for i in near])
        target = F.normalize(torch.from_numpy(self.texts.vectors[near].astype(np.float32)), dim=-1)
        taught, figures = distillation_loss(model.vectors(ids, cu_seqlens), target)
        drawn = [self.pairs[i] for i in rng.integers(len(self.pairs), size=_PAIRS)]
        contrastive, count = contrastive_loss(model, drawn, rng)
        return 6 * taught + 0.2 * contrastive, ids.numel() + count, {**figures, "contrastive": float(contrastive.detach())}


@dataclass(frozen=True)
class Jobs:
    """The model and its batches: the loss of each job for a batch number."""

    model: Pocket
    texts: TeacherTexts
    sentences: SentenceTask
    vectors: VectorTask
    rerank: RerankTask


def prepare(data: Path, out: Path, teacher: Path, start: Path, seed: int) -> Jobs:
    """Read the sets and the checkpoint `start`."""
    torch.manual_seed(seed)
    tokenizer = Tokenizer.load(teacher)
    sets = {name: load_evidence(data, name, tokenizer, measure=False, cache=out / "read") for name in EVIDENCE}
    plain = load_tokenizer(teacher)
    pairs = load_pairs(data, sets, plain, seed, out / "pairs.pkl")
    texts = TeacherTexts(out / "distill", plain, seed, longest=MAX_TOKENS)
    lists = TeacherLists(texts.rows, texts.vectors)
    model = Pocket()
    model.load_state_dict(torch.load(start)["model"])
    sentences = SentenceTask(sets, model.tokens.idf.numpy().copy(), seed)
    return Jobs(model, texts, sentences, VectorTask(lists, texts, pairs, seed), RerankTask(pairs, lists, seed))


def finetune(data: Path, out: Path, teacher: Path, steps: int, seed: int, threads: int) -> Pocket:
    """Stage 2: `steps` steps from the end of stage 1; resumes a run that was interrupted."""
    jobs = prepare(data, out, teacher, out / "stage1" / "checkpoint.pt", seed)
    others = (jobs.vectors, jobs.rerank, jobs.vectors)
    run = Run(jobs.model, RATES, steps, out / "stage2", warm=0.05)
    run.train(
        lambda step: [partial(jobs.sentences.loss, jobs.model, step), partial(others[step % 3].loss, jobs.model, step)], threads
    )
    return jobs.model


def settle(data: Path, out: Path, teacher: Path, steps: int, seed: int, threads: int) -> Pocket:
    """Stage 3, from the end of stage 2: all jobs in every step, most weight on the teacher, low rates down to zero."""
    jobs = prepare(data, out, teacher, out / "stage2" / "checkpoint.pt", seed)
    model = jobs.model

    def taught(step: int) -> Outcome:
        ids, cu_seqlens, target = jobs.texts.batch(step)
        value, figures = distillation_loss(model.vectors(ids, cu_seqlens), target)
        return 6 * value, ids.numel(), {"cosine_all": figures["cosine"]}

    def parts(step: int) -> list[Part]:
        number = STEPS + step  # batches that stage 2 has not seen
        others = [partial(job.loss, model, number) for job in (jobs.vectors, jobs.rerank)]
        return [partial(jobs.sentences.loss, model, number), partial(taught, step), *others]

    Run(model, SETTLE_RATES, steps, out / "stage3", warm=0.1).train(parts, threads)
    return model
