"""A model folder: backbone, tokenizer, heads and templates, loaded and saved together.

config.json        architecture, heads, templates, prompts, markers, weight format; the key "runnel" marks the layout
model.safetensors  `backbone.*` and `heads.*`; with int8 weights each matrix has a `.scale`, one number per row
tokenizer.json     Hugging Face tokenizers file; RWKV World: rwkv_vocab_v20230424.txt
README.md          model card
modules.json, config_sentence_transformers.json   for sentence-transformers (`runnel.integrations.sentence_transformers`)
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from runnel.backbones.base import Backbone, digest_weights
from runnel.backbones.checkpoint.load import (
    Checkpoint,
    NoRandomNumbers,
    find_checkpoint,
    load_checkpoint,
    read_config,
    valid_config,
)
from runnel.backbones.checkpoint.tensors import check_tensors, from_tensors
from runnel.backbones.encoder.model import Encoder, Form
from runnel.backbones.int8 import quantize
from runnel.backbones.library import Library
from runnel.engine import Engine
from runnel.errors import CheckpointError, InputError
from runnel.files import replacing, write
from runnel.json_objects import arguments
from runnel.models import embedding_rwkv, heads
from runnel.models.bare import read_bare
from runnel.models.foreign import JOBS, Job, write_sentence_transformer
from runnel.models.heads import (
    POOLINGS,
    Head,
    LateInteraction,
    Pooling,
    TokenFeatures,
    check_pooling,
    head_kind,
    sentence_heads,
    vector_head,
)
from runnel.models.kept import Kept, file_states
from runnel.models.lexical import WordTable, word_table
from runnel.models.transformers import LIBRARY_FOLDER, is_transformer, load_transformer, pair_notation, save_library
from runnel.ops.backend import plain_numbers, wanted_device
from runnel.records import expect_choice, expect_text
from runnel.text.sentences import Unit
from runnel.text.templates import Template
from runnel.text.tokenizer import Tokenizer

_VERSION = 1
HEADS: dict[str, Any] = {
    head_kind(head): head
    for module in (heads, embedding_rwkv)
    for head in vars(module).values()
    if isinstance(head, type) and issubclass(head, Head) and head not in (Head, LateInteraction)
}
BUILT_IN = {name: Path(__file__).parent / name.replace("-", "_") for name in ("pocket", "pocket-mamba2")}
# By one engine each.
_READ_TOGETHER: tuple[tuple[Form, ...], ...] = (("sentences",), ("texts", "sentences"), ("judge",), ("pair",))
kept: Kept | None = None  # models to share between commands, in a process that runs many


@dataclass(eq=False)
class Model:
    """The parts that the three kinds of model share."""

    backbone: Backbone
    tokenizer: Tokenizer
    heads: nn.ModuleDict  # "features" (`TokenFeatures`), "embed", "sentences", "rerank", "generate"; any may be missing
    templates: dict[str, Template]  # "document" (every text of an embedder; queries differ by prompt), "rerank", "sentences"
    prompts: dict[str, str] = field(default_factory=dict)  # put before a query or a document, by name, such as "query"
    source: str = "memory"  # where the model was loaded from, for messages
    card: str = ""
    unit: Unit = "sentence"  # what the sentence head scores

    def __post_init__(self) -> None:
        self.backbone.requires_grad_(False)
        self.heads.requires_grad_(False)
        features = self.heads["features"] if "features" in self.heads else None
        self.features: TokenFeatures | None = features if isinstance(features, TokenFeatures) else None
        self.refresh()

    def refresh(self) -> None:
        """Rebuild what is derived from the heads (token weights, engine) after they change or move to another device."""
        self.weight = self.features.weight().detach() if self.features else torch.ones(self.backbone.vocab_size)
        for derived in ("words", "for_sentences"):
            vars(self).pop(derived, None)
        self._start_engines()

    @cached_property
    def words(self) -> WordTable:
        """The words of the vocabulary; the model needs token features."""
        assert self.features is not None
        return word_table(self.tokenizer.vocabulary, self.features.idf.numpy())

    @property
    def finds_sentences(self) -> bool:
        """Whether the model scores sentences: with its head, or as any encoder does (`for_sentences`)."""
        marked = None not in (self.tokenizer.begin_id, self.tokenizer.end_id)
        return "sentences" in self.heads or (isinstance(self.backbone, Encoder) and marked and "document" in self.templates)

    @cached_property
    def for_sentences(self) -> Model:
        """The model itself, or an encoder without a head for sentences as one that reads passages, with fresh heads.

        Weights are shared. Raise CheckpointError if the model is no encoder, or the tokenizer has no markers.
        """
        if "sentences" in self.heads:
            return self
        if not isinstance(self.backbone, Encoder) or "document" not in self.templates:
            self.head("sentences")  # raises
        encoder = cast(Encoder, self.backbone).in_passages(self.tokenizer.markers()[0])
        heads = sentence_heads(encoder.vocab_size, encoder.hidden_size) | dict(self.heads.items())
        return replace(self, backbone=encoder, heads=nn.ModuleDict(heads))

    def prompt_ids(self, name: str) -> np.ndarray:
        """Return the ids (p,) int32 of a prompt, without the space at its end, which belongs to the text; none without prompt."""
        return self.tokenizer.encode(self.prompts.get(name, "").rstrip()).ids

    def _start_engines(self) -> None:
        """Make the engine, and one for each of `_READ_TOGETHER` for which an encoder has layers of its own."""
        self.engine, encoder = self.new_engine(), self.backbone
        self._form_engines: dict[tuple[Form, ...], Engine] = {}
        if isinstance(encoder, Encoder):
            for forms in _READ_TOGETHER:
                if encoder.config.own_layers(forms[-1]):
                    self._form_engines[forms] = self.new_engine(read_blocks=partial(encoder.step_forms, forms=forms))

    def sentence_engine(self, *, texts: bool) -> Engine:
        """Return the engine for a document's sentences; `texts`: those of `engine` too, in the first half of each hidden vector.

        Without sentence layers both are the same, and vectors have one half.
        """
        return self._form_engines.get(("texts", "sentences") if texts else ("sentences",), self.engine)

    def judge_engine(self, form: Literal["judge", "pair"]) -> Engine:
        """Return the engine of a form that judges the best sentences again, or `engine` without layers of this form."""
        return self._form_engines.get((form,), self.engine)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and other processes, without the engines: they belong to one model and have locks."""
        return {name: value for name, value in self.__dict__.items() if "engine" not in name and name != "for_sentences"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_engines()

    def new_engine(
        self, step_tokens: int | None = None, memory_bytes: int | None = None, read_blocks: Callable[..., Tensor] | None = None
    ) -> Engine:
        """Return an engine for this model, see `Engine`; `self.engine` is one of the default size."""
        marks = self.features.mark_vectors.detach() if self.features else None
        return Engine(self.backbone, step_tokens, memory_bytes, mark_vectors=marks, weight=self.weight, read_blocks=read_blocks)

    def fingerprint(self) -> str:
        """Return a hex digest of the weights of the backbone and of all heads; unfinished work carries it."""
        return digest_weights(self.backbone.fingerprint(), self.heads)

    def prompt(self, prompt: str | None) -> str:
        """Return the text of a prompt given by name or as text; "" for None."""
        expect_text(prompt or "", "the prompt")
        if not prompt or prompt in self.prompts.values():
            return prompt or ""
        if prompt not in self.prompts and re.fullmatch(r"[A-Za-z0-9_-]+", prompt):
            have = ", ".join(sorted(self.prompts)) or "none"
            raise InputError(
                f"this model has no prompt {prompt!r} (it has: {have}); end a prompt given as text with a space or punctuation: "
                f"'{prompt}: '"
            )
        return self.prompts.get(prompt, prompt)

    def head(self, name: str) -> Head:
        """Return the head for a job; raise CheckpointError if the model has none."""
        head, problem = self.heads[name] if name in self.heads else None, None
        if head is None:
            have = ", ".join(sorted(set(self.heads) - {"features"})) or "none"
            problem = f"{name!r} head (it has: {have}); it was not trained for this job. Use another model, or train that head"
        elif head.inputs == "matches" and self.features is None:
            problem = f"token features, which its {name!r} head needs; save the model again"
        if problem:
            raise CheckpointError(f"{self.source} has no {problem}")
        assert isinstance(head, Head)
        return head

    def save(self, folder: str | Path, *, weights: str = "as_is", job: Job | None = None) -> None:
        """Write the model folder. Loading it gives bit-equal outputs with weights="as_is".

        Args:
            weights: "as_is", or "int8": every backbone matrix and the token tables in 8 bits with one scale per row, and the
                heads' matrices in fp16.
            job: what sentence-transformers loads the folder as: "embed" (a SentenceTransformer) or "rerank" (a CrossEncoder);
                default: the first of these that the model has a head for. runnel loads the folder for every job.
        """
        job = job or next((name for name in JOBS if name in self.heads), None)
        if job is not None:
            self.head(job)  # raises if the model has none
        self.write(folder, weights=weights)
        if job is not None and not isinstance(self.backbone, Library):
            write_sentence_transformer(Path(folder), job, self.prompts)

    def write(self, folder: str | Path, *, weights: str = "as_is") -> None:
        """Save without the two files for sentence-transformers, which that library's own models write themselves."""
        expect_choice(weights, ("as_is", "int8"), "weights")
        expect_adapters(self, False)  # a model folder cannot hold them
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / "README.md", self.card or f"# A runnel model\n\nArchitecture: {self.backbone.architecture}.\n")
        if isinstance(self.backbone, Library):
            save_library(self.backbone, folder, weights, self.tokenizer, self.templates, self.prompts)
            return
        tensors: dict[str, Tensor] = {}
        for prefix, module in (("backbone", self.backbone), ("heads", self.heads)):
            for name, tensor in module.state_dict().items():
                key = f"{prefix}.{name.replace('weight_scale', 'weight.scale')}"  # in layers that run in 8 bits
                wide = tensor.ndim == 2 and tensor.shape[1] >= 64 and tensor.is_floating_point()
                if weights == "int8" and wide and prefix == "heads":
                    tensors[key] = tensor.half()  # a head has few weights, and 8 bits would change its scores
                elif weights == "int8" and wide:
                    tensors[key], tensors[key + ".scale"] = quantize(tensor)
                else:
                    tensors[key] = tensor.detach().contiguous().clone()
        config = {
            "runnel": {
                "version": _VERSION,
                "backbone": {"architecture": self.backbone.architecture, "config": self.backbone.config.to_dict()},
                "heads": {name: head.config for name, head in self.heads.items()},
                "templates": {name: template.to_dict() for name, template in self.templates.items()},
                "prompts": self.prompts,
                "markers": {"begin": self.tokenizer.begin_id, "end": self.tokenizer.end_id},
                "unit": self.unit,
            }
        }
        self.tokenizer.save(folder)
        with replacing(folder / "model.safetensors") as partial:  # sentence-transformers saves in every process of a run
            save_file(tensors, partial, metadata={"format": "pt"})
        write(folder / "config.json", json.dumps(config, indent=2) + "\n")


def find_model(name: str | Path) -> tuple[Path, str]:
    """Return the folder or weights file of a model, and "st" or "st-code" of a name that begins so."""
    prefix, _, plain = str(name).partition(":")
    prefix = prefix if prefix in ("st", "st-code") else ""
    found = BUILT_IN.get(str(name)) or find_checkpoint(plain if prefix else name, BUILT_IN, code=prefix == "st-code")
    inside = found / LIBRARY_FOLDER
    return (inside if inside.is_dir() else found), prefix


def expect_adapters(model: Model, adapted: bool) -> None:
    """Raise InputError unless a model's backbone has adapters, or has none."""
    if model.backbone.adapted != adapted:
        came, expected = ("already", "none") if model.backbone.adapted else ("no", "some")
        raise InputError(f"{model.source} has {came} adapters; expected {expected}: see add_lora(), merge() and save_adapter()")


@plain_numbers()
def load_model(
    name: str | Path,
    dtype: str | torch.dtype = "auto",
    device: str = "auto",
    *,
    pooling: Pooling | None = None,
    template: str | None = None,
    job: Job = "embed",
) -> Model:
    """Load a built-in model (`BUILT_IN`), a model folder, a bare checkpoint, a sentence-transformers folder or a hub id.

    Parts that a folder of another library lacks are supplied by `models/bare.py`, for transformers by `models/transformers.py`.
    `st:NAME` is loaded with sentence-transformers, `st-code:NAME` with code that comes with it.

    Args:
        pooling: use the hidden vector of the first token ("cls", transformers only) or of the last token ("eos"), or the mean
            of all ("mean"), without a trained projection; default: the pooling that the model was trained with.
        template: how a pair is written: one of `PAIR_TEMPLATES` in `text/templates.py`; default: the model's.
        job: what the model is loaded for; a transformer without a layer for pairs gets a new one, without a head.

    Raises:
        CheckpointError: the model is missing or cannot be used; the message says why.
        InputError: the pooling or template is unknown or does not fit this model.
    """
    if pooling is not None:
        expect_choice(pooling, POOLINGS, "pooling")
    path, prefix = find_model(name)
    folder = path if path.is_dir() else path.parent  # a weights file: the other files are in its folder
    config = read_config(path) or {}
    transformer = bool(prefix) or ("runnel" not in config and is_transformer(folder, config))

    def load() -> Model:
        if transformer:
            options: Any = {"pooling": pooling, "template": template, "job": job, "prefix": prefix}
            backbone, parts = load_transformer(folder, config, dtype, device, **options)
            return Model(backbone, **vars(parts), source=str(name))
        checkpoint = load_checkpoint(path, dtype=dtype, device=device)
        if "runnel" in config:
            model = read_folder(folder, config["runnel"], checkpoint, str(name))
        else:
            model = Model(checkpoint.backbone, **vars(read_bare(folder, checkpoint)), source=str(name))
        if pooling is not None:
            check_pooling(pooling, model.backbone.title, causal=model.backbone.recurrent)
            model.heads["embed"] = vector_head(pooling)
        if template is not None:
            before = "" if model.tokenizer.begin_id is None else "{begin}"
            model.templates["rerank"] = Template.parse(pair_notation(template, folder, model.tokenizer, before))
        return model

    if kept is None:
        return load()
    key = (str(name), path.absolute(), dtype, wanted_device(device), pooling, template, job if transformer else None)
    return kept.get(key, file_states([*folder.glob("*"), *folder.glob("*/*")]), load)


@dataclass(frozen=True)
class _Markers:
    begin: int | None
    end: int | None


@dataclass(frozen=True)
class _Description:
    """The object "runnel" of config.json. The backbone's part is read by `backbones.checkpoint.load`."""

    version: int
    backbone: dict[str, Any]
    heads: dict[str, dict[str, Any]]
    templates: dict[str, dict[str, Any]]
    prompts: dict[str, str]
    markers: _Markers
    unit: Unit


def read_folder(folder: Path, config: Mapping[str, Any], checkpoint: Checkpoint, source: str) -> Model:
    """Return the model in a folder that runnel wrote."""
    if config.get("version") != _VERSION:
        raise CheckpointError(
            f"{source} has model format {config.get('version')!r}, this version of runnel reads {_VERSION}; upgrade runnel"
        )
    read = _Description(**arguments(_Description, config, f"{source}: config.json"))
    heads = _read_heads(read.heads, checkpoint, source)
    jobs = {name: head for name, head in heads.items() if name in Head.jobs}
    needed = {"document" if name == "embed" or head.inputs == "vectors" else name for name, head in jobs.items()}
    if missing := sorted(needed - set(read.templates)):
        raise CheckpointError(
            f"{source}: config.json lacks the template {missing[0]!r}, which its heads need; save the model again"
        )
    with valid_config(source):
        tokenizer = Tokenizer.load(folder, begin=read.markers.begin, end=read.markers.end)
        templates = {name: Template.from_dict(value) for name, value in read.templates.items()}
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace") if card.exists() else ""
    return Model(checkpoint.backbone, tokenizer, heads, templates, read.prompts, source, text, read.unit)


def _read_heads(config: Mapping[str, Mapping[str, Any]], checkpoint: Checkpoint, source: str) -> nn.ModuleDict:
    """Read the heads with their weights, and allocate memory only after checking the weights' shapes."""
    with torch.device("meta"), NoRandomNumbers():
        heads = nn.ModuleDict({name: _build_head(name, head, checkpoint.backbone, source) for name, head in config.items()})
    wanted = heads.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
    # Sharded training stores numbers as (1,).
    found = {name: t.view(()) if t.shape == (1,) and shapes.get(name) == () else t for name, t in checkpoint.heads.items()}
    check_tensors(from_tensors(found, "the heads"), shapes, source)
    # Not `to_empty`: on meta tensors it imports sympy, which takes longer than everything else here.
    heads.load_state_dict({name: tensor.to(wanted[name].dtype, copy=True) for name, tensor in found.items()}, assign=True)
    return heads


def _build_head(name: str, config: Mapping[str, Any], backbone: Backbone, source: str) -> nn.Module:
    options = dict(config)
    kind: Any = options.pop("kind", None)
    what = f"{source}: the head {name!r} of config.json"
    with valid_config(source):
        expect_choice(kind, sorted(key for key, head in HEADS.items() if name in head.jobs), f"the kind of the head {name!r}")
    given = {"vocab_size": backbone.vocab_size, "hidden_size": backbone.hidden_size, "state_shapes": backbone.state_shapes()}
    taken = {key: value for key, value in given.items() if key in inspect.signature(HEADS[kind]).parameters}
    return HEADS[kind](**taken, **arguments(HEADS[kind], options, what, given=tuple(given)))
