"""Training examples: triples for embedders and rerankers, evidence for sentence retrievers;
streamed from any format.

Unusable examples are dropped, counted and reported; contradictory ones are errors with their place.
"""

from __future__ import annotations

import csv
import logging
import re
import sqlite3
import unicodedata
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from runnel.checks import by_id, expect_choice
from runnel.config import read_row
from runnel.errors import InputError, ReadError, counted
from runnel.files import open_bytes
from runnel.records import Document, titled
from runnel.text.lines import (
    Lines,
    find,
    parse_document,
    read_head,
    read_json,
    read_lines,
    text_of,
    texts_of,
)
from runnel.text.tables import PARQUET, delimiter_of, read_parquet, read_table
from runnel.text.trec import read_qrels


def read_corpus(path: str | Path) -> Iterator[Document]:
    """Yield the documents of a corpus: jsonl, csv or tsv with names, or MS MARCO's tsv. Texts may
    be empty.
    """
    path = Path(path)
    first = next((line for _, line in read_lines(path)), "")
    kind = "csv" if ".csv" in path.suffixes[-2:] else "tsv"
    if first.startswith("{"):
        for where, row in read_json(path):
            yield parse_document(row, where)
    elif kind == "csv" or "text" in first.split("\t"):
        lines = Lines(open_bytes(path.absolute()), str(path))
        for number, values in read_table(lines, kind).rows:
            yield parse_document(values, lines.place(number))
    else:
        for where, line in read_lines(path):
            name, *texts = line.split("\t")
            if not name.strip() or len(texts) not in (1, 3):
                expected = "expected id and text, or id, url, title and body, separated by tabs"
                raise InputError(f"{where}: {expected}; got {len(texts)} tabs in {line[:80]!r}")
            yield Document(name, texts[0] if len(texts) == 1 else titled(texts[1], texts[2]))


def read_queries(path: str | Path) -> dict[str, str]:
    """Read queries as a mapping from id to text, from a file with the same rows as a corpus."""
    return {
        name: query.text
        for name, query in by_id(read_corpus(path), f"the queries of {path}").items()
    }


class Texts:
    """Documents by id or by row, in a temporary SQLite file in the folder `SQLITE_TMPDIR`, which is
    deleted with this object.
    """

    def __init__(self, documents: Iterable[Document]) -> None:
        self._base = sqlite3.connect("", check_same_thread=False)  # no name: a temporary file
        weakref.finalize(self, self._base.close)
        try:
            self._base.execute("PRAGMA journal_mode = OFF")
            self._base.execute(
                "CREATE TABLE texts (row INTEGER PRIMARY KEY, id TEXT NOT NULL, text TEXT NOT NULL)"
            )
            rows = ((row, d.id, d.text) for row, d in enumerate(documents))
            self._base.executemany("INSERT INTO texts VALUES (?, ?, ?)", rows)
            self._base.execute("CREATE UNIQUE INDEX by_id ON texts (id)")
        except (sqlite3.IntegrityError, sqlite3.OperationalError) as error:
            query = "SELECT id FROM texts GROUP BY id HAVING COUNT(*) > 1 ORDER BY MIN(row) LIMIT 1"
            what = (
                f"the corpus cannot be copied to a temporary file ({error}); give SQLITE_TMPDIR a"
                " folder with room"
            )
            if isinstance(error, sqlite3.IntegrityError):
                what = (
                    f"two documents of the corpus have the id {self._one(query)!r}; expected each"
                    " id once"
                )
            raise ReadError(what) from error
        self._count = self._one("SELECT COUNT(*) FROM texts")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Document]:
        return (
            Document(name, text)
            for name, text in self._base.execute("SELECT id, text FROM texts ORDER BY row")
        )

    def get(self, name: str) -> str | None:
        """Return the text of a document, or None if the id is unknown."""
        return self._one("SELECT text FROM texts WHERE id = ?", name)

    def at(self, row: int) -> str:
        """Return the text of a row; rows count from 0."""
        return self._one("SELECT text FROM texts WHERE row = ?", int(row))

    def name(self, row: int) -> str:
        return self._one("SELECT id FROM texts WHERE row = ?", int(row))

    def row(self, name: str) -> int | None:
        """Return the row of a document, or None if the id is unknown."""
        return self._one("SELECT row FROM texts WHERE id = ?", name)

    def _one(self, query: str, *values: object) -> Any:
        match = self._base.execute(query, values).fetchone()
        return match[0] if match else None


log = logging.getLogger("runnel")

_QUERY = {"query", "question", "anchor", "sentence1", "sentence_a"}
_POSITIVE = {
    "positive",
    "positives",
    "pos",
    "document",
    "answer",
    "passage",
    "sentence2",
    "sentence_b",
}
_NEGATIVE = re.compile(r"neg|negatives?([_ ]?\d+)?")
_INSTRUCTIONS = ("instruction", "prompt")
_DOCUMENTS, _LABELS = {"docs", "documents", "passages"}, {"label", "labels", "score", "scores"}
_ADVICE = (
    "name them query, positive and optionally negative or negative_1, negative_2, ... (docs/data.md"
    " has other formats)"
)


class ExampleFiles(NamedTuple):
    """A file of examples and, if it holds ids, the files with their texts."""

    path: Path
    corpus: Path | Texts | None
    queries: Path | None


def find_source(
    path: str | Path,
    corpus: str | Path | Texts | None = None,
    queries: str | Path | None = None,
    *,
    split: str = "train.tsv",
) -> ExampleFiles:
    """Find the files for a path: a folder, or a file in its `qrels`, is a BEIR set, with a corpus
    and queries in its folder.

    Of several qrels, those with the name `split` are meant.
    """
    path = Path(path)
    folder = folder_of(path)
    if path.is_dir():
        path = find(path, "qrels.tsv", "qrels.txt") or find_split(path, split)
    if folder is not None:
        corpus = find(folder, "corpus.jsonl", "corpus.tsv") if corpus is None else corpus
        queries = find(folder, "queries.jsonl", "queries.tsv") if queries is None else queries
    return ExampleFiles(
        path,
        Path(corpus) if isinstance(corpus, str) else corpus,
        Path(queries) if queries else None,
    )


def folder_of(path: Path) -> Path | None:
    """Return the folder of a BEIR set, of which the path is the folder or one of its qrels; None
    for other files.
    """
    return path if path.is_dir() else path.parent.parent if path.parent.name == "qrels" else None


def qrels_of(folder: Path) -> list[Path]:
    """Return the qrels of a BEIR folder."""
    files = sorted(p for p in folder.glob("qrels/*") if ".tsv" in p.suffixes)
    if not files:
        raise ReadError(
            f"{folder} is a folder without qrels/*.tsv; expected a BEIR folder or a file"
        )
    return files


def find_split(folder: Path, name: str) -> Path:
    """Return the qrels of a BEIR folder that have this name, or its only ones."""
    splits = qrels_of(folder)
    found = find(folder / "qrels", name)
    if found is None and len(splits) != 1:
        expect_choice(
            name,
            [path.name for path in splits],
            f"the file to use of {folder / 'qrels'}, unless you give its path,",
        )
    return found or splits[0]


def read_named(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, row) for each row of jsonl or parquet, or of csv or tsv with a header."""
    if _is_parquet(path):
        return read_parquet(path)
    _, first = next(read_lines(path), ("", ""))
    return read_json(path) if first.startswith("{") else _read_columns(path, _kind(first))


def column_names(path: Path) -> list[str]:
    """Read the keys of the first row of jsonl or parquet, or the fields of the first line of any
    other file.
    """
    _, first = ("", "{") if _is_parquet(path) else next(read_lines(path), ("", ""))
    return (
        list(next(read_named(path))[1]) if first.startswith("{") else _cells(first) if first else []
    )


def _is_parquet(path: Path) -> bool:
    return read_head(path, len(PARQUET)) == PARQUET


def _are_qrels(path: Path) -> bool:
    if _is_parquet(path):
        return False
    where, line = next(read_lines(path), ("", ""))
    if line.startswith("{"):
        return False
    cells, fields = _cells(line) if line else [], [*line.split(), ""]
    if fields[0].lower() in ("query-id", "query_id") or (
        len(fields) == 5 and fields[3].lstrip("-").isdecimal()
    ):
        return True
    if len(cells) > 1 and _QUERY & {cell.lower() for cell in cells}:
        return False
    expected = "jsonl, qrels, or the names of the columns before the first row"
    raise InputError(f"{where or path}: expected {expected}, got {line[:80]!r}; {_ADVICE}")


class _Roles(NamedTuple):
    query: str
    positive: str
    negatives: list[str]
    labels: str | None
    instructions: list[str]


def _columns(path: Path) -> Iterator[tuple[str, Triple]]:
    """Yield (place, triple that has not been checked) for each row."""
    roles: dict[tuple[str, ...], _Roles] = {}
    for where, row in read_named(path):
        names = tuple(row)
        if names not in roles:
            roles[names] = _roles(names, where)
        yield where, _split(row, roles[names], where)


def _roles(names: tuple[str, ...], where: str) -> _Roles:
    # SCROLLS as LoCoV0 uses it: the output searches for the document
    if {"pid", "input", "output"} <= set(names):
        return _Roles("output", "input", [], None, [])
    query = [n for n in names if n.lower() in _QUERY]
    positive = [n for n in names if n.lower() in _POSITIVE | _DOCUMENTS]
    negatives = [n for n in names if _NEGATIVE.fullmatch(n.lower())]
    labels = [n for n in names if n.lower() in _LABELS]
    instructions = [n for n in names if n.lower() in _INSTRUCTIONS]
    other = set(names) - {*query, *positive, *negatives, *labels, *instructions, "id", "query_id"}
    if len(query) != 1 or len(positive) != 1 or len(labels) > 1 or other:
        raise InputError(
            f"{where}: cannot tell the roles of the columns {', '.join(map(repr, names))};"
            f" {_ADVICE}"
        )
    return _Roles(query[0], positive[0], negatives, labels[0] if labels else None, instructions)


def _split(row: dict[str, Any], roles: _Roles, where: str) -> Triple:
    query, documents = text_of(row, roles.query, where), texts_of(row, roles.positive, where)
    name, filled = (
        str(row.get("id", row.get("query_id", ""))),
        [name for name in roles.instructions if row.get(name)],
    )
    labels: Any = [0] * len(documents) if roles.labels is None else row[roles.labels]
    lists = isinstance(labels, list) and (
        roles.labels is None or isinstance(row[roles.positive], list)
    )
    scored = (
        lists
        and len(labels) == len(documents)
        and all(isinstance(label, int | float) for label in labels)
    )
    if len(filled) > 1 or not scored:
        expected = (
            "for each query a list of documents and a list of as many labels (above 0 is positive),"
            " or no scores"
        )
        wrong = f"{roles.labels!r} is {str(labels)[:80]}; expected {expected}"
        both = (
            f"{' and '.join(map(repr, filled))} both hold an instruction for the query; keep one of"
            " them"
        )
        raise InputError(f"{where}: {wrong if not scored else both}")
    instruction = text_of(row, filled[0], where) if filled else ""
    if roles.labels is None:
        negatives = [
            t
            for column in roles.negatives
            if row[column] is not None
            for t in texts_of(row, column, where)
        ]
        return Triple(query, tuple(documents), tuple(negatives), name, instruction)
    pairs = list(zip(documents, labels, strict=True))
    positive, negative = (
        tuple(d for d, label in pairs if (label > 0) is yes) for yes in (True, False)
    )
    return Triple(query, positive, negative, name, instruction)


def _read_columns(path: Path, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of csv or tsv under their header; fields in quotes may hold line ends."""
    lines = Lines(open_bytes(path), str(path))
    names, rows = read_table(lines, kind, names=True)
    names = [name.strip() for name in names]
    for number, row in rows:
        if len(row) < len(names):
            expected = f"expected {len(names)} fields ({', '.join(names)})"
            raise InputError(
                f"{lines.place(number)}: {expected}, got {len(row)}; write an empty field for a"
                " missing value"
            )
        yield str(lines.place(number)), dict(zip(names, row.values(), strict=True))


def _kind(line: str) -> str:
    return "tsv" if "\t" in line else "csv"


def _cells(line: str) -> list[str]:
    return [
        cell.strip()
        for cell in next(
            csv.reader([line], delimiter="\t" if _kind(line) == "tsv" else delimiter_of(line))
        )
    ]


def expect_texts(qrels: Path, files: Mapping[str, object]) -> None:
    """Raise InputError if one of these files with texts, by their names, is missing (None)."""
    if missing := [name for name, file in files.items() if file is None]:
        raise InputError(f"{qrels} has ids instead of texts; also give {' and '.join(missing)}")


def _judged(source: ExampleFiles) -> Iterator[tuple[str, Triple]]:
    """Yield (place, triple that has not been checked) for each query of qrels."""
    expect_texts(source.path, {"corpus": source.corpus, "queries": source.queries})
    queries = read_queries(str(source.queries))
    log.info("reading the corpus of %s", source.path)
    texts = (
        source.corpus
        if isinstance(source.corpus, Texts)
        else Texts(read_corpus(str(source.corpus)))
    )
    for name, grades in read_qrels(source.path).items():
        where = f"{source.path}, query {name!r}"
        by_name = {document: texts.get(document) for document in grades}
        unknown = next((document for document, text in by_name.items() if text is None), None)
        if name not in queries or unknown is not None:
            what = (
                f"document {unknown!r} is not in the corpus"
                if name in queries
                else f"it is not in {source.queries}"
            )
            raise InputError(f"{where}: {what}; give the queries and the corpus of this file")
        positive, negative = (
            tuple(str(by_name[d]) for d, n in grades.items() if (n > 0) is yes)
            for yes in (True, False)
        )
        yield where, Triple(queries[name], positive, negative, name)


LICENSE = "CC-BY-NC"
_HEAD = 20  # characters of the first unit by which the end of the question is found

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Triple:
    """A query with documents that answer it and documents that do not. No text is empty, and
    `positives` is not empty.
    """

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...] = ()
    id: str = ""  # of the query, if the data has one
    instruction: str = ""  # for the query, if the data has one per query


@dataclass(frozen=True, slots=True)
class Evidence:
    """A query with a document and at least one [start, end) character span of it that answers the
    query.
    """

    query: str
    document: str
    spans: tuple[tuple[int, int], ...]
    id: str = ""
    # spans that tile the document, scored instead of its sentences, if the data has some
    units: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class Dropped:
    """Counts of kept examples, and of dropped ones by reason. Pass one to a reader; afterwards
    inspect it or log its `str`.
    """

    kept: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)  # reason -> place of its first case

    def add(self, reason: str, where: str) -> None:
        self.counts[reason] += 1
        self.first.setdefault(reason, where)

    def __str__(self) -> str:
        reasons = "; ".join(
            f"{count:,} {reason} (first: {self.first[reason]})"
            for reason, count in self.counts.most_common()
        )
        return f"{counted(self.kept, 'example')} kept" + (
            f", left out: {reasons}" if reasons else ""
        )


def read_triples(
    path: str | Path,
    *,
    corpus: str | Path | Texts | None = None,
    queries: str | Path | None = None,
    dropped: Dropped | None = None,
) -> Iterator[Triple]:
    """Yield triples; docs/data.md shows the formats, recognized by the first row.

    Args:
        path: columns (a query, a positive, negatives) as jsonl, csv or tsv with a header (plain,
            .gz or .zst) or parquet; a BEIR folder (its train.tsv, or its only qrels), or a file in
            its folder `qrels`; or other qrels.
        corpus, queries: files with the texts for the ids of qrels; for a BEIR set they are found in
            its folder.
        dropped: filled while reading, for the caller to report; without it the counts are logged at
            the end. An example without a query or a positive, or with only empty negatives, is
            dropped; single empty texts are removed.

    Raises:
        InputError: the file does not fit its format, an id has no text, or a document is both
            positive and negative for a query; the message has the line.
        ReadError: see `runnel.text.lines.Lines`.
    """
    reported = dropped is not None
    dropped = dropped or Dropped()
    source = find_source(path, corpus, queries)
    judged = _are_qrels(source.path)
    for where, given in _judged(source) if judged else _columns(source.path):
        triple = _checked(given, where, dropped, judged=judged)
        if triple is not None:
            dropped.kept += 1
            yield triple
    if dropped.counts and not reported:
        log.warning("%s: %s", path, dropped)


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
    reported = dropped is not None
    dropped = dropped or Dropped()
    decode: Decode | None = None
    outside = f"examples with evidence outside {within[0]:.0%} to {within[1]:.0%} of the document"
    for where, row in read_json(path):
        if is_released(row):
            if decode is None:
                from runnel.models.bare import load_neox_tokenizer  # not needed for other formats

                log.warning("%s: released under %s, not for commercial use", path, LICENSE)
                decode = load_neox_tokenizer(Path(path).absolute().parent).decode
            row = parse_released(row, where, decode)
        evidence = _evidence(row, where)
        document, spans = evidence.document, evidence.spans
        low, high = (share * len(document) for share in within)
        reasons = {
            "examples with an empty query": not evidence.query.strip(),
            "examples with an empty document": not document.strip(),
            "examples without evidence": not (
                unanswered or any(document[start:end].strip() for start, end in spans)
            ),
            outside: not all(low <= start and end <= high for start, end in spans),
        }
        reason = next((reason for reason, found in reasons.items() if found), None)
        if reason is None:
            dropped.kept += 1
            yield evidence
        else:
            dropped.add(reason, where)
    if dropped.counts and not reported:
        log.warning("%s: %s", path, dropped)


def _checked(triple: Triple, where: str, dropped: Dropped, *, judged: bool) -> Triple | None:
    """Return the triple without empty and repeated texts; None if it cannot be used. `judged`: it
    is of documents by id.
    """
    positives = _texts(triple.positives, "empty positive texts", where, dropped)
    negatives = _texts(triple.negatives, "empty negative texts", where, dropped)
    both = set(positives) & set(negatives)
    if both and not judged:
        raise InputError(
            f"{where}: a document is both positive and negative for the query"
            f" {triple.query[:60]!r}: {min(both)[:60]!r}; remove one of the two"
        )
    for _ in both:  # copies of one text under several ids are common in corpora
        dropped.add("negative texts that are a positive's under another id", where)
    negatives = [text for text in negatives if text not in both]
    if not triple.query.strip():
        reason = "examples with an empty query"
    elif not positives:
        reason = "examples without a positive"
    elif triple.negatives and not negatives:
        reason = "examples without any of their negatives"
    else:
        return replace(triple, positives=tuple(positives), negatives=tuple(negatives))
    dropped.add(reason, where)
    return None


def _texts(texts: Sequence[str], reason: str, where: str, dropped: Dropped) -> list[str]:
    for text in texts:
        if not text.strip():
            dropped.add(reason, where)
    return list(dict.fromkeys(text for text in texts if text.strip()))


def _evidence(row: dict[str, Any], where: str) -> Evidence:
    example = read_row(
        Evidence, row | {"id": str(row.get("id", ""))}, where, query="question", spans="evidence"
    )
    document, units = example.document, example.units
    blank = [(start, end) for start, end in example.spans if not document[start:end].strip()]
    wrong = [
        (start, end) for start, end in (*example.spans, *units) if not start < end <= len(document)
    ]
    # an example with nothing but blank spans is left out
    wrong = wrong or blank * (len(blank) < len(example.spans))
    if wrong or (
        units and [0, *(end for _, end in units)] != [*(start for start, _ in units), len(document)]
    ):
        gaps = (
            f"the {len(units):,} units do not tile the document, each from the end of the one"
            " before it,"
        )
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


def parse_released(row: Mapping[str, Any], where: object, decode: Decode) -> dict[str, Any]:
    """Return a released row as one of evidence, with its units; the question is decoded from the
    tokens.

    Differs: where a unit ends among the tokens of a model is found as in retrieval
    (`text.sentences.read_spans`), not taken from "sentence_indices": the same place, unless one
    token has the end of a unit and the start of the next.

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
    key = str(row.get("datapoint_id", ""))
    return {
        "question": question,
        "document": "".join(units),
        "evidence": evidence,
        "id": key,
        "units": spans,
    }
