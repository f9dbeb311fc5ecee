"""Load a backbone from any published checkpoint.

    folder or hub id --find_checkpoint--> folder --read_config, open_weights--> dict, {name: Stored}
        --recognize--> architecture, config, tensors sorted --build--> Backbone, checked and in the wanted dtype

The LM head is left out: it is no part of a backbone.
"""

from __future__ import annotations

from pathlib import Path

import torch

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint.build import Checkpoint, build, read_tensor, wanted_device, wanted_dtype
from runnel.backbones.checkpoint.files import find_checkpoint, open_weights, read_config
from runnel.backbones.checkpoint.recognize import recognize
from runnel.backbones.transformer.config import recognizes
from runnel.backbones.transformer.formats import load as load_transformer


def load_backbone(
    folder_or_hub_id: str | Path, dtype: str | torch.dtype = "auto", device: str | torch.device = "auto"
) -> Backbone:
    """Load a backbone, recognized by what the folder holds.

    Reads Mamba-1 and Mamba-2 as published by state-spaces (pytorch_model.bin), by transformers (safetensors, also sharded or
    without the `backbone.` prefix) and by Mistral (Codestral, both forms), single-pass scanners, and runnel's own folders.

    Args:
        folder_or_hub_id: a local folder, or a hub id (owner/name), which is downloaded once and cached.
        dtype: of linear layers and embedding: "auto" (bf16 where the processor computes it natively, else fp32), "float32",
            "bfloat16", "float64" or the torch dtype. All else, the residual stream and the state are fp32 (fp64 with fp64).
            "int8": linear layers in 8 bits and the rest as with "auto"; see `runnel.ops.int8_matmul`.
        device: "auto" (CUDA if there is one, else the CPU), or a device.

    Raises:
        CheckpointError: missing, damaged, of an unknown or refused kind, or a tensor is missing, unexpected or mis-shaped.
        NumericalError: a weight is NaN or infinite.
        BackendUnavailable: the device does not exist or has no 8-bit products.
    """
    return load_checkpoint(folder_or_hub_id, dtype=dtype, device=device).backbone


def load_checkpoint(
    folder_or_hub_id: str | Path, *, dtype: str | torch.dtype = "auto", device: str | torch.device = "auto"
) -> Checkpoint:
    """Load a backbone and the heads stored with it; see `load_backbone` for arguments and errors."""
    target = wanted_device(device)
    wanted = wanted_dtype(dtype, target)  # before any reading: these are cheap to get wrong
    folder = find_checkpoint(folder_or_hub_id)
    config = read_config(folder)
    if recognizes(config):
        return load_transformer(folder, wanted, target)
    found = recognize(config, open_weights(folder), str(folder))
    heads = {name: read_tensor(name, stored, str(folder)).to(target, torch.float32) for name, stored in found.heads.items()}
    backbone = build(found.architecture, found.config, found.backbone, wanted, target, str(folder))
    return Checkpoint(backbone, heads, found.layout, folder if folder.is_dir() else folder.parent)
