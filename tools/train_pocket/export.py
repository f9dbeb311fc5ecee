"""From the fitted heads to the model folder that ships: int8 encoder, heads, tokenizer, template, card."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from runnel.backbones.checkpoint_bert import load_bert
from runnel.backbones.encoder import Encoder
from runnel.models.base import Model
from runnel.models.heads import PlainMeanVector, TokenFeatures, VectorRelevance
from runnel.text.templates import Template
from runnel.text.tokenizer import Tokenizer
from tools.train_pocket.fit import load
from tools.train_pocket.teacher import PASSAGE_TOKENS

log = logging.getLogger(__name__)
_POSITIONS = 256  # all that sentence-transformers lets this encoder read; later ones saw little training
MOST_BYTES = 30_000_000


def export(out: Path, folder: Path, target: Path, card: str) -> None:
    """Write the model folder `target`.

    Args:
        out: work folder with head.safetensors, head.json, relevance.json and idf.npy.
        folder: of the encoder.

    Raises:
        ValueError: it takes more than `MOST_BYTES` on disk.
    """
    whole = load_bert(folder, "float32", "cpu", passage_tokens=PASSAGE_TOKENS)
    assert isinstance(whole, Encoder)
    encoder = Encoder(replace(whole.config, max_positions=_POSITIONS))
    weights = whole.state_dict()
    encoder.load_state_dict(weights | {"positions.weight": weights["positions.weight"][:_POSITIONS]})
    features = TokenFeatures(encoder.vocab_size, encoder.hidden_size)
    features.idf.copy_(torch.from_numpy(np.load(out / "idf.npy")))
    relevance = VectorRelevance(encoder.hidden_size)
    fitted = json.loads((out / "relevance.json").read_text(encoding="utf-8"))
    with torch.no_grad():
        relevance.linear.weight.copy_(torch.tensor([fitted["weights"][: VectorRelevance.FEATURES]]))
        relevance.linear.bias.copy_(torch.tensor([fitted["bias"]]))
    heads = nn.ModuleDict({"features": features, "embed": PlainMeanVector(), "sentences": load(out), "rerank": relevance})
    tokenizer = Tokenizer.load(folder, begin="[CLS]", end="[SEP]")
    if target.exists():
        shutil.rmtree(target)
    templates = {"document": Template.parse("{begin}{document}{end}")}
    Model(encoder.eval(), tokenizer, heads, templates, card=card).save(target, weights="int8", job="embed")
    size = sum(p.stat().st_size for p in target.rglob("*") if p.is_file())
    if size > MOST_BYTES:
        raise ValueError(f"{target} takes {size:,} bytes, at most {MOST_BYTES:,} may ship")
    log.info("%s: %.1f MB", target, size / 1e6)
