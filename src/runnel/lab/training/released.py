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
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from runnel.errors import InputError
from runnel.text.lines import keys

LICENSE = "CC-BY-NC"
_FIELDS = ("context", "sentence_labels", "sentence_indices", "input_ids")
_HEAD = 20  # characters of the first unit by which the end of the question is found

Decode = Callable[[Sequence[int]], str]


def is_released(row: Mapping[str, Any]) -> bool:
    """Return whether a row is of the released training file."""
    return "input_ids" in row and "sentence_labels" in row


def load_decoder(path: Path) -> Decode:
    """Return GPT-NeoX's decoder: of the tokenizer in the file's folder, else from the hub or its cache."""
    from runnel.models.bare import load_neox_tokenizer  # not needed for other formats

    return load_neox_tokenizer(path.absolute().parent).decode


def parse_released(row: Mapping[str, Any], where: object, decode: Decode) -> dict[str, Any]:
    """Return a row as one of evidence, with its units."""
    fields: list[Any] = [row.get(name) for name in _FIELDS]
    units, labels, ends, ids = fields
    texts = isinstance(units, list) and bool(units) and all(isinstance(unit, str) for unit in units)
    numbers = all(isinstance(part, list) and all(type(n) is int for n in part) for part in (labels, ends, ids))
    fits = texts and numbers and len(units) == len(labels) == len(ends) and set(labels) <= {0, 1} and 0 <= ends[0] < len(ids)
    if not fits:
        raise InputError(
            f"{where}: expected texts as 'context', for each a 0 or 1 in 'sentence_labels' and a token's number in "
            f"'sentence_indices', and tokens as 'input_ids', got {keys(row)}"
        )
    start = decode(ids[: ends[0] + 1])
    head = unicodedata.normalize("NFC", units[0])[:_HEAD]  # GPT-NeoX's tokens are of normalized text
    question, found, _ = start.partition(f"\n{head}")
    if not found:
        raise InputError(f"{where}: the tokens begin with {start[:60]!r}; expected a question, a line end and {head!r}")
    spans = [[a, b] for a, b in pairwise(accumulate(map(len, units), initial=0))]
    evidence = [span for span, label in zip(spans, labels, strict=True) if label]
    key = str(row.get("datapoint_id", ""))
    return {"question": question, "document": "".join(units), "evidence": evidence, "id": key, "units": spans}
