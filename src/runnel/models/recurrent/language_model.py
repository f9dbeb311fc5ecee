"""A recurrent language model that continues a text: a backbone with its LM head, greedy, at the end
of a state that it carries.

T  tokens of a text      D  width of the hidden vectors      V  rows of the LM head
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint.finding import find_checkpoint, read_config
from runnel.backbones.checkpoint.load import load_checkpoint, open_weights
from runnel.backbones.checkpoint.shapes import check_tensors
from runnel.backbones.checkpoint.tensors import read_tensor
from runnel.backbones.state import State
from runnel.checks import expect_count
from runnel.errors import CheckpointError, InputError
from runnel.models.folder import BUILT_IN, load_model
from runnel.models.foreign.bare import load_tokenizer
from runnel.models.model import Model
from runnel.models.recurrent.heads import LmHead
from runnel.models.recurrent.model import TorchModel
from runnel.ops.backend import inference
from runnel.text.tokenizer import Tokenizer

_STEP = 1024  # tokens of a step
_HEADS = ("lm_head.weight", "head.weight")  # names of the matrix; the second one is in RWKV's files
_EXPECTED = (
    "use a checkpoint of a recurrent language model with its LM head, for example"
    " state-spaces/mamba2-130m"
)


@dataclass(frozen=True)
class Continuation:
    """A text that a language model wrote."""

    text: str
    ids: tuple[int, ...]  # its tokens, without the one that ended it
    # whether the model ended the text, or it reached `max_tokens`
    finish: Literal["stop", "length"]
    state: State  # after the prompt and all of `ids`


class LanguageModel:
    """A recurrent backbone with its LM head, tied or with a matrix (V, D) in the dtype of the
    embedding table.
    """

    def __init__(self, backbone: Backbone, tokenizer: Tokenizer, head: LmHead) -> None:
        _expect_recurrent(backbone, "the model")
        self.backbone, self.tokenizer, self.head = backbone, tokenizer, head

    @classmethod
    def load(
        cls, name: str | Path, dtype: str | torch.dtype = "auto", device: str = "auto"
    ) -> Self:
        """Load a published checkpoint of a recurrent language model, or a generator that `runnel
        lab train` wrote.
        """
        model = load_generator(name, dtype, device)
        return cls(model.backbone, model.tokenizer, lm_head(model))

    def logits(self, ids: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return the logits (T, V) fp32 of the token after each token of ids (T,), and the state
        after the last one.
        """
        with inference():
            # None: one sequence
            hidden, state = self.backbone(ids.to(self.backbone.device), None, state)
            return self.head(hidden, embedding_table(self.backbone)), state

    def read(self, text: str, state: State | None = None) -> State:
        """Return the state after a text, read after the text of `state`; for prompts that continue
        it.

        Raises:
            InputError: the text has no tokens.
        """
        return self._read(self._encode(text, state), state)[1]

    def generate(
        self,
        prompt: str,
        state: State | None = None,
        *,
        max_tokens: int,
        stop_ids: Collection[int] | None = None,
    ) -> Continuation:
        """Continue a prompt with the most likely token again and again.

        Args:
            prompt: read after the text of `state`.
            state: from `read` or an earlier continuation; left unchanged.
            max_tokens: the most tokens to write.
            stop_ids: tokens that end the text (default: the tokenizer's end marker).

        Raises:
            InputError: the prompt has no tokens, or `max_tokens` is not a whole number of at least
                1.
        """
        expect_count(max_tokens, "max_tokens")
        end = self.tokenizer.end_id
        stops = set(stop_ids) if stop_ids is not None else set() if end is None else {end}
        logits, state = self._read(self._encode(prompt, state), state)
        ids: list[int] = []
        while True:
            # The head may have more rows than the vocabulary: those are padding.
            token = int(logits[: self.tokenizer.vocab_size].argmax())
            if token in stops:
                return Continuation(self.tokenizer.decode(ids), tuple(ids), "stop", state)
            ids.append(token)
            # also the last token: `Continuation.state` is after all of `ids`
            logits, state = self._read(torch.tensor([token]), state)
            if len(ids) == max_tokens:
                return Continuation(self.tokenizer.decode(ids), tuple(ids), "length", state)

    def _encode(self, text: str, state: State | None) -> Tensor:
        # after other text, without a begin marker or a space that the tokenizer adds at the start
        ids = (
            encode_prompt(self.tokenizer, text)
            if state is None
            else self.tokenizer.encode_inside(text).ids
        )
        if not len(ids):
            raise InputError("the prompt has no tokens; expected a text to continue")
        return torch.from_numpy(ids).long()

    def _read(self, ids: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Return the logits (V,) after the last of some ids, one at least, and the state, reading
        in steps.
        """
        with inference():
            for part in ids.to(self.backbone.device).split(_STEP):
                hidden, state = self.backbone(part, None, state)
            assert state is not None  # `ids` has one token at least, so a step has been read
            return self.head(hidden[-1:], embedding_table(self.backbone))[0], state


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> np.ndarray:
    """Return the ids (T,) int32 of a prompt, after a begin marker if the tokenizer has one."""
    begin = [] if tokenizer.begin_id is None else [tokenizer.begin_id]
    return np.concatenate([np.array(begin, dtype=np.int32), tokenizer.encode(prompt).ids])


def load_generator(
    name: str | Path, dtype: str | torch.dtype = "auto", device: str = "auto"
) -> Model:
    """Load a recurrent model with the head "generate": a published checkpoint, or a generator that
    `runnel lab train` wrote.
    """
    path = BUILT_IN.get(str(name)) or find_checkpoint(name, BUILT_IN)
    config = read_config(path) or {}
    if "runnel" in config:
        model = load_model(name, dtype, device)
        model.head("generate").to(embedding_table(model.backbone).dtype)
        return model
    checkpoint = load_checkpoint(path, dtype=dtype, device=device)
    _expect_recurrent(checkpoint.backbone, name)
    return TorchModel(
        checkpoint.backbone,
        load_tokenizer(checkpoint.folder, checkpoint.backbone),
        nn.ModuleDict({"generate": read_lm_head(path, config, checkpoint.backbone)}),
        templates={},
        source=str(name),
    )


def _expect_recurrent(backbone: Backbone, name: object) -> None:
    if not backbone.recurrent:
        raise InputError(
            f"{name} is a {backbone.title}, which carries no state from token to token; {_EXPECTED}"
        )


def lm_head(model: Model) -> LmHead:
    """Return the head "generate" of a model."""
    head = model.head("generate")
    assert isinstance(head, LmHead)
    return head


def embedding_table(backbone: Backbone) -> nn.Parameter:
    """Return the embedding table (V, D) of a recurrent backbone."""
    return backbone.get_parameter("embeddings.weight")


def read_lm_head(path: Path, config: Mapping[str, Any], backbone: Backbone) -> LmHead:
    """Return the LM head of a checkpoint that runnel did not write, in the dtype of the embedding
    table.

    It is tied if the config says so, or by default in Mamba-1 and Mamba-2, unless the checkpoint
    has another matrix.
    """
    table = embedding_table(backbone).detach()
    tensors = open_weights(path)
    name = next(
        (
            name
            for name in tensors
            if name.removeprefix("model.").removeprefix("backbone.") in _HEADS
        ),
        None,
    )
    # what a config does not say is a property of the family: `ties_lm_head`, `logit_cap`
    tied = config.get("tie_word_embeddings", config.get("tie_embeddings", backbone.ties_lm_head))
    cap = (
        None
        if backbone.logit_cap is None
        else config.get("output_logit_soft_cap", backbone.logit_cap)
    )
    sizes = backbone.vocab_size, backbone.hidden_size
    if name is None:
        if not tied:
            raise CheckpointError(
                f"{path} has no LM head ({' or '.join(_HEADS)}), so it cannot write; {_EXPECTED}"
            )
        return LmHead(*sizes, tied=True, soft_cap=cap)
    check_tensors({name: tensors[name]}, {name: tuple(table.shape)}, str(path))
    weight = read_tensor(name, tensors[name], str(path)).to(table.device, table.dtype)
    tied = tied and torch.equal(weight, table)
    with torch.device("meta"):
        head = LmHead(*sizes, tied=tied, soft_cap=cap)
    if not tied:
        head.weight = nn.Parameter(weight, requires_grad=False)
    return head
