"""Models of sentence-transformers behind the interface of every backbone: its own modules read,
pool and score.

T  tokens of the packed batch   S  sequences   D  width of the output

Every token of a sequence gets the one output that the library has for it: the vector of a text, or
the logits of a pair. There is no state, and a text is read whole or not at all.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from runnel.backbones.base import Backbone, stream_dtype
from runnel.backbones.checkpoint.shapes import check_tensors, refuse_wrapped
from runnel.backbones.config import BackboneConfig
from runnel.backbones.int8 import check_int8
from runnel.backbones.layers import sub_batches
from runnel.backbones.state import State
from runnel.errors import CheckpointError, needing
from runnel.ops.backend import inference, wanted_device, wanted_dtype


@dataclass(frozen=True)
class LibraryConfig(BackboneConfig):
    """The sizes of a model, and what the transformers library calls its kind."""

    model_type: str


class Library(Backbone):
    """A `SentenceTransformer` or a `CrossEncoder`. It overrides `forward` and `step`, which need
    the ids and keep no state.
    """

    architecture = "library"
    config_class = LibraryConfig
    title = "Transformer"
    matrices = ("",)  # the library runs a model in one dtype
    block = None
    config: LibraryConfig

    def __init__(self, model: Any) -> None:
        facts = model.transformers_model.config.get_text_config()
        scores = type(model).__name__ == "CrossEncoder"
        width = model.num_labels if scores else model.get_embedding_dimension()
        super().__init__(
            LibraryConfig(facts.vocab_size, width, facts.num_hidden_layers, facts.model_type)
        )
        self.model = model
        self.scores = scores
        self._inner: Any = model.transformers_model
        self._facts = facts
        self.title = type(self._inner).__name__  # type: ignore[misc]  # each has a name of its own
        self.max_tokens = model.max_seq_length
        self._types = (
            "token_type_ids" in model.tokenizer.model_input_names
            and getattr(facts, "type_vocab_size", 0) > 1
        )

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def prepare(self) -> None:
        """Do nothing: the library has its own kernels."""
        self.fast = None

    @property
    def flops_per_token(self) -> int:
        """Linear layers alone; `flops` adds attention, which grows with the text."""
        return 2 * sum(layer.weight.numel() for layer in self.linear_layers())

    def flops(self, tokens: int) -> int:
        """As `Backbone.flops`: 4 operations for each pair of tokens that attend, layer and channel;
        causal pairs count once.
        """
        facts = self._facts
        causal = getattr(self._inner.config, "is_causal", True) and is_decoder(
            self.config.model_type
        )
        heads = facts.num_attention_heads
        width = heads * (
            getattr(facts, "d_kv", None)
            or getattr(facts, "head_dim", None)
            or facts.hidden_size // heads
        )
        pairs = tokens * (tokens + 1) // 2 if causal else tokens * tokens
        return tokens * self.flops_per_token + 4 * width * self.num_layers * pairs

    @property
    def step_bytes_per_token(self) -> int:
        """Residual, projections, feed-forward and an eighth of padding, fp32; attention over long
        texts may take more.
        """
        widest = max(layer.out_features for layer in self.linear_layers())
        return 9 * 4 * (6 * self._facts.hidden_size + 3 * widest) // 8

    # it reads ids, not embedded tokens: `forward` and `step` are its own
    embed = _forward = None  # type: ignore[assignment]

    def forward(
        self,
        ids: Tensor,
        cu_seqlens: Tensor | None = None,
        state: State | None = None,
        added: Tensor | None = None,
        *,
        recompute: bool = False,
    ) -> tuple[Tensor, State]:
        """As `Backbone.forward`, differentiable; nothing can be added to the embeddings."""
        cu_seqlens = self._check(ids, cu_seqlens, state)
        # the library's own switch changes its name and side effects with its versions
        for layer in self._inner.modules():
            if hasattr(layer, "gradient_checkpointing"):
                layer.gradient_checkpointing = recompute
                layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        return self._read(ids, cu_seqlens), State({}, cu_seqlens.diff().to("cpu", torch.int64))

    def step(
        self,
        ids: Tensor,
        cu_seqlens: Tensor,
        pool: State,
        read_rows: Tensor,
        write_rows: Tensor,
        added: Tensor | None = None,
    ) -> Tensor:
        """As `Backbone.step`, where no sequence has a state to read or to write
        (all rows are -1).
        """
        self.check_whole(
            cu_seqlens, continues=bool((read_rows >= 0).any()) or bool((write_rows >= 0).any())
        )
        with inference():
            return self._read(ids, cu_seqlens)

    def _read(self, ids: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Return (T, D) on the device of `ids`."""
        lengths = cu_seqlens.diff().tolist()
        rows = ids.to(self.device, torch.int64).split(lengths)
        outputs = [torch.zeros(0, self.hidden_size, device=self.device)] * len(lengths)
        padding = self.model.tokenizer.pad_token_id or 0
        for batch in sub_batches(lengths):
            features = {
                "input_ids": pad_sequence(
                    [rows[i] for i in batch], batch_first=True, padding_value=padding
                ),
                "attention_mask": pad_sequence(
                    [torch.ones_like(rows[i]) for i in batch], batch_first=True
                ),
            }
            if self._types:
                separators = features["input_ids"].eq(self.model.tokenizer.sep_token_id).long()
                before = separators.cumsum(dim=1) - separators
                # 1 after the first, as tokenizers write pairs
                features["token_type_ids"] = before.clamp(max=1)
            found = self.model(features)["scores" if self.scores else "sentence_embedding"]
            for row, i in zip(found, batch, strict=True):
                outputs[i] = row.expand(lengths[i], -1)
        hidden = torch.cat(outputs) if outputs else torch.zeros(0, self.hidden_size)
        return hidden.to(ids.device, stream_dtype(next(self.parameters())))


def is_decoder(model_type: str) -> bool:
    """Return whether the transformers library has a model of this type that reads from left to
    right alone.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    return (
        model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        and model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    )


def open_library(
    folder: Path,
    dtype: str | torch.dtype,
    device: str | torch.device,
    mode: str | None,
    scores: bool,
    own_code: bool,
) -> Library:
    """Load a folder with sentence-transformers, in evaluation mode.

    Args:
        dtype: of the whole model: "auto" is bf16 where the processor computes it natively, else
            fp32.
        mode: how a text is pooled, in place of the folder's modules; with `scores` a new linear
            layer follows.
        scores: as a `CrossEncoder`.
        own_code: run code that comes with the model.

    Raises:
        CheckpointError: the library cannot load it, or weights are missing.
    """
    target = wanted_device(device)
    wanted = wanted_dtype(dtype, target)
    if wanted == torch.int8:
        check_int8(Library.title, Library.int8_layers, target, str(folder))
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    cls: Any = CrossEncoder if scores else SentenceTransformer
    options: Any = {"trust_remote_code": own_code, "local_files_only": True}
    loading = options | {"dtype": wanted}
    with _whole_weights(folder):
        try:
            if mode is None:
                model = cls(
                    str(folder), device=str(target), model_kwargs={"dtype": wanted}, **options
                )
            else:
                reader = Transformer(
                    str(folder),
                    model_kwargs=loading,
                    processor_kwargs=options,
                    config_kwargs=options,
                )
                # OPT-350m
                width = (
                    getattr(reader.model.config, "word_embed_proj_dim", None)
                    or reader.get_embedding_dimension()
                )
                modules: list[nn.Module] = [reader, Pooling(width, mode)]
                if scores:
                    layer = Dense(
                        width, 1, activation_function=nn.Identity(), module_output_name="scores"
                    )
                    modules.append(layer.to(wanted))
                model = cls(modules=modules, device=str(target))
        except Exception as error:  # each part of the libraries has errors of its own kind
            advice = (
                ""
                if own_code
                else "; for a model with code of its own, if you trust it, write st-code:"
            )
            reason = " ".join(str(error).split())[:300]
            raise CheckpointError(
                f"sentence-transformers cannot load {folder} ({reason}){advice}"
            ) from error
    if (
        model.transformers_model is None
        or getattr(model[0], "transformer_task", "") == "text-generation"
    ):
        raise CheckpointError(
            f"{folder} begins with {type(model[0]).__name__}, for"
            f" {getattr(model[0], 'transformer_task', 'no transformer')}; expected a transformer"
            " that embeds or classifies"
        )
    backbone = Library(model)
    backbone.eval()
    return backbone


@contextmanager
def _whole_weights(folder: Path) -> Iterator[None]:
    """Raise CheckpointError for weights that a folder lacks: the library draws them at random and
    only logs it.
    """
    import transformers

    log = logging.getLogger("transformers.modeling_utils")
    messages = [""]

    def take(record: logging.LogRecord) -> bool:
        messages.append(re.sub(r"\x1b\[[\d;]*m", "", record.getMessage()))
        return False

    settings = transformers.utils.logging
    level = log.level
    bars = settings.is_progress_bar_enabled()
    log.addFilter(take)
    # from WARNING on the library also logs how it would split the layers over devices
    log.setLevel(logging.INFO + 1)
    settings.disable_progress_bar()
    try:
        yield
    finally:
        log.removeFilter(take)
        log.setLevel(level)
        if bars:
            settings.enable_progress_bar()
    table = "\n".join(messages)
    missing = [
        name for name in re.findall(r"^(\S+)\s*\|\s*MISSING", table, re.M) if "pooler." not in name
    ]
    if missing:
        refuse_wrapped(re.findall(r"^(\S+)\s*\|\s*UNEXPECTED", table, re.M), str(folder))
    check_tensors({}, dict.fromkeys(missing, ()), str(folder))


def require_library(what: str) -> Any:
    """Return the transformers library; raise MissingDependency unless sentence-transformers is
    installed too.
    """
    # it warns of kernels in 4 bits, which are not used to read
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    with needing(f"{what} is read by sentence-transformers", "lab"):
        import sentence_transformers  # noqa: F401
        import transformers
    return transformers
