"""Published benchmarks in folders as their authors publish them: NanoBEIR, LoCoV0, LoCoV1, LongEmbed and MS MARCO.

A set in another form than BEIR's (docs/evaluation.md has the forms) is written as a BEIR folder, from which it is evaluated.

Source: Thakur et al., 2021; Saad-Falcon et al., 2024 (LoCo); Dasigi et al., 2021 (Qasper); Zhu et al., 2024 (LongEmbed);
Craswell et al., 2020 and 2021.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from runnel.errors import InputError, ReadError
from runnel.files import replacing, write_jsonl
from runnel.json_objects import read_row
from runnel.lab.evaluation.generated import find_generated
from runnel.lab.evaluation.metrics import METRICS
from runnel.lab.evaluation.qa.json_values import expect_object, read_values
from runnel.lab.evaluation.tasks import TaskFiles, expect_task, find_task
from runnel.records import expect_choice, titled
from runnel.text.lines import find, keys, read_json, text_of
from runnel.text.tables import read_parquet
from runnel.text.trec import MOST_GRADE, as_grade

_NDCG = ("nDCG@10",)
_LOCO_QUERY = ("dataset", "qid", "answer_pids")  # columns of LoCoV1's queries
_IDS = ("_id", "id", "doc_id", "qid", "pid")
_TEXTS = ("text", "passage", "query")


class _Judged(NamedTuple):
    """A set of MS MARCO: its files, what is reported, and the number of judged queries in the papers."""

    corpus: str
    queries: str
    qrels: str
    metrics: tuple[str, str]
    expected: int


_DEV, _DL = ("MRR@10", "Recall@1000"), ("nDCG@10", "R(rel=2)@1000")  # TREC counts grade 1 of a passage as not relevant
_MSMARCO = {
    "passage-dev": _Judged("collection.tsv", "queries.dev.small.tsv", "qrels.dev.small.tsv", _DEV, 6980),
    "passage-dl19": _Judged("collection.tsv", "msmarco-test2019-queries.tsv", "2019qrels-pass.txt", _DL, 43),
    "passage-dl20": _Judged("collection.tsv", "msmarco-test2020-queries.tsv", "2020qrels-pass.txt", _DL, 54),
}
_DEV, _DL = ("MRR@100", "Recall@100"), ("nDCG@10", "Recall@100")
_MSMARCO |= {
    "document-dev": _Judged("msmarco-docs.tsv", "msmarco-docdev-queries.tsv", "msmarco-docdev-qrels.tsv", _DEV, 5193),
    "document-dl19": _Judged("msmarco-docs.tsv", "msmarco-test2019-queries.tsv", "2019qrels-docs.txt", _DL, 43),
    "document-dl20": _Judged("msmarco-docs.tsv", "msmarco-test2020-queries.tsv", "2020qrels-docs.txt", _DL, 45),
}

Row = tuple[str, dict[str, Any]]  # its place, and its values


@dataclass(frozen=True)
class Set:
    """A retrieval task, of a benchmark or by itself."""

    name: str  # of its result files
    source: Callable[[Path], TaskFiles]  # finds its files, or writes them into a folder
    metrics: tuple[str, ...] = METRICS  # what is reported unless the user says otherwise
    group: str = ""  # sets with one group count as one in means


def find_sets(task: str, corpus: str | None = None, queries: str | None = None) -> list[Set]:
    """Return the sets of a task: a BEIR folder, qrels, a set or a whole benchmark, or generated:needle or generated:passkey.

    For one set of a folder that has several, `task` is the folder's path, / and the set's name.
    """
    if task.startswith("generated:"):
        return [Set(one.name, one.write, ("nDCG@1",), one.kind) for one in find_generated(task.removeprefix("generated:"))]
    path = Path(task)
    if path.is_dir() and corpus is None and queries is None and not _is_beir(path):
        if sets := _sets_of(path) or _inside(path):
            return sets
    elif not path.exists() and path.parent.is_dir() and (sets := _sets_of(path.parent)):
        if chosen := [one for one in sets if path.name in (one.name, one.name.removeprefix(f"{path.parent.name}-"), one.group)]:
            return chosen
        expect_choice(path.name, [one.name for one in sets], f"the set of {path.parent}")
    return [_ready(find_task(expect_task(path), corpus, queries))]


def _sets_of(folder: Path) -> list[Set]:
    """Return the sets of a folder in one of the forms above; none if it has another form, as BEIR's."""
    name = folder.resolve().name
    if sets := _msmarco(folder):
        return sets
    if (rows := find(folder, "validation.jsonl")) and {"input", "output"} <= _columns([rows]):
        return [Set(name, partial(_write_pairs, name=name, read=partial(_scrolls, rows)), _NDCG)]
    if papers := _qasper(folder):
        reads = {f"qasper_{kind}": partial(_papers, papers, kind) for kind in ("title", "abstract")}
        return [Set(one, partial(_write_pairs, name=one, read=read), _NDCG) for one, read in reads.items()]
    loco = [part for part in sorted(folder.iterdir()) if part.name.lower() in ("locov1-documents", "locov1-queries")]
    if len(loco) == 2:
        documents, queries = (_files(part, "test") for part in loco)
        names = dict.fromkeys(str(row["dataset"]) for _, row in _loco_rows(queries, *_LOCO_QUERY))
        return [Set(one, partial(_write_loco, name=one, documents=documents, queries=queries), _NDCG) for one in names]
    tables = [_tables(folder, *names) for names in (["corpus"], ["queries"], ["qrels", "default"])]
    return _hub(name, *tables) if all(tables) and not _is_beir(folder) else []


def _inside(folder: Path) -> list[Set]:
    """Return the sets of the folders in a folder; none if none of them is a set."""
    inside = {}
    for part in sorted(folder.iterdir()):
        if part.is_dir() and not part.name.startswith("."):
            inside[part.name] = [_ready(find_task(part))] if _is_beir(part) else _sets_of(part)
    if any(inside.values()) and (unknown := [name for name, sets in inside.items() if not sets]):
        raise InputError(f"{folder}: {', '.join(unknown)} is no task in a known form; give the paths of the tasks one by one")
    return [one for sets in inside.values() for one in sets]


def _is_beir(folder: Path) -> bool:
    qrels = find(folder, "qrels.tsv", "qrels.txt") or any((folder / "qrels").glob("*.tsv*"))
    return bool(qrels and find(folder, "corpus.jsonl", "corpus.tsv"))


def _ready(source: TaskFiles, metrics: tuple[str, ...] = METRICS) -> Set:
    return Set(source.name, lambda _: source, metrics)


def _msmarco(folder: Path) -> list[Set]:
    sets = []
    for name, one in _MSMARCO.items():
        corpus, queries, qrels = (find(folder, file) for file in (one.corpus, one.queries, one.qrels))
        if corpus and queries and qrels:
            source = TaskFiles(f"{folder.resolve().name}-{name}", qrels, corpus, queries, one.expected)
            sets.append(_ready(source, one.metrics))
    return sets


def _write_pairs(folder: Path, name: str, read: Callable[[], Iterator[tuple[str, str]]]) -> TaskFiles:
    """Write a set of LoCoV0, whose pairs are of a document and of its own query."""
    pairs = list(read())
    documents = ((f"Passage_{i}", document) for i, (document, _) in enumerate(pairs))
    queries = ((f"Query_{i}", query) for i, (_, query) in enumerate(pairs))
    return _write(folder, name, documents, queries, ((f"Query_{i}", f"Passage_{i}", 1) for i in range(len(pairs))))


def _scrolls(rows: Path) -> Iterator[tuple[str, str]]:
    return ((text_of(row, "input", where), text_of(row, "output", where)) for where, row in read_rows([rows]))


def _qasper(folder: Path) -> list[Path]:
    """Return the files of Qasper's test split: as it was released, or as rows of the hub's data set."""
    if released := sorted(folder.glob("qasper-test-v*.json")):
        return released[-1:]
    rows = sorted(path for path in folder.glob("test*") if path.suffix in (".parquet", ".jsonl"))
    return rows if {"title", "abstract", "full_text"} <= _columns(rows) else []


def _papers(files: list[Path], kind: str) -> Iterator[tuple[str, str]]:
    """Yield the full text of each paper, with its title or its abstract."""
    released = ((f"{files[0]}, paper {name}", row) for (name,), row in read_values(files[0], 1))
    for where, row in released if files[0].suffix == ".json" else read_rows(files):
        row = expect_object(row, where)
        yield _full_text(row, where), text_of(row, kind, where)


def _full_text(row: Mapping[str, Any], where: object) -> str:
    """Return a paper's text as LoCo's authors join it: a line for a section's name, and one for its paragraphs."""
    sections = row.get("full_text")
    try:
        if isinstance(sections, dict):  # columns, as in the hub's data set
            parts = list(zip(sections["section_name"], sections["paragraphs"], strict=True))
        else:
            parts = [(one["section_name"], one["paragraphs"]) for one in sections or ()]
        return "\n".join(line for name, found in parts for line in (name, " ".join(found)) if line is not None).strip()
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f'{where}: expected sections with "section_name" and "paragraphs" as "full_text" ({error!r})') from error


def _loco_rows(files: list[Path], *names: str) -> Iterator[Row]:
    for where, row in read_rows(files):
        for name in names:
            _first(row, (name,), where, list if name == "answer_pids" else object)
        yield where, row


def _write_loco(folder: Path, name: str, documents: list[Path], queries: list[Path]) -> TaskFiles:
    """Write a set of LoCoV1. As by its authors, documents without text are left out, with the queries that only they answer."""
    rows = [row for row in _loco_rows(queries, *_LOCO_QUERY) if row[1]["dataset"] == name]
    passages = _loco_rows(documents, "dataset", "pid", "passage")
    empty = {str(row["pid"]) for _, row in passages if row["dataset"] == name and row["passage"] is None}
    kept = [(where, row) for where, row in rows if not empty.issuperset(map(str, row["answer_pids"]))]
    texts = (one for one in read_rows(documents) if one[1]["dataset"] == name and one[1]["passage"] is not None)
    judged = ((str(row["qid"]), str(pid), 1) for _, row in kept for pid in row["answer_pids"] if str(pid) not in empty)
    source = _write(folder, name, _texts(texts), _texts(kept), judged)
    note = f"{len(empty):,} documents without text are left out, with {len(rows) - len(kept):,} queries that only they answer"
    return replace(source, notes=(note,)) if empty else source


def _hub(name: str, corpus: dict[str, list[Path]], queries: dict[str, list[Path]], judged: dict[str, list[Path]]) -> list[Set]:
    """Return the sets of a data set of the hub: of its split "test", else of all splits that have texts of their own."""
    splits = ["test"] if "test" in judged and len(corpus) == 1 else list(judged)
    if len(splits) > 1 and not set(splits) <= corpus.keys() & queries.keys():
        raise InputError(f"{name} has judgments of {', '.join(splits)}, and texts of {', '.join(corpus)}; expected texts of each")
    sets = []
    for split in splits:
        files = [one.get(split) or next(iter(one.values())) for one in (corpus, queries, judged)]
        own = name if len(splits) == 1 else split
        lengths = dict.fromkeys(read_row(_Length, row, where).context_length for where, row in read_rows(files[1]))
        for length in lengths:
            one = own if length is None else f"{own}-{length}"
            write = partial(_write_hub, name=one, files=files, length=length)
            sets.append(Set(one, write, _NDCG if length is None else ("nDCG@1",), "" if length is None else own))
    return sets


@dataclass(frozen=True)
class _Length:
    context_length: int | None = None


def _write_hub(folder: Path, name: str, files: list[list[Path]], length: int | None) -> TaskFiles:
    corpus, queries, judged = ((row for row in read_rows(one) if row[1].get("context_length") == length) for one in files)
    return _write(folder, name, _texts(corpus), _texts(queries), (_judgment(row, where) for where, row in judged))


def read_rows(files: Iterable[Path]) -> Iterator[Row]:
    """Yield (place, values) for each row of jsonl and parquet files."""
    for path in files:
        yield from read_parquet(path) if path.suffix == ".parquet" else read_json(path)


def _columns(files: Iterable[Path]) -> set[str]:
    return next((set(row) for _, row in read_rows(files)), set())


def _tables(folder: Path, *names: str) -> dict[str, list[Path]]:
    """Return the files of a table by split: NAME/SPLIT-00000-of-00001.parquet, NAME/SPLIT.jsonl or NAME.jsonl."""
    for name in names:
        if (file := find(folder, f"{name}.jsonl")) or (file := find(folder, f"{name}.parquet")):
            return {name: [file]}
        files = [file for ending in ("parquet", "jsonl") for file in sorted((folder / name).glob(f"*.{ending}"))]
        if files:
            splits: dict[str, list[Path]] = {}
            for file in files:
                splits.setdefault(re.sub(r"-\d{5}-of-\d{5}.*", "", file.stem), []).append(file)
            return splits
    return {}


def _files(place: Path, split: str) -> list[Path]:
    """Return the parquet and jsonl files in a folder, those of a split if names have it."""
    files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.suffix in (".parquet", ".jsonl"))
    if not files:
        raise ReadError(f"{place} has no parquet or jsonl files; download the data set again")
    return [file for file in files if split in file.name] or files


def _first(row: Mapping[str, Any], names: tuple[str, ...], where: object, kind: type | tuple[type, ...] = (str, int)) -> Any:
    """Return the value of the first of these keys that a row has."""
    name = next((name for name in names if name in row), None)
    if name is None or not isinstance(row[name], kind):
        raise InputError(f"{where}: expected {' or '.join(map(repr, names))} with a value of its kind, got {keys(row)}")
    return row[name]


def _texts(rows: Iterable[Row]) -> Iterator[tuple[str, str]]:
    return ((str(_first(row, _IDS, where)), titled(row.get("title"), _first(row, _TEXTS, where, str))) for where, row in rows)


def _judgment(row: Mapping[str, Any], where: object) -> tuple[str, str, int]:
    query, document = (str(_first(row, names, where)) for names in (("query-id", "qid"), ("corpus-id", "doc_id")))
    try:
        return query, document, as_grade(row.get("score", 1))
    except (TypeError, ValueError, OverflowError) as error:
        most = f"a whole number of at most {MOST_GRADE:,}"
        raise InputError(f'{where}: expected {most} as "score", got {str(row["score"])[:40]!r}') from error


def _write(
    folder: Path,
    name: str,
    documents: Iterable[tuple[str, str]],
    queries: Iterable[tuple[str, str]],
    judged: Iterable[tuple[str, str, int]],
) -> TaskFiles:
    """Write a BEIR folder NAME.beir. White space in ids, which qrels and runs cannot have, becomes "_"."""
    place = folder / f"{name}.beir"
    place.mkdir(exist_ok=True)
    for kind, texts in (("corpus", documents), ("queries", queries)):
        write_jsonl(place / f"{kind}.jsonl", ({"_id": "_".join(key.split()), "text": text} for key, text in texts))
    with replacing(place / "qrels.tsv") as new, new.open("w", encoding="utf-8") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        file.writelines(f"{'_'.join(q.split())}\t{'_'.join(d.split())}\t{grade}\n" for q, d, grade in judged)
    return replace(find_task(place), name=name)
