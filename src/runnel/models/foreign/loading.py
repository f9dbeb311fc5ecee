"""Load a model that another library wrote: a transformer, or a bare checkpoint (a recurrent
language model without runnel's files: no heads for retrieval, no templates).
"""

from pathlib import Path

import torch

from runnel.backbones.checkpoint.finding import read_config
from runnel.backbones.checkpoint.load import load_checkpoint
from runnel.models.foreign.bare import read_bare
from runnel.models.foreign.transformers import apply_choices, is_transformer, load_transformer
from runnel.models.head import Pooling
from runnel.models.model import Job
from runnel.models.recurrent.model import TorchModel
from runnel.ops.backend import plain_numbers


@plain_numbers()
def load_foreign(
    path: Path,
    dtype: str | torch.dtype,
    device: str,
    source: str,
    *,
    prefix: str,
    pooling: Pooling | None,
    template: str | None,
    job: Job,
) -> TorchModel:
    """Load a folder, or one file of weights with the config.json in its folder.

    Args:
        source: the model's name in messages, as the user wrote it.
        prefix: what the user wrote before the name: "st" asks for sentence-transformers, "st-code"
            also for the code in its folder; "": the files decide.
        pooling, template: the user's choices for an embedder; None: what the folder says.
        job: "embed", "rerank" or "sentences": which head the model needs.
        dtype, device: see `load_model`.
    """
    folder = path if path.is_dir() else path.parent
    config = read_config(path) or {}
    if prefix or is_transformer(folder, config):
        return load_transformer(
            folder,
            config,
            dtype,
            device,
            source,
            pooling=pooling,
            template=template,
            job=job,
            prefix=prefix,
        )
    model = read_bare(folder, load_checkpoint(path, dtype=dtype, device=device), source)
    apply_choices(model, folder, pooling, template)
    return model
