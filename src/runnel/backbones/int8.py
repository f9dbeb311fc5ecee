"""Linear layers with 8-bit weights, for inference on processors with VNNI.

N  outputs     K  inputs
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.errors import BackendUnavailable
from runnel.ops.backend import numba_problem

if TYPE_CHECKING:
    from runnel.ops.int8_matmul import Int8Weights


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight (N, K) -> q (N, K) int8 and scale (N,) fp32 with weight near q * scale; the largest of
    each row becomes +-127.
    """
    weight = weight.detach().float()
    scale = (weight.abs().amax(dim=1) / 127).clamp(min=1e-12)
    return (weight / scale[:, None]).round().to(torch.int8), scale


class Int8Linear(nn.Module):
    """A linear layer with weight (N, K) int8 and weight_scale (N,) fp32. It cannot be trained.

    `forward` rounds the weight alone. The fused kernels, which are what it is for, round the input
    as well. From their first use on the weight is held only as they read it, and `weight` and the
    state dict are made from that, bit by bit.
    """

    _words: Tensor | None  # `words` and `offsets` of `ops.int8_matmul.Int8Weights`
    _offsets: Tensor | None

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.weight_scale = nn.Buffer(torch.ones(outputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        # the weight, until it is packed
        self._rows: Tensor | None = nn.Buffer(
            torch.zeros(outputs, inputs, dtype=torch.int8), persistent=False
        )
        self.register_buffer("_words", None, persistent=False)
        self.register_buffer("_offsets", None, persistent=False)

    @property
    def weight(self) -> Tensor:
        """(N, K) int8; a copy where the layer is packed."""
        if self._rows is not None:
            return self._rows
        from runnel.ops.int8_matmul import Int8Weights, unpack  # numba takes a while to import

        assert self._words is not None
        assert self._offsets is not None
        parts = [
            tensor.cpu().numpy()
            for tensor in (self._words, self._offsets, self.weight_scale.float())
        ]
        return torch.from_numpy(unpack(Int8Weights(*parts), self.in_features)).to(
            self._words.device
        )

    def packed(self, groups: int) -> "Int8Weights":
        """Pack the weight for `ops.int8_matmul.multiply` with `groups` groups of inputs, on the
        CPU, and keep only that form.
        """
        from runnel.ops.int8_matmul import Int8Weights, pack

        if self._words is None or self._offsets is None or self._offsets.shape[1] != groups:
            new = pack(self.weight.numpy(), self.weight_scale.float().numpy(), groups)
            self._words = torch.from_numpy(new.words)
            self._offsets = torch.from_numpy(new.offsets)
            self._rows = None
        return Int8Weights(
            self._words.numpy(), self._offsets.numpy(), self.weight_scale.float().numpy()
        )

    def forward(self, input: Tensor) -> Tensor:  # torch's name
        """input (..., K) -> (..., N) in its dtype."""
        weight = self.weight.to(input.dtype) * self.weight_scale.to(input.dtype)[:, None]
        return F.linear(input, weight, None if self.bias is None else self.bias.to(input.dtype))

    def _save_to_state_dict(
        self, destination: dict[str, Tensor], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = self.weight

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Tensor],
        prefix: str,
        local_metadata: Mapping[str, object],
        strict: bool,
        *problems: list[str],
    ) -> None:
        name = prefix + "weight"
        missing_keys, _, error_msgs = problems
        others = {key: value for key, value in state_dict.items() if key != name}
        super()._load_from_state_dict(others, prefix, local_metadata, strict, *problems)
        weight = state_dict.get(name)
        shape = (self.out_features, self.in_features)
        if weight is None:
            missing_keys.append(name)
        elif weight.dtype != torch.int8 or tuple(weight.shape) != shape:
            error_msgs.append(
                f"{name} is {weight.dtype} {tuple(weight.shape)}, expected torch.int8 {shape}"
            )
        else:
            copied = not local_metadata.get("assign_to_params_buffers")
            self._rows = weight.clone() if copied else weight.detach()
            self._words = None
            self._offsets = None


def replace_linear(model: nn.Module, ends: tuple[str, ...]) -> None:
    """Replace each linear layer whose name has one of these ends by an empty `Int8Linear`."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.endswith(ends):
            model.set_submodule(
                name, Int8Linear(module.in_features, module.out_features, module.bias is not None)
            )


def int8_problem(device: torch.device) -> str | None:
    """Return why 8-bit products cannot run on a device, or None if they can."""
    if device.type != "cpu":
        return f"they are for CPUs and the device is {str(device)!r}"
    problem = numba_problem()
    if problem is None:
        from runnel.ops.int8_matmul import vnni_problem  # numba takes a while to import

        problem = vnni_problem()
    return problem


def check_int8(title: str, layers: tuple[str, ...], device: torch.device, where: str) -> None:
    """Raise unless the 8-bit linear layers of a backbone (`Backbone.title` and `int8_layers`) have
    kernels here.
    """
    if problem := int8_problem(device) if layers else f"{title} has no 8-bit kernels":
        raise BackendUnavailable(
            f'{where}: 8-bit products cannot run because {problem}; use dtype="bfloat16" or "auto"'
        )
