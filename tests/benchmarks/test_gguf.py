"""GGUF files for llama.cpp, and llama.cpp itself where it is installed."""

import struct

import numpy as np
import pytest
import torch

from benchmarks.gguf import write_gguf
from benchmarks.llama import LlamaCpp
from benchmarks.measure import compare
from benchmarks.shapes import SHAPES, load_subject, random_backbone
from benchmarks.subject import Subject


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0
        assert data[:4] == b"GGUF"
        self.at = 4
        version, tensors, values = self.take("<IQQ")
        assert version == 3
        self.values = {self.text(): self.value() for _ in range(values)}
        infos = [self.info() for _ in range(tensors)]
        start = self.at + -self.at % 32
        self.tensors = {name: self.tensor(start + offset, kind, shape) for name, kind, shape, offset in infos}

    def take(self, form):
        found = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return found if len(found) > 1 else found[0]

    def text(self):
        length = self.take("<Q")
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def value(self):
        kind = self.take("<I")
        return self.text() if kind == 8 else self.take({4: "<I", 6: "<f"}[kind])

    def info(self):
        name, dims = self.text(), self.take("<I")
        shape = tuple(self.take("<Q") for _ in range(dims))[::-1]
        return name, self.take("<I"), shape, self.take("<Q")

    def tensor(self, at, kind, shape):
        assert at % 32 == 0
        count = int(np.prod(shape))
        if kind == 8:
            blocks = np.frombuffer(self.data, np.dtype([("d", "<f2"), ("q", "i1", 32)]), count // 32, at)
            return (blocks["d"][:, None].astype(np.float32) * blocks["q"]).reshape(shape)
        if kind == 30:
            return (np.frombuffer(self.data, "<u2", count, at).astype("<u4") << 16).view("<f4").reshape(shape)
        assert kind == 0
        return np.frombuffer(self.data, "<f4", count, at).reshape(shape)


@pytest.mark.parametrize(("matrices", "tolerance"), [("bf16", 2**-8), ("q8_0", 1 / 127)])
def test_what_is_written_reads_back(tmp_path, matrices, tolerance):
    backbone = load_subject("tiny", torch.float32)
    write_gguf(backbone, tmp_path / "m.gguf", matrices)
    found = Reader((tmp_path / "m.gguf").read_bytes())
    assert found.values["general.architecture"] == "mamba2"
    assert found.values["mamba2.ssm.time_step_rank"] == backbone.config.num_heads
    assert len(found.tensors) == len(backbone.state_dict())
    weight = backbone.get_parameter("layers.1.mixer.in_proj.weight").detach().numpy()
    assert np.abs(found.tensors["blk.1.ssm_in.weight"] - weight).max() <= tolerance * np.abs(weight).max()
    decay = backbone.get_parameter("layers.0.mixer.A_log").detach().numpy()
    np.testing.assert_allclose(found.tensors["blk.0.ssm_a"][:, 0], -np.exp(decay), rtol=1e-6)
    conv = backbone.get_parameter("layers.0.mixer.conv1d.weight").detach().numpy()
    assert np.array_equal(found.tensors["blk.0.ssm_conv1d.weight"], conv[:, 0])


def test_rows_that_q8_0_cannot_divide_stay_exact(tmp_path):
    architecture, config = "mamba1", type(SHAPES["mamba-130m"][1])(64, 32, 1, dt_rank=3)
    backbone = random_backbone(architecture, config, torch.float32)
    write_gguf(backbone, tmp_path / "m.gguf", "q8_0")
    weight = backbone.get_parameter("layers.0.mixer.dt_proj.weight").detach().numpy()
    assert np.array_equal(Reader((tmp_path / "m.gguf").read_bytes()).tensors["blk.0.ssm_dt.weight"], weight)


@pytest.mark.parametrize("dtype", ["bf16", "q8_0"])
def test_llama_cpp_gives_the_same_vectors(dtype):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed; pip install llama-cpp-python")
    texts = [torch.arange(30) * 7 % 256, torch.arange(600) % 256]
    system = LlamaCpp("tiny", dtype, "cpu")
    expected = Subject("tiny", "fp32", "cpu").plain_hidden(texts)
    found = compare("llama.cpp", "tiny", dtype, system.hidden(texts).numpy(), expected.numpy())
    assert found.passed, found
    system.run(texts[0][None], None)
