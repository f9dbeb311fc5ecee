"""A model that torch computes: read from a folder that runnel wrote, and saved."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from runnel.backbones.base import Backbone, digest_weights
from runnel.backbones.checkpoint.load import Checkpoint, NoRandomNumbers, load_checkpoint
from runnel.backbones.encoder.model import Encoder
from runnel.backbones.int8 import quantize
from runnel.backbones.library import Library
from runnel.checks import expect_choice
from runnel.errors import InputError
from runnel.files import replacing, write, write_json
from runnel.models.description import VERSION, Description, head_options
from runnel.models.foreign.embedding_rwkv import ResidualVector, StateScore
from runnel.models.foreign.settings import JOBS, save_library, write_sentence_transformer
from runnel.models.head import Head, head_kind
from runnel.models.model import Job, Model
from runnel.models.pocket.heads import ArrayHead, Judge, PairJudge, VectorRelevance, VectorScore
from runnel.models.recurrent.heads import (
    EndScore,
    EndVector,
    FirstVector,
    HeldHead,
    LmHead,
    MatchScore,
    MeanVector,
    PlainMeanVector,
    TokenFeatures,
    TorchHead,
    fill,
    with_sentence_heads,
)
from runnel.ops.backend import plain_numbers

HEADS: dict[str, type[Head]] = {
    head_kind(kind): kind
    for kind in (
        TokenFeatures,
        EndVector,
        FirstVector,
        PlainMeanVector,
        MeanVector,
        EndScore,
        MatchScore,
        LmHead,
        ResidualVector,
        StateScore,
        VectorScore,
        VectorRelevance,
        Judge,
        PairJudge,
    )
}


@dataclass(eq=False)
class TorchModel(Model):
    """A model whose backbone and heads are torch modules."""

    backbone: Backbone
    heads: nn.ModuleDict

    def __post_init__(self) -> None:
        self.backbone.requires_grad_(False)
        self.heads.requires_grad_(False)
        self.refresh()

    def refresh(self) -> None:
        for derived in ("words", "for_sentences", "engine"):  # cached properties of `Model`
            vars(self).pop(derived, None)
        for head in self.heads.values():
            if isinstance(head, HeldHead):
                head.refresh()
        self.features = self.heads["features"] if "features" in self.heads else None
        self.mark_vectors = None
        self.weight = torch.ones(self.backbone.vocab_size)
        self.idf = np.zeros(0, np.float32)
        if self.features is not None:
            self.mark_vectors = self.features.mark_vectors.detach()
            self.weight = self.features.weight().detach().float()
            self.idf = self.features.idf.float().cpu().numpy()

    def with_sentences(self) -> Model:
        assert isinstance(self.backbone, Encoder)
        # by the id of the begin marker, the encoder finds the passages in a row of ids
        encoder = self.backbone.in_passages(self.tokenizer.markers()[0])
        return replace(self, backbone=encoder, heads=with_sentence_heads(encoder, self.heads))

    def fingerprint(self) -> str:
        return digest_weights(self.backbone.fingerprint(), self.heads)

    def with_torch(self) -> Model:
        return self

    def save(self, folder: str | Path, *, weights: str = "as_is", job: Job | None = None) -> None:
        job = job or next((name for name in JOBS if name in self.heads), None)
        if job is not None:
            self.head(job)  # raises if the model has none
        self.write(Path(folder), weights=weights)
        if job is not None and not isinstance(self.backbone, Library):
            write_sentence_transformer(Path(folder), job, self.prompts)

    def write(self, folder: Path, *, weights: str = "as_is") -> None:
        expect_choice(weights, ("as_is", "int8"), "weights")
        expect_adapters(self, adapted=False)  # a model folder cannot hold them
        folder.mkdir(parents=True, exist_ok=True)
        write(
            folder / "README.md",
            self.card or f"# A runnel model\n\nArchitecture: {self.backbone.architecture}.\n",
        )
        if isinstance(self.backbone, Library):
            save_library(
                self.backbone, folder, weights, self.tokenizer, self.templates, self.prompts
            )
            return
        tensors: dict[str, Tensor] = {}
        for prefix, module in (("backbone", self.backbone), ("heads", self.heads)):
            for name, tensor in module.state_dict().items():
                # a layer in 8 bits has the scales of its weight as "weight_scale"; the file says
                # "weight.scale"
                key = f"{prefix}.{name.replace('weight_scale', 'weight.scale')}"
                wide = tensor.ndim == 2 and tensor.shape[1] >= 64 and tensor.is_floating_point()
                if weights == "int8" and wide and prefix == "heads":
                    # a head has few weights, and 8 bits would change its scores
                    tensors[key] = tensor.half()
                elif weights == "int8" and wide:
                    tensors[key], tensors[key + ".scale"] = quantize(tensor)
                else:
                    tensors[key] = tensor.detach().contiguous().clone()
        config = {
            # transformers shows this if the folder is given to another class, which it then reads
            "model_type": "runnel: load this folder with the class of sentence_transformers named"
            " in its config_sentence_transformers.json, and trust_remote_code=True",
            "runnel": {
                "version": VERSION,
                "backbone": {
                    "architecture": self.backbone.architecture,
                    "config": self.backbone.config.to_dict(),
                },
                "heads": {name: head.config for name, head in self.heads.items()},
                "templates": {
                    name: template.to_dict() for name, template in self.templates.items()
                },
                "prompts": self.prompts,
                "markers": {"begin": self.tokenizer.begin_id, "end": self.tokenizer.end_id},
                "unit": self.unit,
            },
        }
        self.tokenizer.save(folder)
        # sentence-transformers saves in every process of a run
        with replacing(folder / "model.safetensors") as partial:
            save_file(tensors, partial, metadata={"format": "pt"})
        write_json(folder / "config.json", config)


@plain_numbers()
def read_folder(
    folder: Path, dtype: str | torch.dtype, source: str, device: str = "cpu"
) -> TorchModel:
    """Load a folder that runnel wrote; see `load_model`."""
    return described_model(folder, load_checkpoint(folder, dtype=dtype, device=device), source)


def described_model(folder: Path, checkpoint: Checkpoint, source: str) -> TorchModel:
    """Return the model of a folder that runnel wrote, with the weights of its checkpoint."""
    read = Description.read(checkpoint.config["runnel"], source)
    heads = _read_heads(read.heads, checkpoint, source)
    return TorchModel(checkpoint.backbone, **read.model_arguments(folder, heads, source))


def expect_adapters(model: Model, *, adapted: bool) -> None:
    """Raise InputError unless a model's backbone has adapters (`adapted`), or has none. A model
    that was loaded without torch can have none.
    """
    if model.backbone.without_torch:
        raise InputError(
            f"{model.source} was loaded without torch; `Model.with_torch()` returns a model that"
            " takes adapters"
        )
    if model.backbone.adapted != adapted:
        came, expected = ("already", "none") if model.backbone.adapted else ("no", "some")
        raise InputError(
            f"{model.source} has {came} adapters; expected {expected}: see add_lora(), merge() and"
            " save_adapter()"
        )


def _read_heads(
    config: Mapping[str, Mapping[str, Any]], checkpoint: Checkpoint, source: str
) -> nn.ModuleDict:
    """Read the heads with their weights, and allocate memory only after checking the weights'
    shapes.
    """
    heads = nn.ModuleDict()
    with torch.device("meta"), NoRandomNumbers():
        for name, options in config.items():
            kind, arguments = head_options(HEADS, name, options, checkpoint.backbone, source)
            head = kind(**arguments)
            module = HeldHead(head) if isinstance(head, ArrayHead) else head
            assert isinstance(module, TorchHead)
            heads[name] = module
    fill(heads, {name: tensor.clone() for name, tensor in checkpoint.heads.items()}, source)
    return heads
