"""Files for tests of shards, and a process that starts others that make them: `python sharded.py FILES MODEL`."""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

FIELDS: dict[str, Literal["str"]] = {"kind": "str"}
PASSAGE_TOKENS = 32
BATCH = 4  # documents: many parts from few files


def write_files(folder: Path, count: int = 24, *, pages: bool = True) -> Path:
    """Texts, pages, rows with and without ids, and files that cannot be read."""
    rng = random.Random(3)
    (folder / "deep").mkdir(parents=True)
    for i in range(count):
        text = f"Text {i}. " + "The cat sat on the mat. " * rng.randint(1, 9)
        (folder / f"text{i:02d}.txt").write_text(text)
        page = f"<html><title>Page {i}</title><body><p>{text}</p></body></html>"
        (folder / "deep" / f"page{i:02d}{'.html' if pages else '.txt'}").write_text(page if pages else text)
    rows = [{"text": f"Row {i} of the dog. " * rng.randint(1, 4)} | ({"id": f"r{i}"} if i % 3 else {}) for i in range(40)]
    (folder / "rows.jsonl").write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    (folder / "bad.pdf").write_bytes(b"%PDF-1.4 cut off" if pages else b"\x89PNG")
    (folder / "deep" / "empty.txt").write_text(" ")
    return folder


def write_few(folder: Path) -> Path:
    folder.mkdir()
    for i in range(6):
        (folder / f"{i}.txt").write_text(f"The cat {i} sat on the mat.")
    return folder


def contents(place: Path) -> dict[str, bytes]:
    """Return the files of a shard; of its manifest, what a second run must have too."""
    from runnel.search.shards import read_manifest

    found = {path.name: path.read_bytes() for path in place.iterdir() if path.name != "writer.lock"}
    manifest = read_manifest(place)
    assert manifest is not None
    found["manifest.json"] = repr(replace(manifest, seconds=0, tokens_read=0)).encode()
    return found


def everything(index: Any) -> tuple[Any, Any]:
    """Return all documents and passages of an index."""
    from runnel.search.records import WHOLE

    documents = index.store.documents(list(index.store.content_hashes()), saved=True)
    keys = [(name, number) for name in documents for number in range(WHOLE, 60)]
    return documents, index.store.passages(keys)


def main(files: str, model: str) -> None:
    """For each line "PLACE SHARD ..." on standard input: a process for each shard; their ids, then how they ended, are printed.

    They are forked from this one, which has the model and no busy threads, so that they can be many. They do not wait for
    the disk: a killed process leaves what it has written, and a slow disk would take longer than all else.
    """
    import runnel.files
    from runnel import Embedder
    from runnel.search import encoding
    from runnel.search.shards import encode_shard
    from runnel.text.shards import Shard

    runnel.files.sync = lambda path: None
    encoding._BATCH_DOCUMENTS = BATCH
    embedder = Embedder.load(model)
    settings = encoding.new_settings(embedder, FIELDS, PASSAGE_TOKENS)  # kernels are ready, too
    for line in sys.stdin:
        place, *numbers = line.split()
        children = []
        for number in numbers:
            children.append(os.fork())
            if not children[-1]:
                encode_shard([files], place, Shard.parse(number), embedder, settings=settings)
                os._exit(0)
        print(*children, flush=True)
        print(*(os.waitpid(child, 0)[1] for child in children), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
