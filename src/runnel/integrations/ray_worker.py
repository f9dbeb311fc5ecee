"""A worker process, which reads one shard after another for the driver (`integrations/ray.py`)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.errors import StoreError
from runnel.search.records import FieldType

if TYPE_CHECKING:
    from runnel.search.shards import Manifest
    from runnel.text.shards import Shard


@dataclass(frozen=True)
class ShardJob:
    """What a worker needs to know besides the shard's number."""

    paths: Sequence[str]
    folder: str
    model: str
    fields: Mapping[str, FieldType]
    passage_tokens: int | None
    remember: bool
    version: str


class Worker:
    """A process on the cluster that holds the model.

    Args:
        cpus: number of threads.
        on_gpu: whether it has a GPU; if not, it uses none.
    """

    def __init__(self, cpus: int, on_gpu: bool) -> None:
        self._cpus, self._device = cpus, "auto" if on_gpu else "cpu"
        self._tokens = self._of_shard = 0
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):  # before torch and numba are imported
            os.environ[name] = str(cpus)

    def load(self, job: ShardJob) -> str:
        """Load the model; return the host and process.

        Raises:
            StoreError: this machine has another version of runnel, or does not see the folder.
        """
        where = f"{socket.gethostname()}, process {os.getpid()}"
        if version("runnel") != job.version:
            here = version("runnel")
            raise StoreError(f"{where} has runnel {here}, not {job.version} as the driver; install one version on all machines")
        if not Path(job.folder).is_dir():
            raise StoreError(f"{where} does not see the folder {job.folder}; it must be on storage that all machines share")
        import torch

        from runnel.models.embedder import Embedder
        from runnel.search.encoding import new_settings

        torch.set_num_threads(self._cpus)
        self._job = job
        self._embedder = Embedder.load(job.model, device=self._device)
        self._settings = new_settings(self._embedder, job.fields, job.passage_tokens, job.remember)
        return where

    def encode(self, shard: Shard) -> tuple[Manifest, int]:
        """Read a shard; return its manifest and the tokens that this worker has read so far."""
        from runnel.search.shards import encode_shard

        self._of_shard = 0
        job = self._job
        made = encode_shard(job.paths, job.folder, shard, self._embedder, settings=self._settings, progress=self._count)
        return made, self._tokens

    def tokens(self) -> tuple[int, int]:
        """Return the tokens read so far by this worker: in total, and of the current shard."""
        return self._tokens, self._of_shard

    def _count(self, tokens: int) -> None:
        self._tokens += tokens
        self._of_shard += tokens
