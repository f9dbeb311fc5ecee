"""What is particular to RWKV-7; what all backbones share is in tests/contracts/test_backbones.py."""

import math

import pytest
import torch
from helpers.tiny_backbones import assert_close, tiny_backbone, token_ids
from torch import Tensor

from runnel.backbones.rwkv7.model import Rwkv7, Rwkv7Config

TINY = Rwkv7Config(50, 48, 3, head_size=16, ffn_size=80, decay_rank=5, a_rank=3, v_rank=2, gate_rank=7)
SHAPES = {
    "uneven": TINY,
    "equal-ranks": Rwkv7Config(50, 64, 2, head_size=32, decay_rank=8, a_rank=8, v_rank=8, gate_rank=8, norm_eps=1e-3),
    "one-layer": Rwkv7Config(50, 24, 1, head_size=8, ffn_size=30, decay_rank=1, a_rank=2, gate_rank=3),
    "one-head": Rwkv7Config(50, 20, 4, head_size=20, decay_rank=4, a_rank=5, v_rank=6, gate_rank=7),
    "published-head": Rwkv7Config(50, 128, 2, decay_rank=10, a_rank=12, v_rank=4, gate_rank=20),
}

Carry = list[list[Tensor]]  # per layer: last token of the time mix (D), states (H, value, key), last token of the channel mix (D)


class Sequential:
    """One token at a time and one head at a time, in plain tensors, with states as the official code keeps them."""

    def __init__(self, model: Rwkv7) -> None:
        self.p = {name: tensor.detach().double().requires_grad_() for name, tensor in model.state_dict().items()}
        self.layers, self.width, self.size = model.num_layers, model.hidden_size, model.config.head_size
        self.eps = model.config.norm_eps

    def start(self) -> Carry:
        zero = torch.zeros(self.width, dtype=torch.float64)
        heads = torch.zeros(self.width // self.size, self.size, self.size, dtype=torch.float64)
        return [[zero, heads, zero] for _ in range(self.layers)]

    def read(self, ids: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        rows = []
        for token in ids.tolist():
            x, first, carry = self.norm(self.p["embeddings.weight"][token], "norm_0"), None, [list(layer) for layer in carry]
            for index, layer in enumerate(carry):
                name = f"layers.{index}."
                here = self.norm(x, name + "norm_att")
                out, layer[1], first = self.time_mix(name + "att.", here, layer[0], layer[1], first)
                x, layer[0] = x + out, here
                here = self.norm(x, name + "norm_ffn")
                x, layer[2] = x + self.channel_mix(name + "ffn.", here, layer[2]), here
            rows.append(self.norm(x, "norm_f"))
        return torch.stack(rows), carry

    def norm(self, x: Tensor, name: str, scale: int = 1) -> Tensor:
        deviation = (x - x.mean()).square().mean().add(scale * self.eps).sqrt()
        return (x - x.mean()) / deviation * self.p[name + ".weight"] + self.p[name + ".bias"]

    def time_mix(
        self, name: str, x: Tensor, before: Tensor, states: Tensor, first: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        def w(key: str) -> Tensor:
            return self.p[name + key]

        def mixed(key: str) -> Tensor:
            return x + (before - x) * w("x_" + key)

        def low_rank(key: str, y: Tensor) -> Tensor:
            return w(f"{key}_up.weight") @ y

        r, k, v = w("receptance.weight") @ mixed("r"), w("key.weight") @ mixed("k"), w("value.weight") @ mixed("v")
        raw = w("w0") + low_rank("w", torch.tanh(w("w_down.weight") @ mixed("w")))
        decay = torch.exp(-torch.exp(-torch.log1p(torch.exp(-raw)) - 0.5))  # another form than the module's
        a = 1 / (1 + torch.exp(-w("a0") - low_rank("a", w("a_down.weight") @ mixed("a"))))
        g = low_rank("g", 1 / (1 + torch.exp(-(w("g_down.weight") @ mixed("g")))))
        if first is None:
            first = v
        else:
            v = v + (first - v) / (1 + torch.exp(-w("v0") - low_rank("v", w("v_down.weight") @ mixed("v"))))
        kk = k * w("k_k")
        k = k * (1 + (a - 1) * w("k_a"))
        outs, ends = [], []
        for head, state in enumerate(states):
            own = slice(head * self.size, (head + 1) * self.size)
            unit = kk[own] / kk[own].square().sum().sqrt().clamp(min=1e-12)
            state = state * decay[own] + torch.outer(-(state @ unit), unit * a[own]) + torch.outer(v[own], k[own])
            o = state @ r[own]
            o = (o - o.mean()) / (o - o.mean()).square().mean().add(self.size * self.eps).sqrt()
            o = o * w("ln_x.weight")[own] + w("ln_x.bias")[own]
            outs.append((o + (r[own] * k[own] * w("r_k")[head]).sum() * v[own]) * g[own])
            ends.append(state)
        return w("output.weight") @ torch.cat(outs), torch.stack(ends), first

    def channel_mix(self, name: str, x: Tensor, before: Tensor) -> Tensor:
        k = self.p[name + "key.weight"] @ (x + (before - x) * self.p[name + "x_k"])
        return self.p[name + "value.weight"] @ k.clamp(min=0).square()


def test_fresh_layers_add_nothing_and_start_as_published() -> None:
    model, ids = Rwkv7(TINY), token_ids(6)
    assert_close(model(ids)[0], model.norm_f(model.norm_0(model.embeddings(ids))))
    last = model.blocks[-1].att
    decay = torch.exp(-math.exp(-0.5) * torch.sigmoid(last.w0))
    assert decay.max() > 0.99 and decay.min() < 0.65
    assert last.x_r[0] == 1.0 and 0 <= last.x_r.min() < 0.2
    assert last.k_k[[0, -1]].tolist() == pytest.approx([0.76, 0.66])
    assert [layer.att.ln_x.weight[0].item() for layer in model.blocks] == pytest.approx([(1 / 3) ** 0.7, (2 / 3) ** 0.7, 1])
    assert not last.w_down.weight.any()
    assert_close(last.w_up.weight.T @ last.w_up.weight, 0.01 * torch.eye(5))
    for config in (Rwkv7Config(5, 1, 1, head_size=1), Rwkv7Config(5, 8, 1, head_size=1)):
        assert all(parameter.isfinite().all() for parameter in Rwkv7(config).parameters())


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_sequential_transcription(shape: str) -> None:
    model, ids = tiny_backbone(Rwkv7, SHAPES[shape]), token_ids(37)
    reference = Sequential(model)
    with torch.no_grad():
        expected, carry = reference.read(ids, reference.start())
        hidden, _ = model(ids)
    assert_close(hidden.double(), expected, 2e-5)
    exact, state = model.double()(ids)
    assert_close(exact.detach(), expected, 1e-10)
    for index, (att, heads, ffn) in enumerate(carry):
        assert_close(state["att_shift"][0, index].detach(), att, 1e-10)
        assert_close(state["wkv"][0, index].detach(), heads.transpose(1, 2), 1e-10)  # ours is key-first
        assert_close(state["ffn_shift"][0, index].detach(), ffn, 1e-10)


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e-8])
@pytest.mark.parametrize("fast", [True, False])
def test_short_removal_keys_are_normed_as_in_the_official_code(scale: float, fast: bool) -> None:
    """Divided by their length, floored at 1e-12: other floors lose the removal of keys of 1e-8."""
    model, ids = tiny_backbone(Rwkv7, TINY), token_ids(20)
    with torch.no_grad():
        for layer in model.blocks:
            layer.att.k_k *= scale
    if fast:
        model.prepare()
        assert model.fast is not None
    reference = Sequential(model)
    with torch.no_grad():
        assert_close(model(ids)[0].double(), reference.read(ids, reference.start())[0], 2e-5)


def test_added_vectors_join_the_residual_stream() -> None:
    """After the norm of the embeddings, whose own scale says nothing about that of the stream."""
    model = tiny_backbone(Rwkv7, Rwkv7Config(50, 48, 1, head_size=16))
    ids, added = token_ids(1), torch.randn(1, 48)
    assert_close(model.embed(ids), model.norm_0(model.embeddings(ids)))
    with torch.no_grad():
        for name in ("att.output.weight", "ffn.value.weight"):
            model.blocks[0].get_parameter(name).zero_()
        assert_close(model(ids, added=added)[0], model.norm_f(model.embed(ids) + added))
