"""Run by test_gpu.py in a process of its own, with TRITON_INTERPRET=1: the adapters to flash-linear-attention's real kernels.

Both forms in fp32, with gradients, against the reference (the interpreter multiplies the bit patterns of bf16). It does not take
those kernels as they are: autotuning wants a GPU to time them on, loop counters are ints here but tensors to a compiler, masks
made of them are ints too, and `gather` is held by a name that the interpreter does not replace.
"""

from __future__ import annotations

import builtins
import sys
import warnings
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from runnel import ops
from runnel.ops.ssd import gpu as ssd_gpu
from runnel.ops.wkv7 import gpu as wkv7_gpu

LENGTHS = (5, 0, 70, 1, 16, 0)
TOLERANCE = 5e-5  # fp32; the gradient of A is a sum over all tokens


class _Counter(int):
    def to(self, *_: Any) -> _Counter:
        return self

    def __add__(self, other: Any) -> Any:
        return _Counter(int(self) + other) if isinstance(other, int) else other + int(self)

    def __mul__(self, other: Any) -> Any:
        return _Counter(int(self) * other) if isinstance(other, int) else other * int(self)


def prepare_fla() -> None:
    warnings.simplefilter("ignore")  # there is no GPU, says the package on import
    import fla.modules.causal_conv1d
    import fla.modules.norm.layernorm_gated
    import fla.ops.rwkv7
    import fla.ops.simple_gla  # noqa: F401

    Autotuner._bench = lambda self, *arguments, config, **options: [0.0] * 3
    for name, module in list(sys.modules.items()):
        if name.startswith(("fla.ops", "fla.modules")):
            module.__dict__["range"] = lambda *bounds: (_Counter(i) for i in builtins.range(*(int(b) for b in bounds)))
            if "gather" in module.__dict__:
                module.__dict__["gather"] = lambda source, index, axis: tl.gather(source, index, axis)

    for access, place in (("create_masked_load", 1), ("create_masked_store", 2)):
        setattr(InterpreterBuilder, access, _with_bool_mask(getattr(InterpreterBuilder, access), place))


def _with_bool_mask(access: Any, place: int) -> Any:
    def run(self: Any, *arguments: Any) -> Any:
        mask = TensorHandle(arguments[place].data.astype(bool), arguments[place].dtype)
        return access(self, *arguments[:place], mask, *arguments[place + 1 :])

    return run


def convolution(x: Tensor, weight: Tensor, bias: Tensor, cu: Tensor, state: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    return ops.causal_conv1d(x, weight, bias, cu, state, activation="silu", backend=backend)


def norm(y: Tensor, z: Tensor, weight: Tensor, cu: Tensor, state: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    return ops.gated_rms_norm(y, z, weight, 1e-5, 2, backend=backend), state


def ssd_inputs(heads: int, size: int, groups: int, width: int) -> dict[str, Tensor]:
    tokens = sum(LENGTHS)
    x, dt = torch.randn(tokens, heads, size), F.softplus(torch.randn(tokens, heads) - 2)
    B, C = torch.randn(2, tokens, groups, width)
    inputs = {"x": x, "dt": dt, "A": -torch.randn(heads).exp() * 4, "B": B, "C": C, "D": torch.randn(heads)}
    return inputs | {"state": torch.randn(len(LENGTHS), heads, size, width)}


def wkv7_inputs(heads: int, key_size: int, value_size: int) -> dict[str, Tensor]:
    tokens = sum(LENGTHS)
    r, k, gate, removal = torch.randn(4, tokens, heads, key_size)
    w, removal = -0.607 * torch.randn(tokens, heads, key_size).sigmoid(), F.normalize(removal, dim=-1)
    v, state = torch.randn(tokens, heads, value_size), torch.randn(len(LENGTHS), heads, key_size, value_size)
    return {"r": r, "w": w, "k": k, "v": v, "a": -removal, "b": removal * gate.sigmoid(), "state": state}


def check(operator: Any, inputs: dict[str, Tensor], *, gradients: bool) -> None:
    cu = torch.tensor([0, *LENGTHS]).cumsum(0)

    def results(backend: str, dtype: torch.dtype) -> list[Tensor]:
        leaves = {key: value.to(dtype).requires_grad_(gradients) for key, value in inputs.items()}
        y, end = operator(*list(leaves.values())[:-1], cu, leaves["state"], backend=backend)
        if not gradients:
            return [y, end]
        g = torch.Generator().manual_seed(1)
        loss = (y * torch.randn(y.shape, generator=g)).sum() + (end * torch.randn(end.shape, generator=g)).sum()
        return [y, end, *torch.autograd.grad(loss, list(leaves.values()))]

    names = ["y", "end", *inputs]
    for name, actual, truth in zip(names, results("gpu", torch.float32), results("reference", torch.float64), strict=False):
        error = float((actual - truth).abs().max() / truth.abs().max())
        assert error <= TOLERANCE, f"{operator.__name__}: {name}: error {error:.1e}"


def main() -> None:
    torch.manual_seed(0)
    prepare_fla()
    tokens, channels = sum(LENGTHS), 6
    x, weight, bias, state = (torch.randn(shape) for shape in ((tokens, channels), (channels, 4), (channels,), (6, channels, 3)))
    check(convolution, {"x": x, "weight": weight, "bias": bias, "state": state}, gradients=True)
    check(norm, {"y": x, "z": torch.randn(tokens, channels), "weight": bias, "state": state}, gradients=True)
    for form in ("recurrent", "chunk"):
        ssd_gpu._form = wkv7_gpu._form = lambda *_, form=form: form  # type: ignore[assignment]
        for inputs in (ssd_inputs(4, 16, 2, 16), ssd_inputs(6, 4, 2, 3)):
            check(ops.ssd, inputs, gradients=True)
        for inputs in (wkv7_inputs(2, 16, 16), wkv7_inputs(3, 5, 7)):
            check(ops.wkv7, inputs, gradients=form == "chunk")


if __name__ == "__main__":
    main()
