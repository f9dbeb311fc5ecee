"""`EncoderStep` with the weights of torch's `Encoder`; its fp32 and bf16 products are torch's."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from runnel.backbones.base import weight_dtype
from runnel.backbones.cpu_step import Activations, Product
from runnel.backbones.encoder.arrays import ArrayProduct, EncoderStep, Floats, ProductInputs
from runnel.backbones.encoder.config import Form
from runnel.backbones.encoder.model import Encoder
from runnel.backbones.int8 import Int8Linear
from runnel.backbones.state import State
from runnel.ops.numba_math import Numbers, StepMemory, float_array, index_array


class _ModelWeights:
    """The `EncoderWeights` of torch's `Encoder`."""

    def __init__(self, model: Encoder) -> None:
        self._model = model
        self.config = model.config
        dtype = weight_dtype(model.blocks[0].qkv)
        self.in_8_bits = dtype == torch.int8
        between = model.embeddings.weight.dtype if self.in_8_bits else dtype
        self.numbers: type[np.generic] = np.uint16 if between == torch.bfloat16 else np.float32

    def floats(self, name: str) -> Floats:
        """See `EncoderWeights`."""
        return float_array(self._model.get_parameter(name))

    def product(self, name: str, groups: int, memory: StepMemory) -> ArrayProduct:
        """See `EncoderWeights`; the weight stays the model's own."""
        layer = self._model.get_submodule(name)
        assert isinstance(layer, nn.Linear | Int8Linear)
        return partial(_multiply, Product(layer, memory, groups, bias=False))


class EncoderCpu:
    """The `FastPath` of `Encoder`."""

    def __init__(self, model: Encoder) -> None:
        self._step = EncoderStep(_ModelWeights(model))

    def step(
        self, hidden: Tensor, cu_seqlens: Tensor, pool: State, read_rows: Tensor, write_rows: Tensor
    ) -> Tensor:
        """See `FastPath.step`; there is no state."""
        return self.step_forms(hidden, cu_seqlens, ("texts",))

    def step_forms(self, hidden: Tensor, cu_seqlens: Tensor, forms: Sequence[Form]) -> Tensor:
        """Return what `Encoder.step_forms` returns (`config.py` explains forms), for the embeddings
        `hidden` (T, D), which may be overwritten.
        """
        return torch.from_numpy(
            self._step.step_forms(
                hidden.float().contiguous().numpy(), index_array(cu_seqlens), forms
            )
        )


def _multiply(product: Product, x: ProductInputs, out: Numbers) -> None:
    """Run a torch product on arrays. Outputs have no scale, so the scale given with `out` is not
    used.
    """
    product(Activations(_tensor(x.array), *x), Activations(_tensor(out), out, x.scale))


def _tensor(array: np.ndarray) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor
