"""Retrieval tasks: judged queries with their corpus, as BEIR folders, or as qrels with a corpus and
queries. `published.py` makes such tasks of published sets.

Source: Thakur et al., 2021.
"""

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from runnel.errors import InputError
from runnel.files import near_names
from runnel.lab.training.corpus import Texts, read_corpus, read_queries
from runnel.lab.training.evidence import is_released
from runnel.lab.training.triples import find_source, folder_of
from runnel.text.lines import ENDINGS, read_json, read_lines
from runnel.text.trec import read_qrels, read_scores


@dataclass(frozen=True)
class TaskFiles:
    """The files of a task. `corpus` and `queries` may be missing if a finished run is measured."""

    name: str
    qrels: Path
    corpus: Path | None
    queries: Path | None
    expected: int | None = None  # the number of judged queries in papers, for a warning


@dataclass(frozen=True, eq=False)
class Task:
    """Judged queries and the documents to search."""

    source: TaskFiles
    qrels: Mapping[str, Mapping[str, int]]  # query id -> document id -> grade
    queries: Mapping[str, str]  # query id -> text, of the judged queries that have one
    corpus: Texts | None
    notes: tuple[str, ...]  # contradictions in the files, in words, for the user


def expect_task(path: str | Path) -> Path:
    """Return the path of a task that exists."""
    path = Path(path)
    if not path.exists():
        raise InputError(
            f"{path}: no such task; expected a BEIR folder, a benchmark, or a file of judgments"
            f" (qrels) or evidence{near_names(path)}"
        )
    return path


def is_evidence(path: Path) -> bool:
    """Return whether a task is a file of questions with marked evidence."""
    if path.is_dir() or not next((line for _, line in read_lines(path)), "").startswith("{"):
        return False
    where, row = next(read_json(path))
    # evidence, or the training file that paper E's authors released
    if "evidence" not in row and not is_released(row):
        raise InputError(
            f'{where}: expected evidence ("question", "document", "evidence") or judgments (qrels);'
            " questions about an index go to `runnel lab questions`"
        )
    return True


def find_task(path: Path, corpus: str | None = None, queries: str | None = None) -> TaskFiles:
    """Return the files of a BEIR folder, with qrels/test.tsv or its only qrels; or the files that
    belong to a file of qrels.
    """
    source = find_source(path, corpus, queries, split="test.tsv")
    folder = folder_of(path)  # of the BEIR set; None: other files
    name = source.path.name
    for ending in (*ENDINGS[1:], ".tsv", ".txt", ".qrels", ".trec"):
        name = name.removesuffix(ending)
    if folder is not None:
        place = folder.resolve().name
        name = place if name in ("test", "qrels") else f"{place}-{name}"
    return TaskFiles(name, source.path, cast(Path | None, source.corpus), source.queries)


def read_task(source: TaskFiles) -> Task:
    """Read the judged queries and the corpus; a finished run needs neither."""
    qrels = read_qrels(source.qrels)
    relevant = dict.fromkeys(
        name for judged in qrels.values() for name, grade in judged.items() if grade > 0
    )
    if not relevant:
        raise InputError(
            f"{source.qrels} judges no document as relevant (grade above 0); expected one at least"
        )
    notes = []
    if source.expected not in (None, len(qrels)):
        notes.append(f"{len(qrels):,} queries are judged; the papers' set has {source.expected:,}")
    if without := sum(not any(grade > 0 for grade in judged.values()) for judged in qrels.values()):
        notes.append(
            f"{without:,} of {len(qrels):,} queries have no relevant document, and count as 0"
        )
    queries: dict[str, str] = {}
    if source.queries is not None:
        texts = read_queries(source.queries)
        queries = {
            query: texts[query] for query in qrels if query in texts and texts[query].strip()
        }
        where = f"judged queries has a text in {source.queries}"
        if missing := expect_some(qrels, queries, f"{source.qrels}: none of the", where):
            notes.append(
                f"{len(missing):,} of {len(qrels):,} judged queries have no text, and count as 0"
            )
    corpus = None
    if source.corpus is not None:
        corpus = Texts(read_corpus(source.corpus))
        has_text = any(document.text.strip() for document in corpus)
        known = {name for name in relevant if has_text and corpus.row(name) is not None}
        where = f"relevant documents is in {source.corpus}" + (
            "" if has_text else f", and none of its {len(corpus):,} has text"
        )
        if missing := expect_some(sorted(relevant), known, f"{source.qrels}: none of the", where):
            notes.append(
                f"{len(missing):,} of {len(relevant):,} relevant documents are not in the corpus,"
                f" the first is {missing[0]!r}"
            )
    return Task(source, qrels, queries, corpus, tuple(notes))


def read_run_of(path: Path, task: Task) -> dict[str, dict[str, float]]:
    """Read a run, which must be of the task: query id -> document id -> score."""
    run = read_scores(path)
    expect_some(
        run, task.qrels, "none of the", f"queries of {path} is judged in {task.source.qrels}"
    )
    if task.corpus is not None:
        query_of = {name: query for query, scores in run.items() for name in scores}
        missing = [name for name in query_of if task.corpus.row(name) is None]
        if missing:
            raise InputError(
                f"{path} has document {missing[0]!r} for query {query_of[missing[0]]!r}, which is"
                f" not in {task.source.corpus}, as are {len(missing):,} of its {len(query_of):,}"
                " documents; give the run of this task"
            )
    return run


def expect_some(names: Collection[str], known: Container[str], none: str, what: str) -> list[str]:
    """Return the names that are not known. Raise InputError if none of them is known: `none`, their
    number and `what` make its first sentence, "none of the 3 queries of run.trec is judged in ...".
    """
    missing = [name for name in names if name not in known]
    if len(missing) == len(names):
        first = f", the first is {missing[0]!r}" if missing else ""
        raise InputError(f"{none} {len(names):,} {what}{first}; give the files of one task")
    return missing
