"""Questions whose answers are given as patterns, regular expressions that an answering sentence
matches. Two things are measured: the ranks of the answering sentences, and whether the model knows
that there is an answer, by its probability that a document answers, or without one by its best
score.

In the order of this file:

    read_patterns, read_folder   the questions, and the documents that they are about
    Sentences.ask                scores all sentences for a question, and finds the best answer's
                                 rank in the question's document and in the whole folder, by the
                                 model and by BM25
    summarize                    metrics over all questions, with their intervals
    measure_patterns             the task: all of these, with stored ranks (`runnel lab questions`)

    N  sentences of all documents of a folder   S  sentences of one document
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from runnel.batching import top
from runnel.checks import by_id, expect_choice, refuse_when
from runnel.config import read_row
from runnel.errors import InputError, counted
from runnel.files import digest, file_digest
from runnel.jobs.progress import notify
from runnel.jobs.runs import WorkPlan, resumed_rows
from runnel.lab.evaluation.evidence import scorer_of
from runnel.lab.evaluation.metrics import Measured
from runnel.lab.evaluation.retrieval import System, load_model
from runnel.lab.training.mining import bm25_scorer
from runnel.lab.training.triples import read_named
from runnel.records import highest, normalize
from runnel.search.finding import read_documents
from runnel.text.documents.document import DocumentText
from runnel.text.documents.reader import DocumentReader, Skipped
from runnel.text.kinds import text_of
from runnel.text.sentences import split_sentences

UNANSWERABLE = "unanswerable"
# the sentences that are ranked: those of the question's document, or of all documents
PLACES = ("document", "folder")
_CUTOFFS = {"first": 1, "first 5": 5, "first 10": 10}
_ROUNDS, _LOW, _HIGH = 2_000, 5, 95  # rounds of the bootstrap; the percentiles of its interval


@dataclass(frozen=True, slots=True)
class PatternQuestion:
    """A question, its document, and the patterns that an answering sentence matches; no patterns if
    the document does not answer.
    """

    id: str
    query: str
    file: str
    patterns: tuple[str, ...]  # regular expressions
    kind: str = ""


def read_patterns(path: Path, folder: Path) -> list[PatternQuestion]:
    """Read questions about the documents in `folder` from jsonl. Raises InputError for a wrong row
    or a missing document.
    """
    rows = enumerate(read_named(path), start=1)
    made = (_question(row, where, str(number)) for number, (where, row) in rows)
    questions = list(by_id(made, f"the questions of {path}").values())
    missing = [asked.file for asked in questions if not (folder / asked.file).is_file()]
    remedy = "expected questions with patterns, and the folder of their documents (--in)"
    refuse_when(
        (missing, f"{folder} has no file {' or '.join(map(repr, missing[:3]))}; {remedy}"),
        (
            not any(asked.patterns for asked in questions),
            f"{path} has no question with patterns; {remedy}",
        ),
    )
    return questions


def _question(row: Mapping[str, Any], where: str, number: str) -> PatternQuestion:
    values = {"id": str(row.get("id") or number), "kind": row.get("kind") or ""}
    question = read_row(PatternQuestion, dict(row) | values, where, query="question")
    wrong = ""
    try:
        list(map(re.compile, question.patterns))
    except (re.error, OverflowError, RecursionError) as error:
        wrong = f" ({error})"
    full = question.query.strip() and question.file.strip() and all(question.patterns)
    if wrong or not full or (question.kind == UNANSWERABLE) == bool(question.patterns):
        raise InputError(
            f'{where}: expected texts as "question" and "file", and regular expressions, or the'
            f" kind {UNANSWERABLE!r} without them, got {str(list(question.patterns))[:100]} and"
            f" the kind {question.kind!r}{wrong}"
        )
    return question


def read_folder(
    folder: Path, questions: Sequence[PatternQuestion], report: Callable[[str], None]
) -> list[tuple[str, DocumentText]]:
    """Return (file, document) of the documents that questions are about, and then of the other
    documents in the folder.
    """
    skipped: list[Skipped] = []
    asked = dict.fromkeys(str(folder / question.file) for question in questions)
    with DocumentReader() as reader:
        read = read_documents([*asked, str(folder)], reader, skipped, report=report)
        documents = [(item.file, item.document) for item in read if item.document.text.strip()]
    full = {file for file, _ in documents}
    reasons = {item.file: item.reason for item in reversed(skipped)}  # the first of a file
    for file in asked:
        if file not in full:
            raise InputError(
                f"{reasons.get(file, f'{file} has no text')}; expected a document that can be read,"
                " because questions are about it"
            )
    return documents


# The spans (S, 2) of a document's sentences, their scores (S,), and the probability that the
# document answers the query (None: not known).
DocumentScores = tuple[np.ndarray, np.ndarray, float | None]
# scores documents for a query, so that their sentences can be ranked together
ScoreDocuments = Callable[[str, Sequence[str | DocumentText]], list[DocumentScores]]


class Sentences:
    """The sentences of a folder's documents, ranked for questions. Sentences that differ only in
    white space count as one, as in `runnel find`.

    Args:
        documents: (file, document or text); a file with several rows occurs several times.
        score: scores the documents with a model; None: only BM25 does.
        bm25: k1 and b, where they are given.
    """

    def __init__(
        self,
        folder: Path,
        documents: Sequence[tuple[str, str | DocumentText]],
        score: ScoreDocuments | None,
        bm25: Mapping[str, Any],
    ) -> None:
        self._folder = folder
        self._documents = documents
        self._score = score
        self._bm25 = bm25
        texts = [text_of(document) for _, document in documents]
        if score is None:
            spans = [split_sentences(text) for text in texts]
        else:
            # the model says what its sentences are: their spans are the same for any query
            spans = [sentences for sentences, *_ in self._score_documents("?")]
        self.texts = [
            normalize(text[start:end])
            for text, sentences in zip(texts, spans, strict=True)
            for start, end in sentences
        ]
        self._files = np.repeat([file for file, _ in documents], list(map(len, spans)))
        numbers: dict[str, int] = {}
        # (N,), equal for equal sentences, which count as one in a rank
        self._keys = np.array([numbers.setdefault(text, len(numbers)) for text in self.texts])
        # scorers by BM25 of each file, and of all (None)
        self._bm25_scorers: dict[str | None, Callable[[str], np.ndarray]] = {}

    def ask(self, question: PatternQuestion) -> dict[str, Any]:
        """Return {"unmatched": patterns without a sentence, system: {place: {"rank": of the best
        answer, "best": probability that there is an answer, or best score}}}. The systems are
        "model" and "BM25", the places `PLACES`; the rank is None if no pattern matches.
        """
        file = str(self._folder / question.file)
        rows = np.flatnonzero(self._files == file)
        matches = [
            [row for row in rows if re.search(pattern, self.texts[row])]
            for pattern in question.patterns
        ]
        answers = np.unique(self._keys[[row for matching in matches for row in matching]])
        result: dict[str, Any] = {
            "unmatched": [
                pattern
                for pattern, matching in zip(question.patterns, matches, strict=True)
                if not matching
            ]
        }
        systems = {"BM25": self._rank_by_words}
        if self._score is not None:
            systems = {"model": self._rank_by_model} | systems
        keys_of_places = (self._keys[rows], self._keys)
        for system, ranked in systems.items():
            in_document = ranked(question.query, file)
            # the same in both places where the folder has no other document
            alone = len(rows) == len(self._keys)
            in_folder = in_document if alone else ranked(question.query, None)
            result[system] = {
                place: {"rank": _answer_rank(scores, keys, answers), "best": best}
                for place, (scores, best), keys in zip(
                    PLACES, (in_document, in_folder), keys_of_places, strict=True
                )
            }
        return result

    def _score_documents(self, query: str, file: str | None = None) -> list[DocumentScores]:
        """Return the model's scores of the documents in a file (None: in all)."""
        assert self._score is not None
        return self._score(query, [text for name, text in self._documents if file in (None, name)])

    def _rank_by_words(self, query: str, file: str | None) -> tuple[np.ndarray, float]:
        """Return BM25's scores of the sentences in a file (None: in all), and the best score."""
        if file not in self._bm25_scorers:
            texts = [
                text
                for text, owner in zip(self.texts, self._files, strict=True)
                if file in (None, owner)
            ]
            self._bm25_scorers[file] = bm25_scorer(texts, **self._bm25)
        scores = self._bm25_scorers[file](query)
        return scores, float(scores.max())

    def _rank_by_model(self, query: str, file: str | None) -> tuple[np.ndarray, float]:
        """Return the model's scores of the sentences in a file (None: in all), and the highest
        probability that a document answers, or without probabilities the best score.
        """
        documents = self._score_documents(query, file)
        scores = np.concatenate([scores for _, scores, _ in documents])
        answers = highest(answers for _, _, answers in documents)
        # -inf, where the model scores no sentence (none has a token), becomes a number for JSON
        return scores, float(np.nan_to_num(scores.max())) if answers is None else answers


def _answer_rank(scores: np.ndarray, keys: np.ndarray, answers: np.ndarray) -> int | None:
    """Return the rank of the best answer among distinct sentences, from 1, ties in document order;
    None: there is none. `keys` are the scored sentences' keys, `answers` the answers' keys.
    """
    if not len(answers):
        return None
    # each distinct key, and where it comes first in the order of the scores
    distinct, first = np.unique(keys[top(scores)], return_index=True)
    # one more than the distinct sentences that come before the first answer
    return 1 + int((first < first[np.isin(distinct, answers)].min()).sum())


def values_of(rank: int) -> dict[str, float]:
    """Return the metrics of a rank."""
    return {name: float(rank <= k) for name, k in _CUTOFFS.items()} | {"MRR": 1 / rank}


def summarize(kinds: Sequence[str], ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the number of answerable questions, and [mean, low, high] of each metric and of the
    area, for all questions and for each kind. `ranks`: {"rank", "best"} of each question, as from
    `Sentences.ask`; an answerable question needs a rank.

    The intervals are 90 % bootstrap intervals over the questions. The area is the probability that
    the best score for an answerable question is higher than the best score for an unanswerable one;
    without unanswerable questions it is missing.
    """
    of_kind: dict[str, list[Mapping[str, Any]]] = {}
    for rank, kind in zip(ranks, kinds, strict=True):
        of_kind.setdefault(kind, []).append(rank)
    unanswerable = np.array([rank["best"] for rank in of_kind.pop(UNANSWERABLE, [])])
    answerable = [rank for rank, kind in zip(ranks, kinds, strict=True) if kind != UNANSWERABLE]
    named = sorted(filter(None, of_kind), key=lambda kind: -len(of_kind[kind]))
    return _means(answerable, unanswerable) | {
        "kinds": {kind: _means(of_kind[kind], unanswerable) for kind in named}
    }


def _means(ranks: Sequence[Mapping[str, Any]], unanswerable: np.ndarray) -> dict[str, Any]:
    metrics = [values_of(rank["rank"]) for rank in ranks]
    values = np.array([list(row.values()) for row in metrics])
    rng = np.random.default_rng(0)
    weights = _resampled(rng, len(ranks))
    means = np.array([row @ values for row in weights])
    intervals = {
        name: _interval(values[:, at].mean(), means[:, at]) for at, name in enumerate(metrics[0])
    }
    if len(unanswerable):
        # for each pair of an answerable and an unanswerable question, 1 if the first has the better
        # score, 1/2 if both are equal
        best = np.array([rank["best"] for rank in ranks])[:, None]
        above = (best > unanswerable) + 0.5 * (best == unanswerable)
        pairs = zip(weights, _resampled(rng, len(unanswerable)), strict=True)
        intervals["area"] = _interval(above.mean(), np.array([a @ above @ b for a, b in pairs]))
    return {"queries": len(ranks), "metrics": intervals}


def _resampled(rng: np.random.Generator, count: int) -> list[np.ndarray]:
    """Return the weights (count,) of as many questions in each round of the bootstrap."""
    return [rng.multinomial(count, np.full(count, 1 / count)) / count for _ in range(_ROUNDS)]


def _interval(value: float, drawn: np.ndarray) -> list[float]:
    return [float(value), *np.percentile(drawn, (_LOW, _HIGH)).tolist()]


def measure_patterns(path: Path, source: str, system: System, folder: Path) -> Measured:
    """Return the result and the values of each question; `source` is the folder of the documents,
    and `folder` keeps the ranks.
    """
    expect_choice(
        system.how,
        ("bm25", "embed", "sentences"),
        f"what {system.model} is evaluated as, on patterns,",
    )
    questions = read_patterns(path, Path(source))
    documents = read_folder(Path(source), questions, notify)
    settings: dict[str, object] = {
        "model": system.model,
        "as": system.how,
        "questions": file_digest(str(path)),
        "documents": digest(
            *(part for file, document in documents for part in (file, document.text))
        ),
        **system.bm25,
        "prompts": dict(system.prompts),
        "format": 2,  # of the stored ranks
    }
    name = path.name.split(".")[0]

    def load() -> WorkPlan[PatternQuestion]:
        score, fingerprint = _load_scorer(system, len(documents))
        sentences = Sentences(Path(source), documents, score, system.bm25)
        count = len(sentences.texts)
        return WorkPlan(
            questions,
            lambda asked: {"id": asked.id, "sentences": count} | sentences.ask(asked),
            fingerprint,
        )

    rows = resumed_rows(folder / f"{name}.ranks.jsonl", settings, load, label="ranking")
    left_out = _report_unmatched(path, questions, rows)
    measured = [pair for pair in zip(questions, rows, strict=True) if pair[0].id not in left_out]
    kinds = [question.kind for question, _ in measured]
    if not any(question.patterns for question, _ in measured):
        raise InputError(
            f"{path}: no pattern matches a sentence; give the folder of these documents with --in"
        )
    evaluated = "BM25" if system.how == "bm25" else "model"
    rankings = []
    for place, key in itertools.product(PLACES, dict.fromkeys((evaluated, "BM25"))):
        summary = summarize(kinds, [row[key][place] for _, row in measured])
        rankings.append(
            {"system": system.model if key == "model" else key, "place": place, **summary}
        )
    values = {}
    for question, row in measured:
        if question.patterns:
            in_folder = values_of(row[evaluated]["folder"]["rank"])
            values[question.id] = values_of(row[evaluated]["document"]["rank"]) | {
                f"all documents {metric}": value for metric, value in in_folder.items()
            }
    return {
        "task": name,
        "kind": "patterns",
        "model": system.model,
        "as": system.how,
        "queries": len(values),
        "unanswerable": len(measured) - len(values),
        "left_out": left_out,
        "documents": len(documents),
        "sentences": rows[0]["sentences"],
        "rankings": rankings,
        "answers": [{"kind": question.kind, **row} for question, row in measured],
    }, values


def _load_scorer(system: System, keep: int) -> tuple[ScoreDocuments | None, str | None]:
    """Return the function that scores documents with the system's model, and the model's
    fingerprint; (None, None) for BM25. The last `keep` documents are read once.
    """
    if system.how == "bm25":
        return None, None
    if system.how == "sentences":
        retriever = load_model(system)

        # if the model can remember documents, they are not read again for the next question
        @lru_cache(maxsize=keep)
        def read(document: str | DocumentText) -> Any:
            return next(retriever.remember([document])) if retriever.remembers else document

        def score(query: str, documents: Sequence[str | DocumentText]) -> list[DocumentScores]:
            ranked = retriever.rank(query, [read(document) for document in documents])
            return [(scored.spans, scored.scores, scored.answers) for scored in ranked]

        return score, retriever.model.fingerprint()
    score_one, fingerprint = scorer_of(system, keep=keep)
    return lambda query, documents: [
        (*score_one(query, document), None) for document in documents
    ], fingerprint


def _report_unmatched(
    path: Path, questions: Sequence[PatternQuestion], rows: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Report patterns that match no sentence; return the ids of the questions that have only such
    patterns.
    """
    left_out = []
    for asked, row in zip(questions, rows, strict=True):
        for pattern in row["unmatched"]:
            notify(f"note: {path}: {asked.id}: no sentence of {asked.file} matches {pattern!r}")
        if asked.patterns and len(row["unmatched"]) == len(asked.patterns):
            left_out.append(asked.id)
    if left_out:
        notify(
            f"note: {path}: {counted(len(left_out), 'question')} left out, no pattern matches:"
            f" {', '.join(left_out)}"
        )
    return left_out
