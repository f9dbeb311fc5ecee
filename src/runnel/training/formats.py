"""File formats of training data for embedders and rerankers: recognized by their first row, then read row by row.

This module only finds the parts of a row; `runnel.training.data` checks them (empty texts, contradictions).
"""

from __future__ import annotations

import csv
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from runnel.errors import InputError, ReadError
from runnel.records import titled
from runnel.text.lines import Lines, find, keys, read_json, read_lines, text_of, texts_of
from runnel.text.reading import open_bytes
from runnel.text.tables import delimiter_of, read_table
from runnel.text.trec import read_qrels
from runnel.training.corpora import Texts, read_corpus, read_queries

log = logging.getLogger("runnel")

Format = Literal["qrels", "id-triples", "text-triples", "tevatron", "flagembedding", "columns"]

_QUERY = {"query", "question", "anchor", "sentence1", "sentence_a"}
_POSITIVE = {"positive", "positives", "document", "answer", "passage", "sentence2", "sentence_b"}
_NEGATIVE = re.compile(r"negatives?([_ ]?\d+)?")
_INSTRUCTIONS = ("instruction", "prompt")
_DOCUMENTS, _LABELS = {"docs", "documents", "passages"}, {"label", "labels", "score", "scores"}
_ADVICE = (
    "name them query, positive and optionally negative or negative_1, negative_2, ...; "
    'or give format="columns" to use them in their order, as sentence-transformers does'
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
    """Find the files for a path: a folder, or a file in its `qrels`, is a BEIR set, with a corpus and queries in its folder.

    Raises:
        InputError: the folder has several qrels and none is called train.
        ReadError: the folder has no qrels.
    """
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
    """Return the qrels of a BEIR folder.

    Raises:
        ReadError: the folder has no qrels.
    """
    files = sorted(p for p in folder.glob("qrels/*") if ".tsv" in p.suffixes)
    if not files:
        raise ReadError(f"{folder} is a folder without qrels/*.tsv; expected a BEIR folder or a file")
    return files


def find_split(folder: Path, name: str) -> Path:
    """Return the qrels of a BEIR folder that have this name, or its only ones.

    Raises:
        InputError: the folder has several qrels and none is called so.
        ReadError: the folder has no qrels.
    """
    splits = qrels_of(folder)
    found = find(folder / "qrels", name)
    if found is None and len(splits) != 1:
        names = ", ".join(path.name for path in splits)
        raise InputError(f"{folder / 'qrels'} has {names}; expected {name} or a single file; give the path of the one to use")
    return found or splits[0]


def recognize(path: Path) -> Format:
    """Recognize the format of a file by its first row.

    Raises:
        InputError: the format is unknown; the message has the row.
    """
    where, line = next(read_lines(path), ("", ""))
    if not line:
        raise InputError(f"{path} is empty; expected training examples")
    if line.startswith("{"):
        return _recognize_json(*next(read_json(path)))
    if line.startswith("["):
        raise InputError(f"{where}: a list in JSON; expected jsonl, one object per line")
    cells, fields = _cells(line), line.split()
    if cells[0].lower() in _QUERY:
        return "columns"
    if fields[0].lower() in ("query-id", "query_id") or (len(fields) == 4 and fields[3].lstrip("-").isdecimal()):
        return "qrels"
    if line.count("\t") == 2:
        return "id-triples" if len(fields) == 3 else "text-triples"
    if len(cells) > 1:
        raise InputError(f"{where}: expected the names of the columns before the first pair, got {line[:80]!r}; {_ADVICE}")
    raise InputError(f"{where}: unrecognized format in {line[:80]!r}; set format to one of {', '.join(get_args(Format))}")


def _recognize_json(where: str, row: dict[str, Any]) -> Format:
    if "evidence" in row:
        raise InputError(f"{where}: these are evidence examples, which train a sentence retriever; read them with read_evidence")
    if "pos" in row:
        return "flagembedding"
    if "positive_passages" in row or "positive_document_ids" in row:
        return "tevatron"
    return "columns"


def read_raw(source: ExampleFiles, format: Format | None) -> Iterator[Raw]:
    """Yield the examples of a file, unchecked.

    Raises:
        InputError: the format is unknown, a row does not fit it, or an id has no text.
    """
    if format is not None and format not in get_args(Format):
        raise InputError(f"unknown format {format!r}; expected one of {', '.join(get_args(Format))}")
    yield from _READERS[format or recognize(source.path)](source, format is not None)


def read_named(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, row) for each row of jsonl, or of csv or tsv with a header.

    Raises:
        InputError: a row is damaged; the message has the line.
    """
    _, first = next(read_lines(path), ("", ""))
    return read_json(path) if first.startswith("{") else _read_columns(path, _kind(first))


def column_names(path: Path) -> list[str]:
    """Read the keys of the first row of jsonl, or the fields of the first line of any other file."""
    _, first = next(read_lines(path), ("", ""))
    return list(next(read_json(path))[1]) if first.startswith("{") else _cells(first) if first else []


# ---- texts in the rows -------------------------------------------------------------------------------------------------


def _text_triples(source: ExampleFiles, named: bool) -> Iterator[Raw]:
    for where, line in read_lines(source.path):
        query, positive, negative = _three(line, where, "query, positive and negative")
        yield Raw(where, "", query, [positive], [negative])


def _flagembedding(source: ExampleFiles, named: bool) -> Iterator[Raw]:
    note = _Note(source.path, {"query", "pos", "neg", "id", "query_id", *_INSTRUCTIONS})
    for where, row in read_json(source.path):
        note(row)
        positives, negatives = texts_of(row, "pos", where), texts_of(row, "neg", where, [])
        instruction = _instruction(row, _INSTRUCTIONS, where)
        yield Raw(where, _id(row), text_of(row, "query", where), positives, negatives, instruction=instruction)


def _tevatron(source: ExampleFiles, named: bool) -> Iterator[Raw]:
    note = _Note(source.path, {"query", "positive_passages", "negative_passages", "query_text", "query_id", *_TEVATRON_IDS})
    texts: _Ids | None = None
    for where, row in read_json(source.path):
        note(row)
        if "positive_passages" in row:
            positives, negatives = (_passages(row, kind, where) for kind in ("positive_passages", "negative_passages"))
            yield Raw(where, _id(row), text_of(row, "query", where), positives, negatives)
        else:
            texts = texts or _Ids(source, queries=False)
            positives, negatives = (texts_of(row, kind, where, []) for kind in _TEVATRON_IDS)
            yield texts.raw(where, _id(row), positives, negatives, query=text_of(row, "query_text", where))


_TEVATRON_IDS = ("positive_document_ids", "negative_document_ids")


def _passages(row: dict[str, Any], kind: str, where: str) -> list[str]:
    passages = row.get(kind, [])
    if not isinstance(passages, list) or not all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in passages):
        raise InputError(f'{where}: expected {kind!r} to be a list of objects with "title" and "text", got {str(passages)[:80]}')
    return [titled(p.get("title"), p["text"]) for p in passages]


def _columns(source: ExampleFiles, by_order: bool) -> Iterator[Raw]:
    order: list[str] = []
    roles: dict[tuple[str, ...], _Roles] = {}
    for where, row in read_named(source.path):
        names = tuple(row)
        if names not in roles:
            if by_order and sorted(order := order or list(names)) != sorted(names):
                raise InputError(f"{where}: expected the columns {', '.join(order)}, as in the first row, got {keys(row)}")
            roles[names] = _roles_by_order(order, where) if by_order else _roles_by_name(names, where)
        yield _split(row, roles[names], where)


class _Roles(NamedTuple):
    query: str
    positive: str
    negatives: list[str]
    labels: str | None
    instructions: list[str]


def _roles_by_order(names: list[str], where: str) -> _Roles:
    if len(names) < 2:
        raise InputError(f"{where}: expected at least two columns, a query and a positive, got {names}")
    labels = names[-1] if names[-1].lower() in _LABELS else None
    return _Roles(names[0], names[1], names[2 : len(names) - (labels is not None)], labels, [])


def _roles_by_name(names: tuple[str, ...], where: str) -> _Roles:
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
    instruction = _instruction(row, roles.instructions, where)
    if roles.labels is None:
        negatives = [t for name in roles.negatives if row[name] is not None for t in texts_of(row, name, where)]
        return Raw(where, _id(row), query, documents, negatives, instruction=instruction)
    labels = row[roles.labels]
    if not isinstance(labels, list) or not isinstance(row[roles.positive], list):
        raise InputError(
            f"{where}: {roles.labels!r} is a score of one pair; expected for each query a list of documents and a list of their "
            "labels (above 0 is positive), or a positive and negatives without scores"
        )
    if len(labels) != len(documents) or not all(isinstance(label, int | float) for label in labels):
        raise InputError(f"{where}: expected a number for each of {len(documents)} documents, got {str(labels)[:80]}")
    pairs = list(zip(documents, labels, strict=True))
    positives, negatives = ([d for d, label in pairs if (label > 0) is yes] for yes in (True, False))
    return Raw(where, _id(row), query, positives, negatives, instruction=instruction)


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


# ---- ids in the rows ---------------------------------------------------------------------------------------------------


class _Ids:
    """The texts for the ids in a file."""

    def __init__(self, source: ExampleFiles, queries: bool = True) -> None:
        needs = {"corpus": source.corpus, **({"queries": source.queries} if queries else {})}
        missing = [name for name, path in needs.items() if path is None]
        if missing:
            raise InputError(f"{source.path} has ids instead of texts; also give {' and '.join(missing)}")
        self._source = source
        self._queries = read_queries(str(source.queries)) if queries else {}
        log.info("reading the corpus of %s", source.path)
        self._texts = source.corpus if isinstance(source.corpus, Texts) else Texts(read_corpus(str(source.corpus)))

    def raw(self, where: str, query_id: str, positives: list[str], negatives: list[str], query: str | None = None) -> Raw:
        both = sorted(set(positives) & set(negatives))
        if both:
            raise InputError(
                f"{where}: document {both[0]!r} is both positive and negative for query {query_id!r}; remove one of the two"
            )
        if query is None:
            query = self._queries.get(query_id)
        if query is None:
            raise InputError(f"{where}: query {query_id!r} is not in {self._source.queries}; give the queries of this file")
        return Raw(
            where, query_id, query, [self._text(n, where) for n in positives], [self._text(n, where) for n in negatives], True
        )

    def _text(self, name: str, where: str) -> str:
        text = self._texts.get(name)
        if text is None:
            raise InputError(f"{where}: document {name!r} is not in the corpus; give the corpus of this file")
        return text


def _qrels(source: ExampleFiles, named: bool) -> Iterator[Raw]:
    texts = _Ids(source)
    for query, judged in read_qrels(source.path).items():
        positives = [name for name, grade in judged.items() if grade > 0]
        negatives = [name for name, grade in judged.items() if grade <= 0]
        yield texts.raw(f"{source.path}, query {query!r}", query, positives, negatives)


def _id_triples(source: ExampleFiles, named: bool) -> Iterator[Raw]:
    texts = _Ids(source)
    for where, line in read_lines(source.path):
        query, positive, negative = _three(line, where, "the ids of a query, a positive and a negative")
        yield texts.raw(where, query, [positive], [negative])


_READERS: dict[Format, Callable[[ExampleFiles, bool], Iterator[Raw]]] = {
    "qrels": _qrels,
    "id-triples": _id_triples,
    "text-triples": _text_triples,
    "tevatron": _tevatron,
    "flagembedding": _flagembedding,
    "columns": _columns,
}


# ---- parts of a row ----------------------------------------------------------------------------------------------------


class _Note:
    """A warning, given once per key, about unused keys of rows."""

    def __init__(self, path: Path, used: set[str]) -> None:
        self._path, self._known = path, used

    def __call__(self, row: dict[str, Any]) -> None:
        unused = [name for name, value in row.items() if name not in self._known and value not in (None, "", [])]
        if unused:
            self._known = self._known | set(unused)
            log.warning("%s: ignoring the keys %s", self._path, ", ".join(map(repr, unused)))


def _three(line: str, where: str, what: str) -> list[str]:
    parts = line.split("\t")
    if len(parts) != 3:
        raise InputError(f"{where}: expected {what} separated by tabs, got {len(parts) - 1} tabs in {line[:80]!r}")
    return parts


def _id(row: dict[str, Any]) -> str:
    return str(row.get("id", row.get("query_id", "")))


def _instruction(row: dict[str, Any], names: Sequence[str], where: str) -> str:
    filled = [name for name in names if row.get(name)]
    if len(filled) > 1:
        raise InputError(f"{where}: {' and '.join(map(repr, filled))} both hold an instruction for the query; keep one of them")
    return text_of(row, filled[0], where) if filled else ""


def _kind(line: str) -> str:
    return "tsv" if "\t" in line else "csv"


def _cells(line: str) -> list[str]:
    """Return the fields of one line of CSV; an open quote ends at the end of the line."""
    return [cell.strip() for cell in next(csv.reader([line], delimiter="\t" if _kind(line) == "tsv" else delimiter_of(line)))]
