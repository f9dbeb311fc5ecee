"""Measure mining and evaluation over many passages, with vectors of two processes.

    python -m tools.retrieval_scale MODEL FOLDER [PASSAGES]

Passages of 60 words are made of the texts (*.txt) in the folder; every 500th has a query of 8 of
its words. Two processes at a time embed four shards (`runnel embed --shard`); then negatives are
mined by these vectors and by BM25, and the model is evaluated by them. Printed are seconds and peak
memory of each command, and whether the ranks of the first queries equal the ranks of all products
at once.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from runnel import Embedder
from runnel.text.trec import read_scores

WORDS, EVERY, SHARDS = 60, 500, 4
RUN = (
    "import resource, sys; from runnel.cli import main; sys.argv[0] = 'runnel'\n"
    "try: main()\n"
    "finally: print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,"
    " file=sys.stderr)"
)


def write_set(texts: Path, folder: Path, count: int) -> list[str]:
    """Write a BEIR folder; return the texts of its queries."""
    random.seed(0)
    passages: list[str] = []
    for path in sorted(texts.rglob("*.txt")):
        words = path.read_text(encoding="utf-8", errors="replace").split()
        passages += [" ".join(words[i : i + WORDS]) for i in range(0, len(words), WORDS)]
    passages = passages[:count]
    (folder / "qrels").mkdir(parents=True)
    queries = {
        number: " ".join(random.sample(passages[number].split(), min(8, WORDS)))
        for number in range(0, len(passages), EVERY)
    }
    with (folder / "corpus.jsonl").open("w") as file:
        file.writelines(
            json.dumps({"_id": f"d{n}", "text": t}) + "\n" for n, t in enumerate(passages)
        )
    with (folder / "queries.jsonl").open("w") as file:
        file.writelines(json.dumps({"_id": f"q{n}", "text": t}) + "\n" for n, t in queries.items())
    lines = ["query-id\tcorpus-id\tscore", *(f"q{n}\td{n}\t1" for n in queries)]
    (folder / "qrels" / "train.tsv").write_text("\n".join(lines) + "\n")
    print(f"{len(passages):,} passages, {len(queries):,} queries")
    return list(queries.values())


def run(*arguments: object) -> None:
    """Run a command of runnel in a process, and print what it cost."""
    started = time.perf_counter()
    command = [sys.executable, "-c", RUN, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (peak,) = re.findall(r"^peak (\d+)", done.stderr, re.M)
    seconds = time.perf_counter() - started
    print(f"{' '.join(map(str, arguments[:2]))}: {seconds:.0f} s, {int(peak):,} MiB", flush=True)


def main(model: str, texts: Path, count: int) -> None:
    """Run all commands in a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "set"
        vectors = folder / "v.npy"
        queries = write_set(texts, data, count)

        def embed(number: int) -> None:
            shard = f"{number}/{SHARDS}"
            corpus = data / "corpus.jsonl"
            run("embed", corpus, "-m", model, "--to", vectors, "--shard", shard)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(embed, range(1, SHARDS + 1)))
        by_vectors = ("-m", model, "--vectors", vectors)
        run("lab", "mine", data, *by_vectors, "--to", folder / "dense.jsonl")
        run("lab", "mine", data, "--to", folder / "words.jsonl")
        run("lab", "evaluate", model, data, "--vectors", vectors, "--out", folder / "out")
        found = read_scores(next((folder / "out").glob("*.trec")))
        parts = sorted(folder.glob("v-*.npy"))
        matrix = np.concatenate([np.load(part) for part in parts])
        products = Embedder.load(model).encode_query(queries[:20]) @ matrix.T
        same = 0
        for number, row in enumerate(products):
            ranked = found[f"q{number * EVERY}"]
            best = np.sort(row)[::-1][: len(ranked)]
            same += np.allclose(sorted(ranked.values(), reverse=True), best, atol=1e-5)
        print(f"{same} of {len(products)} first queries have the scores of all products at once")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 200_000)
