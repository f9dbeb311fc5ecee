"""What the calling program sets in torch for its own tensors changes no result."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny import tiny_encoder, tiny_model

from runnel import Embedder, Reranker, SentenceRetriever
from runnel.models.base import Model, load_model
from runnel.ops.backend import plain_numbers

TEXTS = ["The cat sat on the mat. A dog ran.", "A river runs to the sea.", "cat"]
Setting = Callable[[], AbstractContextManager[object]]


@contextmanager
def default(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        assert torch.get_default_dtype() == dtype  # it is still the calling program's
        torch.set_default_dtype(torch.float32)


@contextmanager
def cast(dtype: torch.dtype) -> Iterator[None]:
    with torch.autocast("cpu", dtype=dtype):
        yield
        assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == dtype


SETTINGS: dict[str, Setting] = {
    "default fp64": lambda: default(torch.float64),
    "default fp16": lambda: default(torch.float16),
    "autocast bf16": lambda: cast(torch.bfloat16),
    "autocast fp16": lambda: cast(torch.float16),
    "gradients": lambda: torch.set_grad_enabled(True),
    "inference": torch.inference_mode,
}


def results(model: Model) -> list[np.ndarray]:
    embedder, reranker, retriever = Embedder(model), Reranker(model), SentenceRetriever(model)
    sentences = [[sentence.score for sentence in retriever.score("the cat", text)] for text in TEXTS]
    return [
        embedder.encode(TEXTS),
        embedder.stream().feed(TEXTS[0]).feed(TEXTS[1]).embedding(),
        reranker.score("the cat", TEXTS),
        reranker.score("the cat", reranker.remember(TEXTS)),
        np.concatenate(sentences),
        model.backbone(torch.tensor([2, 7, 9]))[0].numpy(),
    ]


@pytest.fixture(scope="module", params=[tiny_model, tiny_encoder], ids=["recurrent", "passages"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    request.param(path / "parts").save(path / "model")
    return path / "model"


def test_a_default_is_restored_by_the_last_of_several_threads() -> None:
    with default(torch.float64):
        first, second = plain_numbers(), plain_numbers()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.float32  # the second still computes
        second.__exit__(None, None, None)


def test_models_loaded_in_fp64(folder: Path) -> None:
    """Their products are in fp64; results are fp32, as those of other models."""
    found, expected = results(load_model(folder, "float64")), results(load_model(folder, "float32"))
    assert [one.dtype for one in found[:4]] == [np.float32] * 4
    for pair in zip(found, expected, strict=True):
        np.testing.assert_allclose(*pair, atol=1e-5)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_models_loaded_and_used_under_a_setting(folder: Path, setting: Setting) -> None:
    expected, loaded_before = results(load_model(folder)), load_model(folder)
    with setting():
        loaded = load_model(folder)
        found = [results(loaded_before), results(loaded)]
    for results_of_one in [*found, results(loaded)]:
        assert [np.array_equal(*pair) for pair in zip(results_of_one, expected, strict=True)] == [True] * len(expected)
