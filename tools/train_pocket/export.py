"""From a checkpoint of stage 2 to the model folder that ships: int8 backbone, heads, tokenizer, templates, card."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import torch
from torch import nn

from runnel.models.base import Model
from runnel.text.templates import Template
from runnel.text.tokenizer import Tokenizer
from tools.train_pocket.student import CLS, SEP, Pocket

log = logging.getLogger(__name__)
TEMPLATES = {
    "document": "{token:[CLS]}{document}{token:[SEP]}",
    "rerank": "{token:[CLS]}{document}{token:[SEP]}{query}{token:[SEP]}",
    "sentences": "{token:[CLS]}{query}{token:[SEP]}{document}",
}
MOST_BYTES = 24_000_000


def export(checkpoint: Path, teacher: Path, target: Path, card: str) -> None:
    """Write the model folder `target`.

    Raises:
        ValueError: it takes more than `MOST_BYTES` on disk.
    """
    trained = Pocket()
    trained.load_state_dict(torch.load(checkpoint)["model"])
    with torch.no_grad():
        trained.tokens.log_weight[CLS] = -20.0  # means leave the first marker out
    heads = nn.ModuleDict(
        {"features": trained.tokens, "embed": trained.embedder, "sentences": trained.sentences, "rerank": trained.reranker}
    )
    tokenizer = Tokenizer.load(teacher, begin=CLS, end=SEP)
    templates = {name: Template.parse(notation) for name, notation in TEMPLATES.items()}
    if target.exists():
        shutil.rmtree(target)
    Model(trained.backbone, tokenizer, heads, templates, card=card).save(target, weights="int8")
    size = sum(p.stat().st_size for p in target.rglob("*") if p.is_file())
    if size > MOST_BYTES:
        raise ValueError(f"{target} takes {size:,} bytes, at most {MOST_BYTES:,} may ship")
    log.info("%s: %.1f MB", target, size / 1e6)
