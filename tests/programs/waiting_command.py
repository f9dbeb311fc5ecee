"""The command line with stand-ins for the models, which say that work has begun and then wait for a line on standard input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from helpers.command_line import FakeEmbedder, FakeReranker, Words

import runnel.models.embedder
import runnel.models.reranker
from runnel.cli import main
from runnel.records import Hit


def wait() -> None:
    print("begun", flush=True)
    sys.stdin.readline()


class WaitingEmbedder(FakeEmbedder):
    def encode_rows(self, rows: Iterable[Words], progress: Callable[[int], object]) -> Iterator[np.ndarray]:
        wait()
        yield from super().encode_rows(rows, progress)


class WaitingReranker(FakeReranker):
    def rank(self, *arguments: Any, **options: Any) -> list[Hit]:
        wait()
        return super().rank(*arguments, **options)


if __name__ == "__main__":
    models: dict[Any, Any] = {runnel.models.embedder.Embedder: WaitingEmbedder, runnel.models.reranker.Reranker: WaitingReranker}
    for kind, waiting in models.items():
        kind.load = lambda *_, waiting=waiting, **__: waiting()
    main()
