import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.children import PATHS, PROGRAMS
from helpers.evidence_examples import examples
from helpers.tiny import tiny_model
from helpers.waiting import GIVE_UP_S
from programs.training_workers import together
from safetensors.torch import load_file

from runnel.lab.training.tables import SentenceData
from runnel.models.sentence_retriever import SentenceRetriever

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes of each kind of run, and two of the same: 13 documents are an odd number of batches."""
    folder = tmp_path_factory.mktemp("runs")
    SentenceData.write(folder / "train.arrow", tiny_model(folder / "start"), examples(13, sentences=(4, 9)), tokens=None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in ("0", "1"):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, PROGRAMS / "training_workers.py", folder]
        environment = os.environ | PATHS | place | {"OMP_NUM_THREADS": "1"}
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    before = torch.get_num_threads()
    try:
        together(folder)
        outputs = [process.communicate(timeout=GIVE_UP_S)[0] for process in processes]
    finally:
        torch.set_num_threads(before)
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return folder


@pytest.mark.parametrize("kind", ["plain", "truncated", "sharded"])
def test_two_processes_train_a_sentence_retriever_as_one_does(folder: Path, kind: str) -> None:
    one, two = folder / f"{kind}-1", folder / f"{kind}-2"
    figures = [json.loads((path / "figures.json").read_text()) for path in (one, two)]
    assert figures[1] == pytest.approx(figures[0], rel=1e-4)
    weights = [load_file(path / "model.safetensors") for path in (one, two)]
    weights = [{name: tensor.reshape(-1) for name, tensor in part.items()} for part in weights]
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-3, atol=1e-5)
    retriever = SentenceRetriever.load(folder / f"{kind}-2")
    assert len(retriever.score("the river", "A river runs to the sea. The cat sat on the mat.")) == 2
