"""The systems that bench.py compares, each in a process of its own so that its peak memory can be read.

Protocol: one JSON object per line on stdin, {"tokens": n, "batch": b}; one per line back, {"seconds", "peak_bytes"}.
Weights are random: speed and memory do not depend on them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint import build_backbone
from runnel.backbones.mamba1 import Mamba1, Mamba1Config
from runnel.backbones.mamba2 import Mamba2, Mamba2Config
from runnel.engine import Engine, Request

SEGMENT = 1024
Run = Callable[[torch.Tensor, int], None]  # ids (n,), number of equal sequences they make


def configs(shape: str) -> Mamba1Config | Mamba2Config:
    """The published 130M shapes, and the built-in model's."""
    return {
        "mamba2-130m": Mamba2Config(vocab_size=50288, hidden_size=768, num_layers=24),
        "mamba1-130m": Mamba1Config(vocab_size=50280, hidden_size=768, num_layers=24),
        "pocket": Mamba2Config(vocab_size=30522, hidden_size=384, num_layers=6, state_size=64),
    }[shape]


def random_backbone(shape: str, dtype: str = "auto") -> Backbone:
    """A prepared backbone with random weights."""
    torch.manual_seed(0)
    config = configs(shape)
    model = Mamba1(config) if isinstance(config, Mamba1Config) else Mamba2(config)
    return build_backbone(model.architecture, config.to_dict(), model.state_dict(), dtype=dtype, device="auto")


def runnel(shape: str) -> Run:
    """This package's engine."""
    engine = Engine(random_backbone(shape), step_tokens=SEGMENT)

    def run(ids: torch.Tensor, batch: int) -> None:
        engine.run([Request(part.numpy()) for part in ids.chunk(batch)])

    return run


def linear_layers(shape: str) -> Run:
    """The matrix products of the same model alone, same dtype, same segments: what no implementation can beat without
    other arithmetic.
    """
    backbone = random_backbone(shape)
    weights = [m.weight for m in backbone.modules() if isinstance(m, torch.nn.Linear)]
    pairs = [(w, torch.randn(SEGMENT, w.shape[1]).to(w.dtype), torch.empty(SEGMENT, w.shape[0], dtype=w.dtype)) for w in weights]

    def run(ids: torch.Tensor, batch: int) -> None:
        with torch.inference_mode():
            for start in range(0, len(ids), SEGMENT):
                n = min(SEGMENT, len(ids) - start)
                for weight, x, out in pairs:
                    torch.mm(x[:n], weight.t(), out=out[:n])

    return run


def transformers_model(shape: str) -> torch.nn.Module:
    """The transformers library's class of the same shape, fp32, random weights; parameter names are the same as ours."""
    import transformers as hf

    c = configs(shape)
    common = {
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "num_hidden_layers": c.num_layers,
        "state_size": c.state_size,
    }
    if isinstance(c, Mamba1Config):
        return hf.MambaModel(hf.MambaConfig(**common)).eval()
    heads = {"num_heads": c.num_heads, "head_dim": c.head_size, "n_groups": c.groups}
    return hf.Mamba2Model(hf.Mamba2Config(**common, **heads, pad_token_id=0, bos_token_id=0, eos_token_id=0)).eval()


def transformers(shape: str) -> Run:
    """Theirs, in fp32: its CPU path is slower in bf16."""
    model = transformers_model(shape)

    def run(ids: torch.Tensor, batch: int) -> None:
        with torch.inference_mode():
            model(ids.view(batch, -1), use_cache=False)

    return run


def bert() -> Run:
    """BERT-base with scaled-dot-product attention in bf16, positions extended as far as asked."""
    import transformers as hf

    config = hf.BertConfig(max_position_embeddings=32768, attn_implementation="sdpa")
    model = hf.BertModel(config, add_pooling_layer=False).to(torch.bfloat16).eval()

    def run(ids: torch.Tensor, batch: int) -> None:
        with torch.inference_mode():
            model((ids % config.vocab_size).view(batch, -1))

    return run


SYSTEMS: dict[str, Callable[[], Run]] = {
    f"{name} {shape}": lambda make=make, shape=shape: make(shape)  # type: ignore[misc]
    for shape in ("mamba2-130m", "mamba1-130m")
    for name, make in (("runnel", runnel), ("linear layers", linear_layers), ("transformers", transformers))
} | {"BERT-base (SDPA)": bert, "runnel pocket": lambda: runnel("pocket"), "linear layers pocket": lambda: linear_layers("pocket")}


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def main(name: str) -> None:
    """Build one system and run what stdin asks for."""
    run = SYSTEMS[name]()
    generator = torch.Generator().manual_seed(1)
    run(torch.randint(0, 30000, (64,), generator=generator), 1)  # compile, allocate
    sys.stdout.write(json.dumps({"ready": True, "resident_bytes": _status("VmRSS")}) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        job = json.loads(line)
        ids = torch.randint(0, 30000, (job["tokens"],), generator=generator)
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        start = time.perf_counter()
        run(ids, job["batch"])
        seconds = time.perf_counter() - start
        sys.stdout.write(json.dumps({"seconds": seconds, "peak_bytes": _status("VmHWM")}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
