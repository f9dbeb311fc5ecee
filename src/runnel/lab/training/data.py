"""Training examples: triples for embedders and rerankers, evidence for sentence retrievers; streamed from any format.

Unusable examples are dropped, counted and reported; contradictory ones are errors with their place.
"""

from __future__ import annotations

import logging
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from runnel.errors import InputError, counted
from runnel.json_objects import read_row
from runnel.lab.training.corpora import Texts
from runnel.lab.training.formats import Raw, find_source, read_raw
from runnel.text.lines import read_json

log = logging.getLogger("runnel")
LICENSE = "CC-BY-NC"
_HEAD = 20  # characters of the first unit by which the end of the question is found

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Triple:
    """A query with documents that answer it and documents that do not. No text is empty, and `positives` is not empty."""

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...] = ()
    id: str = ""  # of the query, if the data has one
    instruction: str = ""  # for the query, if the data has one per query


@dataclass(frozen=True, slots=True)
class Evidence:
    """A query with a document and at least one [start, end) character span of it that answers the query."""

    query: str
    document: str
    spans: tuple[tuple[int, int], ...]
    id: str = ""
    units: tuple[tuple[int, int], ...] = ()  # spans that tile the document, scored instead of its sentences, if the data has some


@dataclass(slots=True)
class Dropped:
    """Counts of kept examples, and of dropped ones by reason. Pass one to a reader; afterwards inspect it or log its `str`."""

    kept: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)  # reason -> place of its first case

    def add(self, reason: str, where: str) -> None:
        self.counts[reason] += 1
        self.first.setdefault(reason, where)

    def __str__(self) -> str:
        reasons = "; ".join(f"{count:,} {reason} (first: {self.first[reason]})" for reason, count in self.counts.most_common())
        return f"{counted(self.kept, 'example')} kept" + (f", left out: {reasons}" if reasons else "")


def read_triples(
    path: str | Path,
    *,
    corpus: str | Path | Texts | None = None,
    queries: str | Path | None = None,
    dropped: Dropped | None = None,
) -> Iterator[Triple]:
    """Yield triples; docs/data.md shows the formats, recognized by the first row.

    Args:
        path: columns (a query, a positive, negatives) as jsonl, csv or tsv with a header (plain, .gz or .zst) or parquet; a BEIR
            folder (its train.tsv, or its only qrels), or a file in its folder `qrels`; or other qrels.
        corpus, queries: files with the texts for the ids of qrels; for a BEIR set they are found in its folder.
        dropped: filled while reading, for the caller to report; without it the counts are logged at the end. An example without
            a query or a positive, or with only empty negatives, is dropped; single empty texts are removed.

    Raises:
        InputError: the file does not fit its format, an id has no text, or a document is both positive and negative for a
            query; the message has the line.
        ReadError: see `runnel.text.lines.Lines`.
    """
    reported = dropped is not None
    dropped = dropped or Dropped()
    for raw in read_raw(find_source(path, corpus, queries)):
        triple = _triple(raw, dropped)
        if triple is not None:
            dropped.kept += 1
            yield triple
    if dropped.counts and not reported:
        log.warning("%s: %s", path, dropped)


def read_evidence(
    path: str | Path, *, dropped: Dropped | None = None, unanswered: bool = False, within: tuple[float, float] = (0.0, 1.0)
) -> Iterator[Evidence]:
    """Yield evidence examples from jsonl: "question" (or "query"), "document", "evidence" [[start, end], ...].

    Spans are Python character offsets into the document. Optional are "id", and "units", spans that tile the document; other keys
    are ignored. Rows of the training file that paper E's authors released are read too (`parse_released`).

    Args:
        path: the file; plain, .gz or .zst.
        dropped: filled while reading, for the caller to report; without it the counts are logged at the end. Examples without a
            query, a document or evidence are dropped.
        unanswered: keep examples without evidence.
        within: keep only examples with all evidence in this part of the document, in shares of its characters.

    Raises:
        InputError: a row has another form, or a span is not inside its document; the message has the line.
        CheckpointError: GPT-NeoX's tokenizer, which released rows need, is missing.
    """
    reported = dropped is not None
    dropped = dropped or Dropped()
    decode: Decode | None = None
    for where, row in read_json(path):
        if is_released(row):
            if decode is None:
                log.warning("%s: released under %s, not for commercial use", path, LICENSE)
                decode = load_decoder(Path(path))
            row = parse_released(row, where, decode)
        evidence = _evidence(row, where)
        document, spans = evidence.document, evidence.spans
        low, high = (share * len(document) for share in within)
        reasons = {
            "examples with an empty query": not evidence.query.strip(),
            "examples with an empty document": not document.strip(),
            "examples without evidence": not (unanswered or any(document[start:end].strip() for start, end in spans)),
            f"examples with evidence outside {within[0]:.0%} to {within[1]:.0%} of the document": not all(
                low <= start and end <= high for start, end in spans
            ),
        }
        reason = next((reason for reason, found in reasons.items() if found), None)
        if reason is None:
            dropped.kept += 1
            yield evidence
        else:
            dropped.add(reason, where)
    if dropped.counts and not reported:
        log.warning("%s: %s", path, dropped)


def _triple(raw: Raw, dropped: Dropped) -> Triple | None:
    positives = _texts(raw.positives, "empty positive texts", raw.where, dropped)
    negatives = _texts(raw.negatives, "empty negative texts", raw.where, dropped)
    both = set(positives) & set(negatives)
    if both and not raw.judged:
        raise InputError(
            f"{raw.where}: a document is both positive and negative for the query {raw.query[:60]!r}: {min(both)[:60]!r}; "
            "remove one of the two"
        )
    for _ in both:  # copies of one text under several ids are common in corpora
        dropped.add("negative texts that are a positive's under another id", raw.where)
    negatives = [text for text in negatives if text not in both]
    if not raw.query.strip():
        reason = "examples with an empty query"
    elif not positives:
        reason = "examples without a positive"
    elif raw.negatives and not negatives:
        reason = "examples without any of their negatives"
    else:
        return Triple(raw.query, tuple(positives), tuple(negatives), raw.id, raw.instruction)
    dropped.add(reason, raw.where)
    return None


def _texts(texts: list[str], reason: str, where: str, dropped: Dropped) -> list[str]:
    for text in texts:
        if not text.strip():
            dropped.add(reason, where)
    return list(dict.fromkeys(text for text in texts if text.strip()))


def _evidence(row: dict[str, Any], where: str) -> Evidence:
    example = read_row(Evidence, row | {"id": str(row.get("id", ""))}, where, query="question", spans="evidence")
    document, units = example.document, example.units
    blank = [(start, end) for start, end in example.spans if not document[start:end].strip()]
    wrong = [(start, end) for start, end in (*example.spans, *units) if not start < end <= len(document)]
    wrong = wrong or blank * (len(blank) < len(example.spans))  # an example with nothing but blank spans is left out
    if wrong or (units and [0, *(end for _, end in units)] != [*(start for start, _ in units), len(document)]):
        gaps = f"the {len(units):,} units do not tile the document, each from the end of the one before it,"
        what = f"span {list(wrong[0])} is empty or not inside the document" if wrong else gaps
        raise InputError(f"{where}: {what} of {len(document):,} characters; correct the row")
    return example


@dataclass(frozen=True)
class _Released:
    """A row of mambaretriever_train.jsonl, the training file that paper E's authors released."""

    context: tuple[str, ...]  # the document's units, which are scored as they are
    sentence_labels: tuple[int, ...]  # 1 for the units that answer
    sentence_indices: tuple[int, ...]  # the last token of each unit
    input_ids: tuple[int, ...]  # the question, a line end and the document in tokens of GPT-NeoX


def is_released(row: Mapping[str, Any]) -> bool:
    """Return whether a row is of the released training file."""
    return "input_ids" in row and "sentence_labels" in row


def load_decoder(path: Path) -> Decode:
    """Return GPT-NeoX's decoder: of the tokenizer in the file's folder, else from the hub or its cache."""
    from runnel.models.bare import load_neox_tokenizer  # not needed for other formats

    return load_neox_tokenizer(path.absolute().parent).decode


def parse_released(row: Mapping[str, Any], where: object, decode: Decode) -> dict[str, Any]:
    """Return a released row as one of evidence, with its units; the question is decoded from the tokens.

    Differs: where a unit ends among the tokens of a model is found as in retrieval (`text.sentences.read_spans`), not taken from
    "sentence_indices": the same place, unless one token has the end of a unit and the start of the next.

    Source: https://github.com/MambaRetriever/MambaRetriever (train_data_generation/prepare_train_data.py; README.md, "License").
    """
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
