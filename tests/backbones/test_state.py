"""State: rows and copies. The backbone's own use of states is tested with the goldens and the engine."""

import pytest
import torch

from runnel.backbones.state import State
from runnel.errors import StateError


def make_state(rows: int = 3, seed: int = 0) -> State:
    generator = torch.Generator().manual_seed(seed)
    tensors = {"conv": torch.randn(rows, 2, 5, 3, generator=generator), "ssm": torch.randn(rows, 2, 4, 2, 6, generator=generator)}
    return State(tensors, torch.arange(rows) + 10)


def assert_equal(left: State, right: State) -> None:
    assert left.tensors.keys() == right.tensors.keys()
    assert torch.equal(left.tokens, right.tokens)
    for name in left.tensors:
        assert torch.equal(left[name], right[name]), name


def test_rows_and_size() -> None:
    state = make_state(3)
    assert (len(state), state.bytes, state.dtype) == (3, 4 * 3 * (2 * 5 * 3 + 2 * 4 * 2 * 6), torch.float32)
    with pytest.raises(StateError, match=r"'conv': \(3, 2, 5, 3\).*expected .*'conv': \(2, 2, 5, 3\)"):
        State(state.tensors, torch.zeros(2, dtype=torch.int64)).check({"conv": (2, 5, 3), "ssm": (2, 4, 2, 6)})


def test_select_copies_rows_in_order_and_concatenate_joins_them() -> None:
    state = make_state(3)
    picked = state.select([2, 0, 2])
    assert picked.tokens.tolist() == [12, 10, 12]
    assert torch.equal(picked["ssm"][1], state["ssm"][0])
    picked["ssm"].zero_()
    assert state["ssm"].abs().min() > 0  # the original keeps its memory
    assert len(state.select([])) == 0
    assert_equal(State.concatenate([state.select(torch.tensor([0])), state.select([]), state.select([1, 2])]), state)


def test_copies_have_their_own_memory_and_floats_alone_change_dtype() -> None:
    state = make_state(2)
    clone = state.clone()
    clone["conv"].zero_()
    clone.tokens.zero_()
    assert_equal(state, make_state(2))
    state["conv"].requires_grad_()
    assert not state.detach()["conv"].requires_grad
    half = make_state(2).to(torch.bfloat16)
    assert (half.dtype, half.tokens.dtype) == (torch.bfloat16, torch.int64)
    assert half.bytes * 2 == make_state(2).bytes
    assert_equal(make_state(2).to("cpu"), make_state(2))
