"""State: rows, copies, files. The backbone's own use of states is tested with the goldens and the engine."""

import pytest
import torch
from safetensors.torch import save_file

from runnel.backbones.state import State
from runnel.errors import StateError


def make_state(rows: int = 3, seed: int = 0) -> State:
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        "conv": torch.randn(rows, 2, 5, 3, generator=generator),
        "ssm": torch.randn(rows, 2, 4, 2, 6, generator=generator),
    }
    return State(tensors, torch.arange(rows) + 10)


def assert_equal(left: State, right: State) -> None:
    assert left.tensors.keys() == right.tensors.keys()
    assert torch.equal(left.tokens, right.tokens)
    for name in left.tensors:
        assert torch.equal(left[name], right[name]), name


def test_rows_and_size() -> None:
    state = make_state(3)
    assert len(state) == 3
    assert state.bytes == 4 * 3 * (2 * 5 * 3 + 2 * 4 * 2 * 6)
    assert state.dtype == torch.float32
    with pytest.raises(StateError, match=r"'conv' has 3 rows but `tokens` has 2"):
        State(state.tensors, torch.zeros(2, dtype=torch.int64))


def test_select_copies_rows_in_order() -> None:
    state = make_state(3)
    picked = state.select([2, 0, 2])
    assert picked.tokens.tolist() == [12, 10, 12]
    assert torch.equal(picked["ssm"][1], state["ssm"][0])
    picked["ssm"].zero_()
    assert state["ssm"].abs().min() > 0  # the original keeps its memory
    assert len(state.select([])) == 0
    assert_equal(state.select(torch.tensor([0, 1, 2])), state)


def test_concatenate_undoes_select() -> None:
    state = make_state(4)
    assert_equal(State.concatenate([state.select([0]), state.select([]), state.select([1, 2, 3])]), state)
    with pytest.raises(StateError, match="at least one state"):
        State.concatenate([])


def test_fork_needs_one_row() -> None:
    one = make_state(1)
    forks = one.fork(3)
    assert len(forks) == 3
    assert all(torch.equal(forks["conv"][i], one["conv"][0]) for i in range(3))
    with pytest.raises(StateError, match=r"takes the state of one sequence, got 3; select\(\) one row first"):
        make_state(3).fork(2)


def test_clone_and_detach() -> None:
    state = make_state(2)
    clone = state.clone()
    clone["conv"].zero_()
    clone.tokens.zero_()
    assert_equal(state, make_state(2))
    state["conv"].requires_grad_()
    assert not state.detach()["conv"].requires_grad


def test_to_changes_floats_not_tokens() -> None:
    half = make_state(2).to(torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert half.tokens.dtype == torch.int64
    assert half.bytes * 2 == make_state(2).bytes
    assert_equal(make_state(2).to("cpu"), make_state(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_save_and_load_are_bit_exact(tmp_path, dtype: torch.dtype, rows: int) -> None:
    state = make_state(rows).to(dtype)
    extra = {"sum": torch.randn(7), "count": torch.tensor([3])}
    state.save(tmp_path / "s.safetensors", fingerprint="abc", extra=extra)
    loaded, found = State.load(tmp_path / "s.safetensors", fingerprint="abc")
    assert_equal(loaded, state)
    assert found.keys() == extra.keys()
    assert all(torch.equal(found[name], extra[name]) for name in extra)
    assert [path.name for path in tmp_path.iterdir()] == ["s.safetensors"]  # nothing half-written is left


def test_saving_again_replaces_the_file_under_a_loaded_state(tmp_path) -> None:
    path = tmp_path / "s.safetensors"
    make_state(seed=1).save(path, fingerprint="abc")
    loaded, _ = State.load(path, fingerprint="abc")
    make_state(seed=2).save(path, fingerprint="abc")
    assert_equal(loaded, make_state(seed=1))
    assert_equal(State.load(path, fingerprint="abc")[0], make_state(seed=2))


def test_another_models_state_is_refused(tmp_path) -> None:
    make_state().save(tmp_path / "s", fingerprint="a" * 40)
    with pytest.raises(StateError, match=r"saved by another model \(fingerprint aaaaaaaaaaaa, this model is bbbbbbbbbbbb\)"):
        State.load(tmp_path / "s", fingerprint="b" * 40)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_file_is_refused(tmp_path, keep: int) -> None:
    path = tmp_path / "s"
    make_state().save(path, fingerprint="abc")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(StateError, match="cannot read the saved state"):
        State.load(path, fingerprint="abc")


def test_other_files_are_refused(tmp_path) -> None:
    with pytest.raises(StateError, match="cannot read the saved state"):
        State.load(tmp_path / "absent", fingerprint="abc")
    save_file({"x": torch.zeros(1)}, tmp_path / "weights")
    with pytest.raises(StateError, match="is not a saved runnel state"):
        State.load(tmp_path / "weights", fingerprint="abc")
