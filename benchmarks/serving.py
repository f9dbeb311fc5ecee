"""The server under load: many clients with short texts, some with long ones; every answer is
compared with the offline one.

Clients and server share the processors of this machine.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from runnel.models.embedder import Embedder
from runnel.models.folder import BUILT_IN
from runnel.models.model import Model
from runnel.models.sentence_retriever import SentenceRetriever

TOLERANCE = 2e-3  # of numbers of unit vectors and of scores: bf16 sums in steps of other texts
_TOP = 5


@dataclass(frozen=True)
class Load:
    """Clients, each with one request at a time.

    Args:
        requests, long_requests: of each client.
        vanishing: clients that leave a second after sending a long text.
    """

    short_clients: int = 56
    long_clients: int = 8
    short_tokens: int = 20
    long_tokens: int = 200_000
    requests: int = 20
    long_requests: int = 1
    vanishing: int = 4


@dataclass(frozen=True)
class Case:
    """A request, and the check of its answer: returns the largest difference from the offline
    answer.
    """

    path: str
    body: dict[str, Any]
    difference: Callable[[Any], float]


@dataclass
class Phase:
    """What one phase measured: seconds of each request, and the worst difference from an offline
    answer.
    """

    short: list[float] = field(default_factory=list)
    long: list[float] = field(default_factory=list)
    difference: float = 0.0
    memory: list[int] = field(default_factory=list)  # bytes of the server, about twice per second


def cases(model: Model, load: Load, seed: int = 0) -> tuple[list[Case], list[Case]]:
    """Return short and long requests with the answers of the models in this process."""
    rng = random.Random(seed)
    words = re.findall(r"[a-z]+", (BUILT_IN["pocket"] / "README.md").read_text(encoding="utf-8"))
    short = [_text(rng, words, model, load.short_tokens) for _ in range(16)]
    long = [_text(rng, words, model, load.long_tokens) for _ in range(2)]
    embedder = Embedder(model)
    retriever = SentenceRetriever(model)
    return (
        [_embedding(embedder, text) for text in short]
        + [_finding(retriever, short[0], text) for text in short],
        [_embedding(embedder, long[0]), _finding(retriever, short[0], long[1])],
    )


def _text(rng: random.Random, words: Sequence[str], model: Model, tokens: int) -> str:
    """Return sentences of about `tokens` tokens."""
    text = ""
    while len(model.tokenizer.encode(text)) < tokens:  # doubles, so that few rounds are needed
        count = max(1, min(10_000, len(text.split()) or tokens // 2))
        drawn = rng.choices(words, k=count)
        text += (
            " ".join(" ".join(drawn[at : at + 12]).capitalize() + "." for at in range(0, count, 12))
            + " "
        )
    return text.strip()


def _embedding(embedder: Embedder, text: str) -> Case:
    expected = embedder.encode(text)
    return Case(
        "/v1/embeddings",
        {"input": text},
        lambda answer: float(np.abs(np.array(answer["data"][0]["embedding"]) - expected).max()),
    )


def _finding(retriever: SentenceRetriever, query: str, text: str) -> Case:
    """The same sentences must have the best scores; of equal ones, others may be first."""
    scores = {(one.start, one.end): one.score for one in retriever.score(query, text)}
    best = sorted(scores.values(), reverse=True)[:_TOP]

    def difference(answer: Any) -> float:
        found = answer["sentences"]
        own = [abs(one["score"] - scores[one["start"], one["end"]]) for one in found]
        return max(
            *own, *(abs(one["score"] - score) for one, score in zip(found, best, strict=True)), 0.0
        )

    return Case("/v1/find", {"query": query, "documents": [text], "top_k": _TOP}, difference)


async def run_phase(url: str, short: Sequence[Case], long: Sequence[Case], load: Load) -> Phase:
    """Send all requests of a phase and check every answer.

    Raises:
        AssertionError: an answer differs from the offline one, or a request was refused.
    """
    phase = Phase()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=url, timeout=3600, limits=limits, trust_env=False
    ) as client:

        async def send(some: Sequence[Case], first: int, count: int, seconds: list[float]) -> None:
            for number in range(count):
                case = some[(first + number) % len(some)]
                start = time.perf_counter()
                done = await client.post(case.path, json=case.body)
                seconds.append(time.perf_counter() - start)
                assert done.status_code == 200, done.text
                phase.difference = max(phase.difference, case.difference(done.json()))

        async def watch() -> None:
            while True:
                phase.memory.append(int(await metric(client, "process_resident_memory_bytes")))
                await asyncio.sleep(0.5)

        watching = asyncio.create_task(watch())
        clients = [
            send(short, number, load.requests, phase.short)
            for number in range(load.short_clients if short else 0)
        ]
        clients += [
            send(long, number, load.long_requests, phase.long)
            for number in range(load.long_clients if long else 0)
        ]
        await asyncio.gather(*clients)
        watching.cancel()
    assert phase.difference <= TOLERANCE, (
        f"an answer differs from the offline one by {phase.difference}"
    )
    return phase


async def vanish(url: str, long: Sequence[Case], load: Load) -> float:
    """Send long texts from clients that leave; return the seconds until the server has dropped
    their work.
    """

    async def leave(case: Case) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=1, trust_env=False) as client:
            try:
                await client.post(case.path, json=case.body)
            except httpx.ReadTimeout:
                return
            raise AssertionError("the answer came before the client left; use longer texts")

    await asyncio.gather(*(leave(long[number % len(long)]) for number in range(load.vanishing)))
    start = time.perf_counter()
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        while any(
            [
                await metric(client, f"runnel_{one}")
                for one in ("requests_running", "requests_waiting", "queue_tokens")
            ]
        ):
            assert time.perf_counter() - start < 60, (
                "the work of clients that left is still running"
            )
            await asyncio.sleep(0.02)
    return time.perf_counter() - start


async def metric(client: httpx.AsyncClient, name: str) -> float:
    """Return one of the server's metrics without labels."""
    text = (await client.get("/metrics")).text
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))


@contextmanager
def server(model: str) -> Iterator[str]:
    """Start `runnel serve` as a process; yield its address when it is ready."""
    paths = os.pathsep.join(
        filter(None, (str(Path(__file__).parent.parent / "src"), os.environ.get("PYTHONPATH")))
    )
    command = [
        sys.executable,
        "-m",
        "runnel",
        "serve",
        "-m",
        model,
        "--port",
        "0",
        "--deadline",
        "3600",
    ]
    with subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": paths}, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            yield next(
                line.split(" at ")[1].split()[0] for line in process.stderr if " at http://" in line
            )
        finally:
            process.terminate()


async def measure(url: str, model: Model, load: Load, progress: Callable[[str], None]) -> str:
    """Run all phases against a server; return a Markdown table and facts."""
    progress("computing the answers offline")
    short, long = cases(model, load)
    phases: dict[str, Phase] = {}
    for name, some, others in (
        ("short, alone", short, []),
        ("short, beside long", short, long),
        ("the same again", short, long),
    ):
        progress(name)
        phases[name] = await run_phase(url, short=some, long=others, load=load)
        progress(_row(name, phases[name].short))
    progress("clients that leave")
    freed = await vanish(url, long, load)
    rows = [_row(name, phase.short) for name, phase in phases.items()]
    rows += [_row("long", phase.long) for phase in list(phases.values())[1:]]
    ends = ", ".join(f"{phase.memory[-1] >> 20:,}" for phase in phases.values())
    start = phases["short, alone"].memory[0] >> 20
    peak = max(max(phase.memory) for phase in phases.values()) >> 20
    worst = max(phase.difference for phase in phases.values())
    return "\n".join(
        [
            "| requests | number | p50 | p99 | longest |",
            "|---|---|---|---|---|",
            *rows,
            "",
            (
                f"Memory of the server: {start:,} MiB at first, {ends} MiB after each phase,"
                f" {peak:,} MiB at most."
            ),
            f"Largest difference of a number from the offline answer: {worst:.1e}.",
            (
                f"{load.vanishing} clients left a second after sending a long text: their work"
                f" ended {freed:.2f} s later."
            ),
        ]
    )


def _row(name: str, seconds: Sequence[float]) -> str:
    p50, p99 = np.percentile(seconds, [50, 99])
    return f"| {name} | {len(seconds):,} | {p50:.2f} s | {p99:.2f} s | {max(seconds):.2f} s |"
