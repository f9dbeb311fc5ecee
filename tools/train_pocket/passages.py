"""(query, passage) pairs with BM25-mined hard negatives, for the embedder and the reranker."""

from __future__ import annotations

import logging
import pickle
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from tools.train_pocket.data import PAPERS, paper_pairs
from tools.train_pocket.documents import EvidenceSet
from tools.train_pocket.lexical import Bm25
from tools.train_pocket.student import Ids

log = logging.getLogger(__name__)
# Sets whose questions have their answer in one document only, so that another document's passage is a true negative.
PAIRED = (
    "covidqa", "evidence_inference", "doc2dial", "fairytaleqa", "squad_xquad_en", "qed_paragraphs", "clapnq_passages",
    "2wiki_distractor", "hotpotqa_distractor", "musique_distractor",
)  # fmt: skip
PASSAGE_TOKENS = 120
NEGATIVES = 7
_MOST_QUESTIONS = 1200  # per set: fairytaleqa alone has thousands
_MINED_FROM = 30  # negatives come from this many best passages


@dataclass(frozen=True)
class Pair:
    """A query, a passage that answers it, and passages that only look like it, as token ids."""

    query: Ids
    positive: Ids
    negatives: tuple[Ids, ...]


def _passages(found: EvidenceSet) -> tuple[list[tuple[int, int, int]], list[str], list[Ids]]:
    """(document, first sentence, last sentence), text and ids of runs of sentences of about PASSAGE_TOKENS tokens."""
    places, texts, rows = [], [], []
    for number, (reading, text) in enumerate(zip(found.documents, found.texts, strict=True)):
        first, count = 0, len(reading.spans)
        while first < count:
            wanted = int(reading.bounds[first]) + PASSAGE_TOKENS
            last = max(first + 1, int(np.searchsorted(reading.bounds, wanted, side="right")) - 1)
            last = min(last, count)
            places.append((number, first, last))
            texts.append(text[reading.spans[first, 0] : reading.spans[last - 1, 1]])
            rows.append(reading.ids[reading.bounds[first] : reading.bounds[last]][: 2 * PASSAGE_TOKENS])
            first = last
    return places, texts, rows


def _evidence_pairs(found: EvidenceSet, rng: random.Random) -> list[Pair]:
    places, texts, rows = _passages(found)
    index = Bm25(texts)
    by_document: dict[int, list[int]] = {}
    for number, (document, _, _) in enumerate(places):
        by_document.setdefault(document, []).append(number)
    pairs = []
    for question in rng.sample(found.questions, min(_MOST_QUESTIONS, len(found.questions))):
        wanted = set(question.sentences.tolist())
        overlap = {n: len(wanted & set(range(places[n][1], places[n][2]))) for n in by_document[question.document]}
        positive = max(overlap, key=lambda n: (overlap[n], -n))
        if not overlap[positive] or not len(rows[positive]):
            continue
        listed = [int(n) for n in index.top(question.text, _MINED_FROM + len(overlap)) if not overlap.get(int(n))]
        mined = listed[:_MINED_FROM]
        chosen = rng.sample(mined, min(NEGATIVES, len(mined)))
        chosen += rng.choices(range(len(rows)), k=NEGATIVES - len(chosen))
        negatives = tuple(rows[n] for n in chosen if not overlap.get(n) and len(rows[n]))
        pairs.append(Pair(question.ids[:200], rows[positive], negatives))
    return pairs


def _paper_pairs(data: Path, name: str, tokenizer: Tokenizer, rng: random.Random) -> list[Pair]:
    found = paper_pairs(data, name)
    texts = [text[:1600] for _, text in found]
    index = Bm25(texts)
    rows = [
        np.asarray(e.ids[: int(1.5 * PASSAGE_TOKENS)], np.int32) for e in tokenizer.encode_batch(texts, add_special_tokens=False)
    ]
    pairs = []
    for number, (title, _) in enumerate(found):
        mined = [int(n) for n in index.top(title, _MINED_FROM) if n != number]
        chosen = rng.sample(mined, min(NEGATIVES, len(mined)))
        query = np.asarray(tokenizer.encode(title, add_special_tokens=False).ids, np.int32)
        pairs.append(Pair(query, rows[number], tuple(rows[n] for n in chosen)))
    return pairs


def load_pairs(data: Path, sets: dict[str, EvidenceSet], tokenizer: Tokenizer, seed: int, cache: Path) -> list[Pair]:
    """All pairs in random order; mined once and kept in `cache`."""
    if cache.exists():
        with cache.open("rb") as file:
            kept: list[Pair] = pickle.load(file)
            return kept
    rng = random.Random(seed)
    pairs = []
    for name in PAIRED:
        mine = _evidence_pairs(sets[name], rng)
        log.info("%s: %d pairs", name, len(mine))
        pairs += mine
    for name in PAPERS:
        mine = _paper_pairs(data, name, tokenizer, rng)
        log.info("%s: %d pairs", name, len(mine))
        pairs += mine
    pairs = [p for p in pairs if len(p.query) and p.negatives]
    rng.shuffle(pairs)
    with cache.open("wb") as file:
        pickle.dump(pairs, file)
    return pairs
