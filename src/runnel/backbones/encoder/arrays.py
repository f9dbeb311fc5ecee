"""An encoder computed from arrays, without torch: for inference on a CPU.

A step reads some whole sequences with one or more forms: a form is a set of upper layers
(`config.py`), and all forms share the lower layers. `EncoderStep` runs the matrix products of the
layers, and between them the kernels of `kernels.py`, which add the products' biases:

    step_forms      what enters the first layer; the shared layers, once; the layers of each form
    _run_layers     for each layer: [qkv] attend [out] _add_norm [up] gelu [down] _add_norm
    _add_norm       adds to the residual stream, and writes the inputs of the next product
    _work           the memory of a step

The residual stream is fp32; the dtype of the linear layers chooses the other numbers of a step:

    linear layers   inputs of a product                       outputs of a product
    fp32            fp32; of qkv and up the stream itself     fp32
    bf16            bf16                                      bf16
    8 bits          bytes, with a scale for each group        fp32 or bf16, as the embedding

The weights come from torch's `Encoder` (`cpu.py`), or from `ArrayEncoder`, below, which reads a
model folder that runnel wrote. bf16 is held as bits (uint16).

T  tokens      S  sequences      D  hidden_size      F  intermediate_size
K  inputs of a product           N  outputs of a product
G  groups of inputs that share a scale, in 8 bits
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, NamedTuple, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from runnel.backbones.checkpoint.shapes import StoredShape, check_tensors, refuse_wrapped
from runnel.backbones.config import digest_arrays, expect_ids
from runnel.backbones.encoder.config import FORMS, EncoderConfig, EncoderShape, Form
from runnel.backbones.encoder.kernels import (
    add_layer_norm,
    attend,
    attention_memory,
    bias_gelu,
    bias_gelu_bytes,
    copy_rows,
)
from runnel.errors import CheckpointError, InputError
from runnel.ops import int8_matmul, matmul
from runnel.ops.numba_math import Numbers, StepMemory, flat_rows, parallel
from runnel.ops.simd import NATIVE_BF16

Dtype = Literal["float32", "bfloat16", "int8"]
DEFAULT_DTYPE: Dtype = "bfloat16" if NATIVE_BF16 else "float32"  # what the processor multiplies
_LINEAR = ("qkv", "out", "up", "down")
# ends of the names of the weights that may be in 8 bits, and of the weights that may be in bf16
_IN_8_BITS = tuple(f"{name}.weight" for name in _LINEAR)
LOW_PRECISION = (*_IN_8_BITS, "embeddings.weight")
# Inputs of an 8-bit layer that share a scale, if it divides their number. Of the layer `out`, the
# inputs of each head share one.
_GROUP = 64

Floats = NDArray[np.float32]
_NORM = ("weight", "bias")  # the arrays of a norm


class ProductInputs(NamedTuple):
    """The inputs of a product: numbers, or in 8 bits bytes with their scales."""

    array: np.ndarray  # (T, K) fp32 or bf16 bits; in 8 bits (T, G * bytes_per_group) uint8
    scale: Floats = np.empty((1, 0), np.float32)  # (T, G) in 8 bits; numbers have no scale


# Writes x (T, K) weight^T to an array (T, N), inside `numba_math.parallel()`.
ArrayProduct = Callable[[ProductInputs, Numbers], None]


class EncoderWeights(Protocol):
    """Where the weights of an encoder come from: `ArrayEncoder`, or torch's `Encoder`
    (`EncoderCpu`).
    """

    config: EncoderConfig
    numbers: type[np.generic]  # the dtype of outputs of products: float32, or uint16 for bf16
    in_8_bits: bool  # whether the linear layers are in 8 bits

    def floats(self, name: str) -> Floats:
        """Return a small weight in fp32."""

    def product(self, name: str, groups: int, memory: StepMemory) -> ArrayProduct:
        """Return the product with a linear layer; in 8 bits its inputs have G = `groups` scales.
        `memory`: the step's, for scratch.
        """


class _Layer(NamedTuple):
    """One layer's weights as the step needs them."""

    qkv: ArrayProduct
    out: ArrayProduct
    up: ArrayProduct
    down: ArrayProduct
    biases: list[Floats]  # of qkv, out, up and down
    attention_norm: list[Floats]  # weight and bias
    norm: list[Floats]


class _Work(NamedTuple):
    """The memory of a step: the residual stream, and the inputs and outputs of products."""

    residual: Floats  # (T, D)
    # (T, D), the inputs of qkv and up. None in fp32: these take the residual stream itself.
    normed: ProductInputs | None
    qkv: Numbers  # (T, 3 D), the outputs of qkv
    up: Numbers  # (T, F), the outputs of up; in the memory of `qkv`, which is no longer needed
    attended: ProductInputs  # (T, D), the outputs of attention, inputs of out
    activated: ProductInputs  # (T, F), the outputs of gelu, inputs of down; `up` unless in 8 bits
    out: Numbers  # (T, D), the outputs of out and of down
    cu_seqlens: NDArray[np.int64]  # (S+1,)
    attention: int  # numbers of scratch that attention needs for each core


class EncoderStep:
    """The steps of an encoder whose linear layers are all fp32, all bf16 or all in 8 bits.

    Small weights are copied: build a new one after changing the model's. Memory grows to the
    largest step seen and is reused. Steps may be called from several threads; one runs at a time,
    on `count_workers` cores.
    """

    def __init__(self, weights: EncoderWeights) -> None:
        c = self._config = weights.config
        self._numbers, self._in_8_bits = weights.numbers, weights.in_8_bits
        self._positions = weights.floats("positions.weight")
        self._groups = self._inner_groups = 1  # of the inputs of qkv and up; of down
        if self._in_8_bits:
            sizes = (c.hidden_size, c.intermediate_size)
            self._groups, self._inner_groups = (
                int8_matmul.count_groups(size, _GROUP) for size in sizes
            )
        self._norm = [weights.floats(f"norm.{part}") for part in _NORM]
        self._memory = StepMemory()
        layers = {
            name: _Layer(
                weights.product(f"{name}.qkv", self._groups, self._memory),
                weights.product(f"{name}.out", c.num_heads, self._memory),
                weights.product(f"{name}.up", self._groups, self._memory),
                weights.product(f"{name}.down", self._inner_groups, self._memory),
                [weights.floats(f"{name}.{linear}.bias") for linear in _LINEAR],
                [weights.floats(f"{name}.attention_norm.{part}") for part in _NORM],
                [weights.floats(f"{name}.norm.{part}") for part in _NORM],
            )
            for name in dict.fromkeys(n for form in FORMS for n in c.layer_names(form))
        }
        self._forms = {form: [layers[name] for name in c.layer_names(form)] for form in FORMS}

    def step_forms(
        self, hidden: Floats, cu_seqlens: NDArray[np.int64], forms: Sequence[Form]
    ) -> Floats:
        """Run all layers of each form; the lower layers that all forms share run once.

        Args:
            hidden: (T, D) the embeddings of the tokens, which may be overwritten.
            cu_seqlens: (S+1,).

        Returns:
            (T, forms D).
        """
        with self._memory.lock, parallel():
            # 1. What enters the first layer replaces the embeddings: the residual stream.
            lengths = np.diff(cu_seqlens)
            hidden += self._positions[np.arange(cu_seqlens[-1]) - cu_seqlens[:-1].repeat(lengths)]
            work = self._work(hidden, cu_seqlens, int(lengths.max(initial=0)))
            work.out[...] = 0
            self._add_norm(work, hidden, np.zeros(hidden.shape[1], np.float32), self._norm, hidden)
            # 2. The layers that all forms share write to `hidden`. One form alone shares none, so
            # that all its layers write to `out`.
            shared = self._config.shared_layers(forms) if len(forms) > 1 else 0
            self._run_layers(work, self._forms["texts"][:shared], hidden)
            # 3. The other layers of each form start from `hidden` and write to its part of `out`.
            tokens, width = hidden.shape
            out = np.empty((tokens, len(forms) * width), np.float32)
            for i, form in enumerate(forms):
                if i and work.normed:
                    # `normed` has the end of the form before: the inputs of the first product are
                    # made from `hidden` again.
                    if self._in_8_bits:
                        int8_matmul.quantize_rows(hidden, *work.normed)
                    else:
                        copy_rows(hidden, work.normed.array)
                self._run_layers(
                    work, self._forms[form][shared:], out[:, i * width : (i + 1) * width]
                )
            return out

    def _run_layers(self, work: _Work, layers: list[_Layer], target: Floats) -> None:
        """Run layers. The first one reads the residual stream from `work.residual`, and all write
        it to `target` (T, D): `work.residual` itself, or memory whose rows may be far apart.
        """
        residual = work.residual
        for layer in layers:
            bias_qkv, bias_out, bias_up, bias_down = layer.biases
            layer.qkv(work.normed or ProductInputs(residual), work.qkv)
            scratch = self._memory.scratch("attention", work.attention)
            attend(
                work.qkv, bias_qkv, work.cu_seqlens, self._config.num_heads, *work.attended, scratch
            )
            layer.out(work.attended, work.out)
            self._add_norm(work, residual, bias_out, layer.attention_norm, target)
            residual = target
            layer.up(work.normed or ProductInputs(residual), work.up)
            if self._in_8_bits:
                scratch = self._memory.scratch("row", self._config.intermediate_size)
                bias_gelu_bytes(work.up, bias_up, *work.activated, scratch)
            else:
                bias_gelu(work.up, bias_up)
            layer.down(work.activated, work.out)
            self._add_norm(work, residual, bias_down, layer.norm, target)
        if not layers:
            target[...] = residual

    def _add_norm(
        self, work: _Work, residual: Floats, bias: Floats, norm: list[Floats], target: Floats
    ) -> None:
        """Add the output of a product and its bias to the residual stream; write the norm of the
        sum to `target` and to the inputs of the next product.
        """
        inputs = work.normed or ProductInputs(np.empty((len(residual), 0), np.float32))
        add_layer_norm(
            *flat_rows(residual),
            work.out,
            bias,
            *norm,
            self._config.layer_norm_eps,
            *flat_rows(target),
            *inputs,
        )

    def _work(self, residual: Floats, cu_seqlens: NDArray[np.int64], longest: int) -> _Work:
        c = self._config
        tokens = len(residual)
        in_fp32 = not self._in_8_bits and self._numbers is np.float32
        widths = (3 * c.hidden_size, c.intermediate_size)
        # one memory for both, because qkv is read before up is written
        both = self._memory.array("qkv or up", tokens * max(widths), dtype=self._numbers)
        qkv, up = (both[: tokens * width].reshape(tokens, width) for width in widths)
        return _Work(
            residual=residual,
            normed=(
                None if in_fp32 else self._inputs("normed", tokens, c.hidden_size, self._groups)
            ),
            qkv=qkv,
            up=up,
            attended=self._inputs("attended", tokens, c.hidden_size, c.num_heads),
            activated=(
                self._inputs("activated", tokens, c.intermediate_size, self._inner_groups)
                if self._in_8_bits
                else ProductInputs(up)
            ),
            out=self._memory.array("out", tokens, c.hidden_size, dtype=self._numbers),
            cu_seqlens=cu_seqlens,
            attention=int(attention_memory(c.hidden_size // c.num_heads, longest)[-1]),
        )

    def _inputs(self, name: str, tokens: int, columns: int, groups: int) -> ProductInputs:
        """Return uninitialized memory for the inputs of a product, (T, K) in G groups."""
        if not self._in_8_bits:
            return ProductInputs(self._memory.array(name, tokens, columns, dtype=self._numbers))
        read = self._memory.array(
            name, tokens, groups * int8_matmul.bytes_per_group(columns, groups), dtype=np.uint8
        )
        return ProductInputs(read, self._memory.array(f"{name} scales", tokens, groups))


class ArrayEncoder(EncoderShape):
    """An encoder in evaluation mode.

    Args:
        weights: opened for numpy from `file`, the weights of a model folder.
        config: the encoder's shape.
        dtype: the dtype of the linear layers and the embedding. With "int8", the embedding and the
            numbers between layers are bf16 where the processor computes it, else fp32.

    Raises:
        CheckpointError: the file's weights have other names, shapes or dtypes.
    """

    def __init__(self, weights: safe_open, file: Path, config: EncoderConfig, dtype: Dtype) -> None:
        self.set_config(config)
        self.folder = file.parent
        self.dtype = dtype
        self.device = SimpleNamespace(type="cpu", index=None)  # read like a torch.device
        self._file = weights
        self._names = set(self._file.keys())
        self._check(file)
        self.in_8_bits = dtype == "int8"
        between = DEFAULT_DTYPE if self.in_8_bits else dtype  # the dtype between linear layers
        self.numbers: type[np.generic] = np.uint16 if between == "bfloat16" else np.float32
        self._table, self._scale = self._stored("embeddings.weight")
        self._step = EncoderStep(self)
        self._fingerprint = ""

    def __reduce__(self) -> tuple[object, ...]:
        return open_encoder, (self.folder / "model.safetensors", self.config, self.dtype)

    def with_dtype(self, dtype: Dtype) -> "ArrayEncoder":
        """Return an encoder with the same weights whose linear layers are computed in `dtype`."""
        return ArrayEncoder(self._file, self.folder / "model.safetensors", self.config, dtype)

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise InputError(
            "this encoder was loaded without torch; `Model.with_torch()` returns the one that reads"
            " and trains tensors"
        )

    def step_forms(
        self, ids: np.ndarray, cu_seqlens: np.ndarray, forms: Sequence[Form] = ("texts",)
    ) -> Floats:
        """Run one step of the engine; see `Encoder.step_forms`. ids (T,) and cu_seqlens (S+1,)
        int64 -> (T, forms D).
        """
        expect_ids(ids, self.vocab_size)
        rows = self._table[ids].astype(np.float32)
        if self._scale is not None:
            rows *= self._scale[ids, None]
        # in bf16 rounded, as the embedding of torch's `Encoder` is
        return self._step.step_forms(
            widened(bf16_bits(rows)) if self.numbers is np.uint16 else rows, cu_seqlens, forms
        )

    def floats(self, name: str) -> Floats:
        """See `EncoderWeights`."""
        array, scale = self._stored(name)
        return np.asarray(array, np.float32) if scale is None else array * scale[:, None]

    def product(self, name: str, groups: int, memory: StepMemory) -> ArrayProduct:
        """See `EncoderWeights`."""
        if self.in_8_bits:
            return partial(
                _multiply_bytes, int8_matmul.pack(*self._bytes(f"{name}.weight"), groups), memory
            )
        array, scale = self._stored(f"{name}.weight")
        if self.numbers is np.float32:
            packed = matmul.pack_floats(self.floats(f"{name}.weight"))
        else:
            packed = matmul.pack(bf16_bits(array) if scale is None else array, scale)
        return partial(_multiply, packed, memory)

    @property
    def dtypes(self) -> list[str]:
        """See `Backbone.dtypes`."""
        return sorted(
            {"float32", "bfloat16" if self.numbers is np.uint16 else "float32", self.dtype}
        )

    def fingerprint(self) -> str:
        """Return what `Backbone.fingerprint` returns for the same weights."""
        if not self._fingerprint:
            names = set(weight_shapes(self.config))
            names |= {
                f"{name}_scale" for name in names if self.in_8_bits and name.endswith(_IN_8_BITS)
            }
            self._fingerprint = digest_arrays(
                self.architecture, ((name, self._as_loaded(name)) for name in sorted(names))
            )
        return self._fingerprint

    def _as_loaded(self, name: str) -> np.ndarray:
        """Return a weight as torch holds it: in bf16, 8 bits or fp32."""
        if name.endswith("_scale"):
            return self._bytes(name.removesuffix("_scale"))[1]
        if self.in_8_bits and name.endswith(_IN_8_BITS):
            return self._bytes(name)[0]
        numbers = self.floats(name)
        is_low = self.numbers is np.uint16 and name.endswith(LOW_PRECISION)
        return bf16_bits(numbers) if is_low else numbers

    def _stored(self, name: str) -> tuple[np.ndarray, Floats | None]:
        """Return a weight as the file has it, and the scales of its rows if it is in 8 bits."""
        scale = f"backbone.{name}.scale"
        return self._file.get_tensor(f"backbone.{name}"), (
            self._file.get_tensor(scale) if scale in self._names else None
        )

    def _bytes(self, name: str) -> tuple[NDArray[np.int8], Floats]:
        """Return a matrix in 8 bits with the scales of its rows, as `int8.quantize` makes them."""
        array, scale = self._stored(name)
        if scale is None:
            array = np.asarray(array, np.float32)
            scale = np.maximum(np.abs(array).max(axis=1) / np.float32(127), np.float32(1e-12))
            array = np.rint(array / scale[:, None]).astype(np.int8)
        return array, scale

    def _check(self, file: Path) -> None:
        """Raise CheckpointError unless the file has these weights and no other, in fp32, fp16, or
        8 bits with a scale for each row.
        """
        refuse_wrapped(self._names, str(file.parent))
        start = "backbone."
        slices = {
            name.removeprefix(start): self._file.get_slice(name)
            for name in self._names
            if name.startswith(start)
        }
        expected = weight_shapes(self.config)
        for name, shape in list(expected.items()):
            if f"{name}.scale" in slices:
                expected[f"{name}.scale"] = shape[:1]
        held = {
            name: StoredShape(tuple(part.get_shape()), file.name) for name, part in slices.items()
        }
        check_tensors(held, expected, str(file.parent))
        for name in expected:
            dtype = slices[name].get_dtype()
            allowed = ("I8",) if f"{name}.scale" in slices else ("F32", "F16")
            if dtype not in allowed:
                raise CheckpointError(
                    f"{file}: tensor {name!r} is {dtype}; expected {' or '.join(allowed)}; save the"
                    " model again"
                )


def open_encoder(file: Path, config: EncoderConfig, dtype: Dtype) -> ArrayEncoder:
    """Return the encoder of a file of weights."""
    return ArrayEncoder(safe_open(file, "numpy"), file, config, dtype)


def weight_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of an encoder's weights."""
    width, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.weight": (config.vocab_size, width),
        "positions.weight": (config.max_positions, width),
    }
    sizes = {
        "qkv": (3 * width, width),
        "out": (width, width),
        "up": (inner, width),
        "down": (width, inner),
    }
    norms = ["norm"]
    for layer in {name for form in FORMS for name in config.layer_names(form)}:
        norms += [f"{layer}.attention_norm", f"{layer}.norm"]
        for name, size in sizes.items():
            shapes |= {f"{layer}.{name}.weight": size, f"{layer}.{name}.bias": size[:1]}
    return shapes | {f"{norm}.{part}": (width,) for norm in norms for part in ("weight", "bias")}


def bf16_bits(x: np.ndarray) -> NDArray[np.uint16]:
    """Return finite numbers rounded to bf16, ties to even, as bits."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(bits: NDArray[np.uint16]) -> Floats:
    """Return bf16 bits as fp32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _multiply(
    weight: matmul.FloatWeights, memory: StepMemory, x: ProductInputs, out: Numbers
) -> None:
    matmul.multiply(x.array, weight, out, memory)


def _multiply_bytes(
    weight: int8_matmul.Int8Weights, memory: StepMemory, x: ProductInputs, out: Numbers
) -> None:
    int8_matmul.multiply(*x, weight, out, memory)
