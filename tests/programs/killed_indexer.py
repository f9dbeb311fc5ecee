"""Brings an index up to date with a folder and is killed on the way; says when it begins, and what is safe after each commit."""

from __future__ import annotations

import sys

from runnel import Embedder, Index
from runnel.search import encoding


def main(place: str, folder: str, model: str, batch: str) -> None:
    encoding._BATCH_DOCUMENTS = int(batch)
    with Index.open(place, Embedder.load(model)) as index:
        print("begun", flush=True)
        index.add_files([folder], on_commit=lambda commit: print(commit.documents, flush=True))
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
