"""Products in bf16, by tiles and by vectors, and in fp32 against fp64, and the weights that go into
them.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numba import njit
from numba.core.errors import TypingError
from torch import Tensor

from runnel.ops.matmul import FloatWeights, multiply, pack, pack_floats
from runnel.ops.numba_math import StepMemory, aligned_zeros, as_array, parallel
from runnel.ops.simd import BLOCK, address

pytestmark = pytest.mark.usefixtures("tiles")
SIZES = [
    (1, 1, 1),
    (2, 31, 33),
    (9, 33, 47),
    (33, 70, 64),
    (0, 8, 8),
    (65, 1, 384),
    (300, 384, 100),
    (129, 40, 1537),
]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """The dtype of the factors."""
    return request.param


def unpack(w: FloatWeights, inputs: int) -> np.ndarray:
    """Return the bf16 bits (N, K) that were packed, with K = `inputs`."""
    numbers = w.words.view(np.uint16).reshape(*w.words.shape, 2).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(numbers.reshape(-1, 2 * w.words.shape[1])[: w.outputs, :inputs])


def product(x: Tensor, weight: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    out = torch.full((len(x) + 1, len(weight)), 7.0, dtype=dtype)
    packed = (
        pack_floats(as_array(weight)) if weight.dtype == torch.float32 else pack(as_array(weight))
    )
    with parallel():
        multiply(as_array(x), packed, as_array(out)[: len(x)], StepMemory())
    assert bool((out[len(x)] == 7).all())  # nothing is written behind the end
    return out[: len(x)]


@pytest.mark.parametrize(("tokens", "outputs", "inputs"), SIZES)
def test_products(tokens: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    """A product of bf16 numbers is exact in fp32; each of K additions rounds by at most 2^-24 of
    what is summed, in any order.
    """
    x = drawn(tokens, inputs).to(dtype)
    weight = drawn(outputs, inputs, seed=1).to(dtype)
    exact = x.double() @ weight.double().T
    bound = inputs * 2.0**-24 * (x.double().abs() @ weight.double().abs().T)
    found = product(x, weight)
    assert bool(((found.double() - exact).abs() <= bound).all())
    assert torch.equal(product(x, weight, torch.bfloat16), found.bfloat16())


@pytest.mark.parametrize(("outputs", "inputs"), [(65, 36), (64, 416)])
def test_tokens_are_independent(
    outputs: int, inputs: int, dtype: torch.dtype, workers: Callable[[int], None]
) -> None:
    x = drawn(1300, inputs).to(dtype) / 3
    weight = drawn(outputs, inputs, seed=1).to(dtype) / 3
    whole = product(x, weight)
    for count in (1, 3):
        workers(count)
        assert torch.equal(product(x, weight), whole)
    for first, stop in ((0, 1), (17, 18), (5, 20), (64, 64 + BLOCK), (3, 50), (700, 1299)):
        assert torch.equal(product(x[first:stop], weight), whole[first:stop])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_damage_stays_in_its_row_and_column(value: float, dtype: torch.dtype) -> None:
    x = drawn(40, 50).to(dtype)
    weight = drawn(33, 50, seed=1).to(dtype)
    x[37, 49], weight[3, 0] = value, value
    damaged = ~product(x, weight).isfinite()
    expected = torch.zeros(40, 33, dtype=torch.bool)
    expected[37], expected[:, 3] = True, True
    assert torch.equal(damaged, expected)


@pytest.mark.parametrize("tokens", [1, 37, 70])
def test_rows_may_be_columns_of_a_wider_matrix(tokens: int, dtype: torch.dtype) -> None:
    wide = drawn(tokens, 200).to(dtype)
    weight = drawn(33, 64, seed=1).to(dtype)
    assert torch.equal(
        product(wide[:, 64:128], weight), product(wide[:, 64:128].contiguous(), weight)
    )


def test_an_address_of_rows_that_are_apart_is_refused() -> None:
    @njit
    def first(array: np.ndarray) -> float:
        return address(array)[0]

    assert first(np.ones((2, 4))) == 1
    with pytest.raises(TypingError, match="not C-contiguous"):
        first(np.ones((2, 4))[:, :2])


def test_memory_behind_the_inputs_is_not_read() -> None:
    """Whether they start on a cache line or not."""
    weight = drawn(33, 64, seed=1)
    for first in (0, 1):
        memory = aligned_zeros(first + 37 * 64 + 4096, dtype=np.uint16)
        memory[:] = 0x7FC0  # NaN
        x = memory[first : first + 37 * 64].reshape(37, 64)
        x[:] = as_array(drawn(37, 64))
        assert torch.equal(
            product(torch.from_numpy(x).view(torch.bfloat16), weight),
            product(drawn(37, 64), weight),
        )


@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (16, 32), (33, 47), (70, 65), (0, 5)])
def test_every_bit_of_the_weights_is_kept(outputs: int, inputs: int) -> None:
    weight = np.random.default_rng(0).integers(0, 2**16, (outputs, inputs), np.uint16)
    assert np.array_equal(unpack(pack(weight), inputs), weight)


def test_weights_of_8_bits_are_torchs() -> None:
    q = torch.arange(-128, 128).to(torch.int8).repeat(45, 1)[:, :255].contiguous()
    scale = torch.rand(45, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(
        45
    ).sub(38).clamp(max=0)
    expected = as_array((q.float() * scale[:, None]).to(torch.bfloat16))  # with denormal numbers
    assert np.array_equal(unpack(pack(q.numpy(), scale.numpy()), 255), expected)
