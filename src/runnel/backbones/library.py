"""Models of the sentence-transformers library as a backbone: the library's own modules read, pool
and score.

T  tokens of the packed batch      D  width of the output

Every token of a sequence gets the one output that the library has for the sequence: the vector of a
text, or the logits of a pair. There is no state, and a text is read whole or not at all. So the
engine and the heads read these models as they read backbones of runnel.

Below, "sentence-transformers" is the library that `open_library` loads a model with. It runs on the
library "transformers", which has the layers of the model.
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
    # Every name ends with "": all weights take the low dtype, as sentence-transformers has it.
    matrices = ("",)
    block = None
    recurrent = False
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
        # the name of the model's class in transformers, such as BertModel
        self.title = type(self._inner).__name__  # type: ignore[misc]
        self.max_tokens = model.max_seq_length
        self._types = (  # whether the model has an embedding for each of the two texts of a pair
            "token_type_ids" in model.tokenizer.model_input_names
            and getattr(facts, "type_vocab_size", 0) > 1
        )

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def prepare(self) -> None:
        """Use no kernels of runnel: transformers has its own."""
        self.fast = None

    @property
    def flops_per_token(self) -> int:
        """Linear layers alone; `flops` adds attention, which grows with the text."""
        return 2 * sum(layer.weight.numel() for layer in self.linear_layers())

    def flops(self, tokens: int) -> int:
        """Return what `Backbone.flops` returns. Attention takes 4 operations for each layer, each
        channel and each pair of a token with a token that it sees: itself and the tokens before it,
        or, unless the model reads from left to right alone, all.
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
        """Residual stream, norms and projections, six rows in all, and three rows of the widest
        layer, fp32; and an eighth more, the most that `sub_batches` pads. Attention over long texts
        may take more.
        """
        widest = max(layer.out_features for layer in self.linear_layers())
        # 4 bytes of fp32, times 9/8
        return 9 * 4 * (6 * self._facts.hidden_size + 3 * widest) // 8

    # `Backbone` calls these two only in its own `forward` and `step`, which are overridden below.
    # They are abstract there, so they need a value.
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
        # This is what `gradient_checkpointing_enable` of transformers does. The method itself has
        # other names and side effects in other versions.
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
                before = separators.cumsum(dim=1) - separators  # separators before each token
                # Up to the first separator 0, after it 1: as tokenizers write a pair of texts.
                features["token_type_ids"] = before.clamp(max=1)
            found = self.model(features)["scores" if self.scores else "sentence_embedding"]
            for row, i in zip(found, batch, strict=True):
                outputs[i] = row.expand(lengths[i], -1)  # the same for each token
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
        dtype: the dtype of all weights; "auto" is bf16 where the processor computes it natively,
            else fp32.
        mode: None: use the modules that the folder describes. Otherwise load only its transformer,
            and pool the tokens in this way ("mean", "cls", ...); with `scores`, a new linear layer
            makes a score of the result.
        scores: load it as a `CrossEncoder`, which scores pairs; otherwise as a
            `SentenceTransformer`.
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
    with _whole_weights(folder):
        try:
            if mode is None:
                model = cls(
                    str(folder), device=str(target), model_kwargs={"dtype": wanted}, **options
                )
            else:
                reader = Transformer(
                    str(folder),
                    model_kwargs=options | {"dtype": wanted},
                    processor_kwargs=options,
                    config_kwargs=options,
                )
                # OPT-350m projects its output to another width than its layers have.
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
    """Raise CheckpointError at the end if weights were missing in a folder that was loaded inside.

    transformers fills missing weights with random numbers and only logs a table of them, so this
    collects its log messages. Two lines of the table:

        encoder.layer.0.output.dense.weight | MISSING    |
        classifier.bias                     | UNEXPECTED |
    """
    import transformers

    log = logging.getLogger("transformers.modeling_utils")
    messages = [""]

    def take(record: logging.LogRecord) -> bool:
        """Keep a message, without its colors, and do not log it."""
        messages.append(re.sub(r"\x1b\[[\d;]*m", "", record.getMessage()))
        return False

    settings = transformers.utils.logging
    level = log.level
    bars = settings.is_progress_bar_enabled()
    log.addFilter(take)
    # Between INFO and WARNING: the table comes as a warning, and where this logger's level is
    # WARNING or higher, transformers also logs how it would split the layers over devices.
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
    if missing:  # because the file has the same weights under other names?
        refuse_wrapped(re.findall(r"^(\S+)\s*\|\s*UNEXPECTED", table, re.M), str(folder))
    # Only for its error, which lists the missing names: nothing is stored, these are expected.
    check_tensors({}, dict.fromkeys(missing, ()), str(folder))


def require_library(what: str) -> Any:
    """Return the transformers library; raise MissingDependency unless sentence-transformers is
    installed too.
    """
    # transformers imports bitsandbytes, which warns of kernels for 4 bits that are not used here
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    with needing(f"{what} is read by sentence-transformers", "lab"):
        import sentence_transformers  # noqa: F401
        import transformers
    return transformers
