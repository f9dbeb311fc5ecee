"""llama.cpp through llama-cpp-python, with the same weights as ours in a GGUF file.

T  tokens of a text      B  texts      D  width of hidden vectors
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.gguf import write_gguf
from benchmarks.shapes import load_subject
from runnel.errors import BackendUnavailable, InputError, MissingDependency
from runnel.hardware import cores

_BATCH = 512  # tokens of a call; llama.cpp's own default for its physical batch
_CONTEXT = 1 << 16  # of no consequence to a recurrent model, but a limit on positions


class LlamaCpp:
    """A context of llama.cpp. Its threads are the processor's cores."""

    title = "llama.cpp"

    def __init__(self, model: str, dtype: str, device: str) -> None:
        if device != "cpu":
            raise InputError("llama.cpp is compared on the CPU only")
        try:
            self.api: Any = importlib.import_module("llama_cpp")
        except ImportError as error:
            raise MissingDependency(
                f"llama-cpp-python cannot be imported ({error}); pip install llama-cpp-python"
            ) from error
        self.width = 0
        with TemporaryDirectory() as folder:
            file = Path(folder) / "model.gguf"
            backbone = load_subject(model, torch.float32)
            self.width = backbone.hidden_size
            write_gguf(backbone, file, dtype)
            del backbone
            self._open(file)

    def _open(self, file: Path) -> None:
        """Load the file; it may be deleted afterwards."""
        api = self.api
        api.llama_backend_init()
        self.model = api.llama_model_load_from_file(
            str(file).encode(), api.llama_model_default_params()
        )
        if not self.model:
            raise BackendUnavailable(
                "llama.cpp does not load the file written for it; another version may"
            )
        options = api.llama_context_default_params()
        options.n_ctx = _CONTEXT
        options.n_batch = options.n_ubatch = _BATCH
        options.n_threads = options.n_threads_batch = cores()
        options.embeddings = True
        options.pooling_type = api.LLAMA_POOLING_TYPE_NONE
        self.context = api.llama_init_from_model(self.model, options)
        if not self.context:
            raise BackendUnavailable(
                "llama.cpp makes no context for the file written for it; another version may"
            )
        self.batch = api.llama_batch_init(_BATCH, 0, 1)

    def run(self, ids: Tensor, segment: int | None) -> None:
        """Read one text after the other; only the last token of each has an output, so the LM head
        runs once a text.
        """
        self.api.llama_set_embeddings(self.context, False)
        for text in ids:
            self._read(text.numpy(), every=False)

    def hidden(self, texts: Sequence[Tensor]) -> Tensor:
        self.api.llama_set_embeddings(self.context, True)
        return torch.cat([torch.from_numpy(self._read(text.numpy(), every=True)) for text in texts])

    def _read(self, ids: np.ndarray, *, every: bool) -> np.ndarray:
        """Read a text; return its hidden vectors (T, D) if `every`, else none."""
        api = self.api
        batch = self.batch
        found = []
        api.llama_memory_clear(api.llama_get_memory(self.context), True)
        for start in range(0, len(ids), _BATCH):
            piece = ids[start : start + _BATCH]
            batch.n_tokens = len(piece)
            for i, token in enumerate(piece.tolist()):
                batch.token[i] = token
                batch.pos[i] = start + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = every or start + i == len(ids) - 1
            if api.llama_decode(self.context, batch) != 0:
                raise BackendUnavailable(
                    f"llama.cpp could not read tokens {start} to {start + len(piece)}"
                )
            if every:
                values = api.llama_get_embeddings(self.context)
                found.append(
                    np.ctypeslib.as_array(values, (len(piece) * self.width,))
                    .reshape(len(piece), -1)
                    .copy()
                )
        return np.concatenate(found) if every else np.zeros((0, self.width), np.float32)
