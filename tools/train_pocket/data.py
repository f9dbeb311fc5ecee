"""Where the training texts come from: readers of the data folder, the held-back rule, and the distillation texts.

Only sets with a permissive or share-alike license are named here; the sets that measure the result are named in
evaluate.py and read nowhere else.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard

# Evidence sets: permissive or share-alike (Apache-2.0, MIT, CC BY, CC BY-SA, public domain).
EVIDENCE = (
    "covidqa", "evidence_inference", "cuad", "qmsum", "doc2dial", "fairytaleqa", "2wiki_long", "2wiki_distractor",
    "hotpotqa_long", "hotpotqa_distractor", "musique_long", "musique_distractor", "squad_xquad_en", "qed_paragraphs",
    "clapnq_passages",
)  # fmt: skip
PAPERS = ("pmc_title2body", "pubmedqa")  # retrieval sets with a title or question per paper
RAW = ("gov_reports", "state_of_the_union", "inaugural", "world_factbook", "novels100", "eltec")

# Distillation texts drawn per source, in parts of the whole. Technical prose weighs most; novels least.
SHARES = {
    "pmc_title2body": 24, "evidence_inference": 16, "pubmedqa": 2, "covidqa": 3, "wikipedia": 26, "cuad": 9, "qmsum": 6,
    "doc2dial": 2, "fairytaleqa": 4, "gov_reports": 6, "state_of_the_union": 4, "inaugural": 2, "world_factbook": 7,
    "novels100": 6, "eltec": 6, "questions": 17, "pairs": 7,
}  # fmt: skip
WIKIPEDIA = ("2wiki_long", "hotpotqa_long", "musique_long", "squad_xquad_en", "qed_paragraphs", "clapnq_passages")
_BREAK = re.compile(r"(?<=[.!?])[\"')\]]*\s+|\n\s*\n")
_GROUP = (35, 20, 15, 12, 10, 8)  # weights of 1, 2, ... 6 sentences in one text
_MAX_CHARS = 1000


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a .jsonl.zst file."""
    with path.open("rb") as raw:
        stream = zstandard.ZstdDecompressor(max_window_size=2**31).stream_reader(raw)
        for line in io.TextIOWrapper(stream, encoding="utf-8", newline="\n"):
            if line.strip():
                yield json.loads(line)


def read_archive(path: Path) -> Iterator[str]:
    """The texts of a .tar.zst file."""
    with path.open("rb") as raw:
        stream = zstandard.ZstdDecompressor(max_window_size=2**31).stream_reader(raw)
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None:
                    yield file.read().decode("utf-8")


def held_back(document_id: str) -> bool:
    """True for one document in ten: never trained on. Two set-ups of one question (`...-long`) fall together."""
    key = document_id.removesuffix("-long")
    return hashlib.blake2b(key.encode(), digest_size=4).digest()[0] % 10 == 0


def evidence(data: Path, name: str) -> Iterator[dict[str, Any]]:
    """The records of one evidence set."""
    return read_lines(data / "evidence" / f"{name}.jsonl.zst")


def documents(data: Path, name: str) -> Iterator[tuple[str, str]]:
    """(id, text) of each document of an evidence set, once."""
    last = None
    for record in evidence(data, name):
        if record["doc_id"] != last:
            last = record["doc_id"]
            yield last, record["document"]


def paper_pairs(data: Path, name: str) -> list[tuple[str, str]]:
    """(title or question, text) of the papers of a retrieval set that are not held back."""
    folder = data / "retrieval" / name
    texts = {r["_id"]: r["text"] for r in read_lines(folder / "corpus.jsonl.zst")}
    queries = {r["_id"]: r["text"] for r in read_lines(folder / "queries.jsonl.zst")}
    pairs = []
    for line in (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").split("\n")[1:]:
        if line:
            query, document, _ = line.split("\t")
            if not held_back(document):
                pairs.append((queries[query], texts[document]))
    return pairs


def groups(text: str, rng: random.Random, wanted: int) -> list[str]:
    """Up to `wanted` runs of 1-6 neighboring sentences. Exact sentence limits do not matter here, so a pattern will do."""
    pieces = [p.strip() for p in _BREAK.split(text)]
    pieces = [p for p in pieces if len(p) >= 20]
    found = []
    for _ in range(wanted if pieces else 0):
        size = rng.choices(range(1, len(_GROUP) + 1), _GROUP)[0]
        start = rng.randrange(len(pieces))
        found.append(" ".join(pieces[start : start + size])[:_MAX_CHARS])
    return found


def _windows(texts: list[str], wanted: int, rng: random.Random, width: int = 6000) -> list[str]:
    """`wanted` groups from random windows of the texts, long texts more often."""
    found: list[str] = []
    weights = [len(t) for t in texts]
    while len(found) < wanted:
        text = rng.choices(texts, weights)[0]
        start = rng.randrange(max(1, len(text) - width))
        found += groups(text[start : start + width], rng, 3)
    return found[:wanted]


def questions(data: Path) -> list[str]:
    """Every question and title of the training sets, once."""
    found = {
        r["question"].split("Details:")[-1][:400] for name in EVIDENCE for r in evidence(data, name) if not held_back(r["doc_id"])
    }
    found |= {title for name in PAPERS for title, _ in paper_pairs(data, name)}
    return sorted(found)


def _sources(data: Path, rng: random.Random) -> dict[str, Callable[[int], list[str]]]:
    def papers(name: str) -> Callable[[int], list[str]]:
        return lambda wanted: _windows([text for _, text in paper_pairs(data, name)], wanted, rng)

    def evidence_set(*names: str) -> Callable[[int], list[str]]:
        return lambda wanted: _windows([t for n in names for i, t in documents(data, n) if not held_back(i)], wanted, rng)

    def raw(name: str) -> Callable[[int], list[str]]:
        return lambda wanted: _windows(list(read_archive(data / "raw" / f"{name}.tar.zst")), wanted, rng)

    def sentences(wanted: int) -> list[str]:
        rows = read_lines(data / "pairs" / "stsb_en_train.jsonl.zst")
        found = sorted({str(v) for row in rows for k, v in row.items() if isinstance(v, str) and k.startswith("sentence")})
        return rng.sample(found, min(wanted, len(found)))

    def asked(wanted: int) -> list[str]:
        found = questions(data)
        return rng.sample(found, min(wanted, len(found)))

    sources: dict[str, Callable[[int], list[str]]] = {name: papers(name) for name in PAPERS}
    sources |= {
        name: evidence_set(name) for name in ("evidence_inference", "covidqa", "cuad", "qmsum", "doc2dial", "fairytaleqa")
    }
    sources |= {name: raw(name) for name in RAW}
    return sources | {"wikipedia": evidence_set(*WIKIPEDIA), "questions": asked, "pairs": sentences}


def distillation_texts(data: Path, count: int, seed: int) -> list[str]:
    """About `count` short texts in random order, without doubles."""
    rng = random.Random(seed)
    sources = _sources(data, rng)
    total = sum(SHARES.values())
    found: list[str] = []
    for name, share in SHARES.items():
        found += sources[name](count * share // total)
    found = sorted(set(found))
    rng.shuffle(found)
    return found
