"""The classifier of a sentence-transformers cross-encoder in modules of its own: Dense, LayerNorm, Dense (Ettin's rerankers)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from runnel.backbones.checkpoint.files import open_weights
from runnel.backbones.checkpoint.tensors import check_tensors, from_tensors, read_tensor
from runnel.errors import CheckpointError
from runnel.models.heads import Pooling
from runnel.models.published_heads import DenseScore, Norm
from runnel.records import read_model_json

_ACTIVATIONS: dict[str, Literal["tanh", "gelu"]] = {
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.Tanh": "tanh",
}
_NONE = "torch.nn.modules.linear.Identity"


def read_classifier(folders: Sequence[Path], pooling: Pooling, width: int) -> DenseScore:
    """Read the head from the folders of its three modules.

    Args:
        pooling: of the module before them.
        width: of the hidden vectors.

    Raises:
        CheckpointError: a file is missing or damaged, or a module computes something else than a `DenseScore`.
    """
    dense, norm, linear = (read_model_json(folder / "config.json") for folder in folders)
    activation = _ACTIVATIONS.get(dense.get("activation_function", "torch.nn.modules.activation.Tanh"))
    if activation is None or dense.get("use_residual") or dense.get("out_features") != width:
        raise _unsupported(folders[0], f"GELU or Tanh, {width} outputs and no residual connection", dense)
    if norm.get("dimension") != width:
        raise _unsupported(folders[1], f"the dimension {width}", norm)
    outputs = linear.get("out_features")
    if linear.get("activation_function") != _NONE or linear.get("use_residual") or outputs not in (1, 2):
        raise _unsupported(folders[2], "Identity, one or two outputs and no residual connection", linear)
    head = DenseScore(width, outputs, activation, pooling, dense.get("bias", True) is True, Norm(1e-5, True))
    names = ("dense", "norm", "linear")
    tensors = {name: tensor for folder, new in zip(folders, names, strict=True) for name, tensor in _tensors(folder, new).items()}
    expected = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    check_tensors(from_tensors(tensors, "the classifier's modules"), expected, str(folders[0].parent))
    head.load_state_dict(tensors)
    return head


def _tensors(folder: Path, new: str) -> dict[str, Tensor]:
    """Return the tensors of a module, "linear.weight" or "norm.weight" in the file, named for the head."""
    stored = open_weights(folder)
    return {f"{new}.{name.rpartition('.')[2]}": read_tensor(name, one, str(folder)).float() for name, one in stored.items()}


def _unsupported(folder: Path, expected: str, config: Mapping[str, Any]) -> CheckpointError:
    return CheckpointError(f"{folder}: this module of a classifier is not supported; expected {expected}, got {dict(config)}")
