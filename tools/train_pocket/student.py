"""`pocket` as trained here: the Mamba-2 backbone, the token features and the three heads, and sums over packed tokens.

T  tokens in the packed batch   S  sequences   n  segments (texts, queries or sentences)   D  width   V  vocabulary
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from runnel.backbones.mamba2 import Mamba2, Mamba2Config
from runnel.models.heads import MatchScore, MeanVector, TokenFeatures

VOCABULARY, WIDTH, LAYERS, STATE = 30522, 384, 6, 64
CLS, SEP = 101, 102
Ids = NDArray[np.int32]


def config() -> Mamba2Config:
    """The backbone's shape."""
    return Mamba2Config(vocab_size=VOCABULARY, hidden_size=WIDTH, num_layers=LAYERS, state_size=STATE)


class Pocket(nn.Module):
    """The trainable model. Parts are named as the model folder needs them."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Mamba2(config())
        self.tokens = TokenFeatures(VOCABULARY, WIDTH)
        self.embedder = MeanVector(WIDTH)
        self.sentences = MatchScore(WIDTH, lexical=2)
        self.reranker = MatchScore(WIDTH, lexical=1)

    def hidden(self, ids: Tensor, cu_seqlens: Tensor, marks: Tensor | None = None) -> Tensor:
        """Hidden vectors (T, D) fp32 of packed texts; linear layers in bf16."""
        added = None if marks is None else marks @ self.tokens.mark_vectors
        with torch.autocast("cpu", torch.bfloat16):
            hidden, _ = self.backbone(ids, cu_seqlens, added=added)
        return hidden.float()

    def vectors(self, ids: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Unit vectors (S, D) of packed texts `[CLS] x [SEP]`; the mean leaves [CLS] out."""
        hidden = self.hidden(ids, cu_seqlens)
        starts, ends = cu_seqlens[:-1] + 1, cu_seqlens[1:]
        return self.embedder(self.means(hidden, ids, starts, ends))

    def means(self, hidden: Tensor, ids: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
        """Weighted means (n, D) of hidden vectors over the token ranges [starts, ends), which must not overlap."""
        weight = self.tokens.log_weight[ids].exp()
        lengths = ends - starts
        shift = starts - F.pad(lengths.cumsum(0), (1, 0))[:-1]
        positions = torch.repeat_interleave(shift, lengths) + torch.arange(int(lengths.sum()))
        owner = torch.repeat_interleave(torch.arange(len(starts)), lengths)
        chosen = weight[positions]
        sums = torch.zeros(len(starts), hidden.shape[1]).index_add(0, owner, hidden[positions] * chosen[:, None])
        return sums / torch.zeros(len(starts)).index_add(0, owner, chosen)[:, None].clamp(min=1e-6)


def initialize(model: Pocket, teacher: Path, texts: Iterable[Ids]) -> None:
    """Start from the teacher's word embeddings as they leave its embedding layer, and from token statistics of `texts`."""
    from safetensors.torch import load_file

    weights = load_file(teacher / "model.safetensors")
    part = {k.split("embeddings.", 1)[1]: v.float() for k, v in weights.items() if "embeddings." in k}
    typical = part["position_embeddings.weight"][:64].mean(0) + part["token_type_embeddings.weight"][0]
    table = F.layer_norm(
        part["word_embeddings.weight"] + typical, (WIDTH,), part["LayerNorm.weight"], part["LayerNorm.bias"], 1e-12
    )
    counts, containing, total = np.zeros(VOCABULARY), np.zeros(VOCABULARY), 0
    for ids in texts:
        counts += np.bincount(ids, minlength=VOCABULARY)
        containing[np.unique(ids)] += 1
        total += 1
    frequency = counts / counts.sum()
    idf = np.where(containing > 0, np.log(total / (1 + containing)) / math.log(total), 1.0).clip(0, 1)
    with torch.no_grad():
        model.backbone.embeddings.weight.copy_(table)
        model.tokens.log_weight.copy_(torch.from_numpy(np.log(1e-3 / (1e-3 + frequency))))
        model.tokens.idf.copy_(torch.from_numpy(idf))
        for head in (model.sentences, model.reranker):
            nn.init.zeros_(head.linear.weight)
            nn.init.zeros_(head.linear.bias)
        model.tokens.mark_vectors.normal_(std=0.02)


def pack(rows: Sequence[Ids]) -> tuple[Tensor, Tensor]:
    """(ids (T,) int64, cu_seqlens (S+1,) int64) of token rows laid end to end."""
    lengths = np.fromiter((len(r) for r in rows), np.int64, len(rows))
    return torch.from_numpy(np.concatenate(rows).astype(np.int64)), F.pad(torch.from_numpy(lengths.cumsum()), (1, 0))


def framed(ids: Ids) -> Ids:
    """[CLS] ids [SEP]"""
    return np.concatenate([[CLS], ids, [SEP]]).astype(np.int32)
