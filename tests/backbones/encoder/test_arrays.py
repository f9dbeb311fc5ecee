"""An encoder without torch is the encoder that torch computes, and reads what that reads."""

import copy
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny import judging_encoder, tiny_encoder
from helpers.tiny_backbones import NO_INT8, assert_close, cumulative, token_ids
from safetensors.torch import load_file, save_file

from runnel import Embedder, Reranker, SentenceRetriever
from runnel.backbones.encoder.arrays import bf16_bits, widened
from runnel.backbones.encoder.config import FORMS
from runnel.backbones.int8 import quantize
from runnel.engine import Engine
from runnel.errors import BackendUnavailable, CheckpointError, InputError
from runnel.integrations.sentence_transformers import EmbedderModule
from runnel.models.folder import load_model
from runnel.models.model import Model
from runnel.models.pocket.heads import gelu, normalize
from runnel.models.recurrent.adapters import add_lora
from runnel.ops.backend import wants_cpu
from runnel.ops.simd import NATIVE_BF16

LENGTHS = (9, 0, 1, 22, 3, 9)
TEXT = (
    "The cat sat on the mat. A river runs to the sea; the dog sat. Where is the dog?\n\nIt sat on"
    " the mat. "
)
# with how much hidden vectors may differ from torch's
DTYPES = {"float32": 2e-5, "bfloat16": 0.05, "int8": 0.02}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose matrices are all in 8 bits, as those of larger ones are saved."""
    place = tmp_path_factory.mktemp("model")
    judging_encoder(place / "made").save(place / "saved")
    weights = load_file(place / "saved" / "model.safetensors")
    for name in [
        name
        for name, tensor in weights.items()
        if name.startswith("backbone.") and tensor.ndim == 2
    ]:
        weights[name], weights[f"{name}.scale"] = quantize(weights[name])
    save_file(weights, place / "saved" / "model.safetensors")
    return place / "saved"


@pytest.fixture(scope="module", params=DTYPES)
def pair(request: pytest.FixtureRequest, folder: Path) -> tuple[Model, Model]:
    """The same model without torch and with it."""
    if (request.param == "int8" and NO_INT8) or (request.param == "bfloat16" and not NATIVE_BF16):
        pytest.skip("no kernels for this dtype here")
    found = load_model(folder, request.param, "cpu", arrays=True)
    assert found.backbone.without_torch and found.backbone.dtype == request.param
    return found, found.with_torch()


def step(model: Model, lengths: tuple[int, ...], forms: Any = FORMS) -> Any:
    ids = token_ids(sum(lengths)) % model.backbone.vocab_size
    cu = cumulative(lengths)
    return torch.from_numpy(model.backbone.step_forms(ids.numpy(), cu.numpy(), forms))


def test_it_is_the_encoder_that_torch_computes(pair: tuple[Model, Model]) -> None:
    found, expected = pair
    assert_close(step(found, LENGTHS), step(expected, LENGTHS), DTYPES[found.backbone.dtype])
    assert step(found, ()).shape == (0, 4 * 32) and step(
        found, (0, 0), ("texts", "judge")
    ).shape == (0, 64)
    assert (
        found.fingerprint() == expected.fingerprint()
        and found.backbone.fingerprint() == expected.backbone.fingerprint()
    )
    assert found.backbone.dtypes == expected.backbone.dtypes
    assert found.backbone.step_bytes_per_token == expected.backbone.step_bytes_per_token


def test_every_job_gives_what_torch_gives(pair: tuple[Model, Model], tmp_path: Path) -> None:
    found, expected = pair
    near = 50 * DTYPES[found.backbone.dtype]
    long = TEXT * 20
    vectors = [Embedder(model).encode([TEXT, "dog", long]) for model in pair]
    assert (vectors[0] * vectors[1]).sum(1) == pytest.approx(1, abs=1e-2)
    ranked = [Reranker(model).score("dog", [TEXT, long, ""]) for model in pair]
    assert ranked[0] == pytest.approx(ranked[1], abs=near)
    scores = [
        [s.score for s in SentenceRetriever(model).score("Where is the dog?", long)]
        for model in pair
    ]
    assert scores[0] == pytest.approx(scores[1], abs=near)
    (remembered,) = SentenceRetriever(expected).remember([long])  # by torch
    again = [s.score for s in SentenceRetriever(found).score("Where is the dog?", remembered)]
    assert again == pytest.approx(scores[1], abs=near)
    Embedder(found).stream().feed(long).save(tmp_path / "stream")
    assert Embedder(expected).load_stream(tmp_path / "stream").embedding() @ vectors[1][
        2
    ] == pytest.approx(1, abs=1e-2)


def test_copies_and_saved_models_are_the_same(pair: tuple[Model, Model], tmp_path: Path) -> None:
    found, expected = pair
    for other in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert other.backbone.without_torch and torch.equal(
            step(other, LENGTHS), step(found, LENGTHS)
        )
    found.save(tmp_path / "own")
    expected.save(tmp_path / "torchs")
    assert (tmp_path / "own" / "model.safetensors").read_bytes() == (
        tmp_path / "torchs" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    "change", ["missing", "shorter", "more", "another dtype", "bf16", "head", "cut"]
)
def test_what_it_cannot_read_is_left_to_torch(folder: Path, tmp_path: Path, change: str) -> None:
    """Which reads it, or says what is wrong."""
    file = shutil.copytree(folder, tmp_path / "model") / "model.safetensors"
    weights = load_file(file)
    name = "backbone.layers.0.norm.weight"
    changes: dict[str, dict[str, Any]] = {
        "missing": {name: None},
        "shorter": {name: weights[name][:-1].clone()},
        "more": {"backbone.layers.9.norm.weight": weights[name].clone()},
        "another dtype": {name: weights[name].long()},
        "bf16": {name: weights[name].bfloat16()},
        "head": {"heads.sentences.out.weight": torch.zeros(1, 3)},
    }
    weights |= changes.get(change, {})
    save_file({key: tensor for key, tensor in weights.items() if tensor is not None}, file)
    if change == "cut":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    if change == "bf16":
        assert not load_model(file.parent, "float32", "cpu", arrays=True).backbone.without_torch
        return
    with pytest.raises(CheckpointError):
        load_model(file.parent, "float32", "cpu", arrays=True)


def test_bad_input_and_other_models(folder: Path, tmp_path: Path) -> None:
    found = load_model(folder, "float32", "cpu", arrays=True)
    with pytest.raises(InputError, match="token ids"):
        found.engine.run([Embedder(found)._head.request(np.array([4, 10**6]))])
    assert found.new_engine(memory_bytes=1 << 24).step_tokens > 64
    assert (
        Engine.plan(found.backbone, 1 << 24).tokens_per_s
        and Engine.plan(found.with_torch().backbone, 1 << 24).tokens_per_s
    )
    for call in (lambda: found.backbone(torch.tensor([4])), lambda: add_lora(found, 2, 4.0)):
        with pytest.raises(InputError, match="with_torch"):
            call()
    assert EmbedderModule(found).backbone.training is False
    assert not load_model(folder, "float64", "cpu", arrays=True).backbone.without_torch
    tiny_encoder(tmp_path).save(tmp_path / "plain")
    # not in 8 bits
    assert load_model(tmp_path / "plain", "float32", "cpu", arrays=True).backbone.without_torch
    assert not load_model(folder, "float32", "cpu").backbone.without_torch


def test_a_device_that_is_not_there_is_an_error_without_torch_too(folder: Path) -> None:
    assert wants_cpu("cpu") and wants_cpu("auto") == (not torch.cuda.is_available())
    if not torch.cuda.is_available():
        with pytest.raises(BackendUnavailable):
            load_model(folder, device="cuda", arrays=True)
    with pytest.raises(InputError):
        load_model(folder, device="tpu", arrays=True)


def test_unit_vectors_bf16_and_gelu_are_torchs() -> None:
    rows = torch.randn(9, 5) * torch.logspace(-9, 9, 9)[:, None]
    rows[3] = 0
    torch.testing.assert_close(
        torch.from_numpy(normalize(rows.numpy())), torch.nn.functional.normalize(rows, dim=-1)
    )
    x = torch.cat(
        [
            torch.randn(10_000) * 3,
            torch.linspace(-9, 9, 10_001),
            torch.tensor([0.0, -0.0, 1e-40, 3e38]),
        ]
    )
    assert torch.equal(torch.from_numpy(widened(bf16_bits(x.numpy()))), x.bfloat16().float())
    for dtype, error in ((torch.float32, 2e-6), (torch.float64, 3e-7)):
        numbers = x[:-1].to(dtype)
        torch.testing.assert_close(
            torch.from_numpy(gelu(numbers.numpy())),
            torch.nn.functional.gelu(numbers),
            atol=error,
            rtol=0,
        )
