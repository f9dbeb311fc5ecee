"""A recurrent language model that continues a text: a backbone with its LM head, greedy, at the end of a state that it carries.

A prompt of any length is read in steps, so memory does not depend on its length, and every token that is written costs the same.
A state from `read` holds a document once for all prompts that continue it.

    T  tokens of a text   D  width of the hidden vectors   V  rows of the LM head
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint.files import find_checkpoint, open_weights, read_config
from runnel.backbones.checkpoint.load import load_checkpoint
from runnel.backbones.checkpoint.tensors import read_tensor
from runnel.backbones.mamba1.model import Mamba1
from runnel.backbones.mamba2.model import Mamba2
from runnel.backbones.state import State
from runnel.backbones.xlstm.model import Xlstm
from runnel.errors import CheckpointError, InputError
from runnel.models.bare import load_tokenizer
from runnel.records import expect_count
from runnel.text.tokenizer import Tokenizer

_STEP = 1024  # tokens
_HEADS = ("lm_head.weight", "head.weight")  # the latter in RWKV's own files
_SOFT_CAP = 30.0  # of xLSTM's logits, where config.json does not say


@dataclass(frozen=True)
class Continuation:
    """A text that a language model wrote.

    Attributes:
        ids: its tokens, without the one that ended it.
        finish: "stop" if the model ended the text, "length" if it reached `max_tokens`.
        state: after the prompt and all of `ids`.
    """

    text: str
    ids: tuple[int, ...]
    finish: Literal["stop", "length"]
    state: State


class LanguageModel:
    """A recurrent backbone with its LM head.

    Args:
        head: (V, D), in the dtype of the products.
        soft_cap: c of logits c * tanh(x / c), as in xLSTM; None: logits are not limited.

    Raises:
        InputError: the backbone is not recurrent, or the head has another width.
    """

    def __init__(self, backbone: Backbone, tokenizer: Tokenizer, head: Tensor, soft_cap: float | None = None) -> None:
        if not backbone.recurrent:
            raise InputError(f"{backbone.title} carries no state from token to token; expected a recurrent language model")
        if head.shape[1:] != (backbone.hidden_size,):
            raise InputError(f"the LM head is {tuple(head.shape)}; expected rows of {backbone.hidden_size} numbers")
        self.backbone, self.tokenizer, self.head, self.soft_cap = backbone, tokenizer, head, soft_cap

    @classmethod
    def load(cls, name: str | Path, dtype: str | torch.dtype = "auto", device: str = "auto") -> LanguageModel:
        """Load a published checkpoint of Mamba-1, Mamba-2, RWKV-7 or xLSTM with its LM head, from a folder or by its hub id.

        Raises:
            CheckpointError: the checkpoint is missing or damaged, has no LM head, or no tokenizer.
        """
        checkpoint = load_checkpoint(name, dtype=dtype, device=device)
        backbone = checkpoint.backbone
        config = read_config(checkpoint.folder) or {}
        head = read_lm_head(find_checkpoint(name), config, backbone)
        cap = config.get("output_logit_soft_cap", _SOFT_CAP) if isinstance(backbone, Xlstm) else None
        return cls(backbone, load_tokenizer(checkpoint.folder, backbone), head, cap)

    def logits(self, ids: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return the logits (T, V) fp32 of the token after each token of ids (T,), and the state after the last one.

        Args:
            state: of the text before; left unchanged.
        """
        with torch.inference_mode():
            hidden, state = self.backbone(ids.to(self.backbone.device), None, state)
            return self._project(hidden), state

    def read(self, text: str, state: State | None = None) -> State:
        """Return the state after a text, read after the text of `state`; for prompts that continue it.

        Raises:
            InputError: the text has no tokens.
        """
        return self._read(self._encode(text, state), state)[1]

    def generate(
        self, prompt: str, state: State | None = None, *, max_tokens: int, stop_ids: Collection[int] | None = None
    ) -> Continuation:
        """Continue a prompt with the most likely token again and again.

        Args:
            prompt: read after the text of `state`.
            state: from `read` or an earlier continuation; left unchanged.
            max_tokens: the most tokens to write.
            stop_ids: tokens that end the text (default: the tokenizer's end marker).

        Raises:
            InputError: the prompt has no tokens, or `max_tokens` is not a whole number of at least 1.
        """
        expect_count(max_tokens, "max_tokens")
        end = self.tokenizer.end_id
        stops = set(stop_ids) if stop_ids is not None else set() if end is None else {end}
        logits, state = self._read(self._encode(prompt, state), state)
        ids: list[int] = []
        while True:
            token = int(logits[: self.tokenizer.vocab_size].argmax())  # further rows of the head are padding
            if token in stops:
                return Continuation(self.tokenizer.decode(ids), tuple(ids), "stop", state)
            ids.append(token)
            logits, state = self._read(torch.tensor([token]), state)
            if len(ids) == max_tokens:
                return Continuation(self.tokenizer.decode(ids), tuple(ids), "length", state)

    def _encode(self, text: str, state: State | None) -> Tensor:
        tokenizer = self.tokenizer
        encoded = tokenizer.encode(text) if state is None else tokenizer.encode_inside(text)
        begin = [] if state is not None or tokenizer.begin_id is None else [tokenizer.begin_id]
        if not len(encoded) and not begin:
            raise InputError("the prompt has no tokens; expected a text to continue")
        return torch.cat([torch.tensor(begin, dtype=torch.int64), torch.from_numpy(encoded.ids).long()])

    def _read(self, ids: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Return the logits (V,) after the last of some ids, one at least, and the state, reading in steps."""
        with torch.inference_mode():
            for part in ids.to(self.backbone.device).split(_STEP):
                hidden, state = self.backbone(part, None, state)
            assert state is not None  # there is a part
            return self._project(hidden[-1:])[0], state

    def _project(self, hidden: Tensor) -> Tensor:
        logits = F.linear(hidden.to(self.head.dtype), self.head).to(hidden.dtype)
        return logits if self.soft_cap is None else self.soft_cap * torch.tanh(logits / self.soft_cap)


def read_lm_head(path: Path, config: Mapping[str, Any], backbone: Backbone) -> Tensor:
    """Return the LM head (V, D) of a checkpoint, in the dtype of the embedding table, which it may share.

    Raises:
        CheckpointError: there is none, and the config does not say that it is the embedding table; or it has another shape.
    """
    table = backbone.get_parameter("embeddings.weight")
    tensors = open_weights(path)
    name = next((name for name in tensors if name.removeprefix("model.").removeprefix("backbone.") in _HEADS), None)
    if name is None:
        shared = config.get("tie_word_embeddings", config.get("tie_embeddings", isinstance(backbone, Mamba1 | Mamba2)))
        if not shared:
            raise CheckpointError(
                f"{path} has no LM head ({' or '.join(_HEADS)}), so it cannot write; give a checkpoint with one"
            )
        return table.detach()
    if tensors[name].shape != tuple(table.shape):
        raise CheckpointError(f"{path}: mis-shaped tensor {name!r} is {tensors[name].shape}, expected {tuple(table.shape)}")
    return read_tensor(name, tensors[name], str(path)).to(table.device, table.dtype)
