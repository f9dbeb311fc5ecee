"""Questions with all that the head sees: the query's vector, the vectors of the document's
sentences, and the features.

S  sentences   D  width of the vectors   F  features
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from runnel.models.pocket.lexical import WordTable, sentence_features, word_table
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.text.tokenizer import Tokenizer
from runnel.text.tokenizers import read_tokenizer
from tools.train_pocket.encode import (
    Chosen,
    chosen_sets,
    document_path,
    question_vectors,
    save_array,
    stored,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Example:
    """A question about a document that is not read again.

    Attributes:
        query: (D,) unit vector; vectors (S, D) unit vectors of the sentences; features (S, F).
        evidence: for each evidence span the sentences [first, last) that overlap it.
        document: its name; `number` is the question's among the chosen ones of the set.
    """

    set: str
    number: int
    document: str
    query: Tensor
    vectors: Tensor
    features: Tensor
    evidence: tuple[tuple[int, int], ...]


def overlapping(spans: NDArray[np.int64], start: int, end: int) -> tuple[int, int]:
    """Return the range of sentences that overlap the characters [start, end);
    spans tile the text.
    """
    return int(np.searchsorted(spans[:, 1], start, side="right")), int(
        np.searchsorted(spans[:, 0], end, side="left")
    )


def vocabulary(folder: Path) -> dict[str, int]:
    """Return the id of each piece."""
    found: dict[str, int] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))[
        "model"
    ]["vocab"]
    return found


def static_idf(
    documents: Iterable[Iterable[NDArray[np.int32]]], pieces: dict[str, int], block: int = 160
) -> NDArray[np.float32]:
    """Return the inverse document frequency (V,) of each id over blocks of the documents of each
    set, 1 for ids that none has; a plural counts as its singular.
    """
    table = word_table(pieces, np.zeros(len(pieces), np.float32))
    group = table.code.astype(np.int64) - 1
    group[group < 0] = np.flatnonzero(group < 0)
    df = np.zeros(len(pieces), np.int64)
    blocks = 0
    for one in documents:
        ids = np.concatenate(list(one))[:_MOST_COUNTED]
        key = np.unique(np.arange(len(ids)) // block * len(pieces) + group[ids])
        df += np.bincount(key % len(pieces), minlength=len(pieces))
        blocks += -(-len(ids) // block)
    idf = np.log((blocks + 1) / (df + 0.5)) / np.log((blocks + 1) / 0.5)
    return idf[group].clip(0, 1).astype(np.float32)


_MOST_COUNTED = 1_500_000  # tokens of one set, so that no set rules


def load_table(data: Path, out: Path) -> WordTable:
    """Load the table of words with the static idf, which is counted once and stored in `out`."""
    target = out / "idf.npy"
    pieces = vocabulary(out / "encoder")
    if not target.exists():
        sets = chosen_sets(data, measure=False)
        read = {
            s.found.name: [d for d in s.documents if document_path(out, s.found.name, d).exists()]
            for s in sets
        }
        ids = (
            [stored(out, s.found.name, d, s.found.texts[d]).ids for d in read[s.found.name]]
            for s in sets
            if read[s.found.name]
        )
        save_array(target, static_idf(ids, pieces))
    return word_table(pieces, np.load(target))


def unit_vectors(document: SentenceVectors) -> Tensor:
    """Return (S, D) of unit length; zeros for a sentence without tokens."""
    return F.normalize(torch.from_numpy(document.sums()), dim=-1)


def load_examples(data: Path, out: Path, table: WordTable, *, measure: bool) -> list[Example]:
    """Load the chosen questions whose documents are encoded."""
    tokenizer = read_tokenizer(out / "encoder")
    found: list[Example] = []
    missing = 0
    for one in chosen_sets(data, measure=measure):
        missing += _add_set(one, out, table, tokenizer, measure, found)
    if missing:
        log.warning(
            "%d questions are left out: their documents are not encoded yet; run the step encode",
            missing,
        )
    return found


def _add_set(
    one: Chosen,
    out: Path,
    table: WordTable,
    tokenizer: Tokenizer,
    measure: bool,
    found: list[Example],
) -> int:
    """Add the examples of a set, and return the number of questions without an encoded document."""
    name = one.found.name
    kept = dict[str, tuple[SentenceVectors, Tensor]]()
    missing = 0
    queries = torch.from_numpy(question_vectors(out, one, measure))
    for number, question in enumerate(one.questions):
        document = question.document
        if document not in kept:
            if not document_path(out, name, document).exists():
                missing += 1
                continue
            read = stored(out, name, document, one.found.texts[document])
            kept[document] = read, unit_vectors(read)
        d, unit = kept[document]
        features = torch.from_numpy(
            sentence_features(d.ids, d.bounds, tokenizer.encode(question.text.strip()).ids, table)
        )
        evidence = tuple(overlapping(d.spans, *span) for span in question.spans)
        found.append(Example(name, number, document, queries[number], unit, features, evidence))
    return missing
