"""Run by test_gpu.py in a process of its own, with TRITON_INTERPRET=1: the adapters to
flash-linear-attention's real kernels.

Both forms in fp32, with gradients, against the reference (the interpreter multiplies the bit
patterns of bf16). It does not take those kernels as they are: autotuning wants a GPU to time them
on, loop counters are ints here but tensors to a compiler, masks made of them are ints too, and
`gather` is held by a name that the interpreter does not replace.
"""

from __future__ import annotations

import builtins
import sys
import warnings
from typing import Any

import torch
import triton.language as tl
from helpers.operators import OPERATORS, normal
from torch import Tensor
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

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
            module.__dict__["range"] = lambda *bounds: (
                _Counter(i) for i in builtins.range(*(int(b) for b in bounds))
            )
            if "gather" in module.__dict__:
                module.__dict__["gather"] = lambda source, index, axis: tl.gather(
                    source, index, axis
                )

    for access, place in (("create_masked_load", 1), ("create_masked_store", 2)):
        setattr(
            InterpreterBuilder, access, _with_bool_mask(getattr(InterpreterBuilder, access), place)
        )


def _with_bool_mask(access: Any, place: int) -> Any:
    def run(self: Any, *arguments: Any) -> Any:
        mask = TensorHandle(arguments[place].data.astype(bool), arguments[place].dtype)
        return access(self, *arguments[:place], mask, *arguments[place + 1 :])

    return run


def check(name: str, *, gradients: bool) -> None:
    operator = OPERATORS[name]
    g = torch.Generator().manual_seed(0)
    cu = torch.tensor([0, *LENGTHS]).cumsum(0)
    inputs = operator.make(sum(LENGTHS), g)
    if operator.state_shape:
        inputs["state"] = normal(g, len(LENGTHS), *operator.state_shape)

    def results(backend: str, dtype: torch.dtype) -> list[Tensor]:
        leaves = {key: value.to(dtype).requires_grad_(gradients) for key, value in inputs.items()}
        y, end = operator.run(leaves, cu, leaves.get("state"), backend)
        if not gradients:
            return [y, end]
        g = torch.Generator().manual_seed(1)
        loss = (y * torch.randn(y.shape, generator=g)).sum() + (
            end * torch.randn(end.shape, generator=g)
        ).sum()
        return [y, end, *torch.autograd.grad(loss, list(leaves.values()))]

    names = ["y", "end", *inputs]
    for part, actual, truth in zip(
        names, results("gpu", torch.float32), results("reference", torch.float64), strict=False
    ):
        if part != "end" or operator.state_shape:
            error = float((actual - truth).abs().max() / truth.abs().max())
            assert error <= TOLERANCE, f"{name}: {part}: error {error:.1e}"


def main() -> None:
    prepare_fla()
    check("causal_conv1d", gradients=True)
    check("gated_rms_norm-groups", gradients=True)
    for form in ("recurrent", "chunk"):
        ssd_gpu._form = wkv7_gpu._form = lambda *_, form=form: form  # type: ignore[assignment]
        for name in ("ssd-wide", "ssd-groups"):
            check(name, gradients=True)
        for name in ("wkv7", "wkv7-odd"):
            check(name, gradients=form == "chunk")


if __name__ == "__main__":
    main()
