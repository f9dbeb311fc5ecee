"""Read evidence, the training examples of sentence retrievers.

In: jsonl of questions, documents and spans, or rows that the authors of paper E (docs/papers.md)
released. Out: `Evidence`, one at a time. Unusable examples are dropped, counted and reported;
contradictory ones are errors with their place.
"""

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from runnel.checks import refuse_when
from runnel.config import read_row
from runnel.errors import InputError
from runnel.jobs.progress import notify
from runnel.lab.training.data import Dropped, Evidence
from runnel.text.lines import read_json

LICENSE = "CC-BY-NC"
# So many characters of the first unit: in a released row, the question ends where they occur.
_HEAD = 20

Decode = Callable[[Sequence[int]], str]


def read_evidence(
    path: str | Path,
    *,
    dropped: Dropped | None = None,
    unanswered: bool = False,
    within: tuple[float, float] = (0.0, 1.0),
) -> Iterator[Evidence]:
    """Yield evidence examples from jsonl: "question" (or "query"), "document", "evidence" [[start,
    end], ...].

    Spans are Python character offsets into the document. Optional are "id", and "units", spans that
    tile the document; other keys are ignored. Rows of the training file that paper E's authors
    released are read too (`parse_released`).

    Args:
        path: the file; plain, .gz or .zst.
        dropped: filled while reading, for the caller to report; without it the counts are logged at
            the end. Examples without a query, a document or evidence are dropped.
        unanswered: keep examples without evidence.
        within: keep only examples with all evidence in this part of the document, in shares of its
            characters.

    Raises:
        InputError: a row has another form, or a span is not inside its document; the message has
            the line.
        CheckpointError: GPT-NeoX's tokenizer, which released rows need, is neither in the file's
            folder nor on the hub.
    """
    counts = Dropped() if dropped is None else dropped
    decode: Decode | None = None
    outside = f"examples with evidence outside {within[0]:.0%} to {within[1]:.0%} of the document"
    for where, row in read_json(path):
        if is_released(row):
            if decode is None:
                from runnel.models.foreign.bare import (
                    load_neox_tokenizer,  # not needed for other formats
                )

                notify(f"{path}: released under {LICENSE}, not for commercial use")
                decode = load_neox_tokenizer(Path(path).absolute().parent).decode
            row = parse_released(row, where, decode)
        evidence = _evidence_of(row, where)
        document = evidence.document
        low, high = (share * len(document) for share in within)
        reasons = {
            "examples with an empty query": not evidence.query.strip(),
            "examples with an empty document": not document.strip(),
            "examples without evidence": not (
                unanswered or any(document[start:end].strip() for start, end in evidence.spans)
            ),
            outside: not all(low <= start and end <= high for start, end in evidence.spans),
        }
        if counts.keep(where, reasons):
            yield evidence
    if counts.counts and dropped is None:
        notify(f"{path}: {counts}")


def _evidence_of(row: dict[str, object], where: str) -> Evidence:
    example = read_row(
        Evidence, row | {"id": str(row.get("id", ""))}, where, query="question", spans="evidence"
    )
    size = len(example.document)
    wrong = [
        (start, end) for start, end in (*example.spans, *example.units) if not start < end <= size
    ]
    blank = [span for span in example.spans if not example.document[slice(*span)].strip()]
    # a blank span is wrong; but an example of nothing else is without evidence, and is left out
    if len(blank) < len(example.spans):
        wrong += blank
    first = list(wrong[0]) if wrong else []
    edges = [0, *(end for _, end in example.units)]
    refuse_when(
        (
            wrong,
            f"{where}: span {first} is empty or not inside the document of {size:,} characters;"
            " correct the row",
        ),
        (
            example.units and edges != [*(start for start, _ in example.units), size],
            f"{where}: the {len(example.units):,} units do not tile the document, each from the end"
            f" of the one before it, of {size:,} characters; correct the row",
        ),
    )
    return example


@dataclass(frozen=True)
class _Released:
    """A row of mambaretriever_train.jsonl, the training file that paper E's authors released."""

    context: tuple[str, ...]  # the document's units, which are scored as they are
    sentence_labels: tuple[int, ...]  # 1 for the units that answer
    sentence_indices: tuple[int, ...]  # the last token of each unit
    input_ids: tuple[int, ...]  # the question, a line end and the document in tokens of GPT-NeoX


def is_released(row: Mapping[str, object]) -> bool:
    """Return whether a row is of the released training file."""
    return "input_ids" in row and "sentence_labels" in row


def parse_released(row: Mapping[str, object], where: object, decode: Decode) -> dict[str, object]:
    """Return a released row as a row of evidence, with its units; the question is decoded from the
    tokens.

    Of the row's "sentence_indices", the tokens at which units end, only the first is used, to find
    where the question ends. Retrieval finds these tokens itself (`text.sentences.read_spans`): the
    same ones, unless one token has the end of a unit and the start of the next.

    Source: https://github.com/MambaRetriever/MambaRetriever
        (train_data_generation/prepare_train_data.py; README.md, "License").
    """
    released = read_row(_Released, row, where)
    units, labels, ends = released.context, released.sentence_labels, released.sentence_indices
    fits = (
        0 < len(units) == len(labels) == len(ends)
        and set(labels) <= {0, 1}
        and ends[0] < len(released.input_ids)
    )
    start = decode(released.input_ids[: ends[0] + 1]) if fits else ""
    # GPT-NeoX's tokens are of normalized text
    head = unicodedata.normalize("NFC", units[0])[:_HEAD] if fits else ""
    question, line_end, _ = start.partition(f"\n{head}")
    if not fits or not line_end:
        raise InputError(
            f"{where}: expected a 0 or 1 in 'sentence_labels' and a token's number in"
            " 'sentence_indices' for each text of 'context', and a question, a line end and"
            f" {head!r} as 'input_ids'; these begin with {start[:60]!r}"
        )
    spans = [[a, b] for a, b in pairwise(accumulate(map(len, units), initial=0))]
    evidence = [span for span, label in zip(spans, labels, strict=True) if label]
    return {
        "question": question,
        "document": "".join(units),
        "evidence": evidence,
        "id": str(row.get("datapoint_id", "")),
        "units": spans,
    }
