"""Models to measure: a model folder, a built-in name, or a named shape with random weights.

Speed and memory depend only on the shapes of weights, so published shapes need no download.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import nn

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint.build import build_backbone, meta_backbone
from runnel.backbones.checkpoint.facts import describe_checkpoint
from runnel.backbones.checkpoint.files import read_config
from runnel.backbones.checkpoint.load import load_checkpoint
from runnel.backbones.config import BackboneConfig
from runnel.backbones.families import BACKBONES
from runnel.backbones.mamba1.model import Mamba1Config
from runnel.backbones.mamba2.model import Mamba2Config
from runnel.backbones.rwkv7.model import Rwkv7Config
from runnel.backbones.transformer.config import recognizes
from runnel.backbones.transformer.formats import load as load_transformer
from runnel.backbones.xlstm.model import XlstmConfig
from runnel.errors import InputError
from runnel.models.base import BUILT_IN

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "int8": torch.int8}  # by the names in options

# Published shapes; "scaled" ones keep a 7B model's proportions (heads, groups, ratios of widths) with less depth and width.
SHAPES: Mapping[str, tuple[str, BackboneConfig]] = {
    "mamba-130m": ("mamba1", Mamba1Config(vocab_size=50280, hidden_size=768, num_layers=24)),
    "mamba-370m": ("mamba1", Mamba1Config(vocab_size=50280, hidden_size=1024, num_layers=48)),
    "mamba2-130m": ("mamba2", Mamba2Config(vocab_size=50288, hidden_size=768, num_layers=24)),
    "mamba2-370m": ("mamba2", Mamba2Config(vocab_size=50288, hidden_size=1024, num_layers=48)),
    "mamba2-1.3b": ("mamba2", Mamba2Config(vocab_size=50288, hidden_size=2048, num_layers=48)),
    "codestral-7b": ("mamba2", Mamba2Config(vocab_size=32768, hidden_size=4096, num_layers=64, groups=8)),
    "codestral-scaled": ("mamba2", Mamba2Config(vocab_size=32768, hidden_size=1024, num_layers=12, groups=8)),
    "rwkv7-0.1b": ("rwkv7", Rwkv7Config(vocab_size=65536, hidden_size=768, num_layers=12)),
    "rwkv7-0.4b": ("rwkv7", Rwkv7Config(vocab_size=65536, hidden_size=1024, num_layers=24)),
    "xlstm-7b": ("xlstm", XlstmConfig(50304, 4096, 32, num_heads=8, qk_size=2048, v_size=4096, ffn_size=10944)),
    "xlstm-scaled": ("xlstm", XlstmConfig(50304, 1024, 6, num_heads=4, qk_size=512, v_size=1024, ffn_size=2752)),
    "tiny": ("mamba2", Mamba2Config(vocab_size=256, hidden_size=64, num_layers=2, state_size=16, head_size=16)),
}


def check_name(name: str) -> None:
    """Check that a name is a shape, a built-in model, a folder or a hub id (owner/name), without loading it.

    Raises:
        InputError: the name is none of these; the message has the nearest names.
    """
    if name in SHAPES or name in BUILT_IN or Path(name).exists() or re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return
    known = [*SHAPES, *BUILT_IN]
    near = get_close_matches(name, known, n=3, cutoff=0.4)
    likely = f"the nearest shapes are {', '.join(near)}" if near else f"the shapes are {', '.join(known)}"
    raise InputError(f"no shape, model folder or hub id {name!r}; {likely}")


def load_subject(name: str, dtype: torch.dtype, device: str = "cpu") -> Backbone:
    """Load the backbone of a named shape (always the same random weights), a built-in model, a folder or a hub id.

    Raises:
        InputError: the name is unknown.
        CheckpointError: the folder cannot be loaded.
        BackendUnavailable: the device is not available.
    """
    check_name(name)
    if name in SHAPES:
        architecture, config = SHAPES[name]
        return random_backbone(architecture, config, dtype, device)
    source = BUILT_IN.get(name, Path(name) if Path(name).exists() else name)
    if isinstance(source, Path) and source.is_dir() and recognizes(read_config(source)):
        return load_transformer(source, dtype, device).backbone
    return load_checkpoint(source, dtype=dtype, device=device).backbone


def describe_subject(name: str) -> Backbone:
    """Return the same backbone on the meta device: names and shapes without weights."""
    check_name(name)
    if name in SHAPES:
        return meta_backbone(*SHAPES[name])
    return describe_checkpoint(BUILT_IN.get(name, name)).backbone


def random_backbone(architecture: str, config: BackboneConfig, dtype: torch.dtype, device: str = "cpu") -> Backbone:
    """Return a random backbone in evaluation mode. Every weight affects the result, so that a check covers it."""
    torch.manual_seed(0)
    model = BACKBONES[architecture](config)  # type: ignore[call-arg]  # each class takes its own config
    _unsettle(model)
    return build_backbone(architecture, config.to_dict(), model.state_dict(), dtype=dtype, device=device)


@torch.no_grad()
def _unsettle(model: nn.Module) -> None:
    """Change initial weights that switch off a part of the model: zero matrices, norms of 1, closed gates."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and not bool(parameter.any()):
            nn.init.normal_(parameter, std=0.5 * parameter.shape[1] ** -0.5)
        elif parameter.ndim == 1:
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
        if name.endswith("embeddings.weight") and float(parameter.std()) < 1e-2:
            parameter.normal_(std=0.02)
        if name.endswith("igate_preact.bias"):  # a fresh xLSTM writes e^-10 of each token: nearly nothing
            parameter.add_(3)  # with more, rounding weights to bf16 would change some vectors visibly
