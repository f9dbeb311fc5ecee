"""An encoder that finds sentences, read from a model folder as arrays, without torch."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from runnel.backbones.checkpoint.shapes import StoredShape, check_tensors
from runnel.backbones.config import digest_arrays
from runnel.backbones.encoder.config import EncoderConfig
from runnel.config import valid_config
from runnel.errors import CheckpointError, errors_as, needing
from runnel.models.description import Description, head_options
from runnel.models.model import Job, Model, WeightDtype
from runnel.models.pocket.heads import KINDS, ArrayHead
from runnel.ops import backend

if TYPE_CHECKING:
    from runnel.backbones.encoder.arrays import ArrayEncoder

log = logging.getLogger("runnel")
FILE = "model.safetensors"
# The dtypes of weights that it reads, by their names in safetensors: fp32, fp16, and bytes with
# scales.
_STORED_DTYPES = {"F32", "F16", "I8"}


@dataclass(eq=False)
class PocketModel(Model):
    """A model whose weights are arrays."""

    backbone: "ArrayEncoder"
    heads: Mapping[str, ArrayHead]

    def __post_init__(self) -> None:
        self.features = self.heads["features"]  # a `TokenFeatures`
        self.weight = np.exp(self.features.log_weight)  # positive
        self.idf = self.features.idf
        self.mark_vectors = None  # an encoder reads no marks: they are for recurrent models

    refresh = __post_init__  # its heads do not change

    def with_sentences(self) -> Model:
        return self  # `load_pocket` loads only folders with a head for sentences

    def fingerprint(self) -> str:
        named = {
            f"{name}.{key}": array
            for name, head in self.heads.items()
            for key, array in head.arrays().items()
        }
        return digest_arrays(self.backbone.fingerprint(), sorted(named.items()))

    def with_torch(self) -> Model:
        with needing("saving and training a model need torch", "recurrent"):
            from runnel.models.recurrent.model import read_folder
        model: Model = read_folder(self.backbone.folder, self.backbone.dtype, self.source)
        for name in ("templates", "prompts", "card", "unit"):
            setattr(model, name, getattr(self, name))
        return model

    def save(self, folder: str | Path, *, weights: str = "as_is", job: Job | None = None) -> None:
        self.with_torch().save(folder, weights=weights, job=job)

    def write(self, folder: Path, *, weights: str = "as_is") -> None:
        self.with_torch().write(folder, weights=weights)


def load_pocket(
    folder: Path, read: Description, dtype: WeightDtype, device: str, source: str
) -> PocketModel | None:
    """Load the model of a folder; return None if it must be read with torch, because of its kind,
    its files or this processor. Raise CheckpointError if the config or the file is damaged.
    """
    # 1. config.json: is it an encoder that finds sentences?
    wanted: Any = str(dtype).removeprefix("torch.")
    architecture = read.backbone.get("architecture")
    if architecture != "encoder" or not {"features", "sentences"} <= set(read.heads):
        return None
    if wanted not in ("auto", "float32", "bfloat16", "int8") or not backend.wants_cpu(device):
        return None
    with valid_config(source):
        config = EncoderConfig.from_dict(read.backbone.get("config", {}), f"{source}: config.json")
    if config.begin_id is None:
        return None  # it reads a text whole, not in passages, which begin with this id
    # 2. The header of the weights file, and the processor: are there kernels for its dtype? bf16 is
    # only for processors that multiply it, where it is the default.
    file = folder / FILE
    with errors_as(
        CheckpointError,
        f"{file} cannot be read",
        SafetensorError,
        OSError,
        advice="copy or download it again",
    ):
        # stays open: the weights are those of this file even if it is replaced
        weights = safe_open(file, "numpy")
        dtypes = {weights.get_slice(name).get_dtype() for name in weights.keys()}
    from runnel.ops.numba_math import PROBLEM  # numba takes a while to import

    if PROBLEM:
        log.info("no kernels: %s", PROBLEM)
    if PROBLEM or not dtypes <= _STORED_DTYPES:
        return None
    from runnel.backbones.encoder.arrays import DEFAULT_DTYPE, ArrayEncoder
    from runnel.ops.int8_matmul import vnni_problem

    if (wanted == "int8" and vnni_problem()) or (wanted == "bfloat16" and wanted != DEFAULT_DTYPE):
        return None
    # 3. The encoder and its heads.
    backbone = ArrayEncoder(weights, file, config, DEFAULT_DTYPE if wanted == "auto" else wanted)
    heads = {
        name: _read_head(name, options, backbone, weights, source)
        for name, options in read.heads.items()
    }
    log.info("%s runs with kernels compiled for this processor", backbone.title)
    looks_in_8_bits = wanted == "auto" and vnni_problem() is None
    arguments = read.model_arguments(folder, heads, source)
    return PocketModel(backbone, **arguments, looks_in_8_bits=looks_in_8_bits)


def _read_head(
    name: str, config: Mapping[str, Any], backbone: "ArrayEncoder", file: safe_open, source: str
) -> ArrayHead:
    """Return a head with its weights, which are in the model's file of weights."""
    kind, options = head_options(KINDS, name, config, backbone, source)
    head = kind(**options)
    assert isinstance(head, ArrayHead)
    start = f"heads.{name}."
    weights = {
        key.removeprefix(start): file.get_tensor(key)
        for key in file.keys()
        if key.startswith(start)
    }
    check_tensors(
        {key: StoredShape(array.shape, FILE) for key, array in weights.items()},
        {key: array.shape for key, array in head.arrays().items()},
        f"{source}: the head {name!r}",
    )
    head.load(weights)
    return head
