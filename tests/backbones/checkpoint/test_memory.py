"""What loading reads and what memory it takes: one tensor beside the model, and nothing that is not
used.
"""

import json
from pathlib import Path

import pytest
import torch
from helpers.checkpoint_writing import shapes_of, write_checkpoint, write_sparse
from helpers.children import run_python
from safetensors.torch import save_file

from runnel.backbones.checkpoint.load import load_backbone, open_weights
from runnel.backbones.checkpoint.tensors import read_tensor
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config

pytestmark = pytest.mark.slow

SMALL = Mamba2Config(vocab_size=64, hidden_size=32, num_layers=2, state_size=8, head_size=16)
# 250 million parameters, the largest tensor a 30th of them
BIG = Mamba2Config(vocab_size=8192, hidden_size=1024, num_layers=37)

# Loads what is named on the command line after a small model, which imports everything that is
# needed; prints the growth of memory: the highest of anonymous pages (looked at every millisecond)
# and of all pages (which the system keeps), in bytes.
PROGRAM = """
import re, sys, threading, time
from pathlib import Path
from runnel.backbones.checkpoint.load import load_backbone, meta_backbone

def memory(kind):
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"^{kind}:\\s+(\\d+)", status, re.M)[1])

small, big, dtype = sys.argv[1:]
load_backbone(small, dtype)
Path("/proc/self/clear_refs").write_text("5")  # the highest starts anew
before = {kind: memory(kind) for kind in ("RssAnon", "VmRSS")}
highest, done = [0], threading.Event()

def watch():
    while not done.is_set():
        highest[0] = max(highest[0], memory("RssAnon"))
        time.sleep(0.001)

watcher = threading.Thread(target=watch)
watcher.start()
model = load_backbone(big, dtype)
done.set()
watcher.join()
size = sum(p.numel() * p.element_size() for p in model.parameters())
print(size, highest[0] - before["RssAnon"], memory("VmHWM") - before["VmRSS"])
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    save_file(Mamba2(SMALL).state_dict(), folder / "model.safetensors")
    return folder


SPARSE, PICKLE = "model.safetensors", "pytorch_model.bin"


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="only Linux reports a process's memory by kind"
)
@pytest.mark.parametrize(
    ("file", "stored", "dtype", "own"),
    [
        (SPARSE, torch.float32, "bfloat16", 1.0),
        (PICKLE, torch.float32, "bfloat16", 1.0),
        pytest.param(PICKLE, torch.float32, "float32", 0.0, marks=pytest.mark.release),
        pytest.param(SPARSE, torch.float16, "float32", 1.0, marks=pytest.mark.release),
        pytest.param(SPARSE, torch.float16, "bfloat16", 1.0, marks=pytest.mark.release),
        pytest.param(SPARSE, torch.bfloat16, "bfloat16", 0.0, marks=pytest.mark.release),
        pytest.param(SPARSE, torch.float32, "float32", 0.0, marks=pytest.mark.release),
    ],
)
def test_a_checkpoint_is_in_memory_once(
    small: Path, tmp_path: Path, file: str, stored: torch.dtype, dtype: str, own: float
) -> None:
    """`own`: the part of the model that is memory of the process's own; the rest are pages of the
    file, which can be had back.
    """
    if file == SPARSE:
        shapes = shapes_of(BIG) | {"lm_head.weight": (BIG.vocab_size, BIG.hidden_size)}
        assert write_sparse(tmp_path / file, shapes, stored) > 0.5e9
    else:
        config = Mamba2Config(vocab_size=4096, hidden_size=768, num_layers=20)
        torch.save(
            {name: torch.zeros(shape) for name, shape in shapes_of(config).items()}, tmp_path / file
        )
    printed = run_python("-c", PROGRAM, small, tmp_path, dtype)
    size, anonymous, everything = map(int, printed.split())
    assert own * size * 0.98 <= anonymous <= (own + 0.1) * size, printed
    assert size * 0.98 <= everything <= 1.15 * size, printed


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_lm_head_is_never_read(tmp_path: Path, file: str) -> None:
    model = Mamba2(SMALL)
    tensors = {f"backbone.{name}": tensor for name, tensor in model.state_dict().items()}
    # would be refused, were it looked at
    tensors["lm_head.weight"] = torch.full((64, 32), float("nan"))
    loaded = load_backbone(write_checkpoint(tmp_path, tensors, None, file), "float32")
    assert all(
        torch.equal(loaded.state_dict()[name], tensor)
        for name, tensor in model.state_dict().items()
    )


@pytest.mark.parametrize("file", ["model.safetensors", "model.pth"])
def test_a_change_of_a_mapped_tensor_stays_out_of_the_file(tmp_path: Path, file: str) -> None:
    path = write_checkpoint(tmp_path, {"a": torch.full((1 << 16,), 2.0)}, None, file) / file
    kept = read_tensor("a", open_weights(path)["a"], "")
    assert kept.eq(2).all()  # a tensor keeps its file open
    kept[0] = 7
    assert read_tensor("a", open_weights(path)["a"], "")[0] == 2


def test_odd_places_in_the_file(tmp_path: Path) -> None:
    """Elements that do not start at a multiple of their size, and tensors without elements."""
    places = {"a": ("U8", [3], [0, 3]), "b": ("F32", [2], [3, 11]), "c": ("F16", [4, 0], [11, 11])}
    text = json.dumps(
        {
            n: dict(zip(("dtype", "shape", "data_offsets"), p, strict=True))
            for n, p in places.items()
        }
    ).encode()
    numbers = torch.tensor([1.5, -2.0]).view(torch.uint8).numpy().tobytes()
    (tmp_path / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + bytes([1, 2, 3]) + numbers
    )
    stored = open_weights(tmp_path)
    assert stored["a"].read().tolist() == [1, 2, 3]
    assert stored["b"].read().tolist() == [1.5, -2.0] and stored["b"].read().data_ptr() % 4 == 0
    assert stored["c"].read().shape == (4, 0) and stored["c"].dtype == torch.float16


def test_views_in_a_pickle(tmp_path: Path) -> None:
    """Transposed tensors, parts of a larger one, and two names for the same numbers."""
    whole = torch.arange(12.0).view(3, 4)
    tensors = {
        "t": whole.t(),
        "row": whole[1],
        "column": whole[:, 2],
        "same": whole,
        "other": torch.ones(2).bfloat16(),
    }
    torch.save(tensors, tmp_path / "model.pth")
    stored = open_weights(tmp_path)
    for name, tensor in tensors.items():
        assert stored[name].shape == tensor.shape and stored[name].dtype == tensor.dtype
        assert torch.equal(stored[name].read(), tensor), name


def test_pickles_from_before_torch_1_6(tmp_path: Path) -> None:
    tensors = {name: tensor.half() for name, tensor in Mamba2(SMALL).state_dict().items()}
    torch.save(tensors, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    loaded = load_backbone(tmp_path, "float32")
    assert all(
        torch.equal(loaded.state_dict()[name], tensor.float()) for name, tensor in tensors.items()
    )
