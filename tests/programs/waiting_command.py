"""The command line with stand-ins for the models, which say that work has begun and then wait for a line on standard input."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from helpers.command_line import FakeEmbedder, FakeReranker

import runnel.models.embedder
import runnel.models.reranker
from runnel.cli import main


def wait() -> None:
    print("begun", flush=True)
    sys.stdin.readline()


class WaitingEmbedder(FakeEmbedder):
    def encode_rows(self, rows, progress=None):
        wait()
        yield from super().encode_rows(rows, progress)


class WaitingReranker(FakeReranker):
    def rank(self, *arguments, **options):
        wait()
        return super().rank(*arguments, **options)


if __name__ == "__main__":
    runnel.models.embedder.Embedder = SimpleNamespace(load=lambda *_, **__: WaitingEmbedder())
    runnel.models.reranker.Reranker = SimpleNamespace(load=lambda *_, **__: WaitingReranker())
    main()
