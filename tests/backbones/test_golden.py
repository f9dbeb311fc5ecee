"""Hidden states of the reference implementations, for every published format: whole, segmented, token by token, packed."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint.load import load_backbone

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDERS = sorted(path.parent.name for path in GOLDEN.glob("*/expected.safetensors"))
MAX_ABS, RELATIVE_RMS = 2e-4, 1e-5


class Case:
    """A checkpoint in fp32 and what its reference implementation gave."""

    def __init__(self, name: str, path: str, dtype: str = "float32") -> None:
        self.backbone: Backbone = load_backbone(GOLDEN / name, dtype=dtype, device="cpu")
        if path == "torch":
            self.backbone.fast = None
        elif self.backbone.fast is None:
            pytest.skip("this backbone has no fused kernels, or this machine cannot run them")
        expected = load_file(GOLDEN / name / "expected.safetensors")
        self.ids: Tensor = expected["input_ids"]
        self.hidden: Tensor = expected["hidden"]

    def agrees(self, hidden: Tensor, expected: Tensor | None = None) -> None:
        expected = self.hidden if expected is None else expected
        assert hidden.dtype == torch.float32
        assert hidden.shape == expected.shape
        difference = (hidden - expected).double()
        assert difference.abs().max() < MAX_ABS
        assert difference.square().mean().sqrt() / expected.double().square().mean().sqrt() < RELATIVE_RMS


@pytest.fixture(params=["torch", "fast"])
def path(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=FOLDERS)
def case(request: pytest.FixtureRequest, path: str) -> Case:
    return Case(request.param, path)


def test_every_folder_is_here() -> None:
    assert {"mamba1-tiny-hf", "mamba1-tiny-original", "mamba2-tiny-hf", "mamba2-tiny-original"} <= set(FOLDERS)
    assert {"codestral-tiny-hf", "codestral-tiny-native"} <= set(FOLDERS)
    assert {"rwkv7-tiny-official", "rwkv7-tiny-fla", "xlstm-tiny-hf"} <= set(FOLDERS)
    assert {"mamba3-tiny-original", "mamba3-mimo-tiny-original", "embedding-rwkv-tiny"} <= set(FOLDERS)


@torch.no_grad()
def test_whole(case: Case) -> None:
    hidden, state = case.backbone(case.ids)
    case.agrees(hidden)
    assert state.tokens.tolist() == [len(case.ids)]


def test_whole_while_training(case: Case) -> None:
    hidden, _ = case.backbone(case.ids)
    case.agrees(hidden.detach())
    assert hidden.requires_grad


@pytest.mark.parametrize("length", [1, 2, 3, 5, 17, 64])
@pytest.mark.parametrize(
    "name", [name for name in FOLDERS if name.endswith(("-hf", "-official")) or name.startswith("mamba3")]
)  # other formats give the same backbone: below
@torch.no_grad()
def test_segments(name: str, path: str, length: int) -> None:
    case = Case(name, path)
    state, parts = None, []
    for ids in case.ids.split(length):
        hidden, state = case.backbone(ids, state=state)
        parts.append(hidden)
    case.agrees(torch.cat(parts))
    _, whole = case.backbone(case.ids)
    for name, tensor in whole.tensors.items():
        torch.testing.assert_close(state[name], tensor, atol=2 * MAX_ABS, rtol=1e-4)  # rounding differs by processor


@torch.no_grad()
def test_packed_with_other_sequences(case: Case) -> None:
    ids, hidden, total = case.ids, case.hidden, len(case.ids)
    others = [ids.flip(0)[:7], ids[:0], ids[5:6]]
    packed = torch.cat([others[0], ids, others[1], ids[:20], others[2]])
    ends = torch.tensor([0, 7, 7 + total, 7 + total, 27 + total, 28 + total])
    out, state = case.backbone(packed, ends)
    case.agrees(out[7 : 7 + total])
    case.agrees(out[7 + total : 27 + total], hidden[:20])
    assert state.tokens.tolist() == [7, total, 0, 20, 1]
    assert all(not tensor[2].any() for tensor in state.tensors.values())  # an empty sequence keeps the zero state


@torch.no_grad()
def test_packed_segments_of_unequal_length(case: Case) -> None:
    """Two readers of one text at different speeds, packed in the same steps."""
    fast, slow = list(case.ids.split(11)), list(case.ids.split(4))
    state, parts = None, ([], [])
    for index in range(max(len(fast), len(slow))):
        pieces = [split[index] if index < len(split) else case.ids[:0] for split in (fast, slow)]
        ends = torch.tensor([0, len(pieces[0]), len(pieces[0]) + len(pieces[1])])
        hidden, state = case.backbone(torch.cat(pieces), ends, state)
        parts[0].append(hidden[: ends[1]])
        parts[1].append(hidden[ends[1] :])
    for part in parts:
        case.agrees(torch.cat(part))


def test_steps_through_a_pool(case: Case) -> None:
    """`step`: rows anywhere in a pool, a fork without a copy, and an end state that is not wanted."""
    backbone, ids = case.backbone, case.ids
    pool = backbone.new_state(4)
    for tensor in pool.tensors.values():
        tensor.fill_(7.0)  # what another sequence left behind
    none, rows = torch.tensor([-1]), torch.tensor([2])
    first = backbone.step(ids[:30], torch.tensor([0, 30]), pool, none, rows)
    both = torch.cat([ids[30:], ids[30:50]])
    ends = torch.tensor([0, len(ids) - 30, len(ids) - 10])
    second = backbone.step(both, ends, pool, torch.tensor([2, 2]), torch.tensor([0, -1]))
    case.agrees(torch.cat([first, second[: ends[1]]]))
    case.agrees(torch.cat([first, second[ends[1] :]]), case.hidden[:50])
    assert pool.tokens.tolist()[0] == len(ids)
    assert all(bool((tensor[[1, 3]] == 7).all()) for tensor in pool.tensors.values())  # other rows are untouched


@pytest.mark.parametrize("name", FOLDERS)
@torch.no_grad()
def test_bf16_stays_close(name: str, path: str) -> None:
    """The default on processors with native bf16: same direction as fp32, token by token."""
    case = Case(name, path, "bfloat16")
    hidden, state = case.backbone(case.ids)
    assert hidden.dtype == torch.float32
    assert state.dtype == torch.float32
    cosine = torch.cosine_similarity(hidden, case.hidden, dim=-1)
    assert cosine.mean() > 0.9995
    # xLSTM divides by n.q: where that nearly cancels, the rounding of the linear layers is magnified.
    assert cosine.min() > (0.995 if name.startswith("xlstm") else 0.999)


@pytest.mark.parametrize(
    "pair",
    [
        ("mamba1-tiny-hf", "mamba1-tiny-original"),
        ("mamba2-tiny-hf", "mamba2-tiny-original"),
        ("codestral-tiny-hf", "codestral-tiny-native"),
        ("rwkv7-tiny-fla", "rwkv7-tiny-official"),
    ],
)
def test_formats_of_one_model_give_one_backbone(pair: tuple[str, str]) -> None:
    left, right = (load_backbone(GOLDEN / name, dtype="float32", device="cpu") for name in pair)
    assert left.fingerprint() == right.fingerprint()
    assert left.config == right.config
