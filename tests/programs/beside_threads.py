"""Read the same texts alone, again in one thread, and in 16 threads beside each other; print a JSON
object.

Arguments: the reader, its dtype, and "stand-in" or "stand-in tiles" where instructions are
replaced. `wrong` counts results of threads that differ from those read alone, in any bit; `digest`
is of those read alone.
"""

import hashlib
import json
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from helpers.tiny_backbones import cumulative, token_ids

from runnel.backbones.checkpoint.load import build_backbone
from runnel.backbones.families import BACKBONES
from runnel.backbones.mamba1.model import Mamba1Config
from runnel.backbones.mamba2.model import Mamba2Config
from runnel.backbones.rwkv7.model import Rwkv7Config
from runnel.backbones.xlstm.model import XlstmConfig

LENGTHS = [(1,), (3, 70), (33, 1, 5), (160,), (8,) * 9, (2, 129)]
CONFIGS: dict[str, Any] = {
    "mamba1": Mamba1Config(50, 128, 2),
    "mamba2": Mamba2Config(50, 128, 2, head_size=32),
    "rwkv7": Rwkv7Config(
        50, 128, 2, ffn_size=256, decay_rank=16, a_rank=16, v_rank=8, gate_rank=16
    ),
    "xlstm": XlstmConfig(50, 64, 2, num_heads=4, qk_size=32, v_size=64, ffn_size=128),
}


def backbone(name: str, dtype: str) -> list[Callable[[], np.ndarray]]:
    """Steps of one model of a family, whose states start at random."""
    torch.manual_seed(0)
    architecture: Any = BACKBONES[name]
    weights = architecture(CONFIGS[name]).state_dict()
    model = build_backbone(name, CONFIGS[name].to_dict(), weights, dtype, "cpu")

    def step(lengths: tuple[int, ...]) -> Callable[[], np.ndarray]:
        ids = token_ids(sum(lengths))
        cu = cumulative(lengths)
        with torch.inference_mode():
            _, start = model(token_ids(len(lengths), seed=1), cumulative((1,) * len(lengths)))

        def run() -> np.ndarray:
            with torch.inference_mode():
                hidden, state = model(ids, cu, start)
            return np.concatenate(
                [part.float().numpy().ravel() for part in (hidden, *state.tensors.values())]
            )

        return run

    return [step(lengths) for lengths in LENGTHS]


def pocket(dtype: Any) -> list[Callable[[], np.ndarray]]:
    """Questions to documents, which the engine reads together."""
    from runnel import SentenceRetriever
    from runnel.backbones.encoder.arrays import ArrayEncoder, open_encoder

    retriever = SentenceRetriever.load("pocket", dtype="float32")
    read = retriever.model.backbone
    assert isinstance(read, ArrayEncoder)
    # also where `load` would leave this dtype to torch
    model = replace(
        retriever.model,
        backbone=open_encoder(read.folder / "model.safetensors", read.config, dtype),
    )
    retriever = SentenceRetriever(model)

    def ask(n: int) -> Callable[[], np.ndarray]:
        document = f"The keeper of mill {n} is Ada. The museum opens at nine. " * (1 + n % 4)
        return lambda: np.array(
            [s.score for s in retriever.retrieve(f"who keeps mill {n}", document, top_k=3)]
        )

    return [ask(n) for n in range(3)]


def beside(
    tasks: list[Callable[[], np.ndarray]], alone: list[np.ndarray], threads: int
) -> list[str]:
    """Run all tasks in each of `threads` threads; return what differs from what they gave alone."""
    wrong: list[str] = []
    begin = threading.Barrier(threads)

    def work(own: int) -> None:
        begin.wait()
        for turn in range(len(tasks)):
            at = (own + turn) % len(tasks)
            try:
                found = tasks[at]()
            except Exception as error:
                wrong.append(f"{type(error).__name__}: {error}")
                continue
            if not np.array_equal(found, alone[at]):
                wrong.append(f"{at}: {found.tolist()[:9]}, alone {alone[at].tolist()[:9]}")

    workers = [threading.Thread(target=work, args=(own,)) for own in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return wrong


def main() -> None:
    name, dtype, *stand_in = sys.argv[1:]
    if stand_in:
        from helpers import stand_in_processor

        stand_in_processor.use(tiles=stand_in[0] == "stand-in tiles")
    tasks = pocket(dtype) if name == "pocket" else backbone(name, dtype)
    alone = [task() for task in tasks]
    wrong = beside(tasks, alone, 1) + beside(tasks, alone, 16)
    digest = hashlib.sha256(b"".join(part.tobytes() for part in alone)).hexdigest()
    finite = all(bool(np.isfinite(part).all()) for part in alone)
    print(json.dumps({"wrong": len(wrong), "first": wrong[:1], "finite": finite, "digest": digest}))


if __name__ == "__main__":
    main()
