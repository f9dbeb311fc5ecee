"""The other systems: same weights, same results."""

import pytest
import torch
from helpers.tiny_shapes import same

from benchmarks.shapes import load_subject
from benchmarks.subject import Subject
from benchmarks.systems import EqualBert, TransformersLibrary
from runnel.errors import InputError

TEXTS = [torch.randint(0, 64, (length,), generator=torch.Generator().manual_seed(length)) for length in (40, 9)]


@pytest.mark.parametrize("architecture", ["mamba1", "mamba2", "xlstm"])
def test_the_transformers_library_has_the_same_weights(tiny_shapes, architecture):
    name = f"tiny-{architecture}"
    same(TransformersLibrary(name, "fp32", "cpu").hidden(TEXTS), Subject(name, "fp32", "cpu").plain_hidden(TEXTS))


def test_the_transformers_library_has_no_rwkv7(tiny_shapes):
    with pytest.raises(InputError, match="the library has no RWKV-7"):
        TransformersLibrary("tiny-rwkv7", "fp32", "cpu")


def test_bert_of_equal_size():
    system = EqualBert("pocket-mamba2", "bf16", "cpu")
    weights = sum(p.numel() for name, p in system.model.named_parameters() if "encoder" in name)
    ours = sum(m.weight.numel() for m in load_subject("pocket-mamba2", torch.float32).modules() if isinstance(m, torch.nn.Linear))
    assert 0.75 < weights / ours < 1.33
    assert system.title == "BERT, 3 layers of 384"
    same(system.hidden(TEXTS), system.plain_hidden(TEXTS), "bf16")
