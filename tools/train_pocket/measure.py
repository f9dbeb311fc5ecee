"""All figures of the model card, from a model folder as it ships, by runnel's public interface."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runnel.models.embedder import Embedder
from runnel.models.reranker import Reranker
from runnel.models.sentence_retriever import SentenceRetriever
from tools.train_pocket import evaluate, recall
from tools.train_pocket.teacher import Teacher

log = logging.getLogger(__name__)
MARK = "FIGURES"  # where the tables go in the card
QUESTIONS = 20  # per evidence set
_RERANKED_QUERIES = 25
_RERANK_TOKENS = 300


def measure(
    data: Path, out: Path, teacher_folder: Path, folder: Path, parts: tuple[str, ...] = ("vectors", "sentences", "rerank")
) -> None:
    """Measure the model in `folder` and write `out`/figures.json; parts that are there already are kept."""
    target = out / "figures.json"
    figures: dict[str, Any] = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {}
    for part in parts:
        if part not in figures:
            figures[part] = _PARTS[part](data, out, teacher_folder, folder)
            target.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    card = folder / "README.md"
    card.write_text(card.read_text(encoding="utf-8").replace(MARK, tables(figures)), encoding="utf-8")


def tables(figures: dict[str, Any]) -> str:
    """The figures as Markdown, for the model card."""
    vectors, sentences, rerank = figures["vectors"], figures["sentences"], figures["rerank"]
    mean = {who: float(np.mean(list(vectors[who].values()))) for who in ("pocket", "teacher", "bm25")}
    lines = ["Embedding, nDCG@10 (medquad: 400 queries, 4,000 documents). Never trained on.", ""]
    lines += ["| set | pocket | teacher | BM25 |", "|---|---|---|---|"]
    lines += [
        f"| {n} | {vectors['pocket'][n]:.3f} | {vectors['teacher'][n]:.3f} | {vectors['bm25'][n]:.3f} |"
        for n in vectors["pocket"]
    ]
    lines += [f"| mean | **{mean['pocket']:.3f}** | {mean['teacher']:.3f} | {mean['bm25']:.3f} |", ""]
    lines += [f"That is {vectors['ratio']:.3f} of the teacher.", ""]
    lines += [f"Sentences, recall@10 on whole documents held back from training (at most {QUESTIONS} questions of each set: one"]
    lines += ["question is 0.05 or more). BM25 counts words within the document; the teacher scores each sentence alone.", ""]
    lines += ["| set | pocket | BM25 in document | teacher |", "|---|---|---|---|"]
    for name in sentences["pocket"]:
        lines += [
            f"| {name} | {sentences['pocket'][name]:.3f} | {sentences['bm25'][name]:.3f} | {sentences['teacher'][name]:.3f} |"
        ]
    means = sentences["mean"]
    lines += [f"| mean | **{means['pocket']:.3f}** | {means['bm25']:.3f} | {means['teacher']:.3f} |", ""]
    lines += [
        f"Reranking the BM25 top 50, nDCG@10 ({_RERANKED_QUERIES} queries each).",
        "",
        "| set | BM25 | reranked |",
        "|---|---|---|",
    ]
    lines += [f"| {n} | {rerank['bm25'][n]:.3f} | {rerank['pocket'][n]:.3f} |" for n in rerank["pocket"]]
    return "\n".join(lines)


def _vectors(data: Path, out: Path, teacher_folder: Path, folder: Path) -> dict[str, Any]:
    """nDCG@10 on the four measuring sets."""
    model = Embedder.load(folder)

    def encode(texts: list[str]) -> NDArray[np.float32]:
        return model.encode([text or "." for text in texts])

    found = {}
    for name in evaluate.MEASURED:
        found[name] = evaluate.vector_ndcg(encode, evaluate.load_set(data, name))
        log.info("%s: nDCG@10 %.3f", name, found[name])
    others = evaluate.teacher_figures(data, out, Teacher(teacher_folder).encode)
    ratio = evaluate.report(found, others["teacher"], "vectors")
    return {"pocket": found, **others, "ratio": ratio}


def _sentences(data: Path, out: Path, teacher_folder: Path, folder: Path) -> dict[str, Any]:
    """recall@10 on held-back documents."""
    model = SentenceRetriever.load(folder)

    def score(question: str, document: str) -> NDArray[np.float32]:
        return np.array([s.score for s in model.score(question, document)], dtype=np.float32)

    found = {}
    for one, questions in recall.held_back_sets(data, teacher_folder, out / "read", QUESTIONS):
        found[one.name] = recall.measure(one, questions, score)
        log.info("%s: recall@10 %.3f over %d questions", one.name, found[one.name], len(questions))
    others = recall.baseline_recall(data, out, teacher_folder, QUESTIONS, Teacher(teacher_folder).encode)
    means = {name: float(np.mean(list(values.values()))) for name, values in {"pocket": found, **others}.items()}
    log.info("recall@10, mean over sets: %s", ", ".join(f"{k} {v:.3f}" for k, v in means.items()))
    return {"pocket": found, **others, "mean": means}


def _rerank(data: Path, out: Path, teacher_folder: Path, folder: Path) -> dict[str, Any]:
    """nDCG@10 of the BM25 top 50 before and after reranking."""
    model = Reranker.load(folder)

    def score(query: str, documents: list[str]) -> NDArray[np.float32]:
        return model.score(query, documents, max_tokens=_RERANK_TOKENS + len(query))

    def as_listed(query: str, documents: list[str]) -> NDArray[np.float32]:
        return -np.arange(len(documents), dtype=np.float32)

    found: dict[str, Any] = {"pocket": {}, "bm25": {}}
    for name in evaluate.MEASURED:
        one = evaluate.load_set(data, name)
        found["bm25"][name] = evaluate.reranked_ndcg(as_listed, one, queries=_RERANKED_QUERIES)
        found["pocket"][name] = evaluate.reranked_ndcg(score, one, queries=_RERANKED_QUERIES)
        log.info("%s: BM25 %.3f, reranked %.3f", name, found["bm25"][name], found["pocket"][name])
    return found


_PARTS: dict[str, Callable[[Path, Path, Path, Path], dict[str, Any]]] = {
    "vectors": _vectors,
    "sentences": _sentences,
    "rerank": _rerank,
}
