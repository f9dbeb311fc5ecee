"""Embed a text as a stream: constant memory, and a vector whenever one is wanted.

python examples/stream_embedding.py python-reference.txt
"""

import resource
import sys
import time
from pathlib import Path

from runnel import Embedder

PIECE = 16_384  # characters fed at a time; any size gives the same vector


def main() -> None:
    """Feed the file piece by piece, asking for the vector a few times on the way."""
    path = Path(sys.argv[1])
    embedder = Embedder.load(sys.argv[2] if len(sys.argv) > 2 else "pocket")
    stream = embedder.stream()
    loaded = peak_mib()
    start = time.perf_counter()
    shown = 1
    with path.open(encoding="utf-8") as file:
        while piece := file.read(PIECE):
            stream.feed(piece)
            if stream.tokens >= shown:
                report(stream.tokens, stream.embedding(), start)
                shown = 4 * stream.tokens
    vector = stream.embedding()
    seconds = time.perf_counter() - start
    report(stream.tokens, vector, start)
    print(f"{stream.tokens:,} tokens in {seconds:.1f} s ({stream.tokens / seconds:,.0f} tokens/s)")
    print(f"peak memory {peak_mib():.0f} MiB, of which {loaded:.0f} MiB before the first token")


def report(tokens: int, vector: object, start: float) -> None:
    """One line about the vector of the text so far."""
    numbers = " ".join(f"{x:+.3f}" for x in list(vector)[:4])
    print(f"after {tokens:>9,} tokens, {time.perf_counter() - start:6.1f} s: [{numbers} ...]")


def peak_mib() -> float:
    """Highest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


if __name__ == "__main__":
    main()
