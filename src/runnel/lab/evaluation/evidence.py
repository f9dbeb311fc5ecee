"""Evidence tasks, for `runnel lab evaluate`: the data have questions, the document of each, and the
evidence in it. Rank the sentences of the document, and measure at which ranks the evidence is and
whether the scores are calibrated.

    evidence span  [start, end) characters of the document that answer the question; a question may
                   have several, or none
    sentence       what is scored and ranked: a sentence of the document, or in its place one of the
                   data's units (`Units`) or a chunk of some words; as a span, [start, end) too
    answer         a sentence that shares a character other than white space with the evidence
    rank           1 for the sentence with the highest score of its document

The parts of this file, in its order:

    judge          the ranks of one question: a `Judged`
    by_retriever, by_parts with `embedder_scorer` or BM25
                   the scorers of sentences: `scorer_of` chooses one
    values_of      question -> metric -> value, from the ranks
    summarize      means over all questions, by length and position, and the calibration
    measure        all of it: ranks (`_judged`, which resumes), values, summary

    S  sentences of a document    n  texts that are scored together
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import compress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from runnel.batching import top
from runnel.checks import expect_count, refuse_when
from runnel.files import file_digest
from runnel.jobs.progress import notify
from runnel.jobs.runs import WorkPlan, resumed_rows
from runnel.lab.evaluation.metrics import (
    Measured,
    Metrics,
    Values,
    evaluate,
    mean,
    parse_metrics,
    ranges,
)
from runnel.lab.evaluation.retrieval import (
    API,
    ApiEmbedder,
    System,
    cut_sentences,
    load_model,
    split_chunks,
)
from runnel.lab.training.data import Dropped, Evidence
from runnel.lab.training.evidence import read_evidence
from runnel.lab.training.mining import bm25_scorer
from runnel.models.embedder import Embedder
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.records import trim
from runnel.text.documents.document import DocumentText
from runnel.text.kinds import text_of
from runnel.text.sentences import split_sentences

METRICS = ("Recall@1", "Recall@5", "Recall@10", "P@5", "MRR@10", "nDCG@10")
_LENGTHS = (500, 2_000, 8_000, 32_000)  # words of a document: the bounds of groups of documents
# parts of a document, for the position of each evidence span: docs/papers.md, E, figure 12
_TENTHS = 10
_LOWEST = -8  # lower scores are counted together with this one
_HIGHEST = 8  # and higher ones with this one
_FORMAT = 4  # of TASK.ranks.jsonl

# spans that tile a document and are scored instead of its sentences; (): the data has none
Units = tuple[tuple[int, int], ...]


class Scorer(Protocol):
    """Scores the sentences of a document."""

    def __call__(
        self, query: str, document: str | DocumentText, units: Units = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the character spans (S, 2) of the sentences, and their scores (S,)."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The ranks of one question's evidence: a row of TASK.ranks.jsonl, with these names as keys.

    `spans` and `positions` have an entry for each evidence span that meets a sentence. Both are
    empty if the question has no evidence.
    """

    query: str  # the question's id
    sentences: int  # how many are ranked
    words: int  # of the document
    answers: list[int]  # ranks of the sentences that are answers, ascending
    spans: list[int]  # of each evidence span the rank: of the best sentence that meets it
    positions: list[float]  # where each evidence span begins, from 0 to 1 of the document
    # score rounded down -> [sentences with such a score, answers among them]; empty if the scores
    # are no logits. The keys are text, as keys in JSON are.
    scores: dict[str, list[int]]


def judge(example: Evidence, spans: np.ndarray, scores: np.ndarray, *, logits: bool) -> Judged:
    """Rank the sentences of a document by their scores, ties in document order, and find the ranks
    of the evidence. `spans` (S, 2) and `scores` (S,) are of the sentences, from a `Scorer`.
    """
    order = top(scores)
    ranks = np.empty(len(order), np.int64)  # of each sentence, in document order
    ranks[order] = np.arange(1, len(order) + 1)
    # for each evidence span the sentences that meet it
    meeting = [_sentences_of(example.document, spans, span) for span in example.spans]
    answers = np.unique(np.concatenate(meeting)) if meeting else np.zeros(0, np.int64)
    return Judged(
        query=example.id,
        sentences=len(spans),
        words=len(example.document.split()),
        answers=sorted(ranks[answers].tolist()),
        spans=[int(ranks[sentences].min()) for sentences in meeting if len(sentences)],
        positions=[
            start / len(example.document)
            for (start, _), sentences in zip(example.spans, meeting, strict=True)
            if len(sentences)
        ],
        scores=_counts(scores, answers) if logits else {},
    )


def _sentences_of(document: str, spans: np.ndarray, evidence: tuple[int, int]) -> np.ndarray:
    """Return the numbers of the sentences that share a visible character with an evidence span."""
    start, end = trim(document, *evidence)
    first = int(np.searchsorted(spans[:, 1], start, side="right"))
    last = int(np.searchsorted(spans[:, 0], end, side="left"))
    shared = [document[max(start, a) : min(end, b)] for a, b in spans[first:last].tolist()]
    return np.array(
        [number for number, text in enumerate(shared, start=first) if text.strip()], dtype=np.int64
    )


def _counts(scores: np.ndarray, answers: np.ndarray) -> dict[str, list[int]]:
    """Return `Judged.scores`; `answers`: the numbers of the sentences that are answers."""
    bins = np.clip(np.floor(scores), _LOWEST, _HIGHEST).astype(int)
    sentences = Counter(bins.tolist())
    found = Counter(bins[answers].tolist())
    return {str(floor): [sentences[floor], found[floor]] for floor in sorted(sentences)}


def by_retriever(
    retriever: SentenceRetriever, context: int | None = None, window: tuple[int, int] | None = None
) -> Scorer:
    """Return a scorer of sentences that scores as `runnel find` does. If the model can remember
    documents, a document is not read again for the next question.

    With `context`, documents are cut into pieces of whole sentences of that many tokens, each read
    by itself, and units are not scored. `window`: the tokens of a window, and the tokens from the
    start of one window to the next, as in `SentenceRetriever.score`.

    Source: paper E, section 7.2 (docs/papers.md), whose pieces of 1,024 tokens may cut a sentence.
    """

    @lru_cache(maxsize=1)
    def read(document: str | DocumentText) -> tuple[list[tuple[int, int]], Sequence[Any]]:
        """Return the characters of the pieces, and what `scan` takes of each."""
        text = text_of(document)
        pieces = [(0, len(text))]
        texts = [document]
        if context is not None:
            starts = retriever.model.tokenizer.encode(text).starts
            pieces = cut_sentences(text, starts, size=context, stride=context)
            texts = [text[start:end] for start, end in pieces]
        return pieces, list(retriever.remember(texts)) if retriever.remembers else texts

    def score(
        query: str, document: str | DocumentText, units: Units = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        spans = units if units and context is None else None
        # units or windows: the whole document is read for each question
        if spans is not None or window is not None:
            size, stride = window or (None, None)
            scored = retriever.score(query, document, spans=spans, window=size, stride=stride)
            return (
                np.array([(sentence.start, sentence.end) for sentence in scored]),
                np.array([sentence.score for sentence in scored], np.float32),
            )
        # otherwise pieces, of which the document may be the only one, are read or remembered
        pieces, texts = read(document)
        scans = list(retriever.scan(query, texts))
        moved = [scan.spans + start for scan, (start, _) in zip(scans, pieces, strict=True)]
        return np.concatenate(moved), np.concatenate([scan.scores for scan in scans])

    return score


def by_parts(
    scores_by_query: Callable[[list[str]], Callable[[str], np.ndarray]],
    chunk_words: int | None = None,
    *,
    keep: int = 1,
) -> Scorer:
    """Return a scorer of the parts of a document, each scored by its text alone: its chunks, if
    chunks are wanted; otherwise its units, if it has some; otherwise its sentences.

    `scores_by_query` takes n texts, and returns a function from a query to their scores (n,), such
    as `bm25_scorer`. The functions of the last `keep` documents are kept.
    """

    @lru_cache(maxsize=keep)
    def read(document: str, units: Units) -> tuple[np.ndarray, Callable[[str], np.ndarray]]:
        spans = np.array(units) if units else split_sentences(document)
        if chunk_words is not None:
            spans = split_chunks(document, chunk_words)
        return spans, scores_by_query([document[start:end] for start, end in spans])

    def score(
        query: str, document: str | DocumentText, units: Units = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        spans, scores_of = read(text_of(document), units)
        return spans, scores_of(query)

    return score


def embedder_scorer(
    texts: Sequence[str],
    embedder: Embedder | ApiEmbedder,
    max_tokens: int | None = None,
    max_query_tokens: int | None = None,
) -> Callable[[str], np.ndarray]:
    """Return a function from a query to its cosine with each text, (n,) float32, -1 for a text
    without a token. Long texts are cut.
    """
    longest = None if isinstance(embedder, ApiEmbedder) else embedder.model.backbone.longest_text
    full = np.array([not embedder.is_empty(text) for text in texts], dtype=bool)
    vectors = embedder.encode_document(
        list(compress(texts, full)), max_tokens=max_tokens or longest
    )

    def score(query: str) -> np.ndarray:
        scores = np.full(len(texts), -1.0, np.float32)
        scores[full] = (
            vectors @ embedder.encode_query([query], max_tokens=max_query_tokens or longest)[0]
        )
        return scores

    return score


def values_of(judged: Sequence[Judged], metrics: Metrics) -> Values:
    """Return query id -> metric -> value, for questions with evidence.

    Recall@k is the share of evidence spans that one of the k best sentences meets. The other
    metrics are computed by ir-measures, with sentences as documents, and answers as the relevant
    ones. A sentence's id there is its rank.
    """
    with_evidence = [judgment for judgment in judged if judgment.spans]
    qrels = {}
    run = {}
    for judgment in with_evidence:
        # the best 1,000, as in a run of TREC
        ranks = range(1, min(judgment.sentences, 1000) + 1)
        qrels[judgment.query] = {str(rank): 1 for rank in judgment.answers}
        run[judgment.query] = {str(rank): -float(rank) for rank in ranks}
    # all but Recall@k, which ir-measures calls R
    others = {name: metric for name, metric in metrics.items() if metric.NAME != "R"}
    values = evaluate(others, qrels, run)
    for judgment in with_evidence:
        evidence_ranks = np.array(judgment.spans)
        values[judgment.query] = {
            name: values[judgment.query].get(name, 0.0)
            if name in others
            else float(np.mean(evidence_ranks <= metric.params["cutoff"]))
            for name, metric in metrics.items()
        }
    return values


def summarize(
    judged: Sequence[Judged], values: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Return means over all questions, and over those with a document of each length; the recall of
    evidence spans by their position; and the calibration of the scores.
    """
    asked = [judgment for judgment in judged if judgment.spans]
    by_length = []
    for name, lengths in ranges(_LENGTHS, "words").items():
        if group := [judgment.query for judgment in asked if judgment.words in lengths]:
            by_length.append(
                {
                    "name": name,
                    "queries": len(group),
                    "metrics": mean({query: values[query] for query in group}),
                }
            )
    return {
        "metrics": mean(values),
        "by_length": by_length,
        "recall_by_position": _recall_by_position(asked, values),
        "calibration": _calibration(judged),
    }


def _recall_by_position(
    asked: Sequence[Judged], values: Mapping[str, Mapping[str, float]]
) -> list[dict[str, Any]]:
    """Return, for each tenth of a document and each Recall@k, the share of the evidence spans
    beginning there that are found.

    Source: paper E, appendix E.3 (docs/papers.md), which counts sentences, and takes 50 as found.
    """
    metrics = [name for name in next(iter(values.values()), {}) if name.startswith("Recall@")]
    tenths: list[list[int]] = [[] for _ in range(_TENTHS)]
    for judgment in asked:
        for rank, position in zip(judgment.spans, judgment.positions, strict=True):
            tenths[min(int(position * _TENTHS), _TENTHS - 1)].append(rank)
    return [
        {
            "from": i / _TENTHS,
            "to": (i + 1) / _TENTHS,
            "spans": len(ranks),
            "metrics": {
                name: float(np.mean([rank <= int(name.partition("@")[2]) for rank in ranks]))
                for name in metrics
            },
        }
        for i, ranks in enumerate(tenths)
        if ranks
    ]


def _calibration(judged: Sequence[Judged]) -> list[dict[str, float]]:
    """Return how often sentences with a score are answers, highest scores first; empty if scores
    are no logits.

    A row counts the sentences from its score up to 1 above it; the first row also those with higher
    scores, the last row those with lower ones. "sigmoid" is the sigmoid of the middle of the row:
    the share of answers in it, if scores are calibrated. "..._above" count the sentences of this
    row and of all higher ones: the share of them that are answers, and the share of all answers
    that they have.
    """
    sentences: Counter[int] = Counter()
    answers: Counter[int] = Counter()
    for judgment in judged:
        for floor, (count, found) in judgment.scores.items():
            sentences[int(floor)] += count
            answers[int(floor)] += found
    rows = []
    sentences_above = answers_above = 0
    for score in sorted(sentences, reverse=True):
        sentences_above += sentences[score]
        answers_above += answers[score]
        rows.append(
            {
                "score": score,
                "sentences": sentences[score],
                "answers": answers[score],
                "share": answers[score] / sentences[score],
                "sigmoid": 1 / (1 + math.exp(-score - 0.5)),
                "share_above": answers_above / sentences_above,
                "found_above": answers_above / max(1, answers.total()),
            }
        )
    return rows


# makes the scorer of a system, as `scorer_of` does; with it the fingerprint of the model, or None
ScorerOf = Callable[[System], tuple[Scorer, str | None]]


def context_of(given: str | None) -> int | None:
    """Return the tokens of a piece from --context. "sentence" is 1 token: a piece has one sentence
    at least.
    """
    if given is None:
        return None
    if given == "sentence":
        return 1
    # the message: "--context, which may also be sentence, is ..."
    tokens = int(given) if given.isdecimal() else given
    expect_count(tokens, "--context, which may also be sentence,")
    return int(tokens)


def scorer_of(
    system: System, window: tuple[int, int] | None = None, *, keep: int = 1
) -> tuple[Scorer, str | None]:
    """Return the scorer of a system, and the fingerprint of its model; None for BM25 and for
    a model behind an endpoint. A scorer by parts keeps the last `keep` documents.
    """
    if system.how == "bm25":
        return by_parts(lambda texts: bm25_scorer(texts, **system.bm25), system.chunk_words), None
    model = load_model(system)
    if system.how == "sentences":
        return by_retriever(model, system.context, window), model.model.fingerprint()
    scores_by_query = partial(
        embedder_scorer,
        embedder=model,
        max_tokens=system.reading.max_tokens,
        max_query_tokens=system.reading.max_query_tokens,
    )
    fingerprint = None if system.model.startswith(API) else model.model.fingerprint()
    return by_parts(scores_by_query, system.chunk_words, keep=keep), fingerprint


def measure(
    path: Path,
    system: System,
    metrics: Sequence[str] | None,
    folder: Path,
    scorer: ScorerOf = scorer_of,
) -> Measured:
    """Return the result of an evidence task and the values of its questions. `scorer` makes the
    scorer of the system.
    """
    parsed = parse_metrics(METRICS if metrics is None else metrics)
    judged = _judged(path, system, folder / f"{name_of(path)}.ranks.jsonl", scorer)
    values = values_of(judged, parsed)
    result = {
        "task": name_of(path),
        "kind": "sentences",
        "model": system.model,
        "as": system.how,
        "queries": len(values),
        **({} if system.context is None else {"context": system.context}),
        **({} if system.chunk_words is None else {"chunk_words": system.chunk_words}),
        "unanswered": len(judged) - len(values),
        "sentences": sum(judgment.sentences for judgment in judged),
    }
    return result | summarize(judged, values), values


def name_of(path: Path) -> str:
    """Return the name of an evidence task."""
    return path.name.split(".")[0]


def _judged(path: Path, system: System, out: Path, scorer: ScorerOf) -> list[Judged]:
    """Return the ranks of each question. Those that the file OUT does not have are computed and
    written to it.
    """
    settings: dict[str, object] = {
        "model": system.model,
        "as": system.how,
        "evidence": file_digest(str(path)),
        **system.bm25,
        "prompts": dict(system.prompts),
        **system.reading.settings(),
        "context": system.context,
        "format": _FORMAT,
        **({} if system.chunk_words is None else {"chunk_words": system.chunk_words}),
    }
    dropped = Dropped()

    def load() -> WorkPlan[tuple[int, Evidence]]:
        score, fingerprint = scorer(system)  # loads the model

        def judged_row(numbered: tuple[int, Evidence]) -> dict[str, object]:
            number, example = numbered
            scored = score(example.query, example.document, example.units)
            judgment = judge(example, *scored, logits=system.how == "sentences")
            return asdict(judgment) | {"query": example.id or str(number)}

        examples = read_evidence(path, dropped=dropped, unanswered=True)
        return WorkPlan(enumerate(examples, start=1), judged_row, fingerprint)

    judged = [Judged(**row) for row in resumed_rows(out, settings, load)]
    if dropped.counts:
        notify(f"note: {path}: {dropped}")
    queries = Counter(judgment.query for judgment in judged)
    repeated = [query for query, count in queries.items() if count > 1]
    expected = "expected each id once, and spans of evidence in one question at least"
    refuse_when(
        (
            repeated,
            f"{path}: two questions have the id {' or '.join(map(repr, repeated[:3]))}; {expected}",
        ),
        (
            not any(judgment.spans for judgment in judged),
            f"{path}: no question has evidence; {expected}",
        ),
    )
    return judged
