"""The model folder of a trained pilot (b): it shares with pocket's folder what was not trained."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from runnel.files import write_json
from runnel.models.folder import BUILT_IN, load_model
from runnel.models.pocket.heads import VectorScore
from runnel.models.recurrent.heads import HeldHead
from runnel.models.recurrent.model import TorchModel
from tools.train_memory.models import Replaced

_COSINE = 10.0  # weight of the cosine in a sentence's score, beside the z-score of BM25


def export(trained: Replaced, folder: Path, words: float) -> None:
    """Write the model folder of `trained`, in 8 bits. It reads as pocket's texts are read, and
    scores a sentence by its cosine with the query and, with the weight `words`, BM25.

    Args:
        folder: beside pocket's, which has the tensors that are not written again. A card that it
            has stays.
    """
    card = folder / "README.md"
    pocket = load_model("pocket", "float32", "cpu")
    sentences = VectorScore(trained.reader.hidden_size, size=1)
    columns = sentences.direct
    columns[:] = 0
    columns[0] = _COSINE  # "cosine", the first of `known_columns`
    columns[2] = words  # "z BM25"
    heads = nn.ModuleDict(
        {
            "features": pocket.heads["features"],
            "embed": pocket.heads["embed"],
            "sentences": HeldHead(sentences),
            "rerank": pocket.heads["rerank"],
        }
    )
    model = TorchModel(
        trained.reader,
        pocket.tokenizer,
        heads,
        pocket.templates,
        pocket.prompts,
        card=card.read_text() if card.exists() else "",
    )
    model.save(folder, weights="int8", job="embed")
    _share(folder, BUILT_IN["pocket"])


def _share(folder: Path, other: Path) -> None:
    """Leave out of a folder the tensors that are those of the other folder, and name them in its
    config.
    """
    own = load_file(folder / "model.safetensors")
    theirs = load_file(other / "model.safetensors")
    shared = []
    for name in sorted(own):
        scale = f"{name}.scale"
        if name in theirs and own[name].shape == theirs[name].shape:
            if np.array_equal(_plain(own, name, scale), _plain(theirs, name, scale)):
                shared.append(name)
    kept = {
        name: tensor
        for name, tensor in own.items()
        if name not in shared and name.removesuffix(".scale") not in shared
    }
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["runnel"]["shared"] = {other.name: shared}
    write_json(folder / "config.json", config)


def _plain(tensors: dict[str, torch.Tensor], name: str, scale: str) -> np.ndarray:
    """Return a tensor as it is loaded, rounded to fp16: a second rounding to 8 bits may move a
    scale by its last bit.
    """
    tensor = tensors[name].float()
    if scale in tensors:
        tensor = tensor * tensors[scale][:, None]
    return tensor.half().numpy()
