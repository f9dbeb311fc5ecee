"""Read triples, the training examples of embedders and rerankers.

In: a file of columns, a BEIR folder, or qrels with a corpus and queries. Out: `Triple`s, one at a
time. Unusable examples are dropped, counted and reported; contradictory ones are errors with their
place.

In the order of this file: the reader; the files that belong to a path; rows with named columns;
qrels.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from runnel.checks import expect_choice
from runnel.errors import InputError, ReadError
from runnel.files import open_bytes
from runnel.jobs.progress import inform, notify
from runnel.lab.training.corpus import Texts, read_corpus, read_queries
from runnel.lab.training.data import Dropped, Triple
from runnel.text.lines import Lines, find, read_head, read_json, read_lines, text_of, texts_of
from runnel.text.tables import PARQUET, delimiter_of, read_parquet, read_table
from runnel.text.trec import read_qrels

# names of columns, by what they hold
_QUERY = {"query", "question", "anchor", "sentence1", "sentence_a"}
_POSITIVE = set("positive positives pos document answer passage sentence2 sentence_b".split())
_NEGATIVE = re.compile(r"neg|negatives?([_ ]?\d+)?")  # neg, negatives, negative_1
_INSTRUCTIONS = ("instruction", "prompt")
_PAPER = {"title", "abstract", "full_text"}  # the keys of a paper in Qasper
_DOCUMENTS = {"docs", "documents", "passages"}
_LABELS = {"label", "labels", "score", "scores"}
_ADVICE = (
    "name them query, positive and optionally negative or negative_1, negative_2, ... (docs/data.md"
    " has other formats)"
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
    # 1. Find the files: the examples, and the texts if they hold ids.
    source = find_source(path, corpus, queries)
    judged = _are_qrels(source.path)
    counts = Dropped() if dropped is None else dropped
    for where, given in _judged(source) if judged else _columns(source.path):
        # 2. Leave out empty and repeated texts.
        triple = _without_copies(given, where, counts, judged=judged)
        # 3. Drop an example that is left without a part.
        reasons = {
            "examples with an empty query": not given.query.strip(),
            "examples without a positive": not triple.positives,
            "examples without any of their negatives": bool(
                given.negatives and not triple.negatives
            ),
        }
        if counts.keep(where, reasons):
            yield triple
    if counts.counts and dropped is None:
        notify(f"{path}: {counts}")


def _without_copies(triple: Triple, where: str, dropped: Dropped, *, judged: bool) -> Triple:
    """Return the triple without empty and repeated texts; both are counted. `judged`: it is of
    documents by id.
    """
    texts: list[list[str]] = []
    for role, given in (("positive", triple.positives), ("negative", triple.negatives)):
        dropped.add(f"empty {role} texts", where, sum(not text.strip() for text in given))
        texts.append(list(dict.fromkeys(text for text in given if text.strip())))
    positives, negatives = texts
    both = set(positives) & set(negatives)
    if both and not judged:
        raise InputError(
            f"{where}: a document is both positive and negative for the query"
            f" {triple.query[:60]!r}: {min(both)[:60]!r}; remove one of the two"
        )
    # copies of one text under several ids are common in corpora
    dropped.add("negative texts that are a positive's under another id", where, len(both))
    others = tuple(text for text in negatives if text not in both)
    return replace(triple, positives=tuple(positives), negatives=others)


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
    named = find(folder / "qrels", name)
    if named is None and len(splits) != 1:
        expect_choice(
            name,
            [path.name for path in splits],
            f"the file to use of {folder / 'qrels'}, unless you give its path,",
        )
    return named or splits[0]


def read_named(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
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
    if first.startswith("{"):
        return list(next(read_named(path))[1])
    return _cells(first)


def _is_parquet(path: Path) -> bool:
    return read_head(path, len(PARQUET)) == PARQUET


def _are_qrels(path: Path) -> bool:
    if _is_parquet(path):
        return False
    where, line = next(read_lines(path), ("", ""))
    if line.startswith("{"):
        return False
    fields = [*line.split(), ""]  # 5 with TREC's "query 0 document grade"
    if fields[0].lower() in ("query-id", "query_id") or (
        len(fields) == 5 and fields[3].lstrip("-").isdecimal()
    ):
        return True
    cells = _cells(line)
    if len(cells) > 1 and _QUERY & {cell.lower() for cell in cells}:
        return False
    raise InputError(
        f"{where or path}: expected jsonl, qrels, or the names of the columns before the first row,"
        f" got {line[:80]!r}; {_ADVICE}"
    )


class _Roles(NamedTuple):
    query: str
    positive: str
    negatives: list[str]
    labels: str | None
    instructions: list[str]


def _columns(path: Path) -> Iterator[tuple[str, Triple]]:
    """Yield (place, triple that has not been checked) for each row."""
    for where, row in read_named(path):
        if _PAPER <= row.keys():
            part = path.name.partition(".")[0].removeprefix("qasper_")
            expect_choice(part, ("title", "abstract"), f"{where}: after qasper_ the file's name")
            text = paper_text(row, where)
            yield where, Triple(text_of(row, part, where), (text,), (), str(row.get("id", "")))
        else:
            yield where, _triple_of(row, _roles(tuple(row), where), where)


def paper_text(row: Mapping[str, Any], where: object) -> str:
    """Return a paper of Qasper as LoCo's authors join it: a line for a section's name, and one for
    its paragraphs.
    """
    sections = row.get("full_text")
    try:
        if isinstance(sections, dict):  # columns, as in the hub's data set
            parts = list(zip(sections["section_name"], sections["paragraphs"], strict=True))
        else:
            parts = [(part["section_name"], part["paragraphs"]) for part in sections or ()]
        return "\n".join(
            line for name, found in parts for line in (name, " ".join(found)) if line is not None
        ).strip()
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f'{where}: expected sections with "section_name" and "paragraphs" as "full_text"'
            f" ({error!r})"
        ) from error


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


def _triple_of(row: dict[str, object], roles: _Roles, where: str) -> Triple:
    query = text_of(row, roles.query, where)
    documents = texts_of(row, roles.positive, where)
    name = str(row.get("id", row.get("query_id", "")))
    filled = [column for column in roles.instructions if row.get(column)]
    if len(filled) > 1:
        names = " and ".join(map(repr, filled))
        raise InputError(
            f"{where}: {names} both hold an instruction for the query; keep one of them"
        )
    instruction = text_of(row, filled[0], where) if filled else ""
    if roles.labels is None:
        columns = [column for column in roles.negatives if row[column] is not None]
        negatives = [text for column in columns for text in texts_of(row, column, where)]
        return Triple(query, tuple(documents), tuple(negatives), name, instruction)
    labels = row[roles.labels]
    if (
        not isinstance(labels, list)
        or not isinstance(row[roles.positive], list)
        or len(labels) != len(documents)
        or not all(isinstance(label, int | float) for label in labels)
    ):
        raise InputError(
            f"{where}: {roles.labels!r} is {str(labels)[:80]}; expected for each query a list of"
            " documents and a list of as many labels (above 0 is positive), or no scores"
        )
    graded = list(zip(documents, labels, strict=True))
    return Triple(query, *_by_sign(graded), name, instruction)


def _by_sign(graded: Sequence[tuple[str, float]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the documents that have a grade above 0, and the others."""
    return (
        tuple(document for document, grade in graded if grade > 0),
        tuple(document for document, grade in graded if not grade > 0),
    )


def _read_columns(path: Path, kind: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the rows of csv or tsv under their header; fields in quotes may hold line ends."""
    lines = Lines(open_bytes(path), str(path))
    table = read_table(lines, kind, names=True, strict=True)
    names = table.names
    for number, row in table.rows:
        if len(row) < len(names):
            raise InputError(
                f"{lines.place(number)}: expected {len(names)} fields ({', '.join(names)}), got"
                f" {len(row)}; write an empty field for a missing value"
            )
        yield str(lines.place(number)), dict(zip(names, row.values(), strict=True))


def _kind(line: str) -> str:
    return "tsv" if "\t" in line else "csv"


def _cells(line: str) -> list[str]:
    delimiter = "\t" if _kind(line) == "tsv" else delimiter_of(line)
    return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))]


def expect_texts(qrels: Path, files: Mapping[str, object]) -> None:
    """Raise InputError if one of these files with texts, by their names, is missing (None)."""
    if missing := [name for name, file in files.items() if file is None]:
        raise InputError(f"{qrels} has ids instead of texts; also give {' and '.join(missing)}")


def _judged(source: ExampleFiles) -> Iterator[tuple[str, Triple]]:
    """Yield (place, triple that has not been checked) for each query of qrels."""
    expect_texts(source.path, {"corpus": source.corpus, "queries": source.queries})
    queries = read_queries(str(source.queries))
    inform(f"reading the corpus of {source.path}")
    texts = source.corpus
    if not isinstance(texts, Texts):
        texts = Texts(read_corpus(str(texts)))
    for name, grades in read_qrels(source.path).items():
        where = f"{source.path}, query {name!r}"
        by_name = {document: texts.get(document) for document in grades}
        unknown = next((document for document, text in by_name.items() if text is None), None)
        if name not in queries or unknown is not None:
            what = f"document {unknown!r} is not in the corpus"
            if name not in queries:
                what = f"it is not in {source.queries}"
            raise InputError(f"{where}: {what}; give the queries and the corpus of this file")
        graded = [(str(by_name[document]), grade) for document, grade in grades.items()]
        yield where, Triple(queries[name], *_by_sign(graded), name)
