"""Processes that fork after they have used a model, and kernels in several Python threads: no hang,
no kill.
"""

import os
from pathlib import Path

import pytest
from helpers.children import run_python

pytestmark = pytest.mark.slow

START = """
import logging, multiprocessing, os, sys, warnings
from pathlib import Path
import numpy as np, torch
from helpers.tiny import tiny_model
from runnel import Embedder
warnings.simplefilter("ignore")  # Python warns of forks beside threads
embedder = Embedder(tiny_model(Path(sys.argv[1])))
texts = ["the cat sat on the mat " * 50, "dog"]
def read(text):
    # large enough for several of torch's threads
    (torch.ones(600, 600) @ torch.ones(600, 600)).sum()
    return embedder.encode(text)
"""
USED = "expected = [read(text) for text in texts]\n"
FORK = """
child = os.fork()
if child == 0:
    try:
        pairs = zip(texts, expected or map(read, texts))
        same = all(np.allclose(read(text), other, atol=1e-5) for text, other in pairs)
        print("same" if same else "other", torch.get_num_threads(), flush=True)
    except BaseException as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
print("status", os.waitpid(child, 0)[1])
"""
POOL = """
try:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(all(np.allclose(a, b, atol=1e-5) for a, b in zip(pool.map(read, texts), expected)))
except Exception as error:
    print(type(error).__name__, error)
print(all(np.array_equal(read(a), b) for a, b in zip(texts, expected)), torch.get_num_threads())
"""
REFUSED = (
    "this process was forked after a model had been used, and has no OpenMP threads: use the start"
    " method 'spawn', use the model only in the child, or set the environment variable"
    " NUMBA_THREADING_LAYER=workqueue (slower) in the parent"
)


def run(tmp_path: Path, code: str, **environment: str) -> str:
    variables = {"OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"}
    variables["TOKENIZERS_PARALLELISM"] = "false"
    return run_python("-c", START + code, tmp_path, **variables | environment).strip()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(
    ("code", "environment", "printed"),
    [
        pytest.param(USED + FORK, {}, f"BackendUnavailable {REFUSED}\nstatus 0", id="used"),
        pytest.param(USED + POOL, {}, f"BackendUnavailable {REFUSED}\nTrue 2", id="used, a pool"),
        pytest.param("expected = []\n" + FORK, {}, "same 2\nstatus 0", id="loaded only"),
        pytest.param(
            USED + FORK,
            {"NUMBA_THREADING_LAYER": "workqueue"},
            "same 1\nstatus 0",
            id="numba's threads",
        ),
        pytest.param(
            USED + POOL,
            {"NUMBA_THREADING_LAYER": "workqueue"},
            "True\nTrue 2",
            id="numba's threads, a pool",
        ),
    ],
)
def test_forked_processes(
    tmp_path: Path, code: str, environment: dict[str, str], printed: str
) -> None:
    assert run(tmp_path, code, **environment) == printed


THREADS = """
import threading
from runnel.ops.ssd import ssd
embedders = [embedder, Embedder(tiny_model(Path(sys.argv[1]), seed=1))]
expected = [one.encode(texts) for one in embedders]
wrong, start = [], threading.Barrier(4)
def encode(one, known):
    start.wait()
    for _ in range(30):
        if not np.allclose(one.encode(texts), known, atol=1e-5):
            wrong.append(one)
def train():
    start.wait()
    for _ in range(30):
        x, b, c = (torch.randn(70, 2, 16, requires_grad=True) for _ in range(3))
        y, _ = ssd(x, torch.rand(70, 2), -torch.ones(2), b, c, torch.ones(2))
        y.sum().backward()
threads = [threading.Thread(target=encode, args=pair) for pair in zip(embedders, expected)]
threads += [threading.Thread(target=train) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(wrong))
"""


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("layer", ["omp", "workqueue"])
def test_kernels_run_in_several_python_threads(tmp_path: Path, threads: str, layer: str) -> None:
    """Two of them at once in numba's own pool would end the process."""
    numbers = {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads}
    assert run(tmp_path, THREADS, NUMBA_THREADING_LAYER=layer, **numbers) == "0"
