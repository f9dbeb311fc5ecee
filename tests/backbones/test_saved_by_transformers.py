"""Models saved by the classes of transformers, with and without an LM head, give the hidden states
of these classes; in segments and packed with others too. (tests/golden holds files that stay.)
"""

from itertools import pairwise

import pytest
import torch

from runnel.backbones.checkpoint.load import load_backbone

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

_MAMBA = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2}
_HEADS = {"num_heads": 8, "head_dim": 16, "state_size": 32}
CASES = {
    "MambaModel": ("MambaConfig", _MAMBA),
    "MambaForCausalLM": ("MambaConfig", _MAMBA),
    "Mamba2Model": ("Mamba2Config", _MAMBA | _HEADS | {"n_groups": 1}),
    "Mamba2ForCausalLM": ("Mamba2Config", _MAMBA | _HEADS | {"n_groups": 4}),
}


@pytest.mark.parametrize("name", CASES)
def test_hidden_states_are_those_of_the_class_that_saved_them(name, tmp_path):
    config, sizes = CASES[name]
    torch.manual_seed(0)
    theirs = getattr(transformers, name)(getattr(transformers, config)(**sizes)).eval()
    with torch.no_grad():
        for weight in theirs.parameters():  # also weights that are zeros or ones at first
            weight += 0.05 * torch.randn_like(weight)
    theirs.save_pretrained(tmp_path)
    ids = torch.randint(300, (150,))
    with torch.no_grad():
        expected = getattr(theirs, "backbone", theirs)(ids[None]).last_hidden_state[0].double()
    ours = load_backbone(tmp_path, dtype="float32", device="cpu")

    def away(hidden):
        return ((hidden.double() - expected).abs().max() / expected.abs().max()).item()

    with torch.no_grad():
        assert away(ours(ids)[0]) < 5e-6
        state = None
        parts = []
        for start, end in pairwise([0, 1, 8, 72, 102, 150]):
            hidden, state = ours(ids[start:end], state=state)
            parts.append(hidden)
        assert away(torch.cat(parts)) < 5e-6
        bounds = torch.tensor([0, 13, 163, 193])
        packed, _ = ours(torch.cat([ids[:13], ids, ids[20:50]]), bounds)
        assert away(packed[13:163]) < 5e-6
