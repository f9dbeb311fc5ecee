"""A model folder: backbone, tokenizer, heads and templates, loaded and saved together.

config.json        architecture, heads, templates, prompts, markers, weight format; the key "runnel"
                   marks the layout
model.safetensors  `backbone.*` and `heads.*`; with int8 weights each matrix has a `.scale`, one
                   number per row
tokenizer.json     Hugging Face tokenizers file; RWKV World: rwkv_vocab_v20230424.txt
README.md          model card
modules.json, config_sentence_transformers.json   for sentence-transformers
                                                  (`runnel.integrations.sentence_transformers`)
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from safetensors import SafetensorError

from runnel.config import (
    EncoderBlocks,
    EncoderConfig,
    Form,
    arguments,
    digest_arrays,
    read_model_json,
    valid_config,
)
from runnel.engine import Engine
from runnel.errors import CheckpointError, InputError, RunnelError, needing
from runnel.models import heads
from runnel.models.foreign import JOBS, LIBRARY_FOLDER, Job, write_sentence_transformer
from runnel.models.heads import POOLINGS, Head, LateInteraction, Pooling, TokenFeatures, head_kind
from runnel.models.lexical import WordTable, word_table
from runnel.ops import backend
from runnel.records import expect_choice, expect_text
from runnel.request import Array
from runnel.text.sentences import Unit
from runnel.text.templates import Template
from runnel.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from runnel.backbones.base import Backbone
    from runnel.backbones.encoder.arrays import ArrayEncoder, Dtype

log = logging.getLogger("runnel")
VERSION = 1  # of the layout
ARRAY_HEADS: dict[str, type[Head]] = {  # that need no torch, by their kind
    head_kind(kind): kind
    for kind in vars(heads).values()
    if isinstance(kind, type) and issubclass(kind, Head) and kind not in (Head, LateInteraction)
}
BUILT_IN = {
    name: Path(__file__).parent / name.replace("-", "_") for name in ("pocket", "pocket-mamba2")
}
# By one engine each.
_READ_TOGETHER: tuple[tuple[Form, ...], ...] = (
    ("sentences",),
    ("texts", "sentences"),
    ("judge",),
    ("pair",),
)


@dataclass(eq=False)
class Model:
    """The parts that the three kinds of model share."""

    backbone: Any  # a `Backbone`, or without torch an `ArrayEncoder`
    tokenizer: Tokenizer
    # By name, an `nn.ModuleDict`, or without torch a dict; any may be missing.
    # "features" (`TokenFeatures`), "embed", "sentences", "judge", "pair", "rerank", "generate"
    heads: Any
    # "document" (every text of an embedder; queries differ by prompt), "rerank", "sentences"
    templates: dict[str, Template]
    # put before a query or a document, by name, such as "query"
    prompts: dict[str, str] = field(default_factory=dict)
    source: str = "memory"  # where the model was loaded from, for messages
    card: str = ""
    unit: Unit = "sentence"  # what the sentence head scores

    def __post_init__(self) -> None:
        if not self.backbone.without_torch:
            self.backbone.requires_grad_(False)
            self.heads.requires_grad_(False)
        features = self.heads["features"] if "features" in self.heads else None
        self.features: Any = features if isinstance(features, TokenFeatures) else None
        self.refresh()

    def refresh(self) -> None:
        """Rebuild what is derived from the heads (token weights, engine) after they change or move
        to another device.
        """
        weight = (
            self.features.weight()
            if self.features
            else np.ones(self.backbone.vocab_size, np.float32)
        )
        self.weight: Array = (
            weight
            if self.backbone.without_torch
            else sys.modules["torch"].as_tensor(weight).detach()
        )
        for derived in ("words", "for_sentences"):
            vars(self).pop(derived, None)
        self._start_engines()

    @cached_property
    def words(self) -> WordTable:
        """The words of the vocabulary; the model needs token features."""
        assert self.features is not None
        return word_table(self.tokenizer.vocabulary, self.features.static_idf)

    @property
    def finds_sentences(self) -> bool:
        """Whether the model scores sentences: with its head, or as any encoder does
        (`for_sentences`).
        """
        marked = None not in (self.tokenizer.begin_id, self.tokenizer.end_id)
        return "sentences" in self.heads or (
            isinstance(self.backbone, EncoderBlocks) and marked and "document" in self.templates
        )

    @cached_property
    def for_sentences(self) -> Model:
        """The model itself, or an encoder without a head for sentences as one that reads passages,
        with fresh heads.

        Weights are shared. Raise CheckpointError if the model is no encoder, or the tokenizer has
        no markers.
        """
        if "sentences" in self.heads:
            return self
        if not isinstance(self.backbone, EncoderBlocks) or "document" not in self.templates:
            self.head("sentences")  # raises
        from runnel.models.torch_heads import with_sentence_heads

        encoder = self.backbone.in_passages(self.tokenizer.markers()[0])
        return replace(self, backbone=encoder, heads=with_sentence_heads(encoder, self.heads))

    def prompt_ids(self, name: str) -> np.ndarray:
        """Return the ids (p,) int32 of a prompt, without the space at its end, which belongs to the
        text; none without prompt.
        """
        return self.tokenizer.encode(self.prompts.get(name, "").rstrip()).ids

    def _start_engines(self) -> None:
        """Make the engine, and one for each of `_READ_TOGETHER` for which an encoder has layers of
        its own.
        """
        self.engine, encoder = self.new_engine(), self.backbone
        self._form_engines: dict[tuple[Form, ...], Engine] = {}
        if isinstance(encoder, EncoderBlocks):
            for forms in _READ_TOGETHER:
                if encoder.config.own_layers(forms[-1]):
                    self._form_engines[forms] = self.new_engine(
                        read_blocks=partial(self.backbone.step_forms, forms=forms)
                    )

    def engine_for(self, *forms: Form) -> Engine:
        """Return the engine that reads the forms of one entry of `_READ_TOGETHER`, each in its part
        of a hidden vector.

        Without layers of the last form's own it is `engine`, and vectors have one part.
        """
        return self._form_engines.get(forms, self.engine)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and other processes, without the engines: they belong to one
        model and have locks.
        """
        return {
            name: value
            for name, value in self.__dict__.items()
            if "engine" not in name and name != "for_sentences"
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_engines()

    def new_engine(
        self,
        step_tokens: int | None = None,
        memory_bytes: int | None = None,
        read_blocks: Callable[..., Array] | None = None,
    ) -> Engine:
        """Return an engine for this model, see `Engine`; `self.engine` is one
        of the default size.
        """
        marks = (
            None
            if self.features is None or self.backbone.without_torch
            else self.features.mark_vectors.detach()
        )
        return Engine(
            self.backbone,
            step_tokens,
            memory_bytes,
            mark_vectors=marks,
            weight=self.weight,
            read_blocks=read_blocks,
        )

    def fingerprint(self) -> str:
        """Return a hex digest of the weights of the backbone and of all heads; unfinished work
        carries it.
        """
        if self.backbone.without_torch:
            named = {
                f"{name}.{key}": array
                for name, head in self.heads.items()
                for key, array in head.arrays().items()
            }
            return digest_arrays(self.backbone.fingerprint(), sorted(named.items()))
        from runnel.backbones.base import digest_weights

        return digest_weights(self.backbone.fingerprint(), self.heads)

    def with_torch(self) -> Model:
        """Return the model itself, or what torch computes of the same files,
        which can be trained.
        """
        if not self.backbone.without_torch:
            return self
        own = {name: getattr(self, name) for name in ("templates", "prompts", "card", "unit")}
        return replace(
            load_model(self.backbone.folder, self.backbone.dtype, "cpu"), **own, source=self.source
        )

    def prompt(self, prompt: str | None) -> str:
        """Return the text of a prompt given by name or as text; "" for None."""
        expect_text(prompt or "", "the prompt")
        if not prompt or prompt in self.prompts.values():
            return prompt or ""
        if prompt not in self.prompts and re.fullmatch(r"[A-Za-z0-9_-]+", prompt):
            have = ", ".join(sorted(self.prompts)) or "none"
            raise InputError(
                f"this model has no prompt {prompt!r} (it has: {have}); end a prompt given as text"
                f" with a space or punctuation: '{prompt}: '"
            )
        return self.prompts.get(prompt, prompt)

    def stores_vectors(self, job: str) -> bool:
        """Return whether a job's head scores vectors of a document, which is read once for all
        queries.
        """
        return bool(self.head(job).inputs == "vectors")

    def head(self, name: str) -> Any:
        """Return the head for a job; raise CheckpointError if the model has none."""
        head, problem = self.heads[name] if name in self.heads else None, None
        if head is None:
            have = ", ".join(sorted(set(self.heads) - {"features"})) or "none"
            problem = (
                f"{name!r} head (it has: {have}); it was not trained for this job. Use another"
                " model, or train that head"
            )
        elif head.inputs == "matches" and self.features is None:
            problem = f"token features, which its {name!r} head needs; save the model again"
        if problem:
            raise CheckpointError(f"{self.source} has no {problem}")
        return head

    def save(self, folder: str | Path, *, weights: str = "as_is", job: Job | None = None) -> None:
        """Write the model folder. Loading it gives bit-equal outputs with weights="as_is".

        Args:
            weights: "as_is", or "int8": every backbone matrix and the token tables in 8 bits with
                one scale per row, and the heads' matrices in fp16.
            job: what sentence-transformers loads the folder as: "embed" (a SentenceTransformer) or
                "rerank" (a CrossEncoder); default: the first of these that the model has a head
                for. runnel loads the folder for every job.
        """
        job = job or next((name for name in JOBS if name in self.heads), None)
        if job is not None:
            self.head(job)  # raises if the model has none
        self.write(folder, weights=weights)
        from runnel.backbones.library import Library

        if job is not None and not isinstance(self.backbone, Library):
            write_sentence_transformer(Path(folder), job, self.prompts)

    def write(self, folder: str | Path, *, weights: str = "as_is") -> None:
        """Save without the two files for sentence-transformers, which that library's own models
        write themselves.
        """
        with needing("saving a model needs torch", "recurrent"):
            from runnel.models.torch_models import write_model

        write_model(self.with_torch(), Path(folder), weights)


def find_model(name: str | Path) -> tuple[Path, str]:
    """Return the folder or weights file of a model, and "st" or "st-code" of a
    name that begins so.
    """
    prefix, _, plain = str(name).partition(":")
    prefix = prefix if prefix in ("st", "st-code") else ""
    place = plain if prefix else str(name)
    path = BUILT_IN.get(str(name)) or Path(place).expanduser()
    if not place or not path.is_dir():
        from runnel.backbones.checkpoint.finding import find_checkpoint

        path = find_checkpoint(plain if prefix else name, BUILT_IN, code=prefix == "st-code")
    inside = path / LIBRARY_FOLDER
    return (inside if inside.is_dir() else path), prefix


def load_model(
    name: str | Path,
    dtype: str | torch.dtype = "auto",
    device: str = "auto",
    *,
    pooling: Pooling | None = None,
    template: str | None = None,
    job: Job = "embed",
    arrays: bool = False,
) -> Model:
    """Load a built-in model (`BUILT_IN`), a model folder, a bare checkpoint, a
    sentence-transformers folder or a hub id.

    Parts that a folder of another library lacks are supplied by `models/bare.py`, for transformers
    by `models/transformers.py`. `st:NAME` is loaded with sentence-transformers, `st-code:NAME` with
    code that comes with it.

    Args:
        pooling: as for `Embedder.load`; the vectors are without a trained projection.
        template: as for `Reranker.load`.
        job: what the model is loaded for; a transformer without a layer for pairs gets a new one,
            without a head.
        arrays: read without torch if this model can be, on a CPU. It cannot be trained
            (`Model.with_torch`).

    Raises:
        CheckpointError: the model is missing or cannot be used; the message says why.
        InputError: the pooling or template is unknown or does not fit this model.
    """
    if pooling is not None:
        expect_choice(pooling, POOLINGS, "pooling")
    path, prefix = find_model(name)
    plain = arrays and path.is_dir() and not (prefix or pooling or template)
    if plain and (model := _load_arrays(path, dtype, device, str(name))) is not None:
        return model
    with needing(f"the model {name} needs torch", "recurrent"):
        from runnel.models.torch_models import load_with_torch

    return load_with_torch(
        path, prefix, dtype, device, str(name), pooling=pooling, template=template, job=job
    )


@dataclass(frozen=True)
class Markers:
    """The special tokens around a text."""

    begin: int | None
    end: int | None


@dataclass(frozen=True)
class Description:
    """The object "runnel" of config.json. The backbone's part is read by
    `backbones.checkpoint.load`.
    """

    version: int
    backbone: dict[str, Any]
    heads: dict[str, dict[str, Any]]
    templates: dict[str, dict[str, Any]]
    prompts: dict[str, str]
    markers: Markers
    unit: Unit

    @classmethod
    def read(cls, config: Mapping[str, Any], source: str) -> Description:
        """Raise CheckpointError unless this version of runnel reads the object."""
        if config.get("version") != VERSION:
            raise CheckpointError(
                f"{source} has model format {config.get('version')!r}, this version of runnel reads"
                f" {VERSION}; upgrade runnel"
            )
        return cls(**arguments(cls, config, f"{source}: config.json"))

    def model(
        self, folder: Path, backbone: Backbone | ArrayEncoder, heads: Any, source: str
    ) -> Model:
        """Return the model of a folder, with its backbone and heads."""
        jobs = {name: head for name, head in heads.items() if name in Head.jobs}
        needed = {
            "document" if name == "embed" or head.inputs == "vectors" else name
            for name, head in jobs.items()
        }
        if missing := sorted(needed - set(self.templates)):
            raise CheckpointError(
                f"{source}: config.json lacks the template {missing[0]!r}, which its heads need;"
                " save the model again"
            )
        with valid_config(source):
            tokenizer = Tokenizer.load(folder, begin=self.markers.begin, end=self.markers.end)
            templates = {name: Template.from_dict(value) for name, value in self.templates.items()}
        card = folder / "README.md"
        text = card.read_text(encoding="utf-8", errors="replace") if card.exists() else ""
        return Model(backbone, tokenizer, heads, templates, self.prompts, source, text, self.unit)


def _load_arrays(folder: Path, dtype: str | torch.dtype, device: str, source: str) -> Model | None:
    """Return the model of a folder without torch; None if torch has to load it, or to say what is
    wrong.
    """
    kind = str(dtype).removeprefix("torch.")
    if (
        not (folder / "config.json").is_file()
        or kind not in ("auto", "float32", "bfloat16", "int8")
        or not backend.wants_cpu(device)
    ):
        return None
    config: Any = read_model_json(folder / "config.json").get("runnel")
    backbone = config.get("backbone") if isinstance(config, dict) else None
    if not isinstance(backbone, dict) or backbone.get("architecture") != "encoder":
        return None
    try:
        return _array_model(folder, config, kind, source)
    except (
        RunnelError,
        SafetensorError,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:
        log.debug("%s is left to torch: %s", source, error)
        return None


def _array_model(folder: Path, config: Any, dtype: str, source: str) -> Model:
    """Return a model; raise if torch has to load it."""
    from runnel.ops.numba_math import PROBLEM  # numba takes a while to import

    if PROBLEM:
        raise ValueError(f"no kernels: {PROBLEM}")
    from runnel.backbones.encoder.arrays import ArrayEncoder, default_dtype
    from runnel.ops.int8_matmul import vnni_problem

    chosen = cast("Dtype", default_dtype() if dtype == "auto" else dtype)
    if (chosen == "int8" and vnni_problem()) or (
        chosen == "bfloat16" and default_dtype() != chosen
    ):
        raise ValueError(f"no kernels for {chosen}")
    read = Description.read(config, source)
    shape = EncoderConfig.from_dict(read.backbone["config"])
    if shape.begin_id is None or not {"features", "sentences"} <= set(read.heads):
        raise ValueError("it does not find sentences in passages")
    backbone = ArrayEncoder(folder / "model.safetensors", shape, chosen)
    own = {
        name: _read_head(name, options, backbone, source) for name, options in read.heads.items()
    }
    model = read.model(folder, backbone, own, source)
    log.info("%s runs with kernels compiled for this processor", backbone.title)
    return model


def _read_head(name: str, config: Mapping[str, Any], backbone: Any, source: str) -> Head:
    """Return a head with its weights."""
    kind, options = head_options(ARRAY_HEADS, name, config, backbone, source)
    head, found = kind(**options), backbone.read_head(name)
    if {key: array.shape for key, array in found.items()} != {
        key: array.shape for key, array in head.arrays().items()
    }:
        raise ValueError(f"the weights of the head {name} have other shapes")
    head.load(found)
    return cast("Head", head)


def head_options(
    kinds: Mapping[str, Any], name: str, config: Mapping[str, Any], backbone: Any, source: str
) -> tuple[Any, Any]:
    """Return the class of a head in config.json, one of `kinds`, and the arguments that make it."""
    options = dict(config)
    kind: Any = options.pop("kind", None)
    with valid_config(source):
        expect_choice(
            kind,
            sorted(key for key, head in kinds.items() if name in head.jobs),
            f"the kind of the head {name!r}",
        )
    given = {
        "vocab_size": backbone.vocab_size,
        "hidden_size": backbone.hidden_size,
        "state_shapes": backbone.state_shapes(),
    }
    taken = {
        key: value
        for key, value in given.items()
        if key in inspect.signature(kinds[kind]).parameters
    }
    what = f"{source}: the head {name!r} of config.json"
    return kinds[kind], taken | arguments(kinds[kind], options, what, given=tuple(given))
