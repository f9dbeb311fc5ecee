"""The GPU backend where there is no GPU: what is chosen and said, how flash-linear-attention is
called, and, if Triton can be imported (it is no development dependency), the kernels in Triton's
interpreter and through its compiler.

On a GPU the contract is tests/contracts/test_ops.py with `-m gpu`; docs/contributing.md has the
commands.
"""

import importlib.util
import logging
import os
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from helpers.children import PROGRAMS, TESTS, run_python
from helpers.operators import OPERATORS
from helpers.tiny_backbones import tiny_backbone, token_ids
from torch import Tensor
from torch.nn import functional as F

from runnel.backbones import layers
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.backbones.rwkv7.model import Rwkv7, Rwkv7Config
from runnel.errors import BackendUnavailable, install_command
from runnel.ops import backend
from runnel.ops.causal_conv1d import causal_conv1d
from runnel.ops.gated_rms_norm import gated_rms_norm
from runnel.ops.ssd.gpu import ssd_gpu
from runnel.ops.triton_launch import GpuChunks, rows, with_torch_backward
from runnel.ops.wkv7 import wkv7
from runnel.ops.wkv7.gpu import wkv7_gpu


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [m for m in modules if not importlib.util.find_spec(m)]
    return pytest.mark.skipif(
        bool(missing),
        reason=f"{' and '.join(missing)} cannot be imported ({install_command('gpu')})",
    )


@pytest.fixture
def cuda(monkeypatch):
    """An input that says it is on a GPU, and packages that can be imported unless a test says
    otherwise.
    """
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(backend, "_import_problem", lambda module: None)
    backend.say_once.cache_clear()
    yield lambda dtype=torch.bfloat16: SimpleNamespace(
        device=SimpleNamespace(type="cuda"), dtype=dtype
    )
    backend.say_once.cache_clear()


def test_kernels_run_where_they_can(cuda, monkeypatch):
    assert backend.choose("mlstm", "auto", cuda()) == "gpu"
    assert backend.choose("ssd", "gpu", cuda(torch.float32)) == "gpu"
    assert backend.choose("mlstm", "auto", cuda(torch.float64)) == "torch"
    for capability, hip in (((7, 5), None), ((9, 4), "6.4")):
        with monkeypatch.context() as patch:
            patch.setattr(
                torch.cuda, "get_device_capability", lambda device, found=capability: found
            )
            patch.setattr(torch.version, "hip", hip)
            assert backend.choose("mlstm", "auto", cuda()) == "torch"
    monkeypatch.setattr(
        backend, "_import_problem", lambda module: "no fla" if module.startswith("fla") else None
    )
    chosen = [
        name
        for name in sorted(backend.KERNELS["gpu"])
        if backend.choose(name, "auto", cuda()) == "gpu"
    ]
    assert chosen == ["mlstm", "selective_scan"]


def test_auto_on_a_gpu_without_triton_says_so_once(cuda, monkeypatch, caplog):
    monkeypatch.setattr(backend, "_import_problem", lambda module: f"{module} cannot be imported")
    with caplog.at_level(logging.WARNING, logger="runnel"):
        assert [backend.choose("mlstm", "auto", cuda()) for _ in range(3)] == ["torch"] * 3
    assert [r.message for r in caplog.records] == [
        "mlstm: plain torch, because triton cannot be imported"
    ]
    with pytest.raises(
        BackendUnavailable,
        match=r"triton.*backend='auto'",
    ):
        backend.choose("mlstm", "gpu", cuda())


@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter takes tensors on the CPU"
)
def test_gpu_kernels_asked_for_without_a_gpu():
    with pytest.raises(
        BackendUnavailable,
        match=r"gated_rms_norm: .* on cpu",
    ):
        gated_rms_norm(torch.ones(2, 4), torch.ones(2, 4), torch.ones(4), 1e-5, backend="gpu")


def test_a_missing_package_is_named():
    problem = backend._import_problem("no_such_package")
    assert (
        problem is not None
        and "no_such_package cannot be imported" in problem
        and install_command("gpu") in problem
    )


def test_chunks_and_rows_for_kernels():
    chunks = GpuChunks.of(torch.tensor([0, 5, 5, 6, 14]), 4, torch.device("cpu"))
    assert chunks.table.T.tolist() == [[0, 0, 4], [0, 4, 5], [2, 5, 6], [3, 6, 10], [3, 10, 14]]
    assert (chunks.first.tolist(), chunks.count, chunks.most) == ([0, 2, 2, 3, 5], 5, 2)
    assert [
        GpuChunks.of(torch.zeros(n, dtype=torch.int64), 4, torch.device("cpu")).count
        for n in (1, 2)
    ] == [0, 0]
    wide = torch.arange(24.0).view(4, 6)
    same, distance = rows(wide[:, 1:4])
    assert (same.data_ptr(), distance) == (wide[:, 1:].data_ptr(), 6), (
        "columns of a wider matrix are not copied"
    )
    copied, distance = rows(wide[:, ::2])
    assert (copied.is_contiguous(), distance) == (True, 3)


def test_backward_of_the_torch_path():
    ran = []

    def run(name: str, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        ran.append(name)
        return x * scale, x + 1

    kernel = partial(run, "kernel")
    path = partial(run, "path")
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    scale = torch.tensor(3.0, requires_grad=True)
    with torch.no_grad():
        with_torch_backward(kernel, path, x, scale)
    assert ran == ["kernel"]
    first, second = with_torch_backward(kernel, path, x, scale)
    torch.autograd.grad(second.sum(), x, retain_graph=True)  # the first output takes no part
    gradients = torch.autograd.grad(first.sum() + 2 * second.sum(), (x, scale))
    assert [g.tolist() for g in gradients] == [[5.0, 5.0], 3.0]
    assert ran == ["kernel", "kernel", "path", "path"]


@pytest.fixture
def stand_in(monkeypatch):
    """Loops over time with flash-linear-attention's conventions in place of its kernels; the names
    called are noted.
    """
    called: list[str] = []

    def recurrence(name, step):
        def run(*inputs, scale, initial_state, output_final_state, cu_seqlens, **options):
            assert scale == 1.0 and output_final_state and initial_state.is_contiguous()
            assert cu_seqlens.dtype == torch.int64 and bool((cu_seqlens.diff() > 0).all()), (
                "an empty sequence"
            )
            assert options.keys() <= ({"cu_seqlens_cpu"} if name.startswith("chunk") else set())
            called.append(name)
            out = []
            ends = []
            for s, (start, stop) in enumerate(
                zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)
            ):
                h = initial_state[s]  # (H, K, V)
                for t in range(start, stop):
                    h, o = step(h, *(x[0, t].float() for x in inputs))
                    out.append(o)
                ends.append(h)
            return torch.stack(out)[None].to(inputs[0].dtype), torch.stack(ends)

        return run

    def gated(h, q, k, v, g):
        h = g.exp()[:, None, None] * h + k[:, :, None] * v[:, None]
        return h, (q[:, :, None] * h).sum(1)

    def delta(h, r, w, k, v, a, b):
        h = (
            w.exp()[:, :, None] * h
            + b[:, :, None] * (a[:, :, None] * h).sum(1)[:, None]
            + k[:, :, None] * v[:, None]
        )
        return h, (r[:, :, None] * h).sum(1)

    def convolve(
        x,
        weight,
        bias,
        *,
        initial_state,
        output_final_state,
        activation,
        cu_seqlens,
        cu_seqlens_cpu,
    ):
        assert (
            activation == "silu"
            and output_final_state
            and bool((cu_seqlens.diff() > 0).all())
            and torch.equal(cu_seqlens, cu_seqlens_cpu)
        )
        called.append("causal_conv1d")
        y, end = causal_conv1d(
            x[0], weight, bias, cu_seqlens, initial_state[..., 1:], backend="torch"
        )
        return y[None], F.pad(end, (1, 0), value=float("nan"))

    def rmsnorm_fn(x, weight, bias, z, eps, group_size, norm_before_gate):
        assert bias is None and not norm_before_gate
        called.append("rmsnorm_fn")
        return gated_rms_norm(x, z, weight, eps, x.shape[1] // group_size, backend="torch")

    modules = {
        f"fla.ops.{module}": {
            name: recurrence(name, step)
            for name in (f"chunk_{module}", f"fused_recurrent_{module}")
        }
        for module, step in (("simple_gla", gated), ("rwkv7", delta))
    }
    modules |= {"fla.modules.causal_conv1d": {"causal_conv1d": convolve}}
    modules |= {"fla.modules.norm.layernorm_gated": {"rmsnorm_fn": rmsnorm_fn}}
    for name in ("fla", "fla.ops", "fla.modules", "fla.modules.norm", *modules):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[name]).update(modules.get(name, {}))
    backend.say_once.cache_clear()
    return called


def drawn(
    name: str, lengths: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Inputs of an operator, cumulative lengths and a start state."""
    operator = OPERATORS[name]
    g = torch.Generator().manual_seed(0)
    made = operator.make(sum(lengths), g)
    inputs = [
        x.to(torch.float32 if key in operator.fp32_inputs else dtype) for key, x in made.items()
    ]
    state = torch.randn(len(lengths), *operator.state_shape, generator=g)
    return inputs, torch.tensor([0, *lengths]).cumsum(0), state


ssd_inputs = partial(drawn, "ssd-groups")
wkv7_inputs = partial(drawn, "wkv7-odd")


@pytest.mark.parametrize("lengths", [(0, 5, 0, 0, 1, 0), (0, 0), ()])
@pytest.mark.parametrize("with_state", [True, False])
@pytest.mark.parametrize(
    "name",
    ["causal_conv1d", "causal_conv1d-pointwise", "gated_rms_norm-groups", "ssd-groups", "wkv7-odd"],
)
def test_layouts_empty_sequences_and_gradients(stand_in, monkeypatch, name, with_state, lengths):
    monkeypatch.setattr(
        backend,
        "choose",
        lambda operator, requested, x: "gpu" if requested == "auto" else requested,
    )
    operator = OPERATORS[name]
    g = torch.Generator().manual_seed(0)
    leaves = {key: x.float().requires_grad_() for key, x in operator.make(sum(lengths), g).items()}
    cu = torch.tensor([0, *lengths]).cumsum(0)
    state = None
    if operator.state_shape and with_state:
        state = torch.randn(len(lengths), *operator.state_shape, generator=g).requires_grad_()
        leaves["state"] = state
    results = []
    for form in ("auto", "reference"):
        y, end = operator.run(leaves, cu, state, form)
        loss = y.sin().sum() + end.cos().sum()
        wanted = list(leaves.values()) if sum(lengths) else []
        results.append([y, end, *(torch.autograd.grad(loss, wanted) if wanted else ())])
    for actual, truth in zip(*results, strict=True):
        torch.testing.assert_close(actual, truth, rtol=1e-4, atol=1e-5)
    # whose fp32 gradients run in plain torch
    assert len(stand_in) == (sum(lengths) > 0 and operator.function is not wkv7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("kind", "config", "kernel"),
    [
        (Mamba2, Mamba2Config(50, 32, 2, state_size=16, head_size=16), "chunk_simple_gla"),
        (
            Rwkv7,
            Rwkv7Config(50, 32, 2, head_size=16, decay_rank=4, a_rank=4, v_rank=4, gate_rank=4),
            "chunk_rwkv7",
        ),
    ],
)
def test_models_in_bf16_reach_the_chunked_kernels(
    stand_in, monkeypatch, kind, config, kernel, autocast, dtype
):
    """Long texts, with weights in bf16 or under autocast; fp32 runs in plain torch. The state stays
    fp32.
    """
    model = tiny_backbone(kind, config, dtype)
    ids = token_ids(70)
    expected, _ = tiny_backbone(kind, config)(ids)
    monkeypatch.setattr(layers, "on_gpu", lambda x: True)
    for operator, run in (("ssd", ssd_gpu), ("wkv7", wkv7_gpu)):
        monkeypatch.setattr(
            sys.modules[f"runnel.ops.{operator}"], "implementation", lambda *chosen, run=run: run
        )
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        hidden, after = model(ids)
    low = autocast or dtype == torch.bfloat16
    assert stand_in == [kernel] * (2 if low else 0)
    assert hidden.dtype == torch.float32 and {t.dtype for t in after.tensors.values()} == {
        torch.float32
    }
    assert F.cosine_similarity(hidden, expected).min() > (0.98 if low else 0.99999)


def test_forms(stand_in, caplog, monkeypatch):
    """bf16: recurrent while short, then chunks; fp32: plain torch when long. wkv7's recurrent
    kernel has no backward pass.
    """
    with caplog.at_level(logging.INFO, logger="runnel"), torch.no_grad():
        for dtype in (torch.bfloat16, torch.float32):
            for lengths in ((3, 64), (65, 2)):
                for run, make in ((ssd_gpu, ssd_inputs), (wkv7_gpu, wkv7_inputs)):
                    inputs, cu, state = make(lengths, dtype)
                    y, end = run(*inputs, cu, state)
                    assert (y.dtype, end.dtype) == (dtype, torch.float32)
    recurrent = ["fused_recurrent_simple_gla", "fused_recurrent_rwkv7"]
    chunks = ["chunk_simple_gla", "chunk_rwkv7"]
    assert stand_in == [*recurrent, *chunks, *recurrent]
    assert [r.message.partition(" ")[0] for r in caplog.records] == ["ssd:", "wkv7:"]
    assert all("round to tf32" in r.message for r in caplog.records)
    stand_in.clear()
    # values of 7 and of 16
    for make, expected in ((wkv7_inputs, []), (partial(drawn, "wkv7-forgets"), ["chunk_rwkv7"])):
        inputs, cu, state = make((3,), torch.bfloat16)
        wkv7_gpu(*inputs, cu, state.requires_grad_())
        assert stand_in == expected
    monkeypatch.setattr(sys.modules["runnel.ops.ssd.gpu"], "_miscompiled", lambda x: True)
    inputs, cu, state = ssd_inputs((65,), torch.bfloat16)
    ssd_gpu(*inputs, cu, state.requires_grad_())
    assert stand_in == ["chunk_rwkv7"]
    with torch.no_grad():
        ssd_gpu(*inputs, cu, state)
    assert stand_in.pop() == "chunk_simple_gla"


# Triton reads its settings when it is imported, so each of the following is a process of its own.


@needs("triton")
def test_own_kernels_in_the_interpreter():
    """A part of the contract, in fp32. All of it, in minutes: `TRITON_INTERPRET=1 pytest
    tests/contracts/test_ops.py -m gpu`.
    """
    cases = "selective_scan-narrow or mlstm-odd"
    tests = "values_and_state or gradients_equal or nothing_to_do or strided"
    out = run_python(
        "-m",
        "pytest",
        TESTS / "contracts" / "test_ops.py",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "gpu",
        "-k",
        f"({cases}) and ({tests}) and float32",
        TRITON_INTERPRET="1",
    )
    assert "8 passed" in out


@needs("triton", "fla")
def test_flash_linear_attention_in_the_interpreter():
    run_python("-W", "ignore", PROGRAMS / "interpreted_fla.py", TRITON_INTERPRET="1")


@needs("triton")
def test_own_kernels_compile_for_hopper_and_spill_no_registers(tmp_path):
    out = run_python(
        "-W",
        "ignore",
        PROGRAMS / "compiled_kernels.py",
        TRITON_INTERPRET="0",
        TRITON_CACHE_DIR=str(tmp_path),
    )
    found = dict(line.split() for line in out.splitlines())
    assert {name.partition(".")[0] for name in found} == {"mlstm", "selective_scan"}
    assert len(found) == 6 and set(found.values()) == {"0"}


@needs("triton", "fla")
def test_flash_linear_attention_compiles_for_our_dtypes(tmp_path):
    out = run_python(
        "-W",
        "ignore",
        PROGRAMS / "compiled_kernels.py",
        "fla",
        TRITON_INTERPRET="0",
        TRITON_CACHE_DIR=str(tmp_path),
    )
    assert "dplr.chunk_dplr_bwd_dgk_kernel" in out


def test_native_bf16_agrees_with_cpuinfo() -> None:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        pytest.skip("no /proc/cpuinfo on this system")
    text = info.read_text()
    listed = any(flag in text.split() for flag in ("avx512_bf16", "amx_bf16", "bf16"))
    assert backend.has_native_bf16() == listed
