"""The tables of docs/scale.md, from rates in docs/performance.json and bytes in docs/scale.json.

python -m tools.scale_arithmetic            # prints them
python -m tools.scale_arithmetic --write    # puts them into the page, between its marks
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.page_text import table

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "scale.md"
TOKENS = 1300  # of a document of 1,000 words; assumed
REMEMBERED = 350e3  # bytes of a remembered document, docs/embed.md
SIZES = (1e5, 1e6, 1e7, 1e8)
MODELS = {"pocket-mamba2": "pocket-mamba2", "mamba2-130m": "Mamba-2 130M"}


def rate(model: str) -> float:
    """Tokens a second of a model in bf16, texts of 2,048 tokens."""
    points: list[dict[str, Any]] = json.loads((DOCS / "performance.json").read_text())["points"]
    wanted = {"model": model, "system": "runnel", "dtype": "bf16", "tokens": 2048, "batch": 1}
    (point,) = [point for point in points if wanted.items() <= point.items()]
    return point["tokens_per_s"]["median"]


def costs() -> dict[str, Any]:
    """What `tools/index_costs.py` has measured."""
    return json.loads((DOCS / "scale.json").read_text())


def hours(documents: float, model: str) -> float:
    """Of one machine, reading alone."""
    return documents * TOKENS / rate(model) / 3600


def document_bytes() -> dict[str, float]:
    """On disk, of one document, by part of the index."""
    found = costs()
    count = found["documents"]
    vectors = found["vectors"] * found["dimension"] * 4
    return {
        "documents: texts, metadata": found["documents_bytes"] / count,
        "passages: vectors in fp32": vectors / count,
        "passages: texts, offsets": (found["passages_bytes"] - vectors) / count,
        "index of words (BM25)": found["words_index_bytes"] / count,
        "index of vectors (IVF_RQ)": found["vector_index_bytes"] / count,
    }


def filling_hours(documents: float) -> float:
    """Processor hours of committing parts one after the other, if the time of one grows as measured
    (a line).
    """
    found = costs()
    (few, quick), *_, (many, slow) = found["commit_seconds"]
    slope = max(0.0, (slow - quick) / (many - few))
    return documents / found["commit_documents"] * (quick + slope * documents / 2) / 3600


def size(count: float) -> str:
    """Bytes."""
    unit, power = next(
        (u, p) for u, p in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)) if count >= p
    )
    return f"{number(count / power)} {unit}"


def number(value: float) -> str:
    """Two digits, or all of them from ten on."""
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"


def plan() -> str:
    """Everything by the number of documents."""
    whole = sum(document_bytes().values())
    known = costs()["known_bytes"]
    rows = [
        ["tokens"] + [f"{n * TOKENS:.1e}".replace("e+0", "e").replace("e+", "e") for n in SIZES]
    ]
    rows += [
        [f"{title}: hours of one machine at {rate(name):,.0f} tokens/s"]
        + [number(hours(n, name)) for n in SIZES]
        for name, title in MODELS.items()
    ]
    rows += [
        [f"{title}: machines for a week"]
        + [f"{max(1, -(-hours(n, name) // 168)):,.0f}" for n in SIZES]
        for name, title in MODELS.items()
    ]
    rows += [["index on disk, pocket-mamba2"] + [size(n * whole) for n in SIZES]]
    rows += [
        ["commits to one index: hours of one core"] + [number(filling_hours(n)) for n in SIZES]
    ]
    rows += [["its memory for ids"] + [size(n * known) for n in SIZES]]
    rows += [
        ["remembered documents, pocket-mamba2, if wanted"] + [size(n * REMEMBERED) for n in SIZES]
    ]
    return table(["documents", "10^5", "10^6", "10^7", "10^8"], rows)


def storage() -> str:
    """Bytes of one document and of 10^8."""
    parts = document_bytes()
    rows = [[name, f"{count:,.0f}", size(count * 1e8)] for name, count in parts.items()]
    whole = sum(parts.values())
    return table(
        ["part", "bytes a document", "at 10^8"],
        [*rows, ["index", f"{whole:,.0f}", size(whole * 1e8)]],
    )


def main() -> None:
    """Print, or write."""
    text = PAGE.read_text(encoding="utf-8")
    for name, made in (("plan", plan()), ("storage", storage())):
        print(f"{made}\n")
        before, mark, after = text.partition(f"<!-- {name} -->\n")
        text = before + mark + made + "\n" + after[after.index("<!-- end -->") :]
    if "--write" in sys.argv:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
