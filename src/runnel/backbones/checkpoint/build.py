"""Build a backbone from a config and tensors, checked and in the wanted dtype, on the wanted device.

Tensors are read one at a time and assigned, not copied into an initialized model: a checkpoint in the wanted dtype stays
memory-mapped and takes its own size once. Every tensor is used exactly once or named in an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from runnel.backbones.base import Backbone, BackboneConfig
from runnel.backbones.checkpoint.tensors import Stored, from_tensors, list_tensors, some
from runnel.backbones.families import BACKBONES
from runnel.backbones.int8 import int8_problem, quantize, replace_linear
from runnel.errors import BackendUnavailable, CheckpointError, InputError, NumericalError
from runnel.hardware import has_native_bf16

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64, "int8": torch.int8}
_STORED_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint.

    Args:
        backbone: in evaluation mode, prepared for its device.
        heads: fp32 tensors: a single-pass scanner's "weight" (1, D) and "bias" (1,), or the heads of a runnel model folder.
        layout: the format in words, e.g. "Mamba-2, state-spaces original layout".
        folder: where it was read from.
    """

    backbone: Backbone
    heads: dict[str, Tensor]
    layout: str
    folder: Path


def build_backbone(
    architecture: str,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
) -> Backbone:
    """Build a backbone from tensors in memory, checked as strictly as a file's.

    Args:
        architecture: `Backbone.architecture` of the class: a key of `BACKBONES`.
        config: as given by the config's `to_dict`.
        tensors: by their names in the module; those that have the wanted dtype already are used as they are.
        dtype: see `load_backbone`.
        device: see `load_backbone`.
    """
    target = wanted_device(device)
    where = "the given model"
    parsed = parse_config(architecture, config, where)
    return build(architecture, parsed, from_tensors(tensors, "memory"), wanted_dtype(dtype, target), target, where)


def parse_config(architecture: str, values: Mapping[str, Any], where: str) -> BackboneConfig:
    """Return the config of `architecture` from its `to_dict` form.

    Raises:
        CheckpointError: unknown architecture, unknown or missing keys, or values that make no model.
    """
    if architecture not in BACKBONES:
        raise CheckpointError(
            f"{where}: unknown architecture {architecture!r}; this version of runnel has {', '.join(BACKBONES)}"
        )
    cls = BACKBONES[architecture]
    try:
        return cls.config_class.from_dict(dict(values))
    except (CheckpointError, InputError, TypeError) as error:
        raise CheckpointError(f"{where}: its config is not a valid {cls.title} model: {error}") from error


def meta_backbone(architecture: str, config: BackboneConfig) -> Backbone:
    """Return a backbone on the meta device: names and shapes, no memory and no numbers."""
    with torch.device("meta"), NoRandomNumbers():
        return BACKBONES[architecture](config)  # type: ignore[call-arg]  # each class takes its own config


def build(
    architecture: str,
    config: BackboneConfig,
    stored: Mapping[str, Stored],
    dtype: torch.dtype,
    device: torch.device,
    where: str,
) -> Backbone:
    """Return a backbone of these tensors, each used once or named in an error."""
    backbone = meta_backbone(architecture, config)
    expected = {name: tuple(tensor.shape) for name, tensor in backbone.state_dict().items()}
    check_tensors(stored, expected, where)
    small = torch.float64 if dtype == torch.float64 else torch.float32
    whole, in_8_bits = dtype, tuple[str, ...]()
    if dtype == torch.int8:
        check_int8(backbone, device, where)
        whole, in_8_bits = wanted_dtype("auto", device), tuple(f"{end}.weight" for end in backbone.int8_layers)
        with torch.device("meta"), NoRandomNumbers():
            replace_linear(backbone, backbone.int8_layers)
    tensors = {}
    for name in expected:
        if name.endswith(in_8_bits):
            tensors[name], tensors[name + "_scale"] = _read_int8(name, stored[name], where)
        else:
            target = whole if name.endswith(backbone.matrices) else small
            tensors[name] = read_tensor(name, stored[name], where).to(device, target).contiguous()
    backbone.load_state_dict(tensors, strict=True, assign=True)
    backbone.eval()
    return backbone


def check_int8(backbone: Backbone | type[Backbone], device: torch.device, where: str) -> None:
    """Raise unless 8-bit linear layers have kernels here.

    Raises:
        InputError: this kind of backbone has none.
        BackendUnavailable: this device has none.
    """
    if not backbone.int8_layers:
        raise InputError(f'{where}: {backbone.title} has no 8-bit kernels; use dtype="bfloat16" or "auto"')
    if problem := int8_problem(device):
        raise BackendUnavailable(f'{where}: 8-bit products cannot run because {problem}; use dtype="bfloat16" or "auto"')


def _read_int8(name: str, stored: Stored, where: str) -> tuple[Tensor, Tensor]:
    """Return a weight in 8 bits and its scales: the file's own if it stores 8 bits, without loss."""
    if stored.rows is None:
        return quantize(read_tensor(name, stored, where))
    read_tensor(name, stored, where)  # for its checks
    q, scale = (part.read() for part in stored.rows)
    return q.contiguous(), scale.float().contiguous()


class NoRandomNumbers(TorchFunctionMode):
    """Skip random initialization: on the meta device it has no effect but imports torch's compiler, which takes seconds."""

    _RANDOM = frozenset(
        {Tensor.normal_, Tensor.uniform_, torch.nn.init.kaiming_uniform_, torch.nn.init.uniform_, torch.nn.init.normal_}
    )

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in self._RANDOM:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def check_tensors(stored: Mapping[str, Stored], expected: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Raise CheckpointError unless every tensor is given exactly once; one error lists all problems."""
    problems = []
    if missing := [name for name in expected if name not in stored]:
        problems.append(f"missing {list_tensors(missing)}")
    if extra := sorted(stored.keys() - expected.keys()):
        problems.append(f"unexpected {list_tensors(extra)} in {stored[extra[0]].file}")
    for name, shape in expected.items():
        if name in stored and stored[name].shape != shape:
            problems.append(f"mis-shaped tensor {name!r} is {stored[name].shape} in {stored[name].file}, expected {shape}")
    if problems:
        raise CheckpointError(f"{where}: {some(problems, 3)}. The weights are incomplete, or belong to another config or model")


def read_tensor(name: str, stored: Stored, where: str) -> Tensor:
    """Read a tensor and check every number in it."""
    place = f"tensor {name!r} in {stored.file}"
    try:
        tensor = stored.read().detach()
    except (OSError, RuntimeError, ValueError) as error:  # the file changed, or vanished, since it was opened
        raise CheckpointError(f"{where}: cannot read {place}: {error}; copy the file again") from error
    if tensor.dtype not in _STORED_DTYPES:
        raise CheckpointError(
            f"{where}: {place} is stored as {tensor.dtype}; quantized weights cannot be loaded, use the originals"
        )
    if tensor.numel():
        low, high = torch.aminmax(tensor)  # both carry a NaN on; needs no further memory
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise NumericalError(
                f"{where}: {place} holds NaN or infinite numbers; the checkpoint is damaged or its training failed: use another"
            )
    return tensor


def wanted_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype of a name; "auto" is bf16 where the processor or GPU computes it natively, else fp32.

    Raises:
        InputError: another name or dtype.
    """
    if dtype == "auto":
        return torch.bfloat16 if device.type != "cpu" or has_native_bf16() else torch.float32
    found = _DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found is None or found not in _DTYPES.values():
        raise InputError(f'dtype must be "auto", {", ".join(map(repr, _DTYPES))} or that torch dtype, got {dtype!r}')
    return found


def wanted_device(device: str | torch.device) -> torch.device:
    """Return the device of a name; "auto" is CUDA if torch sees it, else the CPU.

    Raises:
        InputError: no name of a device.
        BackendUnavailable: neither the CPU nor a CUDA device that torch sees.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InputError(f'device must be "auto", "cpu", "cuda" or "cuda:1", got {device!r}') from error
    if found.type == "cpu":
        return found
    if found.type != "cuda":
        raise BackendUnavailable(f'runnel runs on "cpu" and "cuda", got the device {str(device)!r}')
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (found.index or 0) >= count:
        raise BackendUnavailable(
            f"the device {str(device)!r} does not exist: torch sees {count} CUDA device(s); use device='cpu', "
            "or install a CUDA build of torch"
        )
    return found
