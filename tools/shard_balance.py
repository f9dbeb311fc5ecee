"""How even shards are on your files: the text of each kind of file, and the tokens of each shard.

    python tools/shard_balance.py PATH... --shards 16

The figures of docs/scale.md were made with this on Debian's documentation and the texts named there.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from runnel import Embedder
from runnel.search.units import ShardPlan, read_units
from runnel.text.shards import Shard


def main() -> None:
    """Print a line for each kind of file, and one of the shards."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--model", default="pocket")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    tokenizer = Embedder.load(options.model).model.tokenizer
    plan = ShardPlan(options.paths)
    text: dict[Path, int] = defaultdict(int)
    tokens = np.zeros(options.shards)
    for shard in range(options.shards):
        for document in read_units(plan.units(Shard(shard + 1, options.shards)), {}):
            text[Path(document.source)] += len(document.text.encode("utf-8", "replace"))
            tokens[shard] += len(tokenizer.encode(document.text).ids)
    by_ending: dict[str, list[Path]] = defaultdict(list)
    for file in text:
        by_ending[file.suffix.lower()].append(file)
    for ending, files in sorted(by_ending.items()):
        found, reckoned = (np.array([of[file] for file in files]) for of in (text, plan.files))
        low, high = np.percentile(found / reckoned, [10, 90])
        share = f"{found.sum() / reckoned.sum():.2f} of what is reckoned; each {low:.2f} to {high:.2f} (10 % to 90 %)"
        sys.stdout.write(f"{ending or 'no ending'}: {len(files):,} files, {found.sum():,} bytes of text, {share}\n")
    even = tokens.max() / tokens.mean()
    sys.stdout.write(f"{options.shards} shards, {tokens.sum():,.0f} tokens; the largest has {even:.2f} times the mean\n")


if __name__ == "__main__":
    main()
