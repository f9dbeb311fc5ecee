"""The backbone on a GPU, all else on the CPU: every way of reading gives what it gives on the CPU.

Where there is no GPU, on one that is not there (helpers/stand_in_gpu.py): nothing may leave its device, nor be mixed with what
is on the other.
"""

import itertools
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.stand_in_gpu import GPU, register, stand_in_gpu
from helpers.tiny import judging_encoder, tiny_encoder, tiny_model, write_embedding_rwkv
from helpers.tiny_training import BACKBONES, render_document, training_model

from runnel.engine import Engine, Request
from runnel.lab.training.forward import make_item, sentence_scores, trainable
from runnel.models.base import Model, load_model
from runnel.models.embedder import Embedder
from runnel.models.graph import Long, make_pair, pair_scores, vectors
from runnel.models.language_model import LanguageModel
from runnel.models.reranker import Reranker
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.models.torch_heads import LmHead

GOLDEN = Path(__file__).parent / "golden"
REAL = torch.cuda.is_available()
DEVICE = "cuda" if REAL else GPU
QUERY, TEXTS = "the river", ["A river runs to the sea.", "The dog sat. " * 30, "Cats bark? No. The river is a cat."]
# Libraries of kernels warn when they compile.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")] * REAL


def transformer(folder: Path) -> Model:
    shutil.copytree(GOLDEN / "transformers" / "bert-mean", folder)  # loading it from there again gives another model
    return load_model(folder, dtype="float32", device="cpu")


MODELS: dict[str, Callable[[Path], Model]] = {
    "states": tiny_model,
    "papers' heads": lambda folder: tiny_model(folder, papers_heads=True),
    "passages": tiny_encoder,
    "second look": judging_encoder,
    "a state is scored": lambda folder: load_model(write_embedding_rwkv(folder), dtype="float32", device="cpu"),
    "transformer": transformer,
}


def embed(model: Model) -> Iterator[Any]:
    embedder = Embedder(model)
    yield from embedder.encode_document(TEXTS, max_tokens=30)
    yield embedder.encode_spans(TEXTS[2], [(0, 12), (13, 30)])
    if model.backbone.recurrent:
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
    written = LanguageModel(model.backbone, model.tokenizer, LmHead(128, 32, tied=True)).generate("The river", max_tokens=9)
    yield written.ids
    yield from written.state.to("cpu").tensors.values()


def train(model: Model) -> Iterator[Any]:
    """Gradients of all three jobs, over segments."""
    trainable(model)
    long = Long(segment_tokens=16)
    losses = [vectors(model, [render_document(model, text) for text in TEXTS], long)[:, ::2].sum()]
    losses.append(pair_scores(model, [make_pair(model, QUERY, text) for text in TEXTS], long).sum())
    losses += [scores.sum() for scores in sentence_scores(model, [make_item(model, QUERY, text) for text in TEXTS], long)]
    weights = [*model.backbone.parameters(), *model.heads.parameters()]
    for gradient in torch.autograd.grad(sum(losses), weights, allow_unused=True, materialize_grads=True):
        yield gradient.cpu()


CASES = [
    *itertools.product(["states", "papers' heads", "passages", "second look", "transformer"], [embed]),
    *itertools.product(["states", "papers' heads", "passages", "second look", "a state is scored"], [rerank]),
    *itertools.product(["states", "papers' heads", "passages", "second look"], [retrieve]),
    ("states", generate),
]


def compare(model: Model, job: Callable[[Model], Iterator[Any]]) -> None:
    """Assert that a job gives the same on the GPU."""
    expected = list(job(model))
    with nullcontext() if REAL else stand_in_gpu():
        model.backbone.to(DEVICE)
        if job in (generate, train):  # elsewhere heads stay on the CPU
            model.heads.to(DEVICE)
        model.backbone.prepare()
        model.refresh()
        found = list(job(model))
    assert model.backbone.device.type == DEVICE
    for actual, truth in zip(map(np.asarray, found), map(np.asarray, expected), strict=True):
        np.testing.assert_allclose(actual, truth, rtol=1e-4, atol=1e-5 * max(1, np.abs(truth).max(initial=0)))


@pytest.mark.parametrize(("name", "job"), CASES)
def test_results_are_those_of_the_cpu(name: str, job: Callable[[Model], Iterator[Any]], tmp_path: Path) -> None:
    compare(MODELS[name](tmp_path / "model"), job)


@pytest.mark.slow
def test_gradients_are_those_of_the_cpu(tmp_path: Path) -> None:
    """In a process of its own: autograd counts the devices at its first backward pass."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(compare_gradients, tmp_path).result()


def compare_gradients(folder: Path) -> None:
    if not REAL:
        register()
    compare(tiny_model(folder), train)


@pytest.mark.parametrize("architecture", BACKBONES)
def test_engine_of_every_family(architecture: str, tmp_path: Path) -> None:
    """Texts in steps, from a state on the CPU; what comes out is on the CPU, the state too."""
    backbone = training_model(tmp_path, architecture).backbone
    ids = [np.arange(n) % 100 for n in (70, 1, 33)]

    def read(engine: Engine) -> Iterator[Any]:
        for result in engine.run([Request(row, keep_state=True, ranges=[[0, len(row)]]) for row in ids]):
            (more,) = engine.run([Request(ids[2], state=result.state, positions=range(33))])
            yield from (result.hidden, result.sums, result.totals, *result.state.tensors.values(), more.hidden)

    expected = list(read(Engine(backbone, 40)))
    with nullcontext() if REAL else stand_in_gpu():
        backbone.to(DEVICE).prepare()
        found = list(read(Engine(backbone, 40)))
    for actual, truth in zip(found, expected, strict=True):
        assert actual.device.type == "cpu"
        torch.testing.assert_close(actual, truth, rtol=2e-4, atol=2e-5)
