"""An encoder computed from arrays, without torch: for inference on a CPU, from a model folder that runnel wrote.

bf16 is held as bits (uint16).

T  tokens    S  sequences    D  hidden_size    V  vocabulary    K  inputs, N  outputs of a linear layer
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from runnel.backbones.encoder.layout import FORMS, EncoderBlocks, EncoderConfig, Form
from runnel.backbones.encoder.step import EncoderStep, Floats, Product, ProductInputs
from runnel.config import digest_arrays, expect_ids
from runnel.errors import InputError
from runnel.ops import bf16_matmul, int8_matmul
from runnel.ops.numba_math import count_workers, parallel
from runnel.ops.simd import NATIVE_BF16

Dtype = Literal["float32", "bfloat16", "int8"]
_LINEAR = ("qkv", "out", "up", "down")
_LOW = (*(f"{name}.weight" for name in _LINEAR), "embeddings.weight")  # ends of the names of what takes the low dtype


class ArrayEncoder(EncoderBlocks):
    """An encoder in evaluation mode.

    Args:
        file: the weights of a model folder.
        config: its shape.
        dtype: of the linear layers and the embedding; in 8 bits the embedding, and what is between the layers, is bf16 where the
            processor computes it, else fp32.

    Raises:
        ValueError: the file's weights have other names, shapes or dtypes, which torch may be able to read.
    """

    architecture = "encoder"
    without_torch = True
    plain = None
    state_bytes = 0

    def __init__(self, file: Path, config: EncoderConfig, dtype: Dtype) -> None:
        self.set_config(config)
        self.folder, self.dtype, self.device = file.parent, dtype, SimpleNamespace(type="cpu", index=None)
        self._file: Any = safe_open(file, "numpy")  # stays open: the weights are those of this file even if it is replaced
        self._names = set(self._file.keys())
        self._check()
        self.in_8_bits = dtype == "int8"
        wide = default_dtype() if self.in_8_bits else dtype
        self.numbers: type[np.generic] = np.uint16 if wide == "bfloat16" else np.float32
        self._table, self._scale = self._stored("embeddings.weight")
        self._step = EncoderStep(self)
        self._fingerprint = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayEncoder, (self.folder / "model.safetensors", self.config, self.dtype)

    def __call__(self, *_: object, **__: object) -> Any:
        raise InputError(
            "this encoder was loaded without torch; `Model.with_torch()` returns the one that reads and trains tensors"
        )

    def step_forms(self, ids: np.ndarray, cu_seqlens: np.ndarray, forms: Sequence[Form] = ("texts",)) -> Floats:
        """Run one step of the engine; see `Encoder.step_forms`. ids (T,) and cu_seqlens (S+1,) int64 -> (T, forms D)."""
        expect_ids(ids, self.vocab_size)
        self.check_whole(cu_seqlens, continues=False)
        rows = self._table[ids].astype(np.float32)
        if self._scale is not None:
            rows *= self._scale[ids, None]
        return self._step.step_forms(widened(bf16_bits(rows)) if self.numbers is np.uint16 else rows, cu_seqlens, forms)

    def floats(self, name: str) -> Floats:
        """See `step.EncoderWeights`."""
        array, scale = self._stored(name)
        return np.asarray(array, np.float32) if scale is None else array * scale[:, None]

    def product(self, name: str, groups: int) -> Product:
        """See `step.EncoderWeights`."""
        array, scale = self._stored(f"{name}.weight")
        if self.in_8_bits:
            return partial(_multiply_bytes, int8_matmul.pack(*self._bytes(f"{name}.weight"), groups))
        if self.numbers is np.float32:
            return partial(_multiply_floats, np.ascontiguousarray(self.floats(f"{name}.weight").T))
        packed = bf16_matmul.pack(bf16_bits(array)) if scale is None else bf16_matmul.pack_int8(array, scale)
        return partial(_multiply_bits, packed)

    @property
    def dtypes(self) -> list[str]:
        """As those of `Backbone`."""
        return sorted({"float32", "bfloat16" if self.numbers is np.uint16 else "float32", self.dtype})

    def fingerprint(self) -> str:
        """Return what `Backbone.fingerprint` returns of the same weights."""
        if not self._fingerprint:
            names = set(self._shapes())
            names |= {f"{name}_scale" for name in names if self.in_8_bits and name.endswith(_LOW[:-1])}
            self._fingerprint = digest_arrays(self.architecture, ((name, self._as_loaded(name)) for name in sorted(names)))
        return self._fingerprint

    def read_head(self, name: str) -> dict[str, NDArray[Any]]:
        """Return the weights of a head in the same file."""
        start = f"heads.{name}."
        return {key.removeprefix(start): self._file.get_tensor(key) for key in self._names if key.startswith(start)}

    def _as_loaded(self, name: str) -> NDArray[Any]:
        """Return a weight as torch holds it: in bf16, 8 bits or fp32."""
        if name.endswith("_scale"):
            return self._bytes(name.removesuffix("_scale"))[1]
        if self.in_8_bits and name.endswith(_LOW[:-1]):
            return self._bytes(name)[0]
        whole = self.floats(name)
        return bf16_bits(whole) if self.numbers is np.uint16 and name.endswith(_LOW) else whole

    def _stored(self, name: str) -> tuple[NDArray[Any], Floats | None]:
        """Return a weight as the file has it, and the scales of its rows if it is in 8 bits."""
        scale = f"backbone.{name}.scale"
        return self._file.get_tensor(f"backbone.{name}"), self._file.get_tensor(scale) if scale in self._names else None

    def _bytes(self, name: str) -> tuple[NDArray[np.int8], Floats]:
        """Return a matrix in 8 bits with the scales of its rows, as `int8.quantize` makes them."""
        array, scale = self._stored(name)
        if scale is None:
            array = np.asarray(array, np.float32)
            scale = np.maximum(np.abs(array).max(axis=1) / np.float32(127), np.float32(1e-12))
            array = np.rint(array / scale[:, None]).astype(np.int8)
        return array, scale

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of all weights."""
        c = self.config
        width, inner = c.hidden_size, c.intermediate_size
        shapes: dict[str, tuple[int, ...]]
        shapes = {"embeddings.weight": (c.vocab_size, width), "positions.weight": (c.max_positions, width)}
        sizes = {"qkv": (3 * width, width), "out": (width, width), "up": (inner, width), "down": (width, inner)}
        norms = ["norm"]
        for layer in {name for form in FORMS for name in c.layer_names(form)}:
            norms += [f"{layer}.attention_norm", f"{layer}.norm"]
            for name, size in sizes.items():
                shapes |= {f"{layer}.{name}.weight": size, f"{layer}.{name}.bias": size[:1]}
        return shapes | {f"{norm}.{part}": (width,) for norm in norms for part in ("weight", "bias")}

    def _check(self) -> None:
        """Raise ValueError unless the file has these weights and no other, in fp32, fp16, or 8 bits with a scale for each row."""
        held = {}
        for name in (name.removeprefix("backbone.") for name in self._names if name.startswith("backbone.")):
            part = self._file.get_slice(f"backbone.{name}")
            held[name] = (tuple(part.get_shape()), part.get_dtype())
        scales = {name.removesuffix(".scale") for name in held if name.endswith(".scale")}
        expected = self._shapes()
        kinds = {True: ("I8",), False: ("F32", "F16")}
        fits = scales <= set(expected) and set(held) == {*expected, *(f"{name}.scale" for name in scales)}
        fits = fits and all(held[f"{name}.scale"] == (expected[name][:1], "F32") for name in scales)
        if not fits or any(held[n][0] != shape or held[n][1] not in kinds[n in scales] for n, shape in expected.items()):
            raise ValueError(f"the weights are {held}; expected {expected}")


def default_dtype() -> Dtype:
    """Return bf16 where the processor multiplies it, else fp32."""
    return "bfloat16" if NATIVE_BF16 else "float32"


def bf16_bits(x: NDArray[Any]) -> NDArray[np.uint16]:
    """Return finite numbers rounded to bf16, ties to even, as bits."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(bits: NDArray[np.uint16]) -> Floats:
    """Return bf16 bits as fp32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _multiply_floats(weight: Floats, x: ProductInputs, out: NDArray[Any]) -> None:
    np.matmul(x.array, weight, out=out)


def _multiply_bits(weight: bf16_matmul.Bf16Weights, x: ProductInputs, out: NDArray[Any]) -> None:
    with parallel():
        bf16_matmul.multiply(x.array, weight, out, count_workers())


def _multiply_bytes(weight: int8_matmul.Int8Weights, x: ProductInputs, out: NDArray[Any]) -> None:
    with parallel():
        int8_matmul.multiply(*x, weight, out, count_workers())
