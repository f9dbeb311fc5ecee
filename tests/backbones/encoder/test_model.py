"""The encoder is BERT: the transformers library's model is what it must agree with. What all
backbones share is in contracts.

Other upper layers for sentences and for judging: each form is what an encoder with these layers
alone is.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from helpers.children import run_python
from helpers.tiny_backbones import (
    NO_INT8,
    VOCABULARY,
    assert_close,
    cumulative,
    tiny_backbone,
    token_ids,
)
from helpers.tiny_transformers import LONGEST, library_class, write_transformer
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from runnel.backbones.checkpoint.load import build_backbone, load_backbone
from runnel.backbones.encoder.config import FORMS, EncoderConfig, Form
from runnel.backbones.encoder.cpu import EncoderCpu
from runnel.backbones.encoder.model import Encoder
from runnel.engine import Engine, Request
from runnel.errors import InputError, StateError

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")

TINY = EncoderConfig(
    VOCABULARY, 32, 3, num_heads=2, intermediate_size=64, max_positions=72, passage_tokens=16
)
LENGTHS = (9, 0, 1, 70, 3, 9)
OWN: list[tuple[str, Form]] = [
    ("sentence_layers", "sentences"),
    ("judge_layers", "judge"),
    ("pair_layers", "pair"),
]


def written(folder: Path, kind: str, *head: str) -> tuple[Path, Any]:
    write_transformer(folder, kind, *head)
    return (
        folder,
        library_class(kind, "Model")
        .from_pretrained(folder, attn_implementation="eager")
        .double()
        .eval(),
    )


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta"])
def test_equals_the_library_in_double_precision(tmp_path: Path, kind: str) -> None:
    folder, theirs = written(tmp_path, kind)
    ours = load_backbone(folder, "float64", "cpu")
    assert ours.max_tokens == LONGEST  # RoBERTa has two positions more, which belong to padding
    for length in (1, 7, LONGEST):
        # no padding, whose position the library leaves out
        ids = token_ids(length, seed=length) + 2
        with torch.no_grad():
            expected = theirs(input_ids=ids[None]).last_hidden_state[0]
            hidden, state = ours(ids)
        assert_close(hidden, expected, 1e-10)
        assert state.tensors == {} and state.tokens.tolist() == [length]


def test_heads_prefixes_and_the_names_of_the_first_files_are_read_past_without_the_library(
    tmp_path: Path,
) -> None:
    folder, theirs = written(tmp_path, "bert", "ForPreTraining")
    expected = theirs(input_ids=token_ids(9)[None]).last_hidden_state[0].detach()
    weights = load_file(folder / "model.safetensors")
    assert any(name.startswith("bert.") for name in weights)
    old = {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): one
        for name, one in weights.items()
    }
    for tensors in (weights, old):
        save_file(tensors, folder / "model.safetensors")
        with torch.no_grad():
            assert_close(load_backbone(folder, "float64", "cpu")(token_ids(9))[0], expected, 1e-10)
    code = "import sys; from runnel.backbones.checkpoint.load import load_backbone; "
    code += (
        f"load_backbone({str(folder)!r}, 'float32', 'cpu'); assert 'transformers' not in"
        " sys.modules"
    )
    run_python("-c", code)


def test_a_state_or_too_long_a_sequence_is_refused() -> None:
    encoder = tiny_backbone(Encoder, TINY).eval()
    nowhere = torch.tensor([-1])
    with pytest.raises(StateError, match=r"Encoder .*no state"):
        encoder(token_ids(3), state=encoder(token_ids(3))[1])
    with pytest.raises(StateError, match="no state"):
        encoder.step(
            token_ids(3), cumulative((3,)), encoder.new_state(1), torch.tensor([0]), nowhere
        )
    for call in (
        lambda: encoder(token_ids(76), cumulative((3, 73))),
        lambda: encoder.step(
            token_ids(73), cumulative((73,)), encoder.new_state(1), nowhere, nowhere
        ),
        lambda: encoder.step_forms(token_ids(73).numpy(), cumulative((73,)).numpy(), ("judge",)),
        lambda: Engine(encoder).run([Request(token_ids(73).numpy())]),
    ):
        with pytest.raises(
            InputError,
            match=r"73 tokens .*Encoder .* 72",
        ):
            call()


def test_a_shortened_encoder_reads_the_same() -> None:
    whole, short = (tiny_backbone(Encoder, TINY) for _ in range(2))
    short.shorten(40)
    torch.testing.assert_close(short(token_ids(40))[0], whole(token_ids(40))[0])
    assert short.max_tokens == short.config.max_positions == len(short.positions.weight) == 40
    with pytest.raises(InputError, match=r"has 41 tokens .* reads at most 40"):
        short(token_ids(41))


def test_operations_are_counted_and_are_those_of_one_form() -> None:
    plain, more = (
        tiny_backbone(Encoder, c) for c in (TINY, replace(TINY, sentence_layers=2, judge_layers=3))
    )
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        plain(token_ids(60))
    assert plain.flops(60) == more.flops(60) == counter.get_total_flops()
    assert len(plain.linear_layers()) == len(more.linear_layers()) == 12
    assert plain.step_bytes_per_token == more.step_bytes_per_token


# ---- forms ---------------------------------------------------------------------------------------


def weights_of(
    config: EncoderConfig, own: str = ""
) -> tuple[dict[str, Tensor], EncoderConfig, dict[str, Tensor]]:
    """The weights of an encoder, and the plain encoder that its form with these layers of its own
    is, or that of texts.
    """
    weights = tiny_backbone(Encoder, config).state_dict()
    plain = {
        name: value
        for name, value in weights.items()
        if not name.startswith(tuple(own for own, _ in OWN))
    }
    shared = config.num_layers - (config.to_dict()[own] if own else 0)
    for name, value in weights.items():
        if own and name.startswith(own):
            _, number, rest = name.split(".", 2)
            plain[f"layers.{shared + int(number)}.{rest}"] = value
    return weights, replace(config, sentence_layers=0, judge_layers=0, pair_layers=0), plain


def built(config: EncoderConfig, weights: dict[str, Tensor], dtype: str, kernels: bool) -> Encoder:
    if dtype == "int8" and NO_INT8:
        pytest.skip("no 8-bit products here")
    model = cast("Encoder", build_backbone("encoder", config.to_dict(), weights, dtype, "cpu"))
    assert isinstance(model.fast, EncoderCpu)
    model.fast = model.fast if kernels else None
    return model


def read(model: Encoder, lengths: tuple[int, ...], forms: tuple[Form, ...] = ()) -> Tensor:
    ids = token_ids(sum(lengths))
    cu = cumulative(lengths)
    nowhere = torch.full((len(lengths),), -1)
    return (
        torch.from_numpy(model.step_forms(ids.numpy(), cu.numpy(), forms))
        if forms
        else model.step(ids, cu, model.new_state(1), nowhere, nowhere)
    )


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(
    ("sentences", "judge", "pair"), [(2, 0, 1), (1, 2, 0), (2, 3, 2), (0, 1, 3), (3, 3, 3)]
)
def test_each_form_is_an_encoder_of_its_own(
    dtype: str, kernels: bool, sentences: int, judge: int, pair: int
) -> None:
    config = replace(TINY, sentence_layers=sentences, judge_layers=judge, pair_layers=pair)
    all_forms = built(config, weights_of(config)[0], dtype, kernels)
    expected = {"texts": read(built(*weights_of(config)[1:], dtype, kernels), LENGTHS)}
    for own, form in OWN:
        alone = built(*weights_of(config, own)[1:], dtype, kernels)
        assert len(all_forms.get_submodule(own)) == config.to_dict()[own]
        expected[form] = read(alone, LENGTHS)
        assert torch.equal(expected[form], expected["texts"]) == (config.to_dict()[own] == 0)
    assert torch.equal(read(all_forms, LENGTHS), expected["texts"])
    for forms in [
        *((form,) for form in FORMS),
        ("texts", "sentences"),
        ("texts", "judge"),
        ("judge", "sentences", "texts"),
    ]:
        assert torch.equal(
            read(all_forms, LENGTHS, forms), torch.cat([expected[form] for form in forms], dim=1)
        )
    assert read(all_forms, (), ("judge",)).shape == (0, 32) and read(
        all_forms, (0, 0), ("texts", "judge")
    ).shape == (0, 64)


def test_gradients_of_an_upper_form_reach_it_alone() -> None:
    config = replace(TINY, sentence_layers=1, judge_layers=2)
    model = built(config, weights_of(config)[0], "float32", kernels=False)
    ids = token_ids(sum(LENGTHS))
    cu = cumulative(LENGTHS)
    for own, form in OWN[:2]:
        hidden = model.read_with(getattr(model, own), ids, cu)
        assert_close(hidden.detach(), read(model, LENGTHS, (form,)), 1e-5)
        hidden.square().sum().backward()
        assert {
            name.partition(".")[0] for name, p in model.named_parameters() if p.grad is not None
        } == {own}
        model.zero_grad()
