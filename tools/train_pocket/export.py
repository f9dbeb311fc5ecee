"""The model folders: the encoder that documents are read with, and the one that ships, with the
fitted heads and a card.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from runnel.backbones.checkpoint.load import build_backbone, load_backbone
from runnel.backbones.encoder.model import Encoder
from runnel.models.folder import load_model
from runnel.models.model import Model
from runnel.models.pocket.heads import VectorRelevance, VectorScore
from runnel.models.recurrent.heads import HeldHead, PlainMeanVector, TokenFeatures
from runnel.models.recurrent.model import TorchModel
from runnel.text.templates import Template
from runnel.text.tokenizers import read_tokenizer
from tools.train_pocket import relevance
from tools.train_pocket.encode import PASSAGE_TOKENS, WIDTH
from tools.train_pocket.fit import load
from tools.train_pocket.judge import KINDS
from tools.train_pocket.judge_fit import fit_judge
from tools.train_pocket.tune import FIRST_TUNED

log = logging.getLogger(__name__)
# all that sentence-transformers lets this encoder read; later ones saw little training
_POSITIONS = 256
MOST_BYTES = 44_000_000


def write_folder(
    folder: Path,
    target: Path,
    sentences: Any,
    rerank: Any,
    idf: torch.Tensor,
    card: str,
    tuned: Path | None = None,
    judge: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write a model folder with the weights of the encoder in `folder` in 8 bits; replace an
    existing folder.

    Args:
        tuned: folder of the encoder whose upper layers read sentences.
        judge: tensors for `with_judge`.
    """
    whole = load_backbone(folder, "float32", "cpu")
    assert isinstance(whole, Encoder)
    weights = whole.state_dict()
    weights |= {"positions.weight": weights["positions.weight"][:_POSITIONS]}
    if tuned is not None:
        weights |= _sentence_layers(tuned)
    own = 0 if tuned is None else whole.num_layers - FIRST_TUNED
    # [CLS]
    passages = {"max_positions": _POSITIONS, "passage_tokens": PASSAGE_TOKENS, "begin_id": 101}
    encoder = Encoder(replace(whole.config, **passages, sentence_layers=own))
    encoder.load_state_dict(weights)
    features = TokenFeatures(encoder.vocab_size, encoder.hidden_size)
    features.idf.copy_(idf)
    heads = nn.ModuleDict(
        {
            "features": features,
            "embed": PlainMeanVector(),
            "sentences": sentences,
            "rerank": rerank,
        }
    )
    tokenizer = read_tokenizer(folder, begin="[CLS]", end="[SEP]")
    if target.exists():
        shutil.rmtree(target)
    templates = {"document": Template.parse("{begin}{document}{end}")}
    model = TorchModel(encoder.eval(), tokenizer, heads, templates, card=card)
    with_judge(model, judge or {}).save(target, weights="int8", job="embed")


def with_judge(model: Model, tensors: Mapping[str, torch.Tensor]) -> Model:
    """Return the model with these judge and pair layers in place of its own; the rest is the same.

    Args:
        model: an encoder in fp32. If it was loaded from 8 bits, saving it in 8 bits gives the same
            bytes again.
        tensors: `judge_layers.{i}.*` and the judge's head as `head.judge.*`, in fp32; of the head,
            those that training changes. The same of the form "pair". A form without any stays as it
            is.

    Raises:
        CheckpointError: a tensor is missing, mis-shaped or none of these layers.
    """
    encoder = model.backbone
    assert isinstance(encoder, Encoder)
    weights = encoder.state_dict()
    heads = dict(model.heads.items())
    config = encoder.config
    for form, kind in KINDS.items():
        given = {
            name: tensor
            for name, tensor in tensors.items()
            if name.startswith((f"{form}_layers.", f"head.{form}."))
        }
        tensors = {name: tensor for name, tensor in tensors.items() if name not in given}
        if not given:
            continue
        if own := {
            name.removeprefix(f"head.{form}."): tensor
            for name, tensor in given.items()
            if name.startswith("head.")
        }:
            heads[form] = head = HeldHead(kind(encoder.hidden_size))
            head.load_state_dict(head.state_dict() | own)
        layers = {name: tensor for name, tensor in given.items() if not name.startswith("head.")}
        weights = {
            name: tensor
            for name, tensor in weights.items()
            if not name.startswith(f"{form}_layers.")
        } | layers
        config = replace(config, **{f"{form}_layers": len({name.split(".")[1] for name in layers})})
    backbone = build_backbone(
        encoder.architecture, config.to_dict(), weights | dict(tensors), "float32", "cpu"
    )
    return replace(model, backbone=backbone, heads=nn.ModuleDict(heads))


def add_judge(data: Path, out: Path, target: Path) -> None:
    """Put the judge and pair layers of `out` into the model folder `target`, written by `export`,
    whose other tensors stay as they are, and fit what scores mean.
    """
    model = with_judge(load_model(target, "float32", "cpu"), _judges(out))
    fit_judge(model, data)
    model.save(target, weights="int8", job="embed")
    _check_size(target)


def _sentence_layers(tuned: Path) -> dict[str, torch.Tensor]:
    """Return the tuned layers under their names in an encoder with sentence layers."""
    found = {}
    for name, tensor in load_backbone(tuned, "float32", "cpu").state_dict().items():
        part, _, rest = name.partition(".")
        number, _, rest = rest.partition(".")
        if part == "layers" and int(number) >= FIRST_TUNED:
            found[f"sentence_layers.{int(number) - FIRST_TUNED}.{rest}"] = tensor
    return found


def write_encoder(folder: Path, out: Path) -> None:
    """Write `out`/encoder if it does not exist: the encoder that ships, with untrained heads."""
    if not (target := out / "encoder").exists():
        out.mkdir(parents=True, exist_ok=True)
        part = out / "encoder.part"
        size = len(
            json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
        )
        write_folder(
            folder,
            part,
            HeldHead(VectorScore(WIDTH)),
            HeldHead(VectorRelevance(WIDTH)),
            torch.ones(size),
            "",
        )
        part.replace(target)


def export(out: Path, folder: Path, target: Path, card: str) -> None:
    """Write the model folder `target`.

    Args:
        out: work folder with tuned/, head.safetensors, head.json, relevance.json and idf.npy,
            perhaps also judge.safetensors and pair.safetensors.
        folder: of the encoder.

    Raises:
        ValueError: it takes more than `MOST_BYTES` on disk.
    """
    rerank = HeldHead(VectorRelevance(WIDTH))
    weights, bias = relevance.load(out)
    with torch.no_grad():
        rerank.linear.weight.copy_(torch.from_numpy(weights)[None])
        rerank.linear.bias.fill_(bias)
    idf = torch.from_numpy(np.load(out / "idf.npy"))
    write_folder(folder, target, load(out), rerank, idf, card, out / "tuned", _judges(out))
    _check_size(target)


def _judges(out: Path) -> dict[str, torch.Tensor]:
    """Return the tensors that `judge.train` wrote."""
    files = (out / f"{form}.safetensors" for form in KINDS)
    return {
        name: tensor for file in files if file.exists() for name, tensor in load_file(file).items()
    }


def _check_size(target: Path) -> None:
    size = sum(p.stat().st_size for p in target.rglob("*") if p.is_file())
    if size > MOST_BYTES:
        raise ValueError(f"{target} takes {size:,} bytes, at most {MOST_BYTES:,} may ship")
    log.info("%s: %.1f MB", target, size / 1e6)
