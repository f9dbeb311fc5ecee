"""Shared code of the numba kernels: tensors as arrays, bf16 as raw bits, fast elementary functions,
and the guard around parallel regions.

Every kernel is compiled with `@njit(**SERIAL)` or `@njit(**PARALLEL)`. The elementary functions
work on fp32 scalars inside jitted loops, are written so that LLVM vectorizes those loops, and
cannot be called from plain Python. `parallel`, `aligned_zeros`, `StepMemory` and `as_array` are for
the callers of kernels.

Importing this imports no torch: models that need none load in half the time.

numba's cache checks only the file of the cached function: after an edit here, remove `__pycache__`
of the kernels.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import event
from numba.core.base import BaseContext
from numba.core.caching import IndexDataCacheFile
from numba.core.codegen import get_host_cpu_features
from numba.core.typing import Context, Signature
from numba.extending import intrinsic
from numpy.typing import DTypeLike, NDArray

from runnel.errors import BackendUnavailable

if TYPE_CHECKING:
    from torch import Tensor


_LISTED = numba.config.CPU_FEATURES
if _LISTED is None:
    _LISTED = get_host_cpu_features()  # without AVX where NUMBA_ENABLE_AVX excludes it
# LLVM's names of the instructions that numba's code may use: those of the processor, unless
# configured
FEATURES = frozenset(name[1:] for name in _LISTED.split(",") if name.startswith("+"))


PROBLEM: str | None = None  # why kernels cannot run in this process
if numba.config.DISABLE_JIT:
    PROBLEM = "NUMBA_DISABLE_JIT is set"
elif platform.machine().lower() in ("x86_64", "amd64") and "fma" not in FEATURES:
    # Without fused multiply-adds, each of the kernels' becomes a call of the C library.
    PROBLEM = "the processor has no FMA instructions, or numba is configured not to use them"


def _load_index(self: IndexDataCacheFile) -> object:
    """Read the list of a kernel's stored code; none if its arguments' types are of a former version
    of this package.

    numba compares versions only after it has created these types, so an upgrade that renames one
    would end in an AttributeError.
    """
    try:
        return _load_numbas_index(self)
    except (AttributeError, ImportError):
        return {}


# for all of numba in this process
_load_numbas_index = IndexDataCacheFile._load_index
IndexDataCacheFile._load_index = _load_index


class CompilingNote(event.Listener):
    """A listener to numba. It logs, once in this process, that kernels are compiled, because the
    cache lacks one; commands show it.
    """

    def on_start(self, event: event.Event) -> None:
        _note_compiling()

    def on_end(self, event: event.Event) -> None:
        pass


@cache
def _note_compiling() -> None:
    logging.getLogger("runnel.kernels").info(
        "compiling kernels for this processor, once; later runs start at once"
    )


event.register("numba:compile", CompilingNote())

# Parameters of kernels, for the reader: mypy sees nothing in compiled code.
Array = Any  # a numpy array
Pointer = Any  # to fp32, or to bf16 bits as uint16; see `simd`
Vector = Any  # sixteen fp32 numbers; see `simd`
Number = Any  # one fp32 number

Numbers = NDArray[np.float32 | np.uint16]  # fp32 numbers, or bf16 as bit patterns

# What an intrinsic returns to numba: its signature, and what emits its code.
Definition = tuple[Signature, Callable[..., ir.Value]]

# Vectorization needs reordered sums and fused multiply-adds. `nnan` and `ninf` are off: with them a
# NaN in the weights could silently become a number. `arcp` and `afn` are off: their approximate
# division costs accuracy.
FASTMATH = {"contract", "reassoc", "nsz"}
# A reordered loop that both sums and stores is compiled twice, for overlapping and for separate
# arrays, and the two versions sum in different orders. So kernels sum in loops without stores; then
# a result does not depend on memory addresses. error_model="numpy": with Python's, every division
# tests for zero and raises, which prevents vectorization.
SERIAL: dict[str, object] = {
    "fastmath": FASTMATH,
    "error_model": "numpy",
    "nogil": True,
    "cache": True,
}
PARALLEL: dict[str, object] = SERIAL | {"parallel": True}

LINE = 64  # bytes of a cache line

_F32 = ir.FloatType()
_I32 = ir.IntType(32)
_I16 = ir.IntType(16)

LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.693359375  # few enough bits that k * _LN2_HIGH is exact for every |k| <= 128
_LN2_LOW = -2.12194440054690583e-4
# Least relative error on |r| <= ln(2)/2 (2.0e-9 before rounding), fitted by reweighted least
# squares in fp64; lowest power first.
_EXP = (
    1.0,
    1.0000000321837788,
    0.49999994205564713,
    0.166664311701298,
    0.04166800257424687,
    0.008374163377271399,
    0.001384364412062339,
)
# atanh(s)/s as a polynomial in s*s on 0 <= s <= 1/3 (relative error 4.5e-9 before rounding).
ATANH = (1.0, 0.33333208142798165, 0.20010763621044633, 0.1400090261599547, 0.14005993499180242)


def build_constant(kind: ir.Type, value: float) -> ir.Constant:
    """Return a constant of type `kind`, in all lanes if that is a vector."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def _of(element: ir.Type, like: ir.Type) -> ir.Type:
    """Return the type of numbers of type `element`, in as many lanes as `like` has."""
    return ir.VectorType(element, like.count) if isinstance(like, ir.VectorType) else element


def build_widen(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """Convert bf16 bits to fp32, exactly; scalars or vectors."""
    wide = _of(_I32, bits.type)
    return builder.bitcast(
        builder.shl(builder.zext(bits, wide), build_constant(wide, 16)), _of(_F32, bits.type)
    )


def build_round(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Convert fp32 to bf16 bits, ties to even; NaN stays NaN; scalars or vectors."""
    wide = _of(_I32, value.type)
    bits = builder.bitcast(value, wide)
    odd = builder.and_(builder.lshr(bits, build_constant(wide, 16)), build_constant(wide, 1))
    rounded = builder.add(bits, builder.add(odd, build_constant(wide, 0x7FFF)))
    # Rounding would turn some NaNs into infinity or change the sign bit. Tested on the bits, so
    # that fast-math cannot remove the test.
    magnitude = builder.and_(bits, build_constant(wide, 0x7FFFFFFF))
    is_nan = builder.icmp_unsigned(">", magnitude, build_constant(wide, 0x7F800000))
    rounded = builder.select(is_nan, builder.or_(bits, build_constant(wide, 0x400000)), rounded)
    return builder.trunc(builder.lshr(rounded, build_constant(wide, 16)), _of(_I16, value.type))


def emitting(build: Callable[..., ir.Value | None]) -> Callable[..., ir.Value]:
    """Return what numba wants of an intrinsic whose code `build(builder, *arguments)` emits; it
    returns the result, or None if there is none.
    """

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]
    ) -> ir.Value:
        result = build(builder, *arguments)
        return context.get_dummy_value() if result is None else result

    return generate


@intrinsic
def as_f32(typing_context: Context, value: types.Type) -> Definition:
    """Convert an element of an fp32 array, or of a bf16 array viewed as uint16, to fp32, so that
    one kernel serves both.
    """
    return types.float32(value), emitting(
        lambda builder, x: x if value == types.float32 else build_widen(builder, x)
    )


@intrinsic
def rounded_for(typing_context: Context, array: types.Type, value: types.Type) -> Definition:
    """Convert an fp32 value to the element type of `array` (fp32, or bf16 viewed as uint16)."""
    return array.dtype(array, types.float32), emitting(
        lambda builder, _, x: x if array.dtype == types.float32 else build_round(builder, x)
    )


def build_exp(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Return exp(x) of a number or of all lanes; see `fast_exp`."""
    kind = x.type
    whole = _of(_I32, x.type)
    suffix = f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"

    def call(name: str, *arguments: ir.Value) -> ir.Value:
        signature = ir.FunctionType(kind, [kind] * len(arguments))
        return builder.call(
            builder.module.declare_intrinsic(f"llvm.{name}.{suffix}", (), signature), arguments
        )

    low = build_constant(kind, -88.028)
    high = build_constant(kind, 88.37)
    x = builder.select(builder.fcmp_ordered("<", x, low), low, x)
    x = builder.select(builder.fcmp_ordered(">", x, high), high, x)
    k = call("rint", builder.fmul(x, build_constant(kind, LOG2_E)))
    # Multiply-adds, because fast-math would reorder, and so undo, the two-step subtraction of
    # k*ln(2).
    r = call("fmuladd", k, build_constant(kind, -_LN2_HIGH), x)
    r = call("fmuladd", k, build_constant(kind, -_LN2_LOW), r)
    result = build_constant(kind, _EXP[-1])
    for coefficient in reversed(_EXP[:-1]):
        result = call("fmuladd", result, r, build_constant(kind, coefficient))
    exponent = builder.shl(
        builder.add(builder.fptosi(k, whole), build_constant(whole, 127)), build_constant(whole, 23)
    )
    return builder.fmul(result, builder.bitcast(exponent, kind))


@intrinsic
def fast_exp(typing_context: Context, value: types.Type) -> Definition:
    """Return exp(value) in fp32, with a relative error below 1.2e-7.

    Exactly 0 below -88.03 (a decay never turns into slow denormal numbers), constant above 88.37
    (never infinite), NaN for NaN.
    """
    return types.float32(types.float32), emitting(build_exp)


@njit(inline="always")
def silu(x: Number) -> Number:
    """Return x * sigmoid(x) in fp32."""
    return x / (np.float32(1.0) + fast_exp(-x))


@njit(inline="always")
def silu_grad(x: Number) -> Number:
    """Return the derivative of `silu` in fp32."""
    e = fast_exp(-x)
    s = np.float32(1.0) / (np.float32(1.0) + e)
    return s * (np.float32(1.0) + x * (e * s))  # e*s is 1 - s without its cancellation


@njit(inline="always")
def softplus(x: Number) -> Number:
    """Return log(1 + exp(x)) in fp32, with a relative error below 5e-7 for every x (it equals x
    from about 17 on).
    """
    e = fast_exp(-abs(x))
    s = e / (np.float32(2.0) + e)  # log(1 + e) = 2 atanh(s)
    q = s * s
    p = np.float32(ATANH[4])
    p = p * q + np.float32(ATANH[3])
    p = p * q + np.float32(ATANH[2])
    p = p * q + np.float32(ATANH[1])
    p = p * q + np.float32(ATANH[0])
    return max(x, np.float32(0.0)) + np.float32(2.0) * s * p


# numba's OpenMP layer and torch share the OpenMP library that is loaded first, and its pool of
# threads. Any other layer has its own threads, which compete with torch's: short texts took up to
# three times as long. The disadvantage: a forked child has no such pool.
numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]

_region = threading.RLock()
_entered = False  # a region has run in this process or its parent before a fork
_pool_is_lost = False


@contextmanager
def parallel() -> Iterator[None]:
    """Guard calls of kernels compiled with `parallel=True`.

    One region runs at a time, because numba's portable pool (workqueue) must not be entered twice
    and because two concurrent regions would only share the same cores; other Python threads wait
    here. The region uses `count_workers` threads. With one thread, each Python thread is its own
    worker, and they run concurrently if numba's pool allows it.

    Raises:
        BackendUnavailable: this process was forked from one whose kernels had run on OpenMP
            threads.
    """
    global _entered
    if _pool_is_lost:
        raise BackendUnavailable(
            "this process was forked after a model had been used, and has no OpenMP threads: use"
            " the start method 'spawn', use the model only in the child, or set the environment"
            " variable NUMBA_THREADING_LAYER=workqueue (slower) in the parent"
        )
    _entered = True
    threads = count_threads()
    with nullcontext() if threads == 1 and _layer() in ("omp", "tbb") else _region:
        numba.set_num_threads(count_workers())
        torch = sys.modules.get("torch")
        # the first start of numba's pool resets torch's number
        if torch is not None and count_threads() != threads:
            torch.set_num_threads(threads)
        yield


# The number of threads that the environment sets, read once, as torch does.
_CONFIGURED = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
_DEFAULT_THREADS: int = numba.config.NUMBA_DEFAULT_NUM_THREADS
if _CONFIGURED.isdecimal() and int(_CONFIGURED):
    _DEFAULT_THREADS = int(_CONFIGURED)


def count_threads() -> int:
    """Return torch's number of threads; where torch is not imported, what its default would be."""
    # none yet while another thread imports torch
    of_torch = getattr(sys.modules.get("torch"), "get_num_threads", None)
    return _DEFAULT_THREADS if of_torch is None else int(of_torch())


def count_workers() -> int:
    """Return the number of threads that a kernel runs on: torch's, or its default without torch, as
    far as numba has them.
    """
    return max(1, min(count_threads(), numba.config.NUMBA_NUM_THREADS))


def _layer() -> str | None:
    """Return numba's threading layer; None before the first kernel has run."""
    try:
        return numba.threading_layer()
    except ValueError:
        return None


def _after_fork() -> None:
    """Refuse kernels in a child without their threads; limit torch to one thread, because it would
    wait for the others.
    """
    global _region, _pool_is_lost
    _region = threading.RLock()  # another thread of the parent may have held the lock
    if _entered:
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        _pool_is_lost = _layer() == "omp"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def aligned_zeros(*shape: int, dtype: DTypeLike = np.float32) -> np.ndarray:
    """Return zeros from the start of a cache line on: loads of vectors and tiles across two lines
    take several times as long.
    """
    size = prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + LINE - 1, np.uint8)  # takes no memory before it is used
    first = -memory.ctypes.data % LINE
    return memory[first : first + size].view(dtype).reshape(shape)


class Scratch(NamedTuple):
    """What the workers of a kernel write besides its results; `StepMemory.scratch` makes it.

    A kernel makes no array whose address it uses: numba frees an array after the last use of its
    name, whatever addresses of it are still in use.
    """

    rows: NDArray[np.float32]  # (workers, numbers), each row from the start of a cache line on
    # (2,) the number of the next free task, for one kernel or for two that share this scratch
    tasks: NDArray[np.int64]


@dataclass(eq=False)
class StepMemory:
    """Memory by name that is kept between steps (runs of all layers of a backbone) and grows to the
    largest one asked for. A copy, by pickle or deepcopy, begins empty.

    `lock` is for the one step that may use it at a time.
    """

    lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _flat: dict[str, np.ndarray] = field(default_factory=dict, init=False)
    # the shape and the array returned last for a name: many steps have the same size
    _last: dict[str, tuple[tuple[int, ...], np.ndarray]] = field(default_factory=dict, init=False)

    def __reduce__(self) -> tuple[type[StepMemory], tuple[()]]:
        return StepMemory, ()

    def array(self, name: str, *shape: int, dtype: DTypeLike = np.float32) -> np.ndarray:
        """Return an array of any content that kernels may read before they write it: new memory is
        zero, never NaN.

        A name always has the same dtype.
        """
        if name not in self._last or self._last[name][0] != shape:
            size = prod(shape)
            if name not in self._flat or len(self._flat[name]) < size:
                # first, so that old and new are never held together
                for kept in (self._flat, self._last):
                    kept.pop(name, None)
                self._flat[name] = aligned_zeros(size, dtype=dtype)
            self._last[name] = shape, self._flat[name][:size].reshape(shape)
        return self._last[name][1]

    def scratch(self, name: str, numbers: int) -> Scratch:
        """Return memory of any content for each worker of a kernel, and tasks that begin at 0.

        It is valid until the next call with this name. A kernel runs as many workers as it has
        rows.
        """
        line = LINE // np.dtype(np.float32).itemsize
        rows = self.array(f"{name} scratch", count_workers(), (numbers + line - 1) // line * line)
        tasks = self.array(f"{name} tasks", 2, dtype=np.int64)
        tasks.fill(0)
        return Scratch(rows, tasks)


def as_array(tensor: Tensor) -> np.ndarray:
    """Return a view of the tensor as numpy; bf16 as bit patterns (uint16)."""
    import torch

    tensor = tensor.detach()
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def index_array(tensor: Tensor) -> np.ndarray:
    """Return indices as int64, copied only if necessary."""
    import torch

    return tensor.to(torch.int64).contiguous().numpy()


class FlatRows(NamedTuple):
    """A tensor (T, ...) for a kernel: element i of row t, counted within the row, is line[t *
    distance + i].
    """

    line: np.ndarray  # 1-D
    distance: int


def flat_rows(tensor: Tensor | np.ndarray) -> FlatRows:
    """Return the memory of a tensor (T, ...), or an array (T, n), and the distance between its
    rows.

    Rows that are columns of a wider matrix are not copied; other tensors that are not contiguous
    within rows are.
    """
    if isinstance(tensor, np.ndarray):
        (rows, row), (apart, size) = tensor.shape, tensor.strides
        if not tensor.size:
            return FlatRows(np.zeros(1, tensor.dtype), row)
        if tensor.flags.c_contiguous:
            return FlatRows(tensor.reshape(-1), row)
        return FlatRows(
            np.lib.stride_tricks.as_strided(tensor, ((rows - 1) * apart // size + row,), (size,)),
            apart // size,
        )
    row = tensor.shape[1:].numel()
    if tensor.numel() == 0:
        return FlatRows(as_array(tensor.new_zeros(1)), row)
    if not tensor[0].is_contiguous():
        tensor = tensor.contiguous()
    distance = tensor.stride(0) if tensor.shape[0] > 1 else row
    return FlatRows(
        as_array(tensor.detach().as_strided(((tensor.shape[0] - 1) * distance + row,), (1,))),
        distance,
    )


def float_array(tensor: Tensor | None, *shape: int) -> np.ndarray:
    """Return a contiguous fp32 tensor, copied only if necessary; zeros of `shape` for None."""
    return (
        np.zeros(shape, np.float32)
        if tensor is None
        else as_array(tensor.detach().float().contiguous())
    )
