"""Hidden states of the reference implementations, for every published format. Segments, packing and pools: tests/contracts."""

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

    def agrees(self, hidden: Tensor) -> None:
        assert hidden.dtype == torch.float32
        assert hidden.shape == self.hidden.shape
        difference = (hidden - self.hidden).double()
        assert difference.abs().max() < MAX_ABS
        assert difference.square().mean().sqrt() / self.hidden.double().square().mean().sqrt() < RELATIVE_RMS


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
