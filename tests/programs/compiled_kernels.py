"""Run by test_gpu.py in a process of its own: the GPU kernels, compiled for a GPU that need not be
there.

Without an argument all Triton kernels of the package, with `fla` those of flash-linear-attention
that it calls.

Triton's interpreter takes Python that its compiler refuses. So the operators run here with a driver
that only names a GPU and with compiling in place of launching: types, sizes and options are those
of real calls. Results are never looked at. Prints one line per kernel: its name and the bytes of
registers it spills per thread.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton.backends.nvidia
import triton.runtime.driver
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

CAPABILITY = 90  # Hopper
CU = torch.tensor([0, 3, 3, 200])
TOOLS = Path(next(iter(triton.backends.nvidia.__path__))) / "bin"


class NamedGpu:
    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", CAPABILITY, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, *_: Any) -> int:
        return 0


def compile_instead_of_launching() -> None:
    triton.runtime.driver.set_active(NamedGpu())
    run = JITFunction.run

    def only_compile(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(kernel.asm["cubin"])
            file.flush()
            command = [str(TOOLS / "cuobjdump"), "--dump-resource-usage", file.name]
            usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        spilled = re.search(r"STACK:(\d+)", usage)
        sys.stdout.write(
            f"{self.fn.__module__.split('.')[-2]}.{self.__name__}"
            f" {spilled.group(1) if spilled else '?'}\n"
        )
        return kernel

    JITFunction.run = only_compile


def convolution_and_norm() -> None:
    from runnel.ops.causal_conv1d.gpu import causal_conv1d_gpu
    from runnel.ops.gated_rms_norm.gpu import gated_rms_norm_gpu

    x, weight, state = (
        torch.zeros(shape, requires_grad=True) for shape in ((200, 256), (256, 4), (3, 256, 3))
    )
    y, end = causal_conv1d_gpu(x, weight, torch.zeros(256), CU, state)
    (gated_rms_norm_gpu(y, x, torch.zeros(256), 1e-5, 1).sum() + end.sum()).backward()


def scan(dtype: torch.dtype, channels: int, cu: Tensor, skip: Tensor | None) -> None:
    from runnel.ops.selective_scan.gpu import selective_scan_gpu

    tokens = int(cu[-1])
    x = torch.zeros(tokens, channels, dtype=dtype, requires_grad=True)
    coefficients = torch.zeros(tokens, 16, dtype=dtype)
    y, end = selective_scan_gpu(
        x,
        torch.zeros(tokens, channels),
        torch.zeros(channels, 16),
        coefficients,
        coefficients,
        skip,
        cu,
        None,
    )
    (y.float().sum() + end.sum()).backward()


def memory(dtype: torch.dtype, heads: int, width: int, size: int, cu: Tensor) -> None:
    from runnel.ops.mlstm.gpu import mlstm_gpu

    tokens = int(cu[-1])
    q, v = (torch.zeros(tokens, heads, last, dtype=dtype) for last in (width, size))
    gate = torch.zeros(tokens, heads)
    mlstm_gpu(q, q, v, gate, gate, cu, None, 1e-6)


def through_fla() -> None:
    """The adapters with bf16 inputs as the backbones pass them; the first of the autotuner's
    choices stands for all.
    """
    # before the driver is replaced: they ask it for a real GPU
    import fla.modules.causal_conv1d
    import fla.modules.norm.layernorm_gated
    import fla.ops.rwkv7
    import fla.ops.simple_gla  # noqa: F401
    from triton.runtime.autotuner import Autotuner

    from runnel.ops.ssd import gpu as ssd_gpu
    from runnel.ops.wkv7 import gpu as wkv7_gpu

    compile_instead_of_launching()
    Autotuner._bench = lambda self, *arguments, config, **options: [0.0] * 3
    convolution_and_norm()
    for form in ("recurrent", "chunk"):
        ssd_gpu._form = wkv7_gpu._form = lambda *_, form=form: form  # type: ignore[assignment]
        x, keys = (
            torch.zeros(200, *shape, dtype=torch.bfloat16, requires_grad=True)
            for shape in ((4, 64), (1, 128))
        )
        dt, rates, state = (
            torch.zeros(shape, requires_grad=True) for shape in ((200, 4), (4,), (3, 4, 64, 128))
        )
        y, end = ssd_gpu.ssd_gpu(x, dt, rates, keys, keys, torch.zeros(4), CU, state)
        (y.float().sum() + end.sum()).backward()
        assert x.grad is not None and dt.grad is not None and state.grad is not None
        assert [t.dtype for t in (y, x.grad, end, dt.grad, state.grad)] == [torch.bfloat16] * 2 + [
            torch.float32
        ] * 3
        w = torch.zeros(200, 4, 64, requires_grad=form == "chunk")
        state = torch.zeros(3, 4, 64, 64)
        x = x.detach()
        o, end = wkv7_gpu.wkv7_gpu(x, w, x, x, x, x, CU, state)
        assert o.dtype == torch.bfloat16
        assert end.dtype == torch.float32
        if form == "chunk":
            (o.float().sum() + end.sum()).backward()


def own() -> None:
    compile_instead_of_launching()
    one = torch.tensor([0, 1])  # numbers that are 1 are constants to the compiler
    for dtype in (torch.bfloat16, torch.float32):
        scan(dtype, 256, CU, torch.zeros(256))
        memory(dtype, 8, 256, 512, CU)
    scan(torch.float32, 1, one, None)
    memory(torch.float32, 1, 16, 16, one)


if __name__ == "__main__":
    if sys.argv[1:] == ["fla"]:
        through_fla()
    else:
        own()
