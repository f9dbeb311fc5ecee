"""Hidden states of the reference implementations, for every published format. Segments, packing and
pools: tests/contracts.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from runnel.backbones.checkpoint.load import load_backbone

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDERS = sorted(path.parent.name for path in GOLDEN.glob("*/expected.safetensors"))
MAX_ABS, RELATIVE_RMS = 2e-4, 1e-5
assert len(FOLDERS) == 10, FOLDERS


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("path", ["torch", "fast"])
@pytest.mark.parametrize("training", [False, True])
def test_hidden_states(name: str, path: str, training: bool) -> None:
    backbone = load_backbone(GOLDEN / name, dtype="float32", device="cpu")
    if path == "torch":
        backbone.fast = None
    elif backbone.fast is None:
        pytest.skip("this backbone has no fused kernels, or this machine cannot run them")
    stored = load_file(GOLDEN / name / "expected.safetensors")
    ids = stored["input_ids"]
    expected = stored["hidden"]
    with torch.set_grad_enabled(training):
        hidden, state = backbone(ids)
    assert (hidden.dtype, hidden.shape, hidden.requires_grad) == (
        torch.float32,
        expected.shape,
        training,
    )
    difference = (hidden.detach() - expected).double()
    assert difference.abs().max() < MAX_ABS
    assert (
        difference.square().mean().sqrt() / expected.double().square().mean().sqrt() < RELATIVE_RMS
    )
    assert state.tokens.tolist() == [len(ids)]


@pytest.mark.parametrize(
    "pair",
    ["mamba1 hf original", "mamba2 hf original", "codestral hf native", "rwkv7 fla official"],
)
def test_formats_of_one_model_give_one_backbone(pair: str) -> None:
    model, *layouts = pair.split()
    left, right = (
        load_backbone(GOLDEN / f"{model}-tiny-{layout}", dtype="float32", device="cpu")
        for layout in layouts
    )
    assert left.fingerprint() == right.fingerprint() and left.config == right.config
