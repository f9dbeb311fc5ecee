"""Evidence tasks: rank the sentences of each document, and measure at which ranks the evidence is
and whether the scores are calibrated.

A sentence is an answer if it shares a character other than white space with the evidence.

    measure   -> _judged, the ranks of each question, by a scorer (`scorer_of`) and `judge`
              -> values_of, the metrics of each question
              -> summarize, over all questions

    n  texts that are scored together
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from runnel.batching import top
from runnel.checks import expect_count
from runnel.errors import InputError
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
_FORMAT = 4  # of the ranks

Units = tuple[tuple[int, int], ...]
"""Spans that tile a document and are scored instead of its sentences; (): the data has none."""


Scorer = Callable[..., tuple[np.ndarray, np.ndarray]]
"""Returns for a query, a document (str or `DocumentText`) and perhaps its `Units` the spans (S, 2)
of its sentences or units, and their scores (S,).
"""


@dataclass(frozen=True, slots=True)
class Judged:
    """The sentences of one document for one query. Ranks are from 1, positions in the document from
    0 to 1.
    """

    query: str
    sentences: int
    words: int
    answers: list[int]  # ranks of the sentences that are answers
    spans: list[int]  # the best rank of each evidence span
    positions: list[float]  # the position where each evidence span begins
    # score rounded down -> [sentences with such a score, answers among them]; empty if the scores
    # are no logits
    scores: dict[str, list[int]]


def judge(example: Evidence, spans: np.ndarray, scores: np.ndarray, *, logits: bool) -> Judged:
    """Rank the sentences of a document by their scores, ties in document order, and find the ranks
    of the evidence.
    """
    order = top(scores)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(1, len(order) + 1)
    meets = [_sentences_of(example.document, spans, span) for span in example.spans]
    answers = np.unique(np.concatenate(meets)) if meets else np.zeros(0, np.int64)
    return Judged(
        example.id,
        len(spans),
        len(example.document.split()),
        sorted(ranks[answers].tolist()),
        [int(ranks[sentences].min()) for sentences in meets if len(sentences)],
        [
            start / len(example.document)
            for (start, _), sentences in zip(example.spans, meets, strict=True)
            if len(sentences)
        ],
        _counts(scores, answers) if logits else {},
    )


def _sentences_of(document: str, spans: np.ndarray, evidence: tuple[int, int]) -> np.ndarray:
    """Return the sentences that share a visible character with an evidence span."""
    start, end = trim(document, *evidence)
    first = int(np.searchsorted(spans[:, 1], start, side="right"))
    last = int(np.searchsorted(spans[:, 0], end, side="left"))
    shared = [document[max(start, a) : min(end, b)] for a, b in spans[first:last].tolist()]
    return np.array(
        [place for place, text in enumerate(shared, start=first) if text.strip()], dtype=np.int64
    )


def _counts(scores: np.ndarray, answers: np.ndarray) -> dict[str, list[int]]:
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
    by itself, and units are not scored. `window`: the tokens of a window, and those from the start
    of one window to the next, as in `SentenceRetriever.score`.

    Source: paper E, section 7.2 (docs/papers.md), whose pieces of 1,024 tokens may cut a sentence.
    """

    @lru_cache(maxsize=1)
    def read(document: str | DocumentText) -> tuple[list[tuple[int, int]], Sequence[Any]]:
        text = text_of(document)
        pieces = [(0, len(text))]
        texts = [document]
        if context is not None:
            starts = retriever.model.tokenizer.encode(text).starts
            pieces = cut_sentences(text, starts, context, context)
            texts = [text[start:end] for start, end in pieces]
        return pieces, list(retriever.remember(texts)) if retriever.remembers else texts

    def score(
        query: str, document: str | DocumentText, units: Units = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        spans = units if units and context is None else None
        if spans is not None or window is not None:
            size, stride = window or (None, None)
            scored = retriever.score(query, document, spans=spans, window=size, stride=stride)
            bounds = np.array([(sentence.start, sentence.end) for sentence in scored])
            return bounds, np.array([sentence.score for sentence in scored], np.float32)
        pieces, texts = read(document)
        scans = list(retriever.scan(query, texts))
        moved = [scan.spans + start for scan, (start, _) in zip(scans, pieces, strict=True)]
        return np.concatenate(moved), np.concatenate([scan.scores for scan in scans])

    return score


def by_parts(
    scorer: Callable[[list[str]], Callable[[str], np.ndarray]],
    chunk_words: int | None = None,
    *,
    keep: int = 1,
) -> Scorer:
    """Return a scorer of the parts of a document: its chunks, if chunks are wanted; otherwise its
    units, if it has some; otherwise its sentences.

    `scorer` maps texts to a function from a query to their scores. The functions of the last `keep`
    documents are kept.
    """

    @lru_cache(maxsize=keep)
    def read(document: str, units: Units) -> tuple[np.ndarray, Callable[[str], np.ndarray]]:
        spans = np.array(units) if units else split_sentences(document)
        if chunk_words is not None:
            spans = split_chunks(document, chunk_words)
        return spans, scorer([document[start:end] for start, end in spans])

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
    longest = embedder.model.backbone.longest_text if hasattr(embedder, "model") else None
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

    Recall@k is the share of evidence spans that overlap one of the k best sentences. The other
    metrics are those of ir-measures, with the answers as relevant documents.
    """
    with_evidence = [judgment for judgment in judged if judgment.spans]
    qrels = {}
    run = {}
    for judgment in with_evidence:
        ranks = range(1, min(judgment.sentences, 1000) + 1)
        qrels[judgment.query] = {str(rank): 1 for rank in judgment.answers}
        run[judgment.query] = {str(rank): -float(rank) for rank in ranks}
    others = {name: metric for name, metric in metrics.items() if metric.NAME != "R"}
    values = evaluate(others, qrels, run)
    for judgment in with_evidence:
        spans = np.array(judgment.spans)
        values[judgment.query] = {
            name: values[judgment.query].get(name, 0.0)
            if name in others
            else float(np.mean(spans <= metric.params["cutoff"]))
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
            means = mean({query: values[query] for query in group})
            by_length.append({"name": name, "queries": len(group), "metrics": means})
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


# returns what scores sentences, and the fingerprint of its model
ScorerOf = Callable[[System], tuple[Scorer, str | None]]


def context_of(given: str | None) -> int | None:
    """Return the tokens of a piece from --context. "sentence" is 1 token: a piece has one sentence
    at least.
    """
    if given is None:
        return None
    if given == "sentence":
        return 1
    count = int(given) if given.isdecimal() else given
    expect_count(count, "--context, which may also be sentence,")
    return int(given)


def scorer_of(
    system: System, window: tuple[int, int] | None = None, *, keep: int = 1
) -> tuple[Scorer, str | None]:
    """Return the function that scores sentences, and the fingerprint of its model. The function
    keeps the last `keep` documents that it has read.
    """
    if system.how == "bm25":
        return by_parts(lambda texts: bm25_scorer(texts, **system.bm25), system.chunk_words), None
    model = load_model(system)
    if system.how == "sentences":
        return by_retriever(model, system.context, window), model.model.fingerprint()
    scorer = partial(
        embedder_scorer,
        embedder=model,
        max_tokens=system.reading.max_tokens,
        max_query_tokens=system.reading.max_query_tokens,
    )
    fingerprint = None if system.model.startswith(API) else model.model.fingerprint()
    return by_parts(scorer, system.chunk_words, keep=keep), fingerprint


def measure(
    path: Path,
    system: System,
    metrics: Sequence[str] | None,
    folder: Path,
    scorer: ScorerOf = scorer_of,
) -> Measured:
    """Return the result of an evidence task and the values of its questions."""
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
    """Return the ranks of each question; those that OUT has not are computed and written to it."""
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
        score, fingerprint = scorer(system)

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
    if repeated or not any(judgment.spans for judgment in judged):
        problem = (
            f"two questions have the id {repeated[0]!r}" if repeated else "no question has evidence"
        )
        raise InputError(
            f"{path}: {problem}; expected each id once, and spans of evidence in one question at"
            " least"
        )
    return judged
