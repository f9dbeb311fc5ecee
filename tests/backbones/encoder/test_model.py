"""The encoder is BERT: the transformers library's model is what it must agree with. What all backbones share is in contracts."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny_backbones import CONFIGS, assert_close, cumulative, tiny_backbone, token_ids
from helpers.tiny_transformers import LONGEST, library_class, write_transformer
from safetensors.torch import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from runnel.backbones.checkpoint.load import load_backbone
from runnel.backbones.encoder.model import Encoder
from runnel.engine import Engine, Request
from runnel.errors import InputError, StateError

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")

TINY = CONFIGS["encoder"]["tiny"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    return written(tmp_path_factory.mktemp("bert"), "bert")


def written(folder: Path, kind: str, **changes: Any) -> tuple[Path, Any]:
    write_transformer(folder, kind, **changes)
    return folder, library_class(kind, "Model").from_pretrained(folder, attn_implementation="eager").double().eval()


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta"])
def test_equals_the_library_in_double_precision(tmp_path: Path, kind: str) -> None:
    folder, theirs = written(tmp_path, kind)
    ours = load_backbone(folder, "float64", "cpu")
    assert ours.max_tokens == LONGEST  # RoBERTa has two positions more, which belong to padding
    for length in (1, 7, LONGEST):
        ids = token_ids(length, seed=length) + 2  # no padding, whose position the library leaves out
        with torch.no_grad():
            expected = theirs(input_ids=ids[None]).last_hidden_state[0]
            hidden, state = ours(ids)
        assert_close(hidden, expected, 1e-10)
        assert state.tensors == {} and state.tokens.tolist() == [length]


def test_loading_needs_no_library(bert: tuple[Path, Any]) -> None:
    code = "import sys; from runnel.backbones.checkpoint.load import load_backbone; "
    code += f"load_backbone({str(bert[0])!r}, 'float32', 'cpu'); assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_state_or_too_long_a_sequence_is_refused() -> None:
    encoder, nowhere = tiny_backbone(Encoder, TINY).eval(), torch.tensor([-1])
    with pytest.raises(StateError, match="Encoder reads a text only whole: it has no state"):
        encoder(token_ids(3), state=encoder(token_ids(3))[1])
    with pytest.raises(StateError, match="no state"):
        encoder.step(token_ids(3), cumulative((3,)), encoder.new_state(1), torch.tensor([0]), nowhere)
    for call in (
        lambda: encoder(token_ids(76), cumulative((3, 73))),
        lambda: encoder.step(token_ids(73), cumulative((73,)), encoder.new_state(1), nowhere, nowhere),
        lambda: Engine(encoder).run([Request(token_ids(73).numpy())]),
    ):
        with pytest.raises(InputError, match="has 73 tokens with its special ones, and this Encoder reads at most 72"):
            call()


def test_operations_are_counted() -> None:
    encoder, ids = tiny_backbone(Encoder, TINY), token_ids(60)
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        encoder(ids)
    assert encoder.flops(60) == counter.get_total_flops()


def test_heads_prefixes_and_the_names_of_the_first_files_are_read_past(tmp_path: Path) -> None:
    folder, theirs = tmp_path / "old", library_class("bert", "Model")
    write_transformer(folder, "bert", "ForPreTraining")
    expected = theirs.from_pretrained(folder).double().eval()(input_ids=token_ids(9)[None]).last_hidden_state[0].detach()
    weights = load_file(folder / "model.safetensors")
    assert any(name.startswith("bert.") for name in weights)
    old = {name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): one for name, one in weights.items()}
    for tensors in (weights, old):
        save_file(tensors, folder / "model.safetensors")
        with torch.no_grad():
            assert_close(load_backbone(folder, "float64", "cpu")(token_ids(9))[0], expected, 1e-10)


def test_a_shortened_encoder_reads_the_same(bert: tuple[Path, Any]) -> None:
    whole, short = (load_backbone(bert[0], "float32", "cpu") for _ in range(2))
    assert isinstance(short, Encoder)
    short.shorten(9)
    torch.testing.assert_close(short(token_ids(9))[0], whole(token_ids(9))[0])
    assert (short.max_tokens, short.config.max_positions, len(short.positions.weight)) == (9, 9, 9)
    with pytest.raises(InputError, match=r"has 10 tokens .* reads at most 9"):
        short(token_ids(10))
