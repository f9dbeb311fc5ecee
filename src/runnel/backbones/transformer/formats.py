"""Load a transformer baseline from a folder in the transformers layout.

The files are opened by `checkpoint.files`, so nothing is fetched and no code from a folder runs. Names are matched by the
transformers library, which knows the older ones (bert.*, LayerNorm.gamma). LM heads are left unread; what scores a text or a
pair (a pooler, a classifier) is returned with the backbone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from runnel.backbones.checkpoint.files import Checkpoint, find_checkpoint, open_weights, read_config
from runnel.backbones.checkpoint.tensors import Stored, read_tensor, some
from runnel.backbones.int8 import check_int8
from runnel.backbones.transformer.config import (
    FAMILIES,
    Output,
    TransformerConfig,
    choose_attention,
    library,
    model_class,
    options,
    recognizes,
)
from runnel.backbones.transformer.model import Transformer
from runnel.errors import CheckpointError
from runnel.ops.backend import wanted_device, wanted_dtype

# Computed from the config, or counters: no weights.
_NO_WEIGHTS = re.compile(r"(^|\.)(position_ids|attention\.(masked_)?bias|rotary_emb\.inv_freq|(en|de)coder\.version)$")
# Heads, which are no part of a backbone. Scoring heads are returned as `Checkpoint.heads`.
SCORERS = re.compile(r"^(?:(?:bert|model|transformer)\.)?((?:classifier|classification_head|score|pooler|head)\..+)$")
_LANGUAGE = re.compile(
    r"^(decoder\.(weight|bias)$|cls|lm_head|embed_out|qa_outputs|generator_lm_head|generator_predictions|discriminator_predictions|final_logits_bias)\b"
)


def load(
    folder_or_hub_id: str | Path,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    *,
    output: Output | None = None,
    attention: str = "auto",
) -> Checkpoint:
    """Load a transformer and the tensors of its scoring head, by their names in the file without the model's prefix.

    Args:
        folder_or_hub_id: see `load_backbone`.
        dtype: of the whole model: "auto" is bf16 where the processor computes it natively, else fp32.
        device: see `load_backbone`.
        output: what the hidden vectors of an encoder-decoder are, see `model.py`.
        attention: "auto" (flash attention where it is installed and runs, else SDPA), "flash", "sdpa" or "eager".

    Raises:
        CheckpointError: an unknown transformer, quantized, damaged, or config and weights disagree.
        NumericalError: a weight is NaN or infinite.
        MissingDependency: the transformers library is not installed.
        BackendUnavailable: the device does not exist, or flash attention does not run.
    """
    target = wanted_device(device)
    wanted = wanted_dtype(dtype, target)
    folder = find_checkpoint(folder_or_hub_id)
    where = str(folder)
    if wanted == torch.int8:
        check_int8(Transformer.title, Transformer.int8_layers, target, where)
    values = read_config(folder)
    if values is None or not recognizes(values):
        kind = (values or {}).get("model_type")
        raise CheckpointError(f"{where} is a {kind!r} checkpoint; the transformers read here are {', '.join(FAMILIES)}")
    if values.get("quantization_config"):
        raise CheckpointError(f"{where} holds quantized weights (quantization_config); load the unquantized checkpoint")
    stored = {name: tensor for name, tensor in open_weights(folder).items() if not _NO_WEIGHTS.search(name)}
    config = TransformerConfig.of(values, output)
    model = _build(config, stored, choose_attention(attention, config.family, target, wanted), wanted, where)
    backbone = Transformer(config, model.to(target))
    backbone.eval()
    heads = {found[1]: read_tensor(name, stored[name], where).float() for name in stored if (found := SCORERS.match(name))}
    return Checkpoint(
        backbone, heads, f"{config.family.title}, transformers layout", folder if folder.is_dir() else folder.parent
    )


def _build(config: TransformerConfig, stored: Mapping[str, Stored], attention: str, dtype: torch.dtype, where: str) -> Any:
    """Return the library's model with the weights, each used or named in an error."""
    tensors: dict[str, Tensor] = {
        name: read_tensor(name, tensor, where)
        for name, tensor in stored.items()
        if not SCORERS.match(name) and not _LANGUAGE.match(name)
    }
    with _quiet():
        model, info = model_class(config).from_pretrained(
            None,
            config=config.for_library(attention),
            state_dict=tensors,
            dtype=dtype,
            attn_implementation=attention,
            ignore_mismatched_sizes=True,  # reported below
            output_loading_info=True,
            **options(config),
        )
    problems = []
    if missing := sorted(info["missing_keys"]):
        problems.append(f"missing {some(missing, 3)}")
    if unexpected := sorted(info["unexpected_keys"]):
        problems.append(f"unexpected {some(unexpected, 3)}")
    for name, found, expected in sorted(info["mismatched_keys"]):
        problems.append(f"mis-shaped {name} is {tuple(found)}, expected {tuple(expected)}")
    problems += [str(message) for message in info["error_msgs"]]
    if problems:
        raise CheckpointError(
            f"{where}: {some(problems, 4)} (names as in the transformers library's {type(model).__name__}). "
            "The weights are incomplete, or belong to another config or model"
        )
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's progress bar and report; what matters is raised as an error."""
    logging = library().utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
