"""A model: backbone, tokenizer, heads and templates, which embedders, rerankers and sentence
retrievers share. `models/folder.py` loads it, as arrays (`models/pocket/model.py`) or with torch
(`models/recurrent/model.py`).
"""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union

import numpy as np

from runnel.backbones.encoder.config import EncoderBlocks
from runnel.checks import expect_text
from runnel.engine import Engine
from runnel.errors import CheckpointError, InputError
from runnel.models.pocket.lexical import WordTable, word_table
from runnel.request import Array
from runnel.text.sentences import Unit
from runnel.text.templates import Template
from runnel.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

Job = Literal["embed", "rerank"]
# the dtype of a model's weights, as `load_backbone` takes it: a name, such as "auto", or torch's
WeightDtype = Union[str, "torch.dtype"]


@dataclass(eq=False)
class Model(ABC):
    """A model of any kind; its classes are `PocketModel` and `TorchModel`.

    T  tokens      V  vocabulary      D  width of hidden vectors
    K  kinds of mark: numbers of a token that say which text it is of and whether it matches
       (`models/head.py`)
    """

    backbone: Any  # a `Backbone`, or without torch an `ArrayEncoder`
    tokenizer: Tokenizer
    # By name, an `nn.ModuleDict`, or without torch a dict; any may be missing: "features"
    # (`TokenFeatures`), "embed" (vectors of texts), "sentences" (scores of sentences), "judge" and
    # "pair" (scores of sentences read again), "rerank" (scores of documents), "generate" (the next
    # token)
    heads: Any
    # "document" (every text of an embedder; queries differ by prompt), "rerank", "sentences"
    templates: dict[str, Template]
    # put before a query or a document, by name, such as "query"
    prompts: dict[str, str] = field(default_factory=dict)
    source: str = "memory"  # where the model was loaded from, for messages
    card: str = ""
    unit: Unit = "sentence"  # what the sentence head scores
    # Whether the second look multiplies bytes (`in_8_bits`): it takes about 0.7 of the time that it
    # takes in bf16, and 0.4 of that in fp32. Vectors and the first look keep the backbone's dtype.
    looks_in_8_bits: bool = False
    # taken from the heads when the model is made, and by `refresh`:
    features: Any = field(init=False)  # `TokenFeatures`, or None
    weight: Array = field(init=False)  # (V,) the weights of tokens in means of hidden vectors
    idf: np.ndarray = field(init=False)  # (V,) static, of the tokens; empty without features
    mark_vectors: Any = field(init=False)  # (K, D), or None

    @abstractmethod
    def __post_init__(self) -> None:
        """Set what reading a text needs from the heads."""

    @abstractmethod
    def refresh(self) -> None:
        """Rebuild what is derived from the heads (token weights, engines) after they change or move
        to another device.
        """

    @abstractmethod
    def with_sentences(self) -> "Model":
        """Make what `for_sentences` returns, and keeps, for an encoder without a head for
        sentences.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hex digest of the weights of the backbone and of all heads. Unfinished work
        stores it, so that it is not continued with another model.
        """

    @abstractmethod
    def with_torch(self) -> "Model":
        """Return a model that torch computes and that can be trained: this one, or one loaded from
        the same files.
        """

    @abstractmethod
    def save(self, folder: str | Path, *, weights: str = "as_is", job: Job | None = None) -> None:
        """Write the model folder. Loading it gives bit-equal outputs with weights="as_is".

        Args:
            weights: "as_is", or "int8": every backbone matrix and the token tables in 8 bits with
                one scale per row, and the heads' matrices in fp16.
            job: what sentence-transformers loads the folder as: "embed" (a SentenceTransformer) or
                "rerank" (a CrossEncoder); default: the first of these that the model has a head
                for. runnel loads the folder for every job.
        """

    @abstractmethod
    def write(self, folder: Path, *, weights: str = "as_is") -> None:
        """Save as `save`, but without the two files for sentence-transformers: a model of that
        library writes them itself.
        """

    @cached_property
    def words(self) -> WordTable:
        """The words of the vocabulary; the model needs token features."""
        return word_table(self.tokenizer.vocabulary, self.idf)

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
    def for_sentences(self) -> "Model":
        """The model itself, or an encoder without a head for sentences as one that reads passages,
        with untrained heads, which compare vectors and words (`with_sentence_heads`).

        Weights are shared. Raise CheckpointError if the model is no encoder, or the tokenizer has
        no markers (`Tokenizer.markers`).
        """
        if "sentences" in self.heads:
            return self
        if not isinstance(self.backbone, EncoderBlocks) or "document" not in self.templates:
            self.head("sentences")  # raises
        return self.with_sentences()

    @cached_property
    def in_8_bits(self) -> "Model":
        """The model with linear layers in 8 bits, for a backbone that is an `ArrayEncoder`."""
        return replace(self, backbone=self.backbone.with_dtype("int8"))

    def text_limit(self, max_tokens: int | None) -> int | None:
        """Return the tokens to which a text, or a pair of texts, is cut: `max_tokens`, or a
        transformer's limit if that is less; None: no cut.
        """
        longest = self.backbone.longest_text
        return max_tokens if max_tokens is None or longest is None else min(max_tokens, longest)

    def prompt_ids(self, name: str) -> np.ndarray:
        """Return the ids (T,) int32 of a prompt, without the space at its end, which belongs to the
        text; (0,) if the model has no prompt of this name.
        """
        prompt = self.prompts.get(name, "").rstrip()
        return self.tokenizer.encode(prompt).ids if prompt else np.zeros(0, np.int32)

    @cached_property
    def engine(self) -> Engine:
        """The engine that reads texts for this model; all threads share it."""
        return self.new_engine()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and other processes, without the engine: it belongs to one
        model and has locks.
        """
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("engine", "for_sentences", "in_8_bits")
        }

    def new_engine(self, step_tokens: int | None = None, memory_bytes: int | None = None) -> Engine:
        """Return an engine for this model, see `Engine`; `self.engine` is one
        of the default size.
        """
        return Engine(
            self.backbone,
            step_tokens,
            memory_bytes,
            mark_vectors=self.mark_vectors,
            weight=self.weight,
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

    def head(self, name: str) -> Any:
        """Return the head that computes for a job; raise CheckpointError if the model has none."""
        head: Any = self.heads[name] if name in self.heads else None
        problem = None
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
        return head.for_inference
