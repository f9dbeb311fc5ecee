"""Times every operator on a GPU, its kernels compared with plain torch, at the shapes of published
models.

    python tools/gpu_operators.py                                # one text of 32,768 tokens, and
                                                                 512 texts of 64
    python tools/gpu_operators.py --device cpu --tokens 128      # whether this script runs, nothing
                                                                 more

Prints a table (docs/contributing.md has the other checks). There is no figure for an operator whose
results differ from those of plain torch by more than `AGREEMENT`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.ops.causal_conv1d import causal_conv1d
from runnel.ops.gated_rms_norm import gated_rms_norm
from runnel.ops.mlstm import mlstm
from runnel.ops.selective_scan import selective_scan
from runnel.ops.ssd import ssd
from runnel.ops.wkv7 import wkv7

AGREEMENT = 2e-2  # the largest difference over the largest value, bf16
SHORT = 64

Call = Callable[[str], tuple[Tensor, ...]]


def operators(tokens: int, cu: Tensor, device: str) -> dict[str, Call]:
    """Each operator at a published shape, bf16, as a function of the backend."""
    g = torch.Generator(device).manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(*shape, generator=g, device=device).to(dtype)

    wide = torch.float32
    full = (tokens, 4096)
    x = normal(*full)
    z = normal(*full)
    taps = normal(4096, 4, dtype=wide)
    shift = normal(4096, dtype=wide)
    dt = F.softplus(normal(*full, dtype=wide) - 4)
    rates = -torch.arange(1, 17, device=device, dtype=wide).repeat(4096, 1)
    head_rates = -torch.arange(1, 65, device=device, dtype=wide) / 4
    b = normal(tokens, 16)
    c = normal(tokens, 16)
    key = normal(tokens, 1, 128)
    query = normal(tokens, 1, 128)
    r, k, v, away = (normal(tokens, 32, 64) for _ in range(4))
    away = F.normalize(away, dim=-1)
    decay = -0.6 * torch.sigmoid(normal(tokens, 32, 64, dtype=wide))
    mq = 1 + normal(tokens, 8, 256)
    mk = 1 + normal(tokens, 8, 256)
    mv = normal(tokens, 8, 512)
    gate_i = normal(tokens, 8, dtype=wide)
    gate_f = normal(tokens, 8, dtype=wide) + 4
    heads = x.view(tokens, 64, 64)
    return {
        "causal_conv1d (4096)": lambda s: causal_conv1d(x, taps, shift, cu, backend=s),
        "gated_rms_norm (4096)": lambda s: (gated_rms_norm(x, z, shift, 1e-5, backend=s),),
        "selective_scan (Mamba-1 1.4B)": lambda s: selective_scan(
            x, dt, rates, b, c, shift, cu, backend=s
        ),
        "ssd (Mamba-2 1.3B)": lambda s: ssd(
            heads, dt[:, :64], head_rates, key, query, shift[:64], cu, backend=s
        ),
        "wkv7 (RWKV-7 1.5B)": lambda s: wkv7(r, decay, k, v, -away, away, cu, backend=s),
        "mlstm (xLSTM 7B)": lambda s: (mlstm(mq, mk, mv, gate_i, gate_f, cu, backend=s)[0],),
    }


def milliseconds(call: Callable[[], object], device: str, repeats: int) -> float:
    """The median, after two calls that compile and tune; slow ones are repeated for two seconds."""
    times: list[float] = []
    for repeat in range(repeats + 2):
        if sum(times) > 2000:
            break
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        if repeat >= 2:
            times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def difference(call: Call, backend: str) -> float:
    """Of the outputs from those of plain torch, over their largest value."""
    found = call(backend)[0].float()
    expected = call("torch")[0].float()
    return float((found - expected).abs().max() / expected.abs().max())


def versions(device: str) -> str:
    """The card and the packages."""
    found = [torch.cuda.get_device_name() if device == "cuda" else "cpu"]
    for name in ("torch", "triton", "flash-linear-attention"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} missing")
    return ", ".join(found)


def table(device: str, tokens: int, repeats: int) -> None:
    """One text, then as many tokens in texts of `SHORT`."""
    backend = "gpu" if device == "cuda" else "auto"
    print(
        f"| operator | texts | {backend}, ms | torch, ms | tokens/s | largest difference"
        " |\n|---|---|---|---|---|---|"
    )
    for cu in (torch.tensor([0, tokens]), torch.arange(0, tokens + 1, SHORT)):
        total = int(cu[-1])
        texts = cu.numel() - 1
        for name, call in operators(total, cu, device).items():
            apart = difference(call, backend)
            if not apart <= AGREEMENT:
                print(f"| {name} | {texts:,} | wrong | – | – | {apart:.1e} |")
                continue
            fast, slow = (
                milliseconds(partial(call, s), device, repeats) for s in (backend, "torch")
            )
            print(
                f"| {name} | {texts:,} | {fast:.2f} | {slow:.2f} | {1000 * total / fast:,.0f} |"
                f" {apart:.1e} |"
            )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here; --device cpu only shows whether this script runs")
    print(versions(arguments.device), end="\n\n")
    if arguments.device == "cuda":
        cube = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        took = milliseconds(lambda: cube @ cube, "cuda", arguments.repeats)
        print(f"bf16 matmul of 8192 cubed: {2 * 8192**3 / took / 1e9:.0f} TFLOP/s\n")
    table(arguments.device, arguments.tokens, arguments.repeats)


if __name__ == "__main__":
    with torch.no_grad():
        main()
