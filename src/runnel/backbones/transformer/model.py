"""Transformer baselines: models of the transformers library behind the interface of every backbone.

T  tokens in the packed batch   S  sequences   B  sequences of one padded sub-batch   n  length of its longest sequence
D  width of hidden vectors      E  width of token embeddings

Packed in, padded inside: the sequences of a call are sorted by length and run in sub-batches that waste little on padding.
A hidden vector is what the library's model gives for that text alone, in the last layer. What it represents differs:

    encoders            BERT, RoBERTa, ELECTRA                            the token, seen with all others
    decoders            OPT, GPT-NeoX (Pythia), Llama, Mistral, Qwen2     the token, seen with all before it; with all others
                                                                          where config.json has "is_causal": false
    encoder-decoders    BART, T5, by `TransformerConfig.output`
        "encoder"       the token in the encoder
        "decoder"       what the decoder gives at the token when it reads the same text, moved on by its start token
        "first"         the decoder's first vector, made from its start token alone; every token of the text has it

There is no state. A text is read whole or not at all.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from runnel.backbones.base import Backbone, stream_dtype
from runnel.backbones.int8 import Int8Linear
from runnel.backbones.layers import sub_batches
from runnel.backbones.state import State
from runnel.backbones.transformer.config import Family, TransformerConfig, longest, model_class, options
from runnel.errors import InputError
from runnel.ops.backend import inference

_CROSS_KEYS_AND_VALUES = ("encoder_attn.k_proj", "encoder_attn.v_proj", "EncDecAttention.k", "EncDecAttention.v")


class Transformer(Backbone):
    """A transformer, without its heads. It overrides `forward` and `step`, which need the ids and keep no state.

    Args:
        config: its shape; without `model` the weights are random.
        model: the loaded model of the transformers library.
        attention: "sdpa", "eager" or "flash_attention_2", without `model`.
    """

    architecture = "transformer"
    config_class = TransformerConfig
    title = "Transformer"
    matrices = ("",)  # the library runs a model in one dtype
    block = None
    config: TransformerConfig

    def __init__(self, config: TransformerConfig, model: nn.Module | None = None, attention: str = "sdpa") -> None:
        super().__init__()
        if model is None:
            with torch.device("cpu"):  # not meta: buffers of positions are computed, and come from no checkpoint
                model = model_class(config)(config.for_library(attention), **options(config))
        self.model = model
        facts: Any = model.config
        self._facts = facts
        self.vocab_size, self.num_layers = facts.vocab_size, facts.num_hidden_layers
        self.hidden_size = getattr(facts, "word_embed_proj_dim", None) or facts.hidden_size  # OPT may project its last layer
        self.take(config)

    def take(self, config: TransformerConfig) -> None:
        """Change the config but not the weights: how the texts of a pair are separated, and the longest text."""
        self.config, self.title = config, config.family.title  # type: ignore[misc]  # each has a name of its own
        limits = [limit for limit in (config.max_tokens, longest(self._facts)) if limit is not None]
        self.max_tokens = min(limits, default=None)

    @property
    def family(self) -> Family:
        return self.config.family

    @property
    def attention(self) -> str:
        """How the library computes attention: "sdpa", "eager" or "flash_attention_2"."""
        return str(self._facts._attn_implementation)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def prepare(self) -> None:
        """Tie shared weights and move buffers, which loading leaves undone; the library has its own kernels."""
        self.fast = None
        self.model.tie_weights()  # type: ignore[operator]  # modules that share a weight
        self.model.to(self.device)  # buffers that no checkpoint holds

    @property
    def flops_per_token(self) -> int:
        """Linear layers alone; `flops` adds attention, which grows with the text."""
        return 2 * sum(layer.weight.numel() for layer in self.linear_layers())

    def flops(self, tokens: int) -> int:
        """As `Backbone.flops`: 4 operations for each pair of tokens that attend, layer and channel, in all heads together.

        Causal pairs are counted once, so that n tokens cost 2 D (n + 1) a layer and token. Sliding windows are not looked at.
        """
        facts, every, past = self._facts, tokens * tokens, tokens * (tokens + 1) // 2
        heads = facts.num_attention_heads
        width = heads * (getattr(facts, "d_kv", None) or getattr(facts, "head_dim", None) or facts.hidden_size // heads)
        pairs = facts.num_hidden_layers * (past if self.config.causal else every)
        if self.family.kind == "encoder-decoder" and self.config.output != "encoder":
            layers = getattr(facts, "num_decoder_layers", None) or facts.decoder_layers
            pairs += layers * (past + every if self.config.output == "decoder" else 1 + tokens)
        return tokens * self.flops_per_token + 4 * width * pairs

    @property
    def step_bytes_per_token(self) -> int:
        """Residual, projections, feed-forward and an eighth of padding, fp32; attention over long texts may take more."""
        widest = max(layer.out_features for layer in self.linear_layers())
        return 9 * 4 * (6 * self.hidden_size + 3 * widest) // 8

    def embed(self, ids: Tensor) -> Tensor:
        """(T, E) fp32; E is D, save for models that project their embeddings (small ELECTRA, OPT-350m)."""
        table: nn.Module = self.model.get_input_embeddings()  # type: ignore[operator]
        return table(ids.to(self.device, torch.int64)).to(stream_dtype(next(self.parameters()))).to(ids.device)

    def forward(
        self,
        ids: Tensor,
        cu_seqlens: Tensor | None = None,
        state: State | None = None,
        added: Tensor | None = None,
        *,
        recompute: bool = False,
    ) -> tuple[Tensor, State]:
        """As `Backbone.forward`, differentiable; the returned state holds only the numbers of tokens.

        Raises:
            InputError: also where a sequence is longer than `max_tokens`.
            StateError: a state was given.
        """
        cu_seqlens = self._check(ids, cu_seqlens, state)
        for layer in self.model.modules():  # the library's own switch changes its name and side effects with its versions
            if hasattr(layer, "gradient_checkpointing"):
                layer.gradient_checkpointing = recompute
                layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        return self._read(ids, cu_seqlens, added), State({}, cu_seqlens.diff().to("cpu", torch.int64))

    def step(
        self, ids: Tensor, cu_seqlens: Tensor, pool: State, read_rows: Tensor, write_rows: Tensor, added: Tensor | None = None
    ) -> Tensor:
        """As `Backbone.step`, where no sequence has a state to read or to write (all rows are -1)."""
        self.check_whole(cu_seqlens, continues=bool((read_rows >= 0).any()) or bool((write_rows >= 0).any()))
        with inference():
            return self._read(ids, cu_seqlens, added)

    def _forward(self, hidden: Tensor, cu_seqlens: Tensor, state: State | None, recompute: bool = False) -> tuple[Tensor, State]:
        raise NotImplementedError("a transformer reads ids, not embedded tokens: call forward")

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _read(self, ids: Tensor, cu_seqlens: Tensor, added: Tensor | None) -> Tensor:
        """Return hidden vectors (T, D) on the device of `ids`."""
        lengths = cu_seqlens.diff().tolist()
        if added is not None:
            if added.shape[-1] != self.embed(ids[:1]).shape[-1]:
                raise InputError(f"this {self.title} projects its embeddings; nothing of width {added.shape[-1]} can be added")
            added = added.to(self.device)
        source, starts = ids.to(self.device, torch.int64), cu_seqlens.tolist()
        parts: list[Tensor] = [torch.zeros(0, self.hidden_size, device=self.device)] * len(lengths)
        for batch in sub_batches(lengths):
            places = [slice(starts[i], starts[i] + lengths[i]) for i in batch]
            padded = pad_sequence([source[place] for place in places], batch_first=True, padding_value=self._pad)
            more = None if added is None else pad_sequence([added[place] for place in places], batch_first=True)
            read = self._run(padded, torch.tensor([lengths[i] for i in batch], device=self.device), more)
            for row, i in enumerate(batch):
                parts[i] = read[row, : lengths[i]]
        hidden = torch.cat(parts) if parts else torch.zeros(0, self.hidden_size)
        return hidden.to(ids.device, stream_dtype(next(self.parameters())))

    def _run(self, ids: Tensor, lengths: Tensor, added: Tensor | None) -> Tensor:
        """Run right-padded ids (B, n), lengths (B,), added (B, n, D) -> (B, n, D)."""
        inputs: dict[str, Any] = {"input_ids": ids}
        if added is not None:
            table: nn.Module = self.model.get_input_embeddings()  # type: ignore[operator]
            embedded = table(ids)
            inputs = {"inputs_embeds": embedded + added.to(embedded)}
        # Padding comes after the text, so a causal model does not see it.
        if not self.config.causal and bool((lengths < ids.shape[1]).any()):
            inputs["attention_mask"] = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).long()
        if self.family.kind == "decoder":
            return self.model(**inputs, use_cache=False).last_hidden_state
        if self.family.segments:
            inputs["token_type_ids"] = self._segments(ids)
        if self.config.output == "encoder":
            encoder = self.model.get_encoder() if self.family.kind == "encoder-decoder" else self.model  # type: ignore[operator]
            return encoder(**inputs).last_hidden_state
        start = ids.new_full((len(ids), 1), self._start)
        shifted = start if self.config.output == "first" else torch.cat([start, ids[:, :-1]], dim=1)
        return self.model(**inputs, decoder_input_ids=shifted, use_cache=False).last_hidden_state.expand(-1, ids.shape[1], -1)

    def _segments(self, ids: Tensor) -> Tensor:
        """Return token types (B, n): 1 after the first separator, as these models were pretrained on pairs."""
        separators = ids.eq(self._facts.vocab_size if self.config.separator is None else self.config.separator).long()
        return (separators.cumsum(dim=1) - separators).clamp(max=min(1, self._facts.type_vocab_size - 1))

    @property
    def _pad(self) -> int:
        pad = self._facts.pad_token_id
        return pad if isinstance(pad, int) and 0 <= pad < self.vocab_size else 0

    @property
    def _start(self) -> int:
        start = self._facts.decoder_start_token_id
        return self._pad if start is None else int(start)

    def linear_layers(self) -> list[nn.Linear | Int8Linear]:
        """See `Backbone.linear_layers`: without those of a decoder that see no token of the text."""
        found: list[nn.Linear | Int8Linear] = []
        for name, layer in self.model.named_modules():
            if not isinstance(layer, nn.Linear):
                continue
            if self.family.kind == "encoder-decoder" and name.startswith("decoder."):
                of_the_text = name.endswith(_CROSS_KEYS_AND_VALUES)
                if self.config.output == "encoder" or (self.config.output == "first" and not of_the_text):
                    continue
            found.append(layer)
        return found
