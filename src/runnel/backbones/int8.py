"""Linear layers with 8-bit weights, for inference on processors with VNNI.

N  outputs     K  inputs
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.ops.backend import numba_problem


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight (N, K) -> q (N, K) int8 and scale (N,) fp32 with weight near q * scale; the largest of each row becomes +-127."""
    weight = weight.detach().float()
    scale = (weight.abs().amax(dim=1) / 127).clamp(min=1e-12)
    return (weight / scale[:, None]).round().to(torch.int8), scale


class Int8Linear(nn.Linear):
    """A linear layer with weight (N, K) int8 and weight_scale (N,) fp32. It cannot be trained.

    `forward` rounds the weight alone. The fused kernels, which are what it is for, round the input as well.
    """

    weight_scale: Tensor

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__(inputs, outputs, bias)
        self.weight = nn.Parameter(torch.zeros(outputs, inputs, dtype=torch.int8), requires_grad=False)
        self.register_buffer("weight_scale", torch.ones(outputs))

    def forward(self, input: Tensor) -> Tensor:  # torch's name
        """input (..., K) -> (..., N) in its dtype."""
        weight = self.weight.to(input.dtype) * self.weight_scale.to(input.dtype)[:, None]
        return F.linear(input, weight, None if self.bias is None else self.bias.to(input.dtype))


def replace_linear(model: nn.Module, ends: tuple[str, ...]) -> None:
    """Put an empty `Int8Linear` in the place of each linear layer whose name ends so."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.endswith(ends):
            parent, _, own = name.rpartition(".")
            layer = Int8Linear(module.in_features, module.out_features, module.bias is not None)
            setattr(model.get_submodule(parent), own, layer)


def int8_problem(device: torch.device) -> str | None:
    """Why 8-bit products cannot run there, or None if they can."""
    if device.type != "cpu":
        return f"they are for CPUs and the device is {str(device)!r}"
    problem = numba_problem()
    if problem is None:
        from runnel.ops.int8_matmul import vnni_problem  # numba takes a while to import

        problem = vnni_problem()
    return problem
