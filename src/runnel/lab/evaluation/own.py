"""A user's own questions about an index: which of them search answers, and why it does not answer
the others.

    ask_questions   -> _measure; for questions with patterns, about a folder: `patterns.py`
    _measure        read_questions; locate, the expected documents and places; ask, one search for
                    each question; values_of, its metrics

A place is the page or the text of a document where the answer is.
"""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runnel.checks import by_id, refuse_when
from runnel.config import read_row
from runnel.errors import InputError
from runnel.files import file_digest
from runnel.jobs.runs import WorkPlan, resumed_rows
from runnel.lab.evaluation.metrics import Measured, mean, results_folder, save
from runnel.lab.evaluation.patterns import measure_patterns
from runnel.lab.evaluation.retrieval import How, System, kind_of
from runnel.lab.training.triples import read_named
from runnel.records import Hit, Places
from runnel.search.encoding import remembers_sentences
from runnel.search.index import Index
from runnel.text.lines import keys, texts_of

# Ranks that are looked at. A deeper search compares more passages, and so may rank the first ones
# in another way.
DEPTH = 50
SHOWN = 3  # sentences of a document that search shows
_SCORED = 20  # the best sentences of a document that are looked at
CUTOFFS = (1, 3, 5, 10)


@dataclass(frozen=True, slots=True)
class Question:
    """A question with the files that answer it, and perhaps the page or the text in them."""

    id: str
    query: str
    files: tuple[str, ...]
    page: int | None = None
    text: str = ""

    @property
    def has_place(self) -> bool:
        return self.page is not None or bool(self.text)

    @property
    def expected(self) -> str:
        place = f', "{_short(self.text)}"' if self.text else ""
        if self.page is not None:
            place = f", page {self.page}"
        return " or ".join(self.files) + place


# What search found for a question: "rank" of the first document that answers, from 1 (None: not
# among the first `DEPTH`); "place", the rank of the first document of which a shown sentence is at
# the expected place; "sentence", the rank of the expected sentence among the sentences of the
# document at "rank" (None: not known); "found", the first documents; "problem", its "kind" and
# "text".
SearchAnswer = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """The documents that answer a question, with the spans of the expected text or page in each;
    or, if there are none, the reason.
    """

    documents: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    problem: Mapping[str, str] | None = None


def values_of(question: Question, answer: SearchAnswer) -> dict[str, float]:
    """Return the metrics of a question; the metrics of places only if it expects a place."""
    of_place = _values("place ", answer["place"]) if question.has_place else {}
    return _values("", answer["rank"]) | of_place


def _values(name: str, rank: int | None) -> dict[str, float]:
    """Return the metrics of a rank, each with the prefix `name`."""
    hits = {f"{name}hits@{k}": float(rank is not None and rank <= k) for k in CUTOFFS}
    return hits | {f"{name}MRR": 0.0 if rank is None else 1 / rank}


def read_questions(path: str | Path) -> list[Question]:
    """Read questions from jsonl, or from csv or tsv with a header.

    A row has a "question" (or "query"), the "file" (or "document") that answers it, or a list of
    them, and may have a "page", a "text" that is in the answer, and an "id".
    """
    rows = enumerate(read_named(Path(path)), start=1)
    questions = (_question(row, where, str(number)) for number, (where, row) in rows)
    return list(by_id(questions, f"the questions of {path}").values())


def _question(row: dict[str, Any], where: str, number: str) -> Question:
    page = row.get("page") or None
    values = {
        "id": str(row.get("id") or number),
        "files": texts_of(row, "file" if "file" in row else "document", where),
        "page": int(page) if isinstance(page, str) and page.isdecimal() else page,
        "text": row.get("text") or "",
    }
    question = read_row(Question, row | values, where, query="question")
    has_files = bool(question.files) and all(map(str.strip, question.files))
    if not question.query.strip() or not has_files or question.page == 0:
        raise InputError(
            f'{where}: expected a text as "question", one or more paths as "file", a page from 1,'
            f" got {keys(row)}"
        )
    return replace(question, text=question.text.strip())


def locate(questions: Iterable[Question], index: Index) -> dict[str, Target]:
    """Return the documents in an index that answer each question, by question id.

    A file is a document's id, or the end of its path: notes/a.md is found as /home/me/notes/a.md.
    """
    names = _Names({name: content.source for name, content in index.store.content_hashes().items()})
    targets = {question.id: _target(question, names, index) for question in questions}
    if targets and not any(target.documents for target in targets.values()):
        first = next(target.problem["text"] for target in targets.values() if target.problem)
        raise InputError(
            f"no question can be answered from {index.store.uri}: {first}; give the index of these"
            " files"
        )
    return targets


class _Names:
    """Documents of an index by their id and by the ends of their paths."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._ids = sources
        self._ends: dict[str, dict[str, list[str]]] = {}  # last part of a path -> path -> ids
        for name, source in sources.items():
            for path in dict.fromkeys((name, source)):
                if path:
                    self._ends.setdefault(_parts(path)[-1], {}).setdefault(path, []).append(name)

    def find(self, file: str) -> list[str]:
        if file in self._ids:
            return [file]
        end = _parts(file)
        paths = {
            path: ids
            for path, ids in self._ends.get(end[-1], {}).items()
            if _parts(path)[-len(end) :] == end
        }
        absolute = str(Path(file).absolute())
        paths = {absolute: paths[absolute]} if absolute in paths else paths
        if len(paths) > 1:
            raise InputError(
                f"{file!r} could be {' or '.join(sorted(paths)[:3])}; give more of the path"
            )
        return next(iter(paths.values()), [])

    def nearest(self, file: str) -> str:
        near = difflib.get_close_matches(_parts(file)[-1], self._ends, 1, cutoff=0.8)
        return f"; the nearest name is {near[0]}" if near else ""


def _parts(path: str) -> tuple[str, ...]:
    parts = (part for part in path.replace("\\", "/").split("/") if part not in ("", "."))
    return tuple(parts) or (path,)


def _target(question: Question, names: _Names, index: Index) -> Target:
    found = [name for file in dict.fromkeys(question.files) for name in names.find(file)]
    if not found:
        missing = question.files[0]
        text = f"{missing} is not in the index{names.nearest(missing)}"
        return Target(problem={"kind": "not in the index", "text": text})
    if not question.has_place:
        return Target({name: () for name in found})
    rows = index.store.documents(found)
    spans = {name: _spans(row.text, Places(row.blocks), question) for name, row in rows.items()}
    if any(spans.values()):
        return Target({name: places for name, places in spans.items() if places})
    missing = f"page {question.page}"
    advice = ""
    if question.text:
        on_page = "" if question.page is None else f" on page {question.page}"
        missing = f"the expected text{on_page}"
        advice = _nearest(question.text, [row.text for row in rows.values()])
    text = f"{missing} is not in {' or '.join(question.files)} as it was indexed{advice}"
    return Target(problem={"kind": "not in the file", "text": text})


def _spans(text: str, places: Places, question: Question) -> list[tuple[int, int]]:
    """Return the spans of the expected text, on the expected page if there is one. Case and white
    space do not matter.
    """
    if question.text:
        pattern = r"\s+".join(map(re.escape, question.text.split()))
        found = [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]
        # `Places.at` returns first the page
        return [span for span in found if question.page in (None, places.at(span[0])[0])]
    # The blocks on the page; none if no page is expected: no block has page 0, but some have None.
    return [(start, end) for start, end, _, page in places.spans() if page == (question.page or 0)]


def _nearest(expected: str, texts: Iterable[str]) -> str:
    """Return the sentence that shares most words with the expected text, in words of advice; "" if
    it shares less than half of them.
    """
    words = set(expected.lower().split())
    shared = {
        sentence: len(words & set(sentence.lower().split()))
        for text in texts
        for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n", text)
    }
    best = max(shared, key=lambda sentence: shared[sentence], default="")
    return f'; the nearest is "{_short(best)}"' if 2 * shared.get(best, 0) >= len(words) else ""


def ask(
    question: Question, target: Target, index: Index, top_k: int, options: Mapping[str, Any]
) -> SearchAnswer:
    """Search for a question, and say what went wrong if its document or place is not among the
    first `top_k`.
    """
    if not target.documents:
        return {
            "rank": None,
            "place": None,
            "sentence": None,
            "found": [],
            "problem": target.problem,
        }
    # Of how many documents sentences are scored: if they are remembered, of all that are measured;
    # else of as many as search reads again by default.
    remembers = index.store.settings.remember and remembers_sentences(index.embedder)
    hits = index.search(
        question.query,
        DEPTH,
        sentences=_SCORED if question.has_place else 0,
        read=max(top_k, CUTOFFS[-1]) if remembers else None,
        **options,
    )
    right = [hit for hit in hits if hit.id in target.documents]
    rank = right[0].rank if right else None
    best = {hit.rank: _best_in_place(hit, target) for hit in right}
    place = next((at for at, sentence in best.items() if sentence and sentence <= SHOWN), None)
    sentence = best[rank] if rank is not None else None
    problem = None
    if rank is None or rank > top_k:
        problem = {"kind": "ranked too low", "text": _how_low(question, target, index, rank)}
    elif question.has_place and (place is None or place > top_k):
        problem = {"kind": "wrong place", "text": _wrong_place(right[0], sentence)}
    return {
        "rank": rank,
        "place": place,
        "sentence": sentence,
        "found": [hit.id for hit in hits[:top_k]],
        "problem": problem,
    }


def _best_in_place(hit: Hit, target: Target) -> int | None:
    """Return the rank, from 1, of the best sentence at the expected place; None if no such sentence
    is among the `_SCORED` best.
    """
    spans = target.documents[hit.id]
    text = hit.text or ""
    by_score = sorted(hit.sentences, key=lambda sentence: (-sentence.score, sentence.index))
    for rank, best in enumerate(by_score, start=1):
        if any(text[max(best.start, a) : min(best.end, b)].strip() for a, b in spans):
            return rank
    return None


def _how_low(question: Question, target: Target, index: Index, rank: int | None) -> str:
    ranks = []
    # the weight of vectors, relative to the weight of words: words alone, and vectors alone
    for name, weight in (("words", 0), ("meaning", math.inf)):
        hits = index.search(question.query, DEPTH, dense_weight=weight, rerank=0, sentences=0)
        found = next((hit.rank for hit in hits if hit.id in target.documents), None)
        ranks.append(f"{found or f'not among the first {DEPTH}'} by {name}")
    return f"{'not found' if rank is None else f'found at rank {rank}'} ({', '.join(ranks)})"


def _wrong_place(hit: Hit, sentence: int | None) -> str:
    best = max(hit.sentences, key=lambda s: s.score, default=None)
    if best is None:
        return f"right file at rank {hit.rank}, but search shows no sentences of it"
    rank = f"number {sentence}" if sentence else f"not among the best {_SCORED}"
    return (
        f'right file at rank {hit.rank}, wrong place: the best sentence is "{_short(best.text)}",'
        f" the expected one is {rank}"
    )


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 70 else words[:70].rsplit(" ", 1)[0] + " ..."


def ask_questions(
    path: str | Path,
    source: str,
    model: str | None = None,
    how: How | None = None,
    *,
    out: str | Path | None = None,
    top_k: int | None = None,
    weight: float | None = None,
    rerank: int | None = None,
) -> dict[str, Any]:
    """Measure how well questions are answered: what `runnel lab questions` does. Returns the
    result, also written to a folder.

    Args:
        path: questions about an index, or with patterns about a folder of documents.
        source: the index, or the folder.
        model: the model that answers; default: the index's own model, or for a folder pocket.
        how: for questions with patterns, what the model does; default: sentences.
        out: folder of the results; None: they are not kept.
        top_k: for an index, how many documents a reader would look at (10).
        weight, rerank: for an index, two settings of the search.

    Raises:
        InputError: an option has no effect on these questions, or the file cannot be used.
    """
    path = Path(path)
    given = {"dense_weight": weight, "rerank": rerank}
    options = {name: value for name, value in given.items() if value is not None}
    ranks_sentences = any("patterns" in row for _, row in read_named(path))
    refuse_when(
        (
            ranks_sentences and (options or top_k is not None),
            f"{path} has patterns, so sentences are ranked; leave --top-k, --weight and --rerank"
            " out",
        ),
        (
            not ranks_sentences and how is not None,
            f"{path} has no patterns, so an index is searched; leave --as out",
        ),
    )
    with results_folder(out) as folder:
        if ranks_sentences:
            system = System(model or "pocket", kind_of(model or "pocket", how) or "sentences")
            measured = measure_patterns(path, source, system, folder)
        else:
            measured = _measure(path, source, model, top_k or 10, options, folder)
        return save(*measured, folder)


def _measure(
    path: Path,
    source: str,
    model: str | None,
    top_k: int,
    options: Mapping[str, float],
    folder: Path,
) -> Measured:
    """Return the result and the values of each question; `folder` keeps the answers."""
    questions = read_questions(path)
    index = Index.open(source, model)
    last = index.store.last_commit()
    settings: dict[str, object] = {
        "questions": file_digest(str(path)),
        "index": source,
        "commit": last.number,
        "documents": last.documents,
        "model": model,
        "options": dict(options),
        "top_k": top_k,
    }
    name = path.name.split(".")[0]
    targets = locate(questions, index)

    def row_of(question: Question) -> Mapping[str, object]:
        return ask(question, targets[question.id], index, top_k, options) | {"id": question.id}

    answers = resumed_rows(
        folder / f"{name}.answers.jsonl",
        settings,
        lambda: WorkPlan(questions, row_of, None),  # None: `settings` have the index and model
        label="searching",
    )
    answered = list(zip(questions, answers, strict=True))
    values = {question.id: values_of(question, answer) for question, answer in answered}
    return {
        "task": name,
        "kind": "questions",
        "index": source,
        "options": dict(options),
        "top_k": top_k,
        "queries": len(questions),
        "places": sum(question.has_place for question in questions),
        "documents": len(index),
        "metrics": mean(values),  # of places: over the questions that expect a place
        "answers": [
            {
                "id": question.id,
                "question": question.query,
                "expected": question.expected,
                "rank": answer["rank"],
                "place_rank": answer["place"],
                "sentence_rank": answer["sentence"],
                "problem": answer["problem"],
                "found": answer["found"],
            }
            for question, answer in answered
        ],
    }, values
