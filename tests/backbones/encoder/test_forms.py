"""Other upper layers for sentences and for judging: each form is what an encoder with these layers alone is."""

from dataclasses import replace
from typing import cast

import pytest
import torch
from helpers.tiny_backbones import VOCABULARY, assert_close, cumulative, tiny_backbone, token_ids
from torch import Tensor

from runnel.backbones.checkpoint.load import build_backbone
from runnel.backbones.encoder.cpu import EncoderCpu
from runnel.backbones.encoder.layout import FORMS, EncoderConfig, Form
from runnel.backbones.encoder.model import Encoder
from runnel.backbones.int8 import int8_problem
from runnel.errors import InputError

FORMED = EncoderConfig(VOCABULARY, 32, 3, num_heads=2, intermediate_size=64, max_positions=72, passage_tokens=16)
LENGTHS = (9, 0, 1, 70, 3, 9)
OWN = [("sentence_layers", "sentences"), ("judge_layers", "judge"), ("pair_layers", "pair")]


def weights_of(config: EncoderConfig, own: str = "") -> tuple[dict[str, Tensor], EncoderConfig, dict[str, Tensor]]:
    """The weights of an encoder, and the plain encoder that its form with these layers of its own is, or that of texts."""
    weights = tiny_backbone(Encoder, config).state_dict()
    plain = {name: value for name, value in weights.items() if not name.startswith(tuple(own for own, _ in OWN))}
    shared = config.num_layers - (config.to_dict()[own] if own else 0)
    for name, value in weights.items():
        if own and name.startswith(own):
            _, number, rest = name.split(".", 2)
            plain[f"layers.{shared + int(number)}.{rest}"] = value
    return weights, replace(config, sentence_layers=0, judge_layers=0, pair_layers=0), plain


def built(config: EncoderConfig, weights: dict[str, Tensor], dtype: str, kernels: bool) -> Encoder:
    if dtype == "int8" and int8_problem(torch.device("cpu")):
        pytest.skip("no 8-bit products here")
    model = cast("Encoder", build_backbone("encoder", config.to_dict(), weights, dtype, "cpu"))
    assert isinstance(model.fast, EncoderCpu) or dtype == "float64"
    model.fast = model.fast if kernels else None
    return model


def read(model: Encoder, lengths: tuple[int, ...], forms: tuple[Form, ...] = ()) -> Tensor:
    ids, cu = token_ids(sum(lengths)), cumulative(lengths)
    nowhere = torch.full((len(lengths),), -1)
    return model.step_forms(ids, cu, forms=forms) if forms else model.step(ids, cu, model.new_state(1), nowhere, nowhere)


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("sentences", "judge", "pair"), [(2, 0, 1), (1, 2, 0), (2, 3, 2), (0, 1, 3), (3, 3, 3)])
def test_each_form_is_an_encoder_of_its_own(dtype: str, kernels: bool, sentences: int, judge: int, pair: int) -> None:
    config = replace(FORMED, sentence_layers=sentences, judge_layers=judge, pair_layers=pair)
    all_forms = built(config, weights_of(config)[0], dtype, kernels)
    expected = {"texts": read(built(*weights_of(config)[1:], dtype, kernels), LENGTHS)}
    for own, form in OWN:
        alone = built(*weights_of(config, own)[1:], dtype, kernels)
        assert len(all_forms.get_submodule(own)) == config.to_dict()[own]
        expected[form] = read(alone, LENGTHS)
        assert torch.equal(expected[form], expected["texts"]) == (config.to_dict()[own] == 0)
    assert torch.equal(read(all_forms, LENGTHS), expected["texts"])
    for forms in [*((form,) for form in FORMS), ("texts", "sentences"), ("texts", "judge"), ("judge", "sentences", "texts")]:
        assert torch.equal(read(all_forms, LENGTHS, forms), torch.cat([expected[form] for form in forms], dim=1))
    assert read(all_forms, (), ("judge",)).shape == (0, 32) and read(all_forms, (0, 0), ("texts", "judge")).shape == (0, 64)


def test_vectors_added_to_the_embeddings_reach_every_form() -> None:
    config = replace(FORMED, sentence_layers=1, judge_layers=2)
    model = built(config, weights_of(config)[0], "float32", kernels=True)
    ids, cu, added = token_ids(9), cumulative((9,)), torch.randn(9, 32, generator=torch.Generator().manual_seed(0))
    judged = model.step_forms(ids, cu, added, forms=("texts", "judge"))
    assert_close(judged[:, :32], model(ids, cu, added=added)[0], 1e-5)
    model.fast = None
    assert_close(model.step_forms(ids, cu, added, forms=("texts", "judge")), judged, 1e-5)
    with pytest.raises(InputError, match="has 73 tokens"):
        model.step_forms(token_ids(73), cumulative((73,)), forms=("judge",))


def test_work_and_sizes_are_those_of_one_form() -> None:
    plain, more = (tiny_backbone(Encoder, c) for c in (FORMED, replace(FORMED, sentence_layers=2, judge_layers=3)))
    assert len(plain.linear_layers()) == len(more.linear_layers()) == 12
    assert plain.flops(60) == more.flops(60) and plain.step_bytes_per_token == more.step_bytes_per_token


def test_gradients_of_an_upper_form_reach_it_alone() -> None:
    config = replace(FORMED, sentence_layers=1, judge_layers=2)
    model = built(config, weights_of(config)[0], "float32", kernels=False)
    ids, cu = token_ids(sum(LENGTHS)), cumulative(LENGTHS)
    for upper, form in ((model.sentence_layers, "sentences"), (model.judge_layers, "judge")):
        hidden = model.read_with(upper, ids, cu)
        assert_close(hidden.detach(), read(model, LENGTHS, (cast("Form", form),)), 1e-5)
        hidden.square().sum().backward()
        changed = {name.partition(".")[0] for name, p in model.named_parameters() if p.grad is not None}
        assert changed == {f"{form.removesuffix('s')}_layers"}
        model.zero_grad()
