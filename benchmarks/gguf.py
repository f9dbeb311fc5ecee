"""Write a Mamba-1 or Mamba-2 backbone as a GGUF file (version 3), so that llama.cpp runs the same
weights.

N  numbers of a row; Q8_0 keeps 32 of them as 8-bit integers with one fp16 scale
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runnel.backbones.base import Backbone
from runnel.errors import InputError

_FP32, _Q8_0, _BF16 = 0, 8, 30  # ggml's numbers of tensor types
_UINT32, _FLOAT32, _STRING = 4, 6, 8  # GGUF's of values
_ALIGNMENT, _BLOCK = 32, 32
_ARCHITECTURES = {"mamba1": "mamba", "mamba2": "mamba2"}
_LAYER = {  # our names inside a layer -> llama.cpp's
    "norm.weight": "attn_norm.weight",
    "mixer.in_proj.weight": "ssm_in.weight",
    "mixer.conv1d.weight": "ssm_conv1d.weight",
    "mixer.conv1d.bias": "ssm_conv1d.bias",
    "mixer.x_proj.weight": "ssm_x.weight",
    "mixer.dt_proj.weight": "ssm_dt.weight",
    "mixer.dt_proj.bias": "ssm_dt.bias",
    "mixer.dt_bias": "ssm_dt.bias",
    "mixer.A_log": "ssm_a",
    "mixer.D": "ssm_d",
    "mixer.norm.weight": "ssm_norm.weight",
    "mixer.out_proj.weight": "ssm_out.weight",
}


def write_gguf(backbone: Backbone, file: Path, matrices: str) -> None:
    """Write a backbone with fp32 weights.

    Args:
        matrices: type of the matrices and the embedding, "bf16" or "q8_0"; all other tensors are
            fp32.

    Raises:
        InputError: llama.cpp has no such backbone, or not in this configuration.
    """
    if backbone.architecture not in _ARCHITECTURES:
        raise InputError(f"no GGUF is written for {backbone.title} here")
    tensors = [
        (name, _packed(tensor, matrices if matrix else "fp32"))
        for name, tensor, matrix in _tensors(backbone)
    ]
    values = _values(backbone)
    with file.open("wb") as out:
        out.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)))
        for key, value in values.items():
            _write_value(out, key, value)
        offset = 0
        for name, (kind, shape, data) in tensors:
            _write_text(out, name)
            out.write(struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, offset))
            offset += -(-data.nbytes // _ALIGNMENT) * _ALIGNMENT
        for _, (_, _, data) in tensors:
            out.write(bytes(-out.tell() % _ALIGNMENT))
            out.write(data.data)


def _values(backbone: Backbone) -> dict[str, Any]:
    c: Any = backbone.config
    if c.proj_bias or not c.conv_bias:
        raise InputError(
            "llama.cpp has no Mamba with biases in its projections, or without those of the"
            " convolution"
        )
    name = _ARCHITECTURES[backbone.architecture]
    values: dict[str, Any] = {
        "general.architecture": name,
        "tokenizer.ggml.model": "none",
        f"{name}.vocab_size": backbone.vocab_size,
        f"{name}.context_length": 1 << 20,
        f"{name}.embedding_length": backbone.hidden_size,
        f"{name}.feed_forward_length": 0,
        f"{name}.attention.head_count": 0,
        f"{name}.block_count": backbone.num_layers,
        f"{name}.ssm.conv_kernel": c.conv_width,
        f"{name}.ssm.inner_size": c.inner_size,
        f"{name}.ssm.state_size": c.state_size,
        f"{name}.ssm.time_step_rank": c.dt_rank if name == "mamba" else c.num_heads,
        f"{name}.attention.layer_norm_rms_epsilon": float(c.norm_eps),
    }
    return values if name == "mamba" else values | {f"{name}.ssm.group_count": c.groups}


def _tensors(backbone: Backbone) -> Iterator[tuple[str, Tensor, bool]]:
    """Yield llama.cpp's name, the tensor in its layout, and whether it is a matrix."""
    c: Any = backbone.config
    for name, tensor in backbone.state_dict().items():
        matrix = name.endswith(backbone.matrices)
        if not name.startswith("layers."):
            yield (
                {"embeddings.weight": "token_embd.weight", "norm_f.weight": "output_norm.weight"}[
                    name
                ],
                tensor,
                matrix,
            )
            continue
        _, index, inside = name.split(".", 2)
        if inside == "mixer.conv1d.weight":
            tensor = tensor.squeeze(1)
        elif inside == "mixer.A_log":
            tensor = -torch.exp(tensor)
        if backbone.architecture == "mamba2":
            if inside in ("mixer.A_log", "mixer.D"):
                tensor = tensor[:, None]
            elif inside == "mixer.norm.weight":
                tensor = tensor.view(c.groups, -1)
        yield f"blk.{index}.{_LAYER[inside]}", tensor, matrix


def _packed(tensor: Tensor, kind: str) -> tuple[int, tuple[int, ...], NDArray[Any]]:
    """Return the number of the type, the shape and the bytes; rows that Q8_0 cannot divide stay
    fp32.
    """
    shape = tuple(tensor.shape)
    tensor = tensor.detach().float().contiguous()
    if kind == "bf16":
        return _BF16, shape, tensor.to(torch.bfloat16).view(torch.int16).numpy()
    if kind == "fp32" or shape[-1] % _BLOCK:
        return _FP32, shape, tensor.numpy()
    blocks = tensor.view(-1, _BLOCK).numpy()
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16)
    packed = np.empty(len(blocks), dtype=[("scale", "<f2"), ("values", "i1", _BLOCK)])
    packed["scale"] = scale[:, 0]
    safe = np.where(scale == 0, 1, scale).astype(np.float32)
    packed["values"] = np.clip(np.rint(blocks / safe), -127, 127)
    return _Q8_0, shape, packed


def _write_value(out: BinaryIO, key: str, value: str | int | float) -> None:
    _write_text(out, key)
    if isinstance(value, str):
        out.write(struct.pack("<I", _STRING))
        _write_text(out, value)
    elif isinstance(value, float):
        out.write(struct.pack("<If", _FLOAT32, value))
    else:
        out.write(struct.pack("<II", _UINT32, value))


def _write_text(out: BinaryIO, text: str) -> None:
    out.write(struct.pack("<Q", len(text)) + text.encode())
