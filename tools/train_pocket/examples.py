"""Questions with all that the head sees: the query's vector, the vectors of the document's sentences, and the features.

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
from numpy.typing import NDArray
from torch import Tensor

from runnel.models.lexical import WordTable, sentence_features, word_table
from tools.train_pocket.encode import Chosen, chosen_sets, document_path, questions_path

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Example:
    """A question about a document that is not read again.

    Attributes:
        query: (D,) unit vector; vectors (S, D) unit vectors of the sentences; features (S, F).
        evidence: for each evidence span the sentences [first, last) that overlap it.
        document: the set and the number of the document in it; `number` is the question's among the chosen ones of the set.
    """

    set: str
    number: int
    document: int
    query: Tensor
    vectors: Tensor
    features: Tensor
    evidence: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Stored:
    """A document as it was written by `encode`."""

    ids: NDArray[np.int64]
    bounds: NDArray[np.int64]
    vectors: Tensor
    passages: NDArray[np.float32]


def stored(path: Path) -> Stored:
    """Read a document's file."""
    with np.load(path) as file:
        vectors = torch.from_numpy(file["vectors"].astype(np.float32) * file["scales"][:, None])
        return Stored(file["ids"].astype(np.int64), file["bounds"].astype(np.int64), vectors, file["passages"].astype(np.float32))


def vocabulary(folder: Path) -> dict[str, int]:
    """Piece to id."""
    found: dict[str, int] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    return found


def static_idf(chosen: Iterable[Chosen], pieces: dict[str, int], most: int = 1_500_000, block: int = 160) -> NDArray[np.float32]:
    """(V,) inverse document frequency of each id over blocks of the training documents, 1 for what none has; a plural counts
    as its singular.

    Args:
        most: tokens of one set that count, so that no set rules.
    """
    table = word_table(pieces, np.zeros(len(pieces), np.float32))
    group = table.code.astype(np.int64) - 1
    group[group < 0] = np.flatnonzero(group < 0)
    df, blocks = np.zeros(len(pieces), np.int64), 0
    for one in chosen:
        ids = np.concatenate([d.ids for d in one.found.documents])[:most]
        key = np.unique(np.arange(len(ids)) // block * len(pieces) + group[ids])
        df += np.bincount(key % len(pieces), minlength=len(pieces))
        blocks += -(-len(ids) // block)
    idf = np.log((blocks + 1) / (df + 0.5)) / np.log((blocks + 1) / 0.5)
    return idf[group].clip(0, 1).astype(np.float32)


def load_table(data: Path, out: Path, folder: Path) -> WordTable:
    """The table of words with the static idf, counted once and kept in `out`."""
    target, pieces = out / "idf.npy", vocabulary(folder)
    if not target.exists():
        np.save(target, static_idf(chosen_sets(data, out, folder, measure=False), pieces))
    return word_table(pieces, np.load(target))


def load_examples(data: Path, out: Path, folder: Path, *, measure: bool) -> list[Example]:
    """The chosen questions whose documents are encoded."""
    table = load_table(data, out, folder)
    found: list[Example] = []
    missing = 0
    for one in chosen_sets(data, out, folder, measure=measure):
        name, kept = one.found.name, dict[int, Stored]()
        with np.load(questions_path(out, name, measure)) as file:
            queries = torch.from_numpy(file["vectors"])
        for number, question in enumerate(one.questions):
            path = document_path(out, name, one.found.documents[question.document].name)
            if not path.exists():
                missing += 1
                continue
            if question.document not in kept:
                kept[question.document] = stored(path)
            d = kept[question.document]
            features = torch.from_numpy(sentence_features(d.ids, d.bounds, question.ids, table))
            query = queries[number].clone()  # a view would be pickled with all the others
            found.append(Example(name, number, question.document, query, d.vectors, features, question.evidence))
    if missing:
        log.warning("%d questions are left out: their documents are not encoded yet; run the step encode", missing)
    return found
