"""Published benchmarks as tasks, from folders as their authors publish them (NanoBEIR, LoCoV0,
LoCoV1, LongEmbed, MS MARCO), and generated sets.

A set in another form than BEIR's (docs/evaluation.md has the forms) is written as a BEIR folder,
from which it is evaluated.

LongEmbed's synthetic sets, needle and passkey, are generated: the same texts on every machine. Each
of the eight lengths is a set with 100 documents, of at most 3/4 words for each token, and 50
queries. A document hides one sentence: a person's passkey in a text of five repeated sentences, or
a fact in an essay.

Source: Saad-Falcon et al., 2024 (LoCo); Dasigi et al., 2021 (Qasper); Zhu et
al., LongEmbed, 2024, 3.2; Craswell et al., 2020 and 2021; the filler of passkey is that of
Mohtashami and Jaggi, 2023.
The generated sets are not the published ones: their names, passkeys, facts and questions are ours,
and so is the essay, whose sentences are put together at random from parts (the published essays are
Paul Graham's). So their figures cannot be compared with published figures.
"""

import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from runnel.checks import expect_choice
from runnel.config import read_row
from runnel.errors import InputError, ReadError
from runnel.files import replacing, write_jsonl
from runnel.lab.evaluation.metrics import METRICS
from runnel.lab.evaluation.qa.json_values import expect_object, read_values
from runnel.lab.evaluation.tasks import TaskFiles, expect_task, find_task
from runnel.lab.training.triples import paper_text
from runnel.records import titled
from runnel.text.lines import find, keys, read_json, text_of
from runnel.text.tables import read_parquet
from runnel.text.trec import MOST_GRADE, as_grade

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_DOCUMENTS, _QUERIES = 100, 50
_GRASS = (  # 19 words
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)
_FIRST = (
    "Ada Amir Boris Carla Chen Dalia Emil Farah Goran Hana Igor Jonas Kira Leila Mateo Nadia Omar"
    " Petra Rosa Tariq".split()
)
_LAST = (
    "Abbott Bauer Castro Dahl Ebert Fonseca Grant Horvat Ito Jansen Kovacs Lund Moreau Novak Okafor"
    " Petrov".split()
)


def _rows(name: str) -> list[list[str]]:
    lines = files("runnel.lab.evaluation").joinpath(name).read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines]


def _write_generated(folder: Path, kind: str, length: int) -> TaskFiles:
    """Write a set, "needle" or "passkey", whose documents have at most `length` tokens."""
    name = f"{kind}-{length}"
    chance = random.Random(name)
    if kind == "passkey":
        questions, hidden = _passkeys(chance)
        filler = list(_GRASS) * (length // 12)  # more than the longest document of the set needs
    else:
        questions, hidden = (list(part) for part in zip(*_rows("needles.tsv"), strict=True))
        parts = list(zip(*_rows("essay.tsv"), strict=True))  # who, does, what, when
        filler = [" ".join(chance.choice(part) for part in parts) + "." for _ in range(length // 8)]
    documents = [_hide(sentence, filler, length * 3 // 4, chance) for sentence in hidden]
    asked = [str(row) for row in sorted(chance.sample(range(_DOCUMENTS), _QUERIES))]
    return _write(
        folder,
        name,
        ((str(row), text) for row, text in enumerate(documents)),
        ((row, questions[int(row)]) for row in asked),
        ((row, row, 1) for row in asked),
    )


def _passkeys(chance: random.Random) -> tuple[list[str], list[str]]:
    names = chance.sample([f"{first} {last}" for first in _FIRST for last in _LAST], _DOCUMENTS)
    keys = chance.sample(range(10_000, 100_000), _DOCUMENTS)
    hidden = [
        f"{name}'s pass key is {key}. Remember it. {key} is the pass key for {name}."
        for name, key in zip(names, keys, strict=True)
    ]
    return [f"What is the pass key for {name}?" for name in names], hidden


def _hide(sentence: str, filler: Sequence[str], words: int, chance: random.Random) -> str:
    """Return as much of the filler as fits into a number of words, with a sentence at a random
    place between two others.
    """
    room = words - len(sentence.split())
    sizes = itertools.accumulate(len(part.split()) for part in filler)
    count = sum(1 for _ in itertools.takewhile(lambda size: size <= room, sizes))
    place = chance.randint(0, count)
    return " ".join([*filler[:place], sentence, *filler[place:count]])


_NDCG = ("nDCG@10",)
_LOCO_QUERY = ("dataset", "qid", "answer_pids")  # columns of LoCoV1's queries
_IDS = ("_id", "id", "doc_id", "qid", "pid")
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
    """A retrieval task, of a benchmark or by itself."""

    name: str  # the name of its result files
    source: Callable[[Path], TaskFiles]  # finds its files, or writes them into a folder
    metrics: tuple[str, ...] = METRICS  # what is reported unless the user says otherwise
    group: str = ""  # sets with one group count as one in means


def find_sets(task: str, corpus: str | None = None, queries: str | None = None) -> list[Set]:
    """Return the sets of a task: a BEIR folder, qrels, a set or a whole benchmark, or
    generated:needle or generated:passkey.

    For one set of a folder that has several, `task` is the folder's path, / and the set's name.
    """
    if task.startswith("generated:"):
        name = task.removeprefix("generated:")
        kinds = ("needle", "passkey")
        sets = [
            Set(
                f"{kind}-{length}",
                partial(_write_generated, kind=kind, length=length),
                ("nDCG@1",),
                kind,
            )
            for kind, length in itertools.product(kinds, LENGTHS)
        ]
        expect_choice(name, [*kinds, *(part.name for part in sets)], "the task after generated:")
        return [part for part in sets if name in (part.name, part.group)]
    path = Path(task)
    if path.is_dir() and corpus is None and queries is None and not _is_beir(path):
        if sets := _sets_of(path) or _inside(path):
            return sets
    elif not path.exists() and path.parent.is_dir() and (sets := _sets_of(path.parent)):
        if chosen := [
            part
            for part in sets
            if path.name in (part.name, part.name.removeprefix(f"{path.parent.name}-"), part.group)
        ]:
            return chosen
        expect_choice(path.name, [part.name for part in sets], f"the set of {path.parent}")
    return [_ready(find_task(expect_task(path), corpus, queries))]


def _sets_of(folder: Path) -> list[Set]:
    """Return the sets of a folder in one of the published forms; none if it has another form, such
    as BEIR's.
    """
    name = folder.resolve().name
    if sets := _msmarco(folder):
        return sets
    if (rows := find(folder, "validation.jsonl")) and {"input", "output"} <= _columns([rows]):
        return [Set(name, partial(_write_pairs, name=name, read=partial(_scrolls, rows)), _NDCG)]
    if papers := _qasper(folder):
        reads = {f"qasper_{kind}": partial(_papers, papers, kind) for kind in ("title", "abstract")}
        return [
            Set(own, partial(_write_pairs, name=own, read=read), _NDCG)
            for own, read in reads.items()
        ]
    loco = [
        part
        for part in sorted(folder.iterdir())
        if part.name.lower() in ("locov1-documents", "locov1-queries")
    ]
    if len(loco) == 2:
        documents, queries = (_files(part, "test") for part in loco)
        names = dict.fromkeys(str(row["dataset"]) for _, row in _loco_rows(queries, *_LOCO_QUERY))
        return [
            Set(own, partial(_write_loco, name=own, documents=documents, queries=queries), _NDCG)
            for own in names
        ]
    tables = [_tables(folder, *names) for names in (["corpus"], ["queries"], ["qrels", "default"])]
    return _hub(name, *tables) if all(tables) and not _is_beir(folder) else []


def _inside(folder: Path) -> list[Set]:
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


def _scrolls(rows: Path) -> Iterator[tuple[str, str]]:
    return (
        (text_of(row, "input", where), text_of(row, "output", where))
        for where, row in read_rows([rows])
    )


def _qasper(folder: Path) -> list[Path]:
    """Return the files of Qasper's test split: as it was released, or as rows of the hub's data
    set.
    """
    if released := sorted(folder.glob("qasper-test-v*.json")):
        return released[-1:]
    rows = sorted(path for path in folder.glob("test*") if path.suffix in (".parquet", ".jsonl"))
    return rows if {"title", "abstract", "full_text"} <= _columns(rows) else []


def _papers(files: list[Path], kind: str) -> Iterator[tuple[str, str]]:
    released = ((f"{files[0]}, paper {name}", row) for (name,), row in read_values(files[0], 1))
    for where, row in released if files[0].suffix == ".json" else read_rows(files):
        row = expect_object(row, where)
        yield paper_text(row, where), text_of(row, kind, where)


def _loco_rows(files: list[Path], *names: str) -> Iterator[Row]:
    for where, row in read_rows(files):
        for name in names:
            _first(row, (name,), where, list if name == "answer_pids" else object)
        yield where, row


def _write_loco(folder: Path, name: str, documents: list[Path], queries: list[Path]) -> TaskFiles:
    """Write a set of LoCoV1. Documents without text are left out, as its authors do, and so are the
    queries that only such documents answer.
    """
    rows = [row for row in _loco_rows(queries, *_LOCO_QUERY) if row[1]["dataset"] == name]
    empty = {
        str(row["pid"])
        for _, row in _loco_rows(documents, "dataset", "pid", "passage")
        if row["dataset"] == name and row["passage"] is None
    }
    kept = [
        (where, row) for where, row in rows if not empty.issuperset(map(str, row["answer_pids"]))
    ]
    texts = (
        (where, row)
        for where, row in read_rows(documents)
        if row["dataset"] == name and row["passage"] is not None
    )
    judged = (
        (str(row["qid"]), str(pid), 1)
        for _, row in kept
        for pid in row["answer_pids"]
        if str(pid) not in empty
    )
    source = _write(folder, name, _texts(texts), _texts(kept), judged)
    note = (
        f"{len(empty):,} documents without text are left out, with {len(rows) - len(kept):,}"
        " queries that only they answer"
    )
    return replace(source, notes=(note,)) if empty else source


def _hub(
    name: str,
    corpus: dict[str, list[Path]],
    queries: dict[str, list[Path]],
    judged: dict[str, list[Path]],
) -> list[Set]:
    """Return the sets of a data set of the hub: that of its split "test"; without one, the sets of
    all splits that have texts of their own.
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
        own = name if len(splits) == 1 else split
        lengths = dict.fromkeys(
            read_row(_Length, row, where).context_length for where, row in read_rows(files[1])
        )
        for length in lengths:
            label = own if length is None else f"{own}-{length}"
            sets.append(
                Set(
                    label,
                    partial(_write_hub, name=label, files=files, length=length),
                    _NDCG if length is None else ("nDCG@1",),
                    "" if length is None else own,
                )
            )
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
    """Return the files of a table by split: NAME/SPLIT-00000-of-00001.parquet, NAME/SPLIT.jsonl or
    NAME.jsonl.
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


def _files(place: Path, split: str) -> list[Path]:
    files = (
        [place]
        if place.is_file()
        else sorted(p for p in place.rglob("*") if p.suffix in (".parquet", ".jsonl"))
    )
    if not files:
        raise ReadError(f"{place} has no parquet or jsonl files; download the data set again")
    return [file for file in files if split in file.name] or files


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
