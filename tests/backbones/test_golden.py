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
assert len(FOLDERS) == 12, FOLDERS

every_folder = pytest.mark.parametrize("name", FOLDERS)
every_path = pytest.mark.parametrize("path", ["torch", "fast"])


def loaded(name: str, path: str, dtype: str = "float32") -> tuple[Backbone, Tensor, Tensor]:
    """A checkpoint on this path, token ids, and the hidden states that its reference implementation gave for them."""
    backbone = load_backbone(GOLDEN / name, dtype=dtype, device="cpu")
    if path == "torch":
        backbone.fast = None
    elif backbone.fast is None:
        pytest.skip("this backbone has no fused kernels, or this machine cannot run them")
    expected = load_file(GOLDEN / name / "expected.safetensors")
    return backbone, expected["input_ids"], expected["hidden"]


@every_folder
@every_path
@pytest.mark.parametrize("training", [False, True])
def test_hidden_states(name: str, path: str, training: bool) -> None:
    backbone, ids, expected = loaded(name, path)
    with torch.set_grad_enabled(training):
        hidden, state = backbone(ids)
    assert (hidden.dtype, hidden.shape, hidden.requires_grad) == (torch.float32, expected.shape, training)
    difference = (hidden.detach() - expected).double()
    assert difference.abs().max() < MAX_ABS
    assert difference.square().mean().sqrt() / expected.double().square().mean().sqrt() < RELATIVE_RMS
    assert state.tokens.tolist() == [len(ids)]


@pytest.mark.parametrize(
    ("name", "path"),
    [(name, "torch") for name in FOLDERS]
    + [pytest.param(name, "fast", marks=[pytest.mark.slow] * ("rwkv" in name or "mamba1" in name)) for name in FOLDERS],
)  # kernels of rwkv7 and mamba1 take long to compile once more
@torch.no_grad()
def test_bf16_stays_close(name: str, path: str) -> None:
    """The default on processors with native bf16: same direction as fp32, token by token."""
    backbone, ids, expected = loaded(name, path, "bfloat16")
    hidden, state = backbone(ids)
    assert hidden.dtype == state.dtype == torch.float32
    cosine = torch.cosine_similarity(hidden, expected, dim=-1)
    assert cosine.mean() > 0.9995
    # xLSTM divides by n.q: where that nearly cancels, the rounding of the linear layers is magnified.
    assert cosine.min() > (0.995 if name.startswith("xlstm") else 0.999)


@pytest.mark.parametrize("pair", ["mamba1 hf original", "mamba2 hf original", "codestral hf native", "rwkv7 fla official"])
def test_formats_of_one_model_give_one_backbone(pair: str) -> None:
    model, *layouts = pair.split()
    left, right = (load_backbone(GOLDEN / f"{model}-tiny-{layout}", dtype="float32", device="cpu") for layout in layouts)
    assert left.fingerprint() == right.fingerprint() and left.config == right.config
