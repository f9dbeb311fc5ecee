"""Rows of the training file that paper E's authors released, mambaretriever_train.jsonl, as evidence.

A row has "context", the document's units, which are scored as they are; "sentence_labels", 1 for the units that answer;
"sentence_indices", the last token of each unit; and "input_ids", the question, a line end and the document in tokens of GPT-NeoX,
from which the question is decoded.

Differs: where a unit ends among the tokens of a model is found as in retrieval (`text.sentences.read_spans`), not taken from
"sentence_indices": the same place, unless one token has the end of a unit and the start of the next.

Source: https://github.com/MambaRetriever/MambaRetriever (train_data_generation/prepare_train_data.py; README.md, "License").
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from runnel.errors import InputError
from runnel.json_objects import read_row

LICENSE = "CC-BY-NC"
_HEAD = 20  # characters of the first unit by which the end of the question is found

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class _Released:
    context: tuple[str, ...]
    sentence_labels: tuple[int, ...]
    sentence_indices: tuple[int, ...]
    input_ids: tuple[int, ...]


def is_released(row: Mapping[str, Any]) -> bool:
    """Return whether a row is of the released training file."""
    return "input_ids" in row and "sentence_labels" in row


def load_decoder(path: Path) -> Decode:
    """Return GPT-NeoX's decoder: of the tokenizer in the file's folder, else from the hub or its cache."""
    from runnel.models.bare import load_neox_tokenizer  # not needed for other formats

    return load_neox_tokenizer(path.absolute().parent).decode


def parse_released(row: Mapping[str, Any], where: object, decode: Decode) -> dict[str, Any]:
    """Return a row as one of evidence, with its units."""
    released = read_row(_Released, row, where)
    units, labels, ends = released.context, released.sentence_labels, released.sentence_indices
    fits = 0 < len(units) == len(labels) == len(ends) and set(labels) <= {0, 1} and ends[0] < len(released.input_ids)
    start = decode(released.input_ids[: ends[0] + 1]) if fits else ""
    head = unicodedata.normalize("NFC", units[0])[:_HEAD] if fits else ""  # GPT-NeoX's tokens are of normalized text
    question, line_end, _ = start.partition(f"\n{head}")
    if not fits or not line_end:
        raise InputError(
            f"{where}: expected a 0 or 1 in 'sentence_labels' and a token's number in 'sentence_indices' for each text of "
            f"'context', and a question, a line end and {head!r} as 'input_ids'; these begin with {start[:60]!r}"
        )
    spans = [[a, b] for a, b in pairwise(accumulate(map(len, units), initial=0))]
    evidence = [span for span, label in zip(spans, labels, strict=True) if label]
    key = str(row.get("datapoint_id", ""))
    return {"question": question, "document": "".join(units), "evidence": evidence, "id": key, "units": spans}
