"""Measure how fast training data are prepared, for docs/training.md.

    python -m tools.preparing_rate EVIDENCE.jsonl TOKENIZER.json [PROCESSES]

Rows are read, labeled and tokenized as in a run of `sentence-retriever`. Printed are tokens per
second of one processor: of all work together, starts of processes included; of the main process
alone, which bounds how many processes help; and of chunks of 32 rows in one process, where the
fastest tenth shows what other programs on the same cores cost. Last the hours of eight cores for a
million rows of 5,700 tokens.
"""

from __future__ import annotations

import itertools
import resource
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from torch import nn

from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.hardware import cores
from runnel.lab.training import processes, tables
from runnel.lab.training.decontaminate import Decontaminator
from runnel.lab.training.evidence import read_evidence
from runnel.lab.training.tables import SentenceData
from runnel.models.foreign.bare import bare_templates
from runnel.models.recurrent.heads import EndScore
from runnel.models.recurrent.model import TorchModel
from runnel.models.recurrent.scanner import ItemMaker
from runnel.text.library import LibraryTokenizer

ROWS, TOKENS, CORES = 1_000_000, 5_700, 8


def seconds(who: int) -> float:
    """Processor seconds of this process, or of its children that have ended."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def main(data: str, tokenizer_file: str, count: int) -> None:
    """Prepare the rows in `count` processes, then in one, and print the rates."""
    tokenizer = LibraryTokenizer.read(Path(tokenizer_file))
    model = TorchModel(
        Mamba2(Mamba2Config(len(tokenizer.vocabulary), 64, 1, state_size=16, head_size=16)),
        tokenizer,
        nn.ModuleDict({"sentences": EndScore(64)}),
        bare_templates(tokenizer),
        source="tiny",
    )
    processes.cores = lambda: count  # type: ignore[attr-defined]
    processes.CHUNKS_ALONE = 0
    started = time.perf_counter()
    before = seconds(resource.RUSAGE_SELF)
    with tempfile.TemporaryDirectory() as folder:
        rows = Decontaminator(()).clean(read_evidence(data))
        made = SentenceData.write(Path(folder) / "train.arrow", model, rows)
        tokens = int(made.lengths.sum())
        size = (Path(folder) / "train.arrow").stat().st_size
    wall = time.perf_counter() - started
    own = seconds(resource.RUSAGE_SELF) - before
    # a process for each core imports what it needs once, which counts here
    others = seconds(resource.RUSAGE_CHILDREN)
    rate = tokens / (own + others)
    print(f"{len(made):,} rows, {tokens:,} tokens, {size / tokens:.2f} bytes a token on disk")
    print(f"{count} processes: {wall:.1f} s, {tokens / wall:,.0f} tokens/s")
    print(f"processor seconds: main {own:.1f}, others {others:.1f}")
    print(f"tokens per processor second: {rate:,.0f}; of the main process {tokens / own:,.0f}")
    rates = sorted(chunk_rates(data, model))
    median = rates[len(rates) // 2]
    fast = rates[-max(1, len(rates) // 10)]
    print(f"chunks in one process: median {median:,.0f}, fastest tenth {fast:,.0f}")
    for one in (rate, median, fast):
        hours = ROWS * TOKENS / one / CORES / 3600
        print(f"{ROWS:,} rows of {TOKENS:,} at {one:,.0f}: {hours:.2f} h of {CORES} cores")


def chunk_rates(data: str, model: TorchModel) -> list[float]:
    """Tokens per processor second of each chunk, read and made in this process."""
    make = partial(tables._sentence_row, ItemMaker(model), None, 0)
    examples = enumerate(Decontaminator(()).clean(read_evidence(data)))
    rates = []
    before = time.process_time()
    while chunk := list(itertools.islice(examples, processes.CHUNK)):
        table, _ = tables._make_table(tables._FEATURES, make, chunk)
        now = time.process_time()
        rates.append(sum(table["tokens"].to_pylist()) / (now - before))
        before = now
    return rates


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else cores())
