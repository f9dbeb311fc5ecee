"""The contract of all backbones, on a toy one."""

from __future__ import annotations

import pytest
import torch
from helpers.toy import Toy

from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.errors import InputError, StateError


def test_changed_weights_are_seen_after_training() -> None:
    torch.manual_seed(0)
    backbone = Mamba2(Mamba2Config(vocab_size=16, hidden_size=32, num_layers=1, state_size=16, head_size=16)).eval()
    ids = torch.arange(10)
    with torch.no_grad():
        before, fingerprint = backbone(ids)[0], backbone.fingerprint()
        backbone.train()
        backbone.layers[0].mixer.out_proj.weight.mul_(-1)
        backbone.layers[0].mixer.D.add_(1)
        backbone.eval()
        after = backbone(ids)[0]
    assert float((before - after).abs().max()) > 1e-3
    assert backbone.fingerprint() != fingerprint
    with torch.enable_grad():
        slow = backbone(ids)[0]
    torch.testing.assert_close(slow.detach(), after, rtol=1e-4, atol=1e-5)
    assert slow.requires_grad and not after.requires_grad


def test_bad_calls() -> None:
    backbone = Toy()
    with pytest.raises(InputError, match=r"token ids must be in \[0, 50\), got 3 to 50"):
        backbone(torch.tensor([3, 50]))
    with pytest.raises(InputError, match="packed into one dimension"):
        backbone(torch.zeros(2, 2, dtype=torch.int64))
    for bad in ([0, 1], [1, 3], [0, 2, 1, 3]):
        with pytest.raises(InputError, match="cu_seqlens must rise from 0 to the 3 tokens"):
            backbone(torch.tensor([1, 2, 3]), torch.tensor(bad))
    with pytest.raises(StateError, match="the state has 2 rows but cu_seqlens describes 1"):
        backbone(torch.tensor([1, 2, 3]), state=backbone.new_state(2))


def test_steps_read_and_write_the_rows_they_are_told() -> None:
    backbone = Toy()
    pool = backbone.new_state(4)
    pool["h"].normal_()
    pool.tokens[2] = 7
    before = pool.clone()
    ids, cu_seqlens = torch.arange(6), torch.tensor([0, 2, 3, 6])
    backbone.step(ids, cu_seqlens, pool, torch.tensor([2, -1, 2]), torch.tensor([0, 3, -1]))
    assert torch.equal(pool["h"][1:3], before["h"][1:3])
    assert pool.tokens.tolist() == [9, 0, 7, 1]
    _, expected = backbone(ids[:2], state=before.select([2]))
    torch.testing.assert_close(pool["h"][0], expected["h"][0])
