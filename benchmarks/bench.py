"""Speed and peak memory on this machine, written to docs/benchmark.md, docs/benchmark.json and docs/benchmark.png.

    python benchmarks/bench.py            all of it, about 25 minutes on two cores
    python benchmarks/bench.py --quick    2k tokens only, nothing written

Every system runs in its own process; rounds are interleaved, the table shows medians and ratios of one run. Before
anything is timed the model under test must agree with the transformers library on the same weights.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from systems import SYSTEMS, random_backbone, transformers_model

DOCS = Path(__file__).parents[1] / "docs"
LENGTHS = (512, 2048, 8192, 32768)
LONG = (8192, 65536, 262144)
SLOW_S = 100.0  # a cell that would take longer is left out
Cell = dict[str, float]


class Worker:
    """One system in its own process."""

    def __init__(self, name: str) -> None:
        self.name = name
        command = [sys.executable, str(Path(__file__).with_name("systems.py")), name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.resident = self._read()["resident_bytes"]

    def _read(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with code {self.process.wait()}; its message is above")
        return json.loads(line)

    def run(self, tokens: int, batch: int = 1) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"tokens": tokens, "batch": batch}) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def agreement(shape: str) -> tuple[float, float]:
    """(largest fp32 difference, smallest bf16 cosine) of the fused path against transformers, same weights, 300 tokens."""
    fast32, fast16, model = random_backbone(shape, "float32"), random_backbone(shape), transformers_model(shape)
    model.load_state_dict(fast32.state_dict())
    ids = torch.randint(0, 30000, (300,), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected = model(ids[None], use_cache=False).last_hidden_state[0]
        difference = float((fast32(ids)[0] - expected).abs().max())
        cosine = float(torch.nn.functional.cosine_similarity(fast16(ids)[0], expected).min())
    if difference > 1e-3 or cosine < 0.99:
        raise SystemExit(
            f"{shape} does not agree with transformers (difference {difference:.1e}, cosine {cosine:.5f}); no speed is reported"
        )
    return difference, cosine


def too_slow(samples: dict[tuple[str, int], list[dict[str, float]]], name: str, length: int, *, first: bool) -> bool:
    """Whether a cell is left out: it would take longer than `SLOW_S`, or took a quarter of that in the first round."""
    if not first:
        return (name, length) not in samples or samples[name, length][0]["seconds"] > SLOW_S / 4
    known = max((m for n, m in samples if n == name and m < length), default=None)
    if known is None:
        return False
    growth = 2 if name.startswith("BERT") else 1  # of the time with the length
    return samples[name, known][0]["seconds"] * (length / known) ** growth > SLOW_S


def measure(names: list[str], lengths: tuple[int, ...], rounds: int) -> dict[str, dict[int, Cell]]:
    """Interleaved rounds over all systems and lengths."""
    workers = {name: Worker(name) for name in names}
    samples: dict[tuple[str, int], list[dict[str, float]]] = {}
    try:
        for turn in range(rounds):
            for length in lengths:
                for name, worker in workers.items():
                    if too_slow(samples, name, length, first=turn == 0):
                        continue
                    sample = worker.run(length)
                    samples.setdefault((name, length), []).append(sample)
                    sys.stderr.write(f"round {turn + 1}: {name}, {length} tokens: {length / sample['seconds']:.0f} tokens/s\n")
    finally:
        for worker in workers.values():
            worker.close()
    table: dict[str, dict[int, Cell]] = {name: {} for name in names}
    for (name, length), values in samples.items():
        seconds = statistics.median(v["seconds"] for v in values)
        table[name][length] = {"tokens_per_s": length / seconds, "peak_bytes": values[0]["peak_bytes"], "runs": len(values)}
    return table


def short_texts(shape: str, rounds: int = 3) -> dict[str, float]:
    """Tokens/s of 256 texts of 64 tokens against one text of the same number of tokens."""
    worker = Worker(f"runnel {shape}")
    try:
        total = 256 * 64
        pairs = [(worker.run(total, 256)["seconds"], worker.run(total, 1)["seconds"]) for _ in range(rounds)]
    finally:
        worker.close()
    return {
        "tokens_per_s": total / statistics.median(s for s, _ in pairs),
        "over_long": statistics.median(long / short for short, long in pairs),
    }


def remembered(rounds: int = 3) -> dict[str, float]:
    """Seconds to score 100 documents of 512 tokens for one query: as whole pairs, and from memories of each precision."""
    from pydoc_data.topics import topics

    from runnel import Reranker

    reranker = Reranker.load("pocket")
    text = "\n".join(topics[name] for name in sorted(topics))
    encoded = reranker.model.tokenizer.encode(text)
    documents = [text[encoded.starts[512 * i] : encoded.ends[512 * i + 511]] for i in range(100)]
    query = "when is the finally clause executed if a return statement is reached"
    sources = {"whole pairs": documents} | {
        f"{p} states": reranker.remember(documents, dtype=p) for p in ("fp32", "bf16", "int8")
    }
    expected = reranker.score(query, documents)
    largest = float(abs(reranker.score(query, sources["fp32 states"]) - expected).max())
    if largest > 0.05:
        raise SystemExit(f"remembered documents score differently from whole pairs (by {largest:.3f}); no speed is reported")
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(rounds):
        for name, source in sources.items():
            start = time.perf_counter()
            reranker.score(query, source)
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def ratio(table: dict[str, dict[int, Cell]], over: str, under: str, length: int) -> str:
    """Tokens per second of one system over another's, or a dash."""
    if length not in table[over] or length not in table[under]:
        return "–"
    return f"{table[over][length]['tokens_per_s'] / table[under][length]['tokens_per_s']:.2f}"


def write_report(result: dict) -> None:
    """docs/benchmark.md and docs/benchmark.json."""
    table, long, lengths = result["table"], result["long"], result["lengths"]
    lines = ["# Benchmark", "", "Written by `make bench`; do not edit by hand. " + result["machine"], ""]
    lines += [
        "Agreement with the transformers library on the same random weights, checked before timing: " + result["agreement"],
        "",
    ]
    lines += [
        "## Tokens per second, one text",
        "",
        "| system | " + " | ".join(f"{n:,}" for n in lengths) + " |",
        "|---|" + "---|" * len(lengths),
    ]
    for name, cells in table.items():
        lines.append(
            f"| {name} | " + " | ".join(f"{cells[n]['tokens_per_s']:,.0f}" if n in cells else "–" for n in lengths) + " |"
        )
    lines += [
        "",
        "## Peak memory of the process, MiB (weights included)",
        "",
        "| system | " + " | ".join(f"{n:,}" for n in lengths) + " |",
        "|---|" + "---|" * len(lengths),
    ]
    for name, cells in table.items():
        lines.append(
            f"| {name} | " + " | ".join(f"{cells[n]['peak_bytes'] / 2**20:,.0f}" if n in cells else "–" for n in lengths) + " |"
        )
    lines += [
        "",
        "–: would take more than 100 s.",
        "",
        "## Ratios",
        "",
        "| ratio | " + " | ".join(f"{n:,}" for n in lengths) + " |",
        "|---|" + "---|" * len(lengths),
    ]
    for shape in ("mamba2-130m", "mamba1-130m"):
        for other in (f"linear layers {shape}", f"transformers {shape}", "BERT-base (SDPA)"):
            lines.append(
                f"| runnel {shape} / {other} | " + " | ".join(ratio(table, f"runnel {shape}", other, n) for n in lengths) + " |"
            )
    lines.append(
        "| runnel pocket / linear layers pocket | "
        + " | ".join(ratio(table, "runnel pocket", "linear layers pocket", n) for n in lengths)
        + " |"
    )
    lines += [
        "",
        "## Long texts",
        "",
        "| system | tokens | tokens/s | peak MiB | speed over 8k | peak over 8k |",
        "|---|---|---|---|---|---|",
    ]
    for name, cells in long.items():
        first = cells[min(cells)]
        for n, cell in sorted(cells.items()):
            speed, peak = cell["tokens_per_s"] / first["tokens_per_s"], cell["peak_bytes"] / first["peak_bytes"]
            lines.append(
                f"| {name} | {n:,} | {cell['tokens_per_s']:,.0f} | {cell['peak_bytes'] / 2**20:,.0f} | {speed:.2f} | {peak:.3f} |"
            )
    lines += [
        "",
        "## Short texts",
        "",
        "| system | tokens/s, 256 texts of 64 tokens | over one text of as many tokens |",
        "|---|---|---|",
    ]
    lines += [
        f"| runnel {shape} | {cell['tokens_per_s']:,.0f} | {cell['over_long']:.2f} |" for shape, cell in result["short"].items()
    ]
    lines += ["", "## Reranking with remembered documents", "", "100 documents of 512 tokens, one query, `pocket`.", ""]
    lines += ["| documents | ms | whole pairs over this |", "|---|---|---|"]
    pairs = result["remembered"]["whole pairs"]
    lines += [f"| {name} | {1000 * seconds:,.0f} | {pairs / seconds:.1f} |" for name, seconds in result["remembered"].items()]
    (DOCS / "benchmark.md").write_text("\n".join([*lines, "", "![tokens per second and memory](benchmark.png)", ""]))
    (DOCS / "benchmark.json").write_text(json.dumps(result, indent=1) + "\n")


def plot(result: dict) -> None:
    """docs/benchmark.png."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    for name, cells in result["table"].items():
        lengths = sorted(cells)
        left.plot(lengths, [cells[n]["tokens_per_s"] for n in lengths], marker="o", label=name)
    for name, cells in (result["table"] | result["long"]).items():
        if not name.startswith("linear"):
            lengths = sorted(cells)
            right.plot(lengths, [cells[n]["peak_bytes"] / 2**20 for n in lengths], marker="o", label=name)
    for axis, title in ((left, "tokens per second"), (right, "peak memory of the process, MiB")):
        axis.set(xscale="log", yscale="log", xlabel="tokens", title=title)
        axis.legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(DOCS / "benchmark.png", dpi=120)


def main() -> None:
    """Check, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2k tokens only; nothing is written")
    quick = parser.parse_args().quick
    checks = {shape: agreement(shape) for shape in ("mamba2-130m", "mamba1-130m")}
    lengths = (2048,) if quick else LENGTHS
    table = measure(list(SYSTEMS), lengths, rounds=3)
    if quick:
        for name, cells in table.items():
            sys.stdout.write(f"{name}: {cells[2048]['tokens_per_s']:,.0f} tokens/s\n")
        return
    result = {
        "machine": f"{torch.get_num_threads()} threads, {platform.machine()}, torch {torch.__version__}, "
        f"Python {platform.python_version()}.",
        "agreement": "; ".join(f"{s}: fp32 within {d:.0e}, bf16 cosine at least {c:.5f}" for s, (d, c) in checks.items()),
        "lengths": lengths,
        "table": table,
        "long": measure(["runnel mamba2-130m", "runnel pocket"], LONG, rounds=1),
        "remembered": remembered(),
        "short": {shape: short_texts(shape) for shape in ("mamba2-130m", "mamba1-130m", "pocket")},
    }
    write_report(result)
    plot(result)


if __name__ == "__main__":
    main()
