"""What tests of training share: a tiny model on every recurrent backbone, texts, and the bytes of
live tensors.
"""

import json
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny import tiny_model
from helpers.tiny_backbones import open_xlstm, tiny_backbone
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from runnel.backbones.mamba1.model import Mamba1, Mamba1Config
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.backbones.rwkv7.model import Rwkv7, Rwkv7Config
from runnel.backbones.xlstm.model import XlstmConfig
from runnel.lab.training.progress import STATE, Recorder, find_whole_checkpoint, logged_steps
from runnel.models.embedder import Embedder
from runnel.models.items import Item
from runnel.models.model import Model
from runnel.models.recurrent.scanner import ItemMaker

BACKBONES: dict[str, tuple[Any, Any]] = {
    "mamba1": (Mamba1, Mamba1Config(128, 32, 2)),
    "mamba2": (Mamba2, Mamba2Config(128, 32, 2, state_size=16, head_size=16)),
    "rwkv7": (
        Rwkv7,
        Rwkv7Config(128, 32, 2, head_size=16, decay_rank=8, a_rank=8, v_rank=8, gate_rank=8),
    ),
    "xlstm": (
        open_xlstm,
        XlstmConfig(128, 32, 2, num_heads=2, qk_size=32, v_size=64, ffn_size=64, norm_eps=0.01),
    ),
}
QUERY = "does the river run to the sea"
DOCUMENTS = [
    (
        "The cat sat on the mat. A dog ran. The clause is executed finally! Is it the end of the"
        " river?"
    ),
    "A river runs to the sea.",
    "dog",
]


def training_model(
    folder: Path,
    architecture: str,
    *,
    papers_heads: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Model:
    """Prepared for inference, in fp32 or fp64; always the same weights."""
    built, config = BACKBONES[architecture]
    backbone = tiny_backbone(built, config)
    model = tiny_model(folder, papers_heads=papers_heads, backbone=backbone)
    if dtype == torch.float64:
        backbone.double()
        model.heads.double()
        model.refresh()
    return model


class LiveBytes(TorchDispatchMode):
    """The most bytes of tensors that were made while it is on and alive at once: `peak`."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if (
                isinstance(tensor, torch.Tensor)
                and (storage := tensor.untyped_storage()) not in self._known
            ):
                self._known[storage] = size = storage.nbytes()
                self._add(size)
                weakref.finalize(storage, self._add, -size)
        return out

    def _add(self, size: int) -> None:
        self._now += size
        self.peak = max(self.peak, self._now)


class _Stopped(Exception):
    pass


@contextmanager
def stopped_after(step: int) -> Iterator[None]:
    """Expect the run of a recipe inside to end in an error after a step, as if it had been
    interrupted there.
    """
    on_step_end = Recorder.on_step_end

    def stop(self: Recorder, args: Any, state: Any, control: Any, **more: Any) -> None:
        on_step_end(self, args, state, control, **more)
        if state.global_step == step:
            raise _Stopped

    with pytest.MonkeyPatch.context() as patch, pytest.raises(_Stopped):
        patch.setattr(Recorder, "on_step_end", stop)
        yield


def render_document(model: Model, text: str, prompt: str = "") -> np.ndarray:
    return next(Embedder(model).render([text], prompt=prompt))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the logged steps of a run, up to its last complete checkpoint."""
    whole = find_whole_checkpoint(folder / "checkpoints")
    return (
        logged_steps(json.loads((whole / STATE).read_text(encoding="utf-8"))["log_history"])
        if whole
        else []
    )


def make_item(
    model: Model,
    query: str,
    document: str,
    spans: np.ndarray | None = None,
    labels: np.ndarray | None = None,
) -> Item:
    """Make an item of a query and a document as `SentenceRetriever.score` reads them.

    `spans` (S, 2) tile the document, which is then read as it is, by default in the model's units;
    `labels` (S,) are of these.
    """
    maker = ItemMaker(model)
    if labels is not None:
        labels = np.asarray(labels, np.float32)
    return maker.item(maker.encode_query(query), maker.read(document, spans), labels)
