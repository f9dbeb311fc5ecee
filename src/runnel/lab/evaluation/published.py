"""Published benchmarks as tasks, from folders as their authors publish them: NanoBEIR, LoCoV0,
LongEmbed, MS MARCO.

A set in another form than BEIR's (docs/evaluation.md has the forms) is written as a BEIR folder,
from which it is evaluated.

    find_sets   the sets of a task: `_sets_of` a folder in one of the forms, `_inside` a folder of
                such folders, or one BEIR folder or file of judgments
    _write      writes the BEIR folder of a set

The benchmarks, the form of their folders, and what reads it:

    MS MARCO              the files that its authors publish    `_msmarco`
    LoCoV0, of SCROLLS    validation.jsonl of each set          `_scrolls`, then `_write_pairs`
    LoCoV0, of Qasper     the papers of its test split          `_qasper`, `_papers`, `_write_pairs`
    NanoBEIR, LongEmbed   a data set of the hub, as tables      `_tables`, `_hub`, `_write_hub`

Source: Saad-Falcon et al., 2024 (LoCo); Dasigi et al., 2021 (Qasper); Zhu et al., LongEmbed, 2024,
3.2; Craswell et al., 2020 and 2021.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from runnel.checks import expect_choice
from runnel.config import read_row
from runnel.errors import InputError
from runnel.files import replacing, write_jsonl
from runnel.lab.evaluation.metrics import METRICS
from runnel.lab.evaluation.qa.json_values import expect_object, read_values
from runnel.lab.evaluation.tasks import TaskFiles, expect_task, find_task
from runnel.lab.training.triples import paper_text
from runnel.records import titled
from runnel.text.lines import find, keys, read_json, text_of
from runnel.text.tables import read_parquet
from runnel.text.trec import MOST_GRADE, as_grade

_NDCG = ("nDCG@10",)
_IDS = ("_id", "id", "doc_id", "qid")
_TEXTS = ("text", "passage", "query")


# The metrics of MS MARCO's sets: judged sparsely (dev), or by TREC Deep Learning (dl), which counts
# grade 1 of a passage as not relevant.
_DEV = ("MRR@10", "Recall@1000")
_DL = ("nDCG@10", "R(rel=2)@1000")
_LONG_DEV = ("MRR@100", "Recall@100")
_LONG_DL = ("nDCG@10", "Recall@100")
# by the name of a set: its corpus, queries and judgments, its metrics, and the number of judged
# queries in the papers
_MSMARCO = {
    "passage-dev": ("collection.tsv", "queries.dev.small.tsv", "qrels.dev.small.tsv", _DEV, 6980),
    "passage-dl19": (
        "collection.tsv",
        "msmarco-test2019-queries.tsv",
        "2019qrels-pass.txt",
        _DL,
        43,
    ),
    "passage-dl20": (
        "collection.tsv",
        "msmarco-test2020-queries.tsv",
        "2020qrels-pass.txt",
        _DL,
        54,
    ),
    "document-dev": (
        "msmarco-docs.tsv",
        "msmarco-docdev-queries.tsv",
        "msmarco-docdev-qrels.tsv",
        _LONG_DEV,
        5193,
    ),
    "document-dl19": (
        "msmarco-docs.tsv",
        "msmarco-test2019-queries.tsv",
        "2019qrels-docs.txt",
        _LONG_DL,
        43,
    ),
    "document-dl20": (
        "msmarco-docs.tsv",
        "msmarco-test2020-queries.tsv",
        "2020qrels-docs.txt",
        _LONG_DL,
        45,
    ),
}

Row = tuple[str, dict[str, Any]]  # the place of a row, for messages, and its values
Pairs = Iterable[tuple[str, str]]  # ids with texts


@dataclass(frozen=True)
class Set:
    """A retrieval task, of a benchmark or by itself, before its files are found or written."""

    name: str  # the name of its result files
    source: Callable[[Path], TaskFiles]  # finds its files, or writes them into a folder
    metrics: tuple[str, ...] = METRICS  # what is reported unless the user says otherwise
    group: str = ""  # sets with one group count as one in means


def find_sets(task: str, corpus: str | None = None, queries: str | None = None) -> list[Set]:
    """Return the sets of a task: a BEIR folder, qrels, a set or a whole benchmark.

    For one set of a folder that has several, `task` is the folder's path, / and the set's name.
    """
    path = Path(task)
    # 1. a set in another form than BEIR's, or a folder of sets
    if path.is_dir() and corpus is None and queries is None and not _is_beir(path):
        if sets := _sets_of(path) or _inside(path):
            return sets
    # 2. FOLDER/NAME, a set of such a folder
    elif not path.exists() and path.parent.is_dir() and (sets := _sets_of(path.parent)):
        if chosen := [
            part
            for part in sets
            if path.name in (part.name, part.name.removeprefix(f"{path.parent.name}-"), part.group)
        ]:
            return chosen
        expect_choice(path.name, [part.name for part in sets], f"the set of {path.parent}")
    # 3. a BEIR folder or qrels
    return [_ready(find_task(expect_task(path), corpus, queries))]


def _sets_of(folder: Path) -> list[Set]:
    """Return the sets of a folder in one of the published forms; none if it has another form, such
    as BEIR's.
    """
    name = folder.resolve().name
    if sets := _msmarco(folder):
        return sets
    # the validation split: SCROLLS does not publish the outputs of its test split
    if (file := find(folder, "validation.jsonl")) and {"input", "output"} <= _columns([file]):
        return [Set(name, partial(_write_pairs, name=name, read=partial(_scrolls, file)), _NDCG)]
    if papers := _qasper(folder):
        return [
            Set(
                f"qasper_{kind}",
                partial(_write_pairs, name=f"qasper_{kind}", read=partial(_papers, papers, kind)),
                _NDCG,
            )
            for kind in ("title", "abstract")
        ]
    # in mteb's data sets on the hub, the judgments are the table "default"
    tables = [_tables(folder, *names) for names in (["corpus"], ["queries"], ["qrels", "default"])]
    return _hub(name, *tables) if all(tables) and not _is_beir(folder) else []


def _inside(folder: Path) -> list[Set]:
    """Return the sets of all folders in a folder.

    Raises:
        InputError: some of these are sets, and others have no known form.
    """
    inside = {}
    for part in sorted(folder.iterdir()):
        if part.is_dir() and not part.name.startswith("."):
            inside[part.name] = [_ready(find_task(part))] if _is_beir(part) else _sets_of(part)
    if any(inside.values()) and (unknown := [name for name, sets in inside.items() if not sets]):
        raise InputError(
            f"{folder}: {', '.join(unknown)} is no task in a known form; give the paths of the"
            " tasks one by one"
        )
    return [part for sets in inside.values() for part in sets]


def _is_beir(folder: Path) -> bool:
    qrels = find(folder, "qrels.tsv", "qrels.txt") or any((folder / "qrels").glob("*.tsv*"))
    return bool(qrels and find(folder, "corpus.jsonl", "corpus.tsv"))


def _ready(source: TaskFiles, metrics: tuple[str, ...] = METRICS) -> Set:
    """Return a set whose files exist."""
    return Set(source.name, lambda _: source, metrics)


def _msmarco(folder: Path) -> list[Set]:
    sets = []
    for name, (*texts, metrics, expected) in _MSMARCO.items():
        corpus, queries, qrels = (find(folder, file) for file in texts)
        if corpus and queries and qrels:
            sets.append(
                _ready(
                    TaskFiles(f"{folder.resolve().name}-{name}", qrels, corpus, queries, expected),
                    metrics,
                )
            )
    return sets


def _write_pairs(
    folder: Path, name: str, read: Callable[[], Iterator[tuple[str, str]]]
) -> TaskFiles:
    """Write a set of LoCoV0, which has pairs of a document and its own query."""
    pairs = list(read())
    return _write(
        folder,
        name,
        ((f"Passage_{i}", document) for i, (document, _) in enumerate(pairs)),
        ((f"Query_{i}", query) for i, (_, query) in enumerate(pairs)),
        ((f"Query_{i}", f"Passage_{i}", 1) for i in range(len(pairs))),
    )


def _scrolls(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the document and the query of each row; LoCoV0's queries are the outputs, summaries."""
    for where, row in read_rows([file]):
        yield text_of(row, "input", where), text_of(row, "output", where)


def _qasper(folder: Path) -> list[Path]:
    """Return the files of Qasper's test split: as it was released, or as rows of the hub's data
    set.
    """
    if released := sorted(folder.glob("qasper-test-v*.json")):
        return released[-1:]
    rows = sorted(path for path in folder.glob("test*") if path.suffix in (".parquet", ".jsonl"))
    return rows if {"title", "abstract", "full_text"} <= _columns(rows) else []


def _papers(files: list[Path], kind: str) -> Iterator[tuple[str, str]]:
    """Yield the text of each paper, and its "title" or "abstract" (`kind`) as the query."""
    papers: Iterable[tuple[str, Any]] = read_rows(files)
    if files[0].suffix == ".json":  # as it was released
        papers = ((f"{files[0]}, paper {name}", row) for (name,), row in read_values(files[0], 1))
    for where, paper in papers:
        row = expect_object(paper, where)
        yield paper_text(row, where), text_of(row, kind, where)


def _hub(
    name: str,
    corpus: dict[str, list[Path]],
    queries: dict[str, list[Path]],
    judged: dict[str, list[Path]],
) -> list[Set]:
    """Return the sets of a data set of the hub.

    One corpus with judgments of a split "test" is one set. Otherwise each split of the judgments is
    a set, with texts of its own if there are several. A set of LongEmbed's synthetic ones has rows
    of several lengths, and becomes a set for each length.

    Args:
        corpus, queries, judged: the files of each split, as from `_tables`.

    Raises:
        InputError: several splits have judgments, and one of them has no texts.
    """
    splits = ["test"] if "test" in judged and len(corpus) == 1 else list(judged)
    if len(splits) > 1 and not set(splits) <= corpus.keys() & queries.keys():
        raise InputError(
            f"{name} has judgments of {', '.join(splits)}, and texts of {', '.join(corpus)};"
            " expected texts of each"
        )
    sets = []
    for split in splits:
        files = [
            table.get(split) or next(iter(table.values())) for table in (corpus, queries, judged)
        ]
        set_name = name if len(splits) == 1 else split
        lengths = dict.fromkeys(
            read_row(_Length, row, where).context_length for where, row in read_rows(files[1])
        )
        for length in lengths:
            label = set_name if length is None else f"{set_name}-{length}"
            write = partial(_write_hub, name=label, files=files, length=length)
            if length is None:
                sets.append(Set(label, write, _NDCG))
            else:  # one document is right, so nDCG@1 is the accuracy
                sets.append(Set(label, write, ("nDCG@1",), group=set_name))
    return sets


@dataclass(frozen=True)
class _Length:
    """The column that LongEmbed's synthetic sets have: rows of each length are a set."""

    context_length: int | None = None


def _write_hub(folder: Path, name: str, files: list[list[Path]], length: int | None) -> TaskFiles:
    corpus, queries, judged = (
        (row for row in read_rows(part) if row[1].get("context_length") == length) for part in files
    )
    return _write(
        folder,
        name,
        _texts(corpus),
        _texts(queries),
        (_judgment(row, where) for where, row in judged),
    )


def read_rows(files: Iterable[Path]) -> Iterator[Row]:
    """Yield (place, values) for each row of jsonl and parquet files."""
    for path in files:
        yield from read_parquet(path) if path.suffix == ".parquet" else read_json(path)


def _columns(files: Iterable[Path]) -> set[str]:
    return next((set(row) for _, row in read_rows(files)), set())


def _tables(folder: Path, *names: str) -> dict[str, list[Path]]:
    """Return the files of a table by split, of the first of its `names` that the folder has:
    NAME/SPLIT-00000-of-00001.parquet or NAME/SPLIT.jsonl. A single file, NAME.jsonl or
    NAME.parquet, is the only split, with the name of the table.
    """
    for name in names:
        if (file := find(folder, f"{name}.jsonl")) or (file := find(folder, f"{name}.parquet")):
            return {name: [file]}
        files = [
            file
            for ending in ("parquet", "jsonl")
            for file in sorted((folder / name).glob(f"*.{ending}"))
        ]
        if files:
            splits: dict[str, list[Path]] = {}
            for file in files:
                splits.setdefault(re.sub(r"-\d{5}-of-\d{5}.*", "", file.stem), []).append(file)
            return splits
    return {}


def _first(
    row: Mapping[str, object],
    names: tuple[str, ...],
    where: object,
    kind: type | tuple[type, ...] = (str, int),
) -> Any:
    name = next((name for name in names if name in row), None)
    if name is None or not isinstance(row[name], kind):
        raise InputError(
            f"{where}: expected {' or '.join(map(repr, names))} with a value of its kind, got"
            f" {keys(row)}"
        )
    return row[name]


def _texts(rows: Iterable[Row]) -> Iterator[tuple[str, str]]:
    return (
        (str(_first(row, _IDS, where)), titled(row.get("title"), _first(row, _TEXTS, where, str)))
        for where, row in rows
    )


def _judgment(row: Mapping[str, Any], where: object) -> tuple[str, str, int]:
    query, document = (
        str(_first(row, names, where)) for names in (("query-id", "qid"), ("corpus-id", "doc_id"))
    )
    try:
        return query, document, as_grade(row.get("score", 1))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f'{where}: expected a whole number of at most {MOST_GRADE:,} as "score", got'
            f" {str(row['score'])[:40]!r}"
        ) from error


def _write(
    folder: Path,
    name: str,
    documents: Pairs,
    queries: Pairs,
    judged: Iterable[tuple[str, str, int]],
) -> TaskFiles:
    """Write a BEIR folder NAME.beir. White space in ids, which qrels and runs cannot have, becomes
    "_".
    """
    place = folder / f"{name}.beir"
    place.mkdir(exist_ok=True)
    for kind, texts in (("corpus", documents), ("queries", queries)):
        write_jsonl(
            place / f"{kind}.jsonl",
            ({"_id": "_".join(key.split()), "text": text} for key, text in texts),
        )
    with replacing(place / "qrels.tsv") as new, new.open("w", encoding="utf-8") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        file.writelines(
            f"{'_'.join(q.split())}\t{'_'.join(d.split())}\t{grade}\n" for q, d, grade in judged
        )
    return replace(find_task(place), name=name)
