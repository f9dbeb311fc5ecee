"""The rows of training data for embedders and rerankers: columns (jsonl, csv, tsv, parquet), and judgments of a corpus (BEIR).

This module only finds the parts of a row; `runnel.lab.training.data` checks them (empty texts, contradictions).
"""

from __future__ import annotations

import csv
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from runnel.errors import InputError, ReadError
from runnel.lab.training.corpora import Texts, read_corpus, read_queries
from runnel.records import expect_choice
from runnel.text.lines import Lines, find, read_head, read_json, read_lines, text_of, texts_of
from runnel.text.reading import open_bytes
from runnel.text.tables import PARQUET, delimiter_of, read_parquet, read_table
from runnel.text.trec import read_qrels

log = logging.getLogger("runnel")

_QUERY = {"query", "question", "anchor", "sentence1", "sentence_a"}
_POSITIVE = {"positive", "positives", "pos", "document", "answer", "passage", "sentence2", "sentence_b"}
_NEGATIVE = re.compile(r"neg|negatives?([_ ]?\d+)?")
_INSTRUCTIONS = ("instruction", "prompt")
_DOCUMENTS, _LABELS = {"docs", "documents", "passages"}, {"label", "labels", "score", "scores"}
_ADVICE = (
    "name them query, positive and optionally negative or negative_1, negative_2, ... (docs/data.md has a line for other formats)"
)


class Raw(NamedTuple):
    """An unchecked example from a file. `judged`: its texts come from judgments of documents by id."""

    where: str
    id: str
    query: str
    positives: list[str]
    negatives: list[str]
    judged: bool = False
    instruction: str = ""


class ExampleFiles(NamedTuple):
    """A file of examples and, if it holds ids, the files with their texts."""

    path: Path
    corpus: Path | Texts | None
    queries: Path | None


def find_source(path: str | Path, corpus: str | Path | Texts | None = None, queries: str | Path | None = None) -> ExampleFiles:
    """Find the files for a path: a folder, or a file in its `qrels`, is a BEIR set, with a corpus and queries in its folder."""
    path = Path(path)
    if path.is_dir():
        path = find_split(path, "train.tsv")
    folder = path.parent.parent if path.parent.name == "qrels" else None
    if corpus is None and folder is not None:
        corpus = find(folder, "corpus.jsonl")
    if queries is None and folder is not None:
        queries = find(folder, "queries.jsonl")
    return ExampleFiles(path, Path(corpus) if isinstance(corpus, str) else corpus, Path(queries) if queries else None)


def qrels_of(folder: Path) -> list[Path]:
    """Return the qrels of a BEIR folder."""
    files = sorted(p for p in folder.glob("qrels/*") if ".tsv" in p.suffixes)
    if not files:
        raise ReadError(f"{folder} is a folder without qrels/*.tsv; expected a BEIR folder or a file")
    return files


def find_split(folder: Path, name: str) -> Path:
    """Return the qrels of a BEIR folder that have this name, or its only ones."""
    splits = qrels_of(folder)
    found = find(folder / "qrels", name)
    if found is None and len(splits) != 1:
        expect_choice(name, [path.name for path in splits], f"the file to use of {folder / 'qrels'}, unless you give its path,")
    return found or splits[0]


def read_raw(source: ExampleFiles) -> Iterator[Raw]:
    """Yield the examples of a file, unchecked."""
    yield from _judged(source) if _are_qrels(source.path) else _columns(source.path)


def read_named(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, row) for each row of jsonl or parquet, or of csv or tsv with a header."""
    if _is_parquet(path):
        return read_parquet(path)
    _, first = next(read_lines(path), ("", ""))
    return read_json(path) if first.startswith("{") else _read_columns(path, _kind(first))


def column_names(path: Path) -> list[str]:
    """Read the keys of the first row of jsonl or parquet, or the fields of the first line of any other file."""
    _, first = ("", "{") if _is_parquet(path) else next(read_lines(path), ("", ""))
    return list(next(read_named(path))[1]) if first.startswith("{") else _cells(first) if first else []


def _is_parquet(path: Path) -> bool:
    return read_head(path, len(PARQUET)) == PARQUET


def _are_qrels(path: Path) -> bool:
    if _is_parquet(path):
        return False
    where, line = next(read_lines(path), ("", ""))
    if line.startswith("{"):
        return False
    cells, fields = _cells(line) if line else [], [*line.split(), ""]
    if fields[0].lower() in ("query-id", "query_id") or (len(fields) == 5 and fields[3].lstrip("-").isdecimal()):
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


def _columns(path: Path) -> Iterator[Raw]:
    roles: dict[tuple[str, ...], _Roles] = {}
    for where, row in read_named(path):
        names = tuple(row)
        if names not in roles:
            roles[names] = _roles(names, where)
        yield _split(row, roles[names], where)


def _roles(names: tuple[str, ...], where: str) -> _Roles:
    if {"pid", "input", "output"} <= set(names):  # SCROLLS as LoCoV0 uses it: the output searches for the document
        return _Roles("output", "input", [], None, [])
    query = [n for n in names if n.lower() in _QUERY]
    positive = [n for n in names if n.lower() in _POSITIVE | _DOCUMENTS]
    negatives = [n for n in names if _NEGATIVE.fullmatch(n.lower())]
    labels = [n for n in names if n.lower() in _LABELS]
    instructions = [n for n in names if n.lower() in _INSTRUCTIONS]
    other = set(names) - {*query, *positive, *negatives, *labels, *instructions, "id", "query_id"}
    if len(query) != 1 or len(positive) != 1 or len(labels) > 1 or other:
        raise InputError(f"{where}: cannot tell the roles of the columns {', '.join(map(repr, names))}; {_ADVICE}")
    return _Roles(query[0], positive[0], negatives, labels[0] if labels else None, instructions)


def _split(row: dict[str, Any], roles: _Roles, where: str) -> Raw:
    query, documents = text_of(row, roles.query, where), texts_of(row, roles.positive, where)
    name, filled = str(row.get("id", row.get("query_id", ""))), [name for name in roles.instructions if row.get(name)]
    labels: Any = [0] * len(documents) if roles.labels is None else row[roles.labels]
    lists = isinstance(labels, list) and (roles.labels is None or isinstance(row[roles.positive], list))
    scored = lists and len(labels) == len(documents) and all(isinstance(label, int | float) for label in labels)
    if len(filled) > 1 or not scored:
        expected = "for each query a list of documents and a list of as many labels (above 0 is positive), or no scores"
        wrong = f"{roles.labels!r} is {str(labels)[:80]}; expected {expected}"
        both = f"{' and '.join(map(repr, filled))} both hold an instruction for the query; keep one of them"
        raise InputError(f"{where}: {wrong if not scored else both}")
    instruction = text_of(row, filled[0], where) if filled else ""
    if roles.labels is None:
        negatives = [t for column in roles.negatives if row[column] is not None for t in texts_of(row, column, where)]
        return Raw(where, name, query, documents, negatives, instruction=instruction)
    pairs = list(zip(documents, labels, strict=True))
    positives, negatives = ([d for d, label in pairs if (label > 0) is yes] for yes in (True, False))
    return Raw(where, name, query, positives, negatives, instruction=instruction)


def _read_columns(path: Path, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of csv or tsv under their header; fields in quotes may hold line ends."""
    lines = Lines(open_bytes(path), str(path))
    names, rows = read_table(lines, kind, names=True)
    names = [name.strip() for name in names]
    for number, row in rows:
        if len(row) < len(names):
            expected = f"expected {len(names)} fields ({', '.join(names)})"
            raise InputError(f"{lines.place(number)}: {expected}, got {len(row)}; write an empty field for a missing value")
        yield str(lines.place(number)), dict(zip(names, row.values(), strict=True))


def _kind(line: str) -> str:
    return "tsv" if "\t" in line else "csv"


def _cells(line: str) -> list[str]:
    """Return the fields of one line of CSV; an open quote ends at the end of the line."""
    return [cell.strip() for cell in next(csv.reader([line], delimiter="\t" if _kind(line) == "tsv" else delimiter_of(line)))]


def expect_texts(qrels: Path, files: Mapping[str, object]) -> None:
    """Raise InputError if one of these files with texts, by their names, is missing (None)."""
    if missing := [name for name, file in files.items() if file is None]:
        raise InputError(f"{qrels} has ids instead of texts; also give {' and '.join(missing)}")


def _judged(source: ExampleFiles) -> Iterator[Raw]:
    """Yield the judged queries of qrels, with the texts of the corpus."""
    expect_texts(source.path, {"corpus": source.corpus, "queries": source.queries})
    queries = read_queries(str(source.queries))
    log.info("reading the corpus of %s", source.path)
    texts = source.corpus if isinstance(source.corpus, Texts) else Texts(read_corpus(str(source.corpus)))
    for name, grades in read_qrels(source.path).items():
        where = f"{source.path}, query {name!r}"
        found = {document: texts.get(document) for document in grades}
        unknown = next((document for document, text in found.items() if text is None), None)
        if name not in queries or unknown is not None:
            what = f"document {unknown!r} is not in the corpus" if name in queries else f"it is not in {source.queries}"
            raise InputError(f"{where}: {what}; give the queries and the corpus of this file")
        positives, negatives = ([str(found[d]) for d, grade in grades.items() if (grade > 0) is yes] for yes in (True, False))
        yield Raw(where, name, queries[name], positives, negatives, True)
