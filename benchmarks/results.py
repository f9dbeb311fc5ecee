"""Quality on a data folder: BM25, all-MiniLM-L6-v2, `pocket` and fusions, by the functions of
`runnel lab evaluate`.

WORK/SYSTEM has what `lab evaluate --out` writes, with SYSTEM inside pocket-DIGEST for what depends
on the built-in model, and TASK.made.json as soon as a task is finished. So the command can be
stopped at any moment, and does only what is missing.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import in_words
from benchmarks.results_page import ABOUT
from runnel.commands.doctor import machine
from runnel.errors import InputError, RunnelError
from runnel.files import write
from runnel.jobs.runs import lines_of
from runnel.lab.evaluation.evidence import Scorer, Units, by_parts, scorer_of
from runnel.lab.evaluation.evidence import measure as measure_evidence
from runnel.lab.evaluation.metrics import ranked, save
from runnel.lab.evaluation.retrieval import Reading
from runnel.lab.evaluation.retrieval import System as Scored
from runnel.lab.evaluation.run import evaluate
from runnel.lab.evaluation.tasks import find_task, read_task
from runnel.models.embedder import Embedder
from runnel.models.folder import BUILT_IN
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.search.pipeline import fuse
from runnel.text.documents.document import DocumentText
from runnel.text.trec import read_qrels, read_scores
from tools.train_pocket.data import EVIDENCE, held_back, minilm, read_lines
from tools.train_pocket.recall import interval, standard

MOST = 200  # queries of a set
_OF_DOCUMENT = 4  # questions about one document
_TOKENS = 256  # that all-MiniLM-L6-v2 reads
_SATURATED = 0.97  # BM25's nDCG@10 from which a set says nothing about the others

Say = Callable[[str], None]


@dataclass(frozen=True)
class System:
    """What is measured: a model with options of `runnel lab evaluate`, or a run made of other
    systems' runs.

    Attributes:
        part: of the page.
        index: whether it searches the index that the system "index" has made.
        of: systems that this one merges or reorders; `make` writes its run.
        alone: whether each sentence is a document of its own, so that what the model makes of the
            text around it is seen by comparison.
        words: the weight of the z-score of BM25 in the document, which is added to the score of
            each sentence alone, as the model itself adds it when it reads the document.
    """

    part: str
    name: str
    title: str
    model: str = "pocket"
    options: Mapping[str, Any] = field(default_factory=dict)
    index: bool = False
    of: tuple[str, ...] = ()
    alone: bool = False
    words: float = 0.0


_MINILM = {"max_tokens": _TOKENS, "max_query_tokens": _TOKENS}
# Each comes after what it is made of or searches; the first of a part is what the others are
# compared with.
SYSTEMS = (
    System("retrieval", "bm25", "BM25", "bm25"),
    System("retrieval", "minilm", "MiniLM", "minilm", _MINILM),
    System("retrieval", "embed", "`pocket`", options={"how": "embed"}),
    System("retrieval", "bm25+minilm", "BM25 + MiniLM", of=("bm25", "minilm")),
    System("retrieval", "bm25+embed", "BM25 + `pocket`", of=("bm25", "embed")),
    System("retrieval", "index", "index", options={"how": "index"}),
    System(
        "retrieval",
        "index-vectors",
        "index, vectors only",
        options={"how": "index", "weight": math.inf, "rerank": 0},
        index=True,
    ),
    System(
        "retrieval",
        "index-merged",
        "index, not reranked",
        options={"how": "index", "rerank": 0},
        index=True,
    ),
    System("rerank", "bm25", "BM25", "bm25"),
    System("rerank", "minilm-rerank", "MiniLM", of=("bm25", "minilm")),
    System("rerank", "rerank", "`pocket`", options={"how": "rerank"}),
    System("sentences", "bm25", "BM25", "bm25"),
    System("sentences", "minilm", "MiniLM", "minilm", _MINILM | {"how": "embed"}),
    System("sentences", "bm25+minilm-sentences", "BM25 + MiniLM", of=("bm25", "minilm")),
    System("sentences", "sentences", "`pocket`", options={"how": "sentences"}),
    System("minilm-mamba2", "bm25", "BM25", "bm25"),
    System("minilm-mamba2", "whole", "whole documents", "minilm-mamba2", {"how": "sentences"}),
    System("minilm-mamba2", "alone", "each sentence alone", "minilm-mamba2", alone=True, words=0.2),
    System("pocket-mamba2", "bm25", "BM25", "bm25"),
    System("pocket-mamba2", "whole", "whole documents", "pocket-mamba2", {"how": "sentences"}),
    System("pocket-mamba2", "alone", "each sentence alone", "pocket-mamba2", alone=True),
)
METRICS = {
    "retrieval": "nDCG@10",
    "rerank": "nDCG@10",
    "sentences": "Recall@10",
    "minilm-mamba2": "Recall@10",
    "pocket-mamba2": "Recall@10",
}
# parts that rank the sentences of a document
OF_SENTENCES = ("sentences", "minilm-mamba2", "pocket-mamba2")


@dataclass(frozen=True)
class Set:
    """A set of the data folder.

    Attributes:
        trained: whether `pocket` was trained on other documents of the set ("held back"), on its
            documents for another job ("documents"), or not at all.
        size: bytes of its texts.
    """

    name: str
    folder: Path
    evidence: bool
    size: int

    @property
    def trained(self) -> str:
        if self.evidence:
            return "held back" if self.name in EVIDENCE else "no"
        return "documents" if self.name in READ else "no"


# Retrieval sets with documents of evidence sets that `pocket` was trained on.
READ = {"qmsum_meetings": "qmsum"} | dict.fromkeys(
    ("ei_fulltext", "pmc_abstract2body", "pmc_title2body"), "evidence_inference"
)


@dataclass(frozen=True)
class Work:
    """The folder of the runs, and where each system's are."""

    folder: Path
    most: int = MOST
    digests: Mapping[str, str] = field(
        default_factory=lambda: {name: digest(folder) for name, folder in BUILT_IN.items()}
    )

    def of(self, system: System) -> Path:
        """Return the folder of a system's results."""
        model = system.model
        if system.of:
            model = "pocket" if "embed" in system.of else ""
        if model not in self.digests:
            return self.folder / system.name
        return self.folder / f"{model}-{self.digests[model]}" / system.name

    def made(self, system: System, name: str) -> dict[str, Any] | None:
        """Return how a result was made; None: it is missing."""
        path = self.of(system) / f"{name}.made.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def digest(folder: Path) -> str:
    """Return a short digest of a folder's files."""
    found = hashlib.blake2b(digest_size=4)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def sets_of(data: Path) -> list[Set]:
    """Return the sets of a data folder, small ones first.

    Raises:
        InputError: the folder has none.
    """
    found = [
        Set(p.name, p, False, sum(f.stat().st_size for f in p.iterdir()))
        for p in data.glob("retrieval/*")
        if p.is_dir()
    ]
    found += [
        Set(p.name.split(".")[0], p, True, p.stat().st_size) for p in data.glob("evidence/*.jsonl*")
    ]
    if not found:
        raise InputError(
            f"{data} has no retrieval/NAME and no evidence/NAME.jsonl.zst; expected the folder that"
            " holds both"
        )
    return sorted(found, key=lambda one: one.size)


def measure(
    data: Path, work: Work, only: Sequence[str], say: Say, parts: Sequence[str] = ()
) -> list[str]:
    """Measure every system on every set, or those of `parts` on those in `only`; return what
    failed.

    Raises:
        InputError: an unknown set or part.
    """
    sets = sets_of(data)
    names = {"set": [one.name for one in sets], "part": list(METRICS)}
    for what, given in (("set", only), ("part", parts)):
        if unknown := [name for name in given if name not in names[what]]:
            raise InputError(
                f"there is no {what} {unknown[0]!r}; expected some of {', '.join(names[what])}"
            )
    failed = []
    for one in sets:
        if only and one.name not in only:
            continue
        for system in SYSTEMS:
            if parts and system.part not in parts:
                continue
            if (
                one.evidence == (system.part in OF_SENTENCES)
                and work.made(system, one.name) is None
            ):
                say(f"{one.name}: {system.part}, {system.name}")
                try:
                    _measure(one, system, work)
                except RunnelError as error:
                    failed.append(f"{one.name}, {system.name}: {error}")
                    say(f"failed: {failed[-1]}")
    return failed


def _measure(one: Set, system: System, work: Work) -> None:
    """Write the result of a system on a set.

    Raises:
        InputError: a system whose run or index it needs is not finished: a part of an index would
            be searched as if it were all.
    """
    needed = ("index",) if system.index else system.of
    if missing := [name for name in needed if work.made(_named(name), one.name) is None]:
        raise InputError(
            f"{' and '.join(missing)} must be finished on this set first; repeat the command"
        )
    folder = work.of(system)
    start = time.perf_counter()
    cpu = time.process_time()
    folder.mkdir(parents=True, exist_ok=True)
    if one.evidence:
        _rank_sentences(system, _task(one, work), folder)
    else:
        _rank_documents(one, system, _task(one, work), work)
    cost = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    write(
        folder / f"{one.name}.made.json",
        json.dumps({"commit": commit(), "most": work.most, **cost}) + "\n",
    )


def _rank_documents(one: Set, system: System, task: Path, work: Work) -> None:
    source = find_task(one.folder)
    folder = work.of(system)
    options = dict(system.options)
    options |= {"queries": str(source.queries), "corpus": str(source.corpus)}
    if system.index:  # its index is the one that is made already
        made = f"{one.name}.index"
        shutil.copytree(work.of(_named("index")) / made, folder / made, dirs_exist_ok=True)
    model = _model(system)
    if system.of:
        model = str(folder / f"{one.name}.run")
        first, second = (work.of(_named(name)) for name in system.of)
        lists = (
            _cosines(one, task, first, second)
            if system.part == "rerank"
            else _fused(one, first, second)
        )
        write(Path(model), "".join(lines_of(query, hits, ".9g") for query, hits in lists))
    evaluate(model, [str(task)], out=folder, **options)


def _rank_sentences(system: System, task: Path, folder: Path) -> None:
    if system.alone:
        scored = Scored(system.model, "sentences")
        scorer = partial(_alone, words=system.words)
        save(*measure_evidence(task, scored, None, folder, scorer), folder)
    elif system.of:
        reading = Reading(max_tokens=_TOKENS, max_query_tokens=_TOKENS)
        scored = Scored(str(minilm()), "embed", reading=reading)
        save(*measure_evidence(task, scored, None, folder, _both), folder)
    else:
        evaluate(_model(system), [str(task)], out=folder, **system.options)


def _alone(system: Scored, words: float) -> tuple[Scorer, str | None]:
    """Return what scores each sentence alone, and adds `words` times the z-score of BM25."""
    retriever = SentenceRetriever.load(system.model)
    alone = sentences_alone(retriever)
    bm25, _ = scorer_of(Scored("bm25", "bm25"))

    def score(
        query: str, document: str | DocumentText, units: Units = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        spans, scores = alone(query, document, units)
        return spans, scores + words * standard(bm25(query, document, units)[1])

    return score, retriever.model.fingerprint()


def sentences_alone(retriever: SentenceRetriever, keep: int = 1) -> Scorer:
    """Return what scores each sentence as if it were a document. The sentences of the last `keep`
    documents are remembered, if the model can.
    """

    def scorer(texts: list[str]) -> Callable[[str], np.ndarray]:
        read = list(retriever.remember(texts)) if retriever.remembers else texts
        return lambda query: np.array(
            [max(scan.scores, default=-math.inf) for scan in retriever.scan(query, read)],
            np.float32,
        )

    return by_parts(scorer, keep=keep)


def _both(system: Scored) -> tuple[Scorer, str | None]:
    """Return what scores sentences by the sum of the z-scores of BM25 and of the embedder of
    `system`.
    """
    (words, _), (meaning, fingerprint) = (
        scorer_of(one) for one in (Scored("bm25", "bm25"), system)
    )

    def score(
        query: str, document: str | DocumentText, units: Units = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        spans, a = words(query, document, units)
        _, b = meaning(query, document, units)
        return spans, standard(a) + standard(b)

    return score, fingerprint


def _model(system: System) -> str:
    return str(minilm()) if system.model == "minilm" else system.model


def _named(name: str) -> System:
    return next(system for system in SYSTEMS if system.name == name)


def _fused(one: Set, first: Path, second: Path) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Yield the reciprocal rank fusion of two runs, by query."""
    a, b = (read_scores(folder / f"{one.name}.trec") for folder in (first, second))
    for query in dict.fromkeys([*a, *b]):
        yield query, fuse([ranked(a.get(query, {})), ranked(b.get(query, {}))], (1, 1))


def _cosines(
    one: Set, task: Path, first: Path, second: Path
) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Yield the documents of the first run by their cosines, from the vectors that the second
    folder has.
    """
    source = find_task(
        task, *(str(path) for path in (find_task(one.folder).corpus, find_task(one.folder).queries))
    )
    read = read_task(source)
    assert read.corpus is not None
    vectors = np.load(second / f"{one.name}.vectors.npy", mmap_mode="r")
    rows = {
        document.id: row for row, document in enumerate(d for d in read.corpus if d.text.strip())
    }
    embedder = Embedder.load(str(minilm()))
    for query, listed in read_scores(first / f"{one.name}.trec").items():
        names = [name for name in listed if name in rows]
        (vector,) = embedder.encode_query([read.queries[query]], max_tokens=_TOKENS)
        scores = vectors[[rows[name] for name in names]] @ vector
        yield query, sorted(zip(names, scores.tolist(), strict=True), key=lambda hit: -hit[1])


def commit() -> str:
    """Return the repository's commit, with "+" if files have changed since."""
    asked = [
        ["git", "rev-parse", "--short", "HEAD"],
        ["git", "status", "--porcelain", "--untracked-files=no"],
    ]
    name, changed = (
        subprocess.run(one, capture_output=True, text=True, check=True).stdout.strip()
        for one in asked
    )
    return name + ("+" if changed else "")


# ---- which queries -------------------------------------------------------------------------------


def _task(one: Set, work: Work) -> Path:
    """Return the file of the judgments or the evidence that count: the same ones in every run."""
    out = work.folder / "tasks" / f"{one.name}.{'jsonl' if one.evidence else 'tsv'}"
    if not out.exists():
        out.parent.mkdir(exist_ok=True)
        write(out, _questions(one, work.most) if one.evidence else _judgments(one, work.most))
    return out


def _judgments(one: Set, most: int) -> str:
    qrels = read_qrels(find_task(one.folder).qrels)
    chosen = sorted(sorted(qrels, key=_order)[:most])
    return "".join(
        f"{query}\t0\t{name}\t{grade}\n" for query in chosen for name, grade in qrels[query].items()
    )


def _questions(one: Set, most: int) -> str:
    rows = [
        row for row in read_lines(one.folder) if one.trained == "no" or held_back(row["doc_id"])
    ]
    rows.sort(key=lambda row: (_order(row["doc_id"]), _order(row["id"])))
    count: dict[str, int] = {}
    chosen = []
    for row in rows:
        count[row["doc_id"]] = count.get(row["doc_id"], 0) + 1
        if count[row["doc_id"]] <= _OF_DOCUMENT:
            chosen.append({name: row[name] for name in ("id", "question", "document", "evidence")})
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in chosen[:most])


def _order(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


# ---- what was found ------------------------------------------------------------------------------


def collect(data: Path, work: Work, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of all finished sets: means, and paired differences from BM25 with 90 %
    intervals.

    A set counts in a part of the page once all systems of the part are measured on it. `known` is
    the result of the page that stands, or empty: its parts and questions stay as they are where
    nothing is finished in the folder of work.
    """
    parts = {part["part"]: part for part in known.get("parts", [])}
    sets = sets_of(data)
    for part, metric in METRICS.items():
        systems = [system for system in SYSTEMS if system.part == part]
        mine = [one for one in sets if one.evidence == (part in OF_SENTENCES)]
        whole = [one for one in mine if all(work.made(system, one.name) for system in systems)]
        if part in parts and not whole:
            continue
        values = {
            system.title: {one.name: _values(work, system, one, metric) for one in whole}
            for system in systems
        }
        parts[part] = {
            "part": part,
            "metric": metric,
            "missing": [one.name for one in mine if one not in whole],
            "measured": _measured(work, systems, whole),
            **_compared(values, whole),
        }
    asked = {
        (one["about"], one["title"]): one
        for one in [*known.get("questions", []), *_asked(work.folder)]
    }
    return {
        "version": 2,
        "most": work.most,
        "questions": list(asked.values()),
        "parts": [parts[part] for part in METRICS],
    }


def _measured(work: Work, systems: Sequence[System], sets: Sequence[Set]) -> dict[str, Any]:
    """Return how a part was measured: commits, digests of the built-in models, machine and cost."""
    made = [found for one in sets for system in systems if (found := work.made(system, one.name))]
    return {
        "commits": sorted({one["commit"] for one in made}),
        "models": dict(work.digests),
        "machine": in_words(machine()),
        "seconds": round(sum(one["seconds"] for one in made)),
        "cpu_seconds": round(sum(one["cpu_seconds"] for one in made)),
    }


def _asked(folder: Path) -> list[dict[str, Any]]:
    """Return what `runnel lab questions questions.jsonl --out WORK/questions/ABOUT/NAME` measured:
    of each ABOUT, one of `ABOUT`, BM25, then each system.
    """
    systems: dict[tuple[str, str], dict[str, Any]] = {}
    for about in ABOUT:
        for path in sorted(folder.glob(f"questions/{about}/*/questions.json")):
            found = json.loads(path.read_text(encoding="utf-8"))
            numbers = {
                name: found[name] for name in ("queries", "unanswerable", "documents", "sentences")
            }
            for title, own in (("BM25", False), (path.parent.name, True)):
                rankings = [
                    {
                        name: [round(value, 6) for value in values]
                        for name, values in one["metrics"].items()
                    }
                    for one in found["rankings"]
                    if (one["system"] != "BM25") == own
                ]
                system = {"about": about, "title": title, **numbers, "rankings": rankings}
                systems.setdefault((about, title), system)
    return list(systems.values())


def _values(work: Work, system: System, one: Set, metric: str) -> list[float]:
    path = work.of(system) / f"{one.name}.queries.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [row[metric] for row in sorted(rows, key=lambda row: str(row["query"]))]


def _compared(
    values: Mapping[str, Mapping[str, Sequence[float]]], sets: Sequence[Set]
) -> dict[str, Any]:
    base = next(iter(values.values()))
    rows = [
        {"set": one.name, "queries": len(base[one.name]), "trained": one.trained} for one in sets
    ]
    hard = [one.name for one in sets if np.mean(base[one.name]) < _SATURATED]
    systems = []
    for title, found in values.items():
        cells = {name: _cell([name], found, base) for name in found}
        means = {
            name: _cell(some, found, base)
            for name, some in (("all", list(found)), ("hard", hard))
            if some
        }
        systems.append({"title": title, "sets": cells, **means})
    return {"sets": rows, "hard": hard, "systems": systems}


def _cell(
    names: Sequence[str], found: Mapping[str, Sequence[float]], base: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Return the mean over sets, and its difference from the base."""
    of = [name for name in names for _ in found[name]]
    gain = np.concatenate([np.subtract(found[name], base[name]) for name in names])
    difference, low, high = interval(of, gain)
    cell = {
        "mean": float(np.mean([np.mean(found[name]) for name in names])),
        "difference": difference,
        "low": low,
        "high": high,
    }
    return {name: round(value, 6) for name, value in cell.items()}
