"""GGUF files for llama.cpp."""

import io
import struct

import numpy as np
import pytest
import torch

from benchmarks.gguf import write_gguf
from benchmarks.shapes import load_subject, random_backbone
from runnel.backbones.mamba1.model import Mamba1Config


def read_gguf(data):
    """Return the values and the tensors of a file: just enough of GGUF for ours."""
    file = io.BytesIO(data)

    def take(form):
        found = struct.unpack(form, file.read(struct.calcsize(form)))
        return found if len(found) > 1 else found[0]

    def text():
        return file.read(take("<Q")).decode()

    def value():
        return text() if (kind := take("<I")) == 8 else take({4: "<I", 6: "<f"}[kind])

    def tensor(place, kind, shape):
        assert place % 32 == 0 and kind in (0, 8, 30)
        count = int(np.prod(shape))
        if kind == 8:
            blocks = np.frombuffer(data, np.dtype([("d", "<f2"), ("q", "i1", 32)]), count // 32, place)
            return (blocks["d"][:, None].astype(np.float32) * blocks["q"]).reshape(shape)
        if kind == 30:
            return (np.frombuffer(data, "<u2", count, place).astype("<u4") << 16).view("<f4").reshape(shape)
        return np.frombuffer(data, "<f4", count, place).reshape(shape)

    magic, version, tensors, values = take("<4sIQQ")
    assert (magic, version) == (b"GGUF", 3)
    about = {text(): value() for _ in range(values)}
    infos = [(text(), tuple(take("<Q") for _ in range(take("<I")))[::-1], take("<I"), take("<Q")) for _ in range(tensors)]
    start = file.tell() + -file.tell() % 32
    return about, {name: tensor(start + offset, kind, shape) for name, shape, kind, offset in infos}


@pytest.mark.parametrize(("matrices", "tolerance"), [("bf16", 2**-8), ("q8_0", 1 / 127)])
def test_what_is_written_reads_back(tmp_path, matrices, tolerance):
    backbone = load_subject("tiny", torch.float32)
    write_gguf(backbone, tmp_path / "m.gguf", matrices)
    values, tensors = read_gguf((tmp_path / "m.gguf").read_bytes())
    assert values["general.architecture"] == "mamba2" and values["mamba2.ssm.time_step_rank"] == backbone.config.num_heads
    assert len(tensors) == len(backbone.state_dict())
    weight = backbone.get_parameter("layers.1.mixer.in_proj.weight").detach().numpy()
    assert np.abs(tensors["blk.1.ssm_in.weight"] - weight).max() <= tolerance * np.abs(weight).max()
    decay = backbone.get_parameter("layers.0.mixer.A_log").detach().numpy()
    np.testing.assert_allclose(tensors["blk.0.ssm_a"][:, 0], -np.exp(decay), rtol=1e-6)
    conv = backbone.get_parameter("layers.0.mixer.conv1d.weight").detach().numpy()
    assert np.array_equal(tensors["blk.0.ssm_conv1d.weight"], conv[:, 0])
    rows = random_backbone("mamba1", Mamba1Config(64, 32, 1, dt_rank=3), torch.float32)  # of 3, which Q8_0 cannot divide
    write_gguf(rows, tmp_path / "m.gguf", "q8_0")
    weight = rows.get_parameter("layers.0.mixer.dt_proj.weight").detach().numpy()
    assert np.array_equal(read_gguf((tmp_path / "m.gguf").read_bytes())[1]["blk.0.ssm_dt.weight"], weight)
