"""BERT's encoder with Mamba-2 in place of attention: values, and any way of reading gives them."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from runnel.backbones.mamba2.model import Mamba2Mixer
from runnel.backbones.mamba2_encoder.model import Mamba2Encoder, Mamba2EncoderConfig
from runnel.engine import Engine, Request
from runnel.errors import InputError

BEGIN = 1
CONFIG = Mamba2EncoderConfig(
    vocab_size=50,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    intermediate_size=48,
    max_positions=24,
    passage_tokens=12,
    begin_id=BEGIN,
    state_size=8,
)


def a_text(*passages: int, seed: int = 0) -> np.ndarray:
    """Return the ids of passages with these many tokens."""
    rng = np.random.default_rng(seed)
    return np.concatenate([[BEGIN, *rng.integers(2, 50, length - 1)] for length in passages])


@pytest.fixture(scope="module")
def model() -> Mamba2Encoder:
    torch.manual_seed(0)
    encoder = Mamba2Encoder(CONFIG).double().eval()
    for mixer in encoder.modules():
        if isinstance(mixer, Mamba2Mixer):  # so large that an error would show
            torch.nn.init.normal_(mixer.out_proj.weight, std=0.5)
    for layer in encoder.layers:
        torch.nn.init.normal_(layer.out_bias)
    return encoder


def test_values_are_those_of_a_plain_loop(model: Mamba2Encoder) -> None:
    ids = a_text(7, 12, 1, 9)
    bounds = [0, 7, 19, 20, 29]

    def alone(mixer: Mamba2Mixer, rows: Tensor) -> Tensor:
        return mixer(rows, torch.tensor([0, len(rows)]), None, None)[0]

    place = torch.cat([torch.arange(b - a) for a, b in pairwise(bounds)])
    hidden = model.norm(model.embeddings.weight[ids] + model.positions.weight[place])
    for layer in model.layers:
        passages = [hidden[a:b] for a, b in pairwise(bounds)]
        backwards = [alone(layer.backwards, passage.flip(0)).flip(0) for passage in passages]
        mixed = alone(layer.forwards, hidden) + torch.cat(backwards) + layer.out_bias
        hidden = layer.attention_norm(hidden + mixed)
        network = layer.down(torch.nn.functional.gelu(layer.up(hidden)))
        hidden = layer.norm(hidden + network)
    assert_close(model(torch.from_numpy(ids))[0], hidden)


def test_a_text_may_be_cut_after_any_passage(model: Mamba2Encoder) -> None:
    ids = torch.from_numpy(a_text(5, 12, 3, 8))
    hidden, state = model(ids)
    for cut in (5, 17, 20):
        first, between = model(ids[:cut])
        second, after = model(ids[cut:], state=between)
        assert_close(torch.cat([first, second]), hidden)
        for name, tensor in state.tensors.items():
            assert_close(after[name], tensor)
        assert after.tokens.tolist() == [28]


def test_texts_that_are_read_together_do_not_see_each_other(model: Mamba2Encoder) -> None:
    texts = [torch.from_numpy(a_text(*sizes, seed=n)) for n, sizes in enumerate([(4, 9), (6,)])]
    cu_seqlens = torch.tensor([0, 13, 13, 19])
    together, state = model(torch.cat(texts), cu_seqlens)
    assert_close(together, torch.cat([model(text)[0] for text in texts]))
    assert_close(state["ssm"][2], model(texts[1])[1]["ssm"][0])


def test_a_token_sees_its_passage_and_those_before_alone(model: Mamba2Encoder) -> None:
    ids = torch.from_numpy(a_text(6, 7, 5))
    other = ids.clone()
    other[8] = 49 if ids[8] != 49 else 48  # in the second passage
    changed = (model(ids)[0] != model(other)[0]).any(1)
    assert changed.tolist() == [False] * 6 + [True] * 12


@pytest.mark.parametrize("step_tokens", [1, 9, 30, 1000])
def test_an_engine_reads_it_in_any_steps(model: Mamba2Encoder, step_tokens: int) -> None:
    texts = [a_text(*sizes, seed=n) for n, sizes in enumerate([(5, 12, 8, 3), (9,), (2, 24)])]
    engine = Engine(model, step_tokens)
    taken: dict[int, list[np.ndarray]] = {0: [], 1: [], 2: []}
    requests = [
        Request(text, take=lambda _, hidden, n=n: taken[n].append(hidden), keep_state=True)
        for n, text in enumerate(texts)
    ]
    for n, result in enumerate(engine.run(requests)):
        hidden, state = model(torch.from_numpy(texts[n]))
        assert_close(torch.cat(taken[n]), hidden.float())
        assert result.state is not None
        assert_close(result.state["ssm"], state["ssm"].float())


def test_a_text_goes_on_from_its_state(model: Mamba2Encoder) -> None:
    ids = a_text(5, 12, 8)
    engine = Engine(model)
    (first,) = engine.run([Request(ids[:17], keep_state=True)])
    (second,) = engine.run([Request(ids[17:], state=first.state)])
    assert_close(second.hidden, model(torch.from_numpy(ids))[0][-1:].float())


def test_gradients_reach_both_mixers_also_when_layers_run_again(model: Mamba2Encoder) -> None:
    ids = torch.from_numpy(a_text(5, 7))
    model.train()
    try:
        for recompute in (False, True):
            model.zero_grad()
            model(ids, recompute=recompute)[0].square().sum().backward()
            for layer in model.layers:
                for mixer in (layer.forwards, layer.backwards):
                    assert mixer.in_proj.weight.grad.abs().sum() > 0
    finally:
        model.zero_grad()
        model.eval()


@pytest.mark.parametrize("name", ["sentence_layers", "judge_layers", "pair_layers"])
def test_other_forms_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} 1"):
        replace(CONFIG, **{name: 1})


def test_a_passage_longer_than_its_positions_is_refused(model: Mamba2Encoder) -> None:
    with pytest.raises(InputError, match="25"):
        model(torch.from_numpy(a_text(25)))
    with pytest.raises(InputError, match="25"):
        Engine(model).run([Request(a_text(3, 25))])
