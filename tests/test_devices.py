"""The backbone on a GPU, all else on the CPU: every way of reading gives what it gives on the CPU.
What the calling program sets in torch for its own tensors changes no result.

Where there is no GPU, on one that is not there (helpers/stand_in_gpu.py): nothing may leave its
device, nor be mixed with what is on the other.
"""

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.stand_in_gpu import DEVICE, REAL, in_a_process, stand_in_gpu
from helpers.tiny import judging_encoder, tiny_encoder, tiny_model, write_embedding_rwkv
from helpers.tiny_training import BACKBONES, make_item, render_document, training_model

from runnel.engine import Engine, Request
from runnel.lab.training.forward import sentence_scores, unfreeze
from runnel.models.embedder import Embedder
from runnel.models.folder import load_model
from runnel.models.model import Model
from runnel.models.recurrent.graph import Long, make_pair, pair_scores, vectors
from runnel.models.recurrent.heads import LmHead
from runnel.models.recurrent.language_model import LanguageModel
from runnel.models.reranker import Reranker
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.ops.backend import plain_numbers

GOLDEN = Path(__file__).parent / "golden"
QUERY = "the river"
# No two sentences are equal: which of these is looked at again would depend on the last bit.
DOGS = " ".join(f"The dog sat on {number}." for number in range(30))
TEXTS = ["A river runs to the sea.", DOGS, "Cats bark? No. The river is a cat."]
# Libraries of kernels warn when they compile.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")] * REAL


def transformer(folder: Path) -> Model:
    # loading it from there again gives another model
    shutil.copytree(GOLDEN / "transformers" / "bert-mean", folder)
    return load_model(folder, dtype="float32", device="cpu")


MODELS: dict[str, Callable[[Path], Model]] = {
    "states": tiny_model,
    "papers' heads": lambda folder: tiny_model(folder, papers_heads=True),
    "passages": tiny_encoder,
    "passages with a state": partial(tiny_encoder, mixers=True),
    "second look": judging_encoder,
    "a state is scored": lambda folder: load_model(
        write_embedding_rwkv(folder), dtype="float32", device="cpu"
    ),
    "transformer": transformer,
}


def embed(model: Model) -> Iterator[Any]:
    embedder = Embedder(model)
    yield from embedder.encode_document(TEXTS, max_tokens=30)
    yield embedder.encode_spans(TEXTS[2], [(0, 12), (13, 30)])
    if model.backbone.block is not None:
        yield embedder.stream().feed(TEXTS[0]).feed(TEXTS[1]).embedding()


def rerank(model: Model) -> Iterator[Any]:
    reranker = Reranker(model)
    yield reranker.score(QUERY, TEXTS)
    if reranker.remembers:
        yield reranker.score(QUERY, reranker.remember(TEXTS, dtype="fp32"))


def retrieve(model: Model) -> Iterator[Any]:
    retriever = SentenceRetriever(model)
    for text in TEXTS:
        yield [sentence.score for sentence in retriever.score(QUERY, text)]
    if model.head("sentences").inputs == "vectors":
        for document in retriever.remember(TEXTS):
            yield [sentence.score for sentence in retriever.score(QUERY, document)]


def generate(model: Model) -> Iterator[Any]:
    written = LanguageModel(model.backbone, model.tokenizer, LmHead(128, 32, tied=True)).generate(
        "The river", max_tokens=9
    )
    yield written.ids
    yield from written.state.to("cpu").tensors.values()


def train(model: Model) -> Iterator[Any]:
    """Gradients of all three jobs, over segments."""
    unfreeze(model)
    long = Long(segment_tokens=16)
    losses = [vectors(model, [render_document(model, text) for text in TEXTS], long)[:, ::2].sum()]
    losses.append(pair_scores(model, [make_pair(model, QUERY, text) for text in TEXTS], long).sum())
    losses += [
        scores.sum()
        for scores in sentence_scores(
            model, [make_item(model, QUERY, text) for text in TEXTS], long
        )
    ]
    weights = [*model.backbone.parameters(), *model.heads.parameters()]
    for gradient in torch.autograd.grad(
        sum(losses), weights, allow_unused=True, materialize_grads=True
    ):
        yield gradient.cpu()


CASES = [
    *itertools.product(
        ["states", "papers' heads", "passages", "second look", "transformer"], [embed]
    ),
    *itertools.product(
        ["states", "papers' heads", "passages", "second look", "a state is scored"], [rerank]
    ),
    *itertools.product(["states", "papers' heads", "passages", "second look"], [retrieve]),
    *itertools.product(["passages with a state"], [embed, rerank, retrieve]),
    ("states", generate),
]


def compare(model: Model, job: Callable[[Model], Iterator[Any]]) -> None:
    """Assert that a job gives the same on the GPU."""
    expected = list(job(model))
    with stand_in_gpu():
        model.backbone.to(DEVICE)
        if job in (generate, train):  # elsewhere heads stay on the CPU
            model.heads.to(DEVICE)
        model.backbone.prepare()
        model.refresh()
        found = list(job(model))
    assert model.backbone.device.type == DEVICE
    expect_alike(found, expected)


def expect_alike(found: Iterable[Any], expected: Iterable[Any]) -> None:
    for actual, truth in zip(map(np.asarray, found), map(np.asarray, expected), strict=True):
        np.testing.assert_allclose(
            actual, truth, rtol=1e-4, atol=1e-5 * max(1, np.abs(truth).max(initial=0))
        )


@pytest.mark.parametrize(("name", "job"), CASES)
def test_results_are_those_of_the_cpu(
    name: str, job: Callable[[Model], Iterator[Any]], tmp_path: Path
) -> None:
    compare(MODELS[name](tmp_path / "model"), job)


@pytest.mark.slow
def test_gradients_are_those_of_the_cpu(tmp_path: Path) -> None:
    in_a_process(compare_gradients, tmp_path)


def compare_gradients(folder: Path) -> None:
    compare(tiny_model(folder), train)


@pytest.mark.parametrize("architecture", BACKBONES)
def test_engine_of_every_family(architecture: str, tmp_path: Path) -> None:
    """Texts in steps, from a state on the CPU; what comes out is on the CPU, the state too."""
    backbone = training_model(tmp_path, architecture).backbone
    ids = [np.arange(n) % 100 for n in (70, 1, 33)]

    def read(engine: Engine) -> Iterator[Any]:
        for result in engine.run(
            [Request(row, keep_state=True, ranges=[[0, len(row)]]) for row in ids]
        ):
            (more,) = engine.run([Request(ids[2], state=result.state, positions=range(33))])
            yield from (
                result.hidden,
                result.sums,
                result.totals,
                *result.state.tensors.values(),
                more.hidden,
            )

    expected = list(read(Engine(backbone, 40)))
    with stand_in_gpu():
        backbone.to(DEVICE).prepare()
        found = list(read(Engine(backbone, 40)))
    for actual, truth in zip(found, expected, strict=True):
        assert actual.device.type == "cpu"
        torch.testing.assert_close(actual, truth, rtol=2e-4, atol=2e-5)


# ---- settings of the calling program -------------------------------------------------------------


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


SETTINGS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "default fp64": lambda: default(torch.float64),
    "default fp16": lambda: default(torch.float16),
    "autocast bf16": lambda: cast(torch.bfloat16),
    "autocast fp16": lambda: cast(torch.float16),
    "gradients": lambda: torch.set_grad_enabled(True),
    "inference": torch.inference_mode,
}


def results(model: Model) -> list[np.ndarray]:
    ways = (
        embed(model),
        rerank(model),
        retrieve(model),
        [model.backbone(torch.tensor([2, 7, 9]))[0]],
    )
    return [np.asarray(result) for results in ways for result in results]


@pytest.fixture(scope="module", params=[tiny_model, tiny_encoder], ids=["recurrent", "passages"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    request.param(path / "parts").save(path / "model")
    return path / "model"


def test_a_default_is_restored_by_the_last_of_several_threads() -> None:
    with default(torch.float64):
        first = plain_numbers()
        second = plain_numbers()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.float32  # the second still computes
        second.__exit__(None, None, None)


def test_models_loaded_in_fp64(folder: Path) -> None:
    """Their products are in fp64; results are fp32, as those of other models."""
    model = load_model(folder, "float64")
    assert {vector.dtype for vector in (*embed(model), *rerank(model))} == {np.dtype(np.float32)}
    expect_alike(results(model), results(load_model(folder, "float32")))


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_models_loaded_and_used_under_a_setting(
    folder: Path, setting: Callable[[], AbstractContextManager[object]]
) -> None:
    expected = results(load_model(folder))
    loaded_before = load_model(folder)
    with setting():
        loaded = load_model(folder)
        found = [results(loaded_before), results(loaded)]
    for results_of_one in [*found, results(loaded)]:
        assert [np.array_equal(*pair) for pair in zip(results_of_one, expected, strict=True)] == [
            True
        ] * len(expected)
