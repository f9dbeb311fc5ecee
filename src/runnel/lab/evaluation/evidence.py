"""Evidence tasks: rank the sentences of each document, measure where the evidence is among them,
and what scores say.

A sentence is an answer if it shares a character other than white space with the evidence.

    S  sentences of a document
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
from runnel.commands.display import say
from runnel.commands.runs import Rows, resumed_rows
from runnel.errors import InputError
from runnel.files import file_digest
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
from runnel.lab.training.data import Dropped, Evidence, read_evidence
from runnel.lab.training.mining import bm25_scorer
from runnel.models.embedder import Embedder
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.records import trim
from runnel.text.documents.document import DocumentText
from runnel.text.kinds import text_of
from runnel.text.sentences import split_sentences

METRICS = ("Recall@1", "Recall@5", "Recall@10", "P@5", "MRR@10", "nDCG@10")
_LENGTHS = (500, 2_000, 8_000, 32_000)  # words of a document
_PARTS = 5  # of a document, for the position of a question's first evidence
_TENTHS = 10  # of a document, for the position of each evidence span, as in paper E's figure 12
_LOWEST, _HIGHEST = -8, 8  # scores beyond are counted with these
_FORMAT = 4  # of the ranks

Units = tuple[tuple[int, int], ...]
"""Spans that tile a document and are scored instead of its sentences; (): the data has none."""


Scorer = Callable[..., tuple[np.ndarray, np.ndarray]]
"""Returns for a query, a document (str or `DocumentText`) and perhaps its `Units` the spans (S, 2) of its sentences or units, and
their scores (S,)."""


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
    positions: list[float]  # where each of `spans` begins
    scores: dict[str, list[int]]  # floor -> [sentences, answers]; empty if scores are no logits


def judge(example: Evidence, spans: np.ndarray, scores: np.ndarray, *, logits: bool) -> Judged:
    """Rank the sentences of a document by their scores, ties in document order, and look the
    evidence up.
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
        [int(ranks[some].min()) for some in meets if len(some)],
        [
            start / len(example.document)
            for (start, _), some in zip(example.spans, meets, strict=True)
            if len(some)
        ],
        _counts(scores, answers) if logits else {},
    )


def _sentences_of(document: str, spans: np.ndarray, evidence: tuple[int, int]) -> np.ndarray:
    """Return the sentences that share a visible character with an evidence span."""
    start, end = trim(document, *evidence)
    found = range(
        int(np.searchsorted(spans[:, 1], start, side="right")),
        int(np.searchsorted(spans[:, 0], end, side="left")),
    )
    bounds = [(max(start, int(spans[i, 0])), min(end, int(spans[i, 1]))) for i in found]
    return np.array(
        [i for i, (a, b) in zip(found, bounds, strict=True) if document[a:b].strip()],
        dtype=np.int64,
    )


def _counts(scores: np.ndarray, answers: np.ndarray) -> dict[str, list[int]]:
    bins = np.clip(np.floor(scores), _LOWEST, _HIGHEST).astype(int)
    sentences, found = Counter(bins.tolist()), Counter(bins[answers].tolist())
    return {str(one): [sentences[one], found[one]] for one in sorted(sentences)}


def by_retriever(
    retriever: SentenceRetriever, context: int | None = None, window: tuple[int, int] | None = None
) -> Scorer:
    """Score as `runnel find` does. A document is not read again for the next question, if the model
    can.

    With `context`, documents are cut into pieces of whole sentences of that many tokens, each read
    by itself, and units are not scored. `window`: tokens of a window and from one to the next, as
    in `SentenceRetriever.score`.

    Source: paper E, section 7.2. Differs: its pieces of 1,024 tokens may cut a sentence.
    """

    @lru_cache(maxsize=1)
    def read(document: str | DocumentText) -> tuple[list[tuple[int, int]], Sequence[Any]]:
        text = text_of(document)
        pieces, texts = [(0, len(text))], [document]
        if context is not None:
            pieces = cut_sentences(
                text, retriever.model.tokenizer.encode(text).starts, context, context
            )
            texts = [text[start:end] for start, end in pieces]
        return pieces, list(retriever.remember(texts)) if retriever.remembers else texts

    def score(
        query: str, document: str | DocumentText, units: Units = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        own = context is None and units
        if own or window is not None:
            size, stride = window or (None, None)
            scored = retriever.score(query, document, spans=own or None, window=size, stride=stride)
            return np.array([(one.start, one.end) for one in scored]), np.array(
                [one.score for one in scored], np.float32
            )
        pieces, texts = read(document)
        scanned = list(retriever.scan(query, texts))
        parts = [one.spans + start for one, (start, _) in zip(scanned, pieces, strict=True)]
        return np.concatenate(parts), np.concatenate([one.scores for one in scanned])

    return score


def by_parts(
    scorer: Callable[[list[str]], Callable[[str], np.ndarray]],
    chunk_words: int | None = None,
    *,
    keep: int = 1,
) -> Scorer:
    """Score the parts of a document: chunks, if they are wanted, else its units, if there are any,
    else its sentences.

    `scorer` returns for texts a function from a query to their scores; those of the last `keep`
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
    """Return a function from a query to its cosine with each text (n,) float32, -1 without a token;
    long texts are cut.
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

    Recall@k is the share of the evidence spans that one of the k best sentences meets. The others
    are those of ir-measures, with answers as relevant documents.
    """
    asked = [one for one in judged if one.spans]
    qrels = {one.query: {str(rank): 1 for rank in one.answers} for one in asked}
    run = {
        one.query: {str(rank): -float(rank) for rank in range(1, min(one.sentences, 1000) + 1)}
        for one in asked
    }
    recall = {
        name: metric.params["cutoff"] for name, metric in metrics.items() if metric.NAME == "R"
    }
    values = evaluate(
        {name: metric for name, metric in metrics.items() if name not in recall}, qrels, run
    )
    for judgment in asked:
        recalls = {
            name: float(np.mean([rank <= k for rank in judgment.spans]))
            for name, k in recall.items()
        }
        values[judgment.query] = {
            name: recalls.get(name, values[judgment.query].get(name, 0.0)) for name in metrics
        }
    return values


def summarize(
    judged: Sequence[Judged], values: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Return means: of all, by the length of the document, by the position of the first evidence;
    recall of evidence spans by their own position; and what scores say.
    """
    asked = [one for one in judged if one.spans]
    by_length = {
        name: [one for one in asked if one.words in lengths]
        for name, lengths in ranges(_LENGTHS, "words").items()
    }
    parts: list[list[Judged]] = [[] for _ in range(_PARTS)]
    for one in asked:
        parts[min(int(min(one.positions) * _PARTS), _PARTS - 1)].append(one)
    by_position = {
        f"{100 * i // _PARTS} to {100 * (i + 1) // _PARTS} %": part for i, part in enumerate(parts)
    }
    return {
        "metrics": mean(values),
        "by_length": _groups(by_length, values),
        "by_position": _groups(by_position, values),
        "recall_by_position": _recall_by_position(asked, values),
        "calibration": _calibration(judged),
    }


def _recall_by_position(
    asked: Sequence[Judged], values: Mapping[str, Mapping[str, float]]
) -> list[dict[str, Any]]:
    """Return for each tenth of a document the share of evidence spans beginning there that are
    found, by every Recall@k.

    Source: paper E, appendix E.3. Differs: it counts sentences, and 50 of them are found.
    """
    metrics = [name for name in next(iter(values.values()), {}) if name.startswith("Recall@")]
    tenths: list[list[int]] = [[] for _ in range(_TENTHS)]
    for one in asked:
        for rank, position in zip(one.spans, one.positions, strict=True):
            tenths[min(int(position * _TENTHS), _TENTHS - 1)].append(rank)
    return [
        {"from": i / _TENTHS, "to": (i + 1) / _TENTHS, "spans": len(ranks)}
        | {
            "metrics": {
                name: float(np.mean([rank <= int(name.partition("@")[2]) for rank in ranks]))
                for name in metrics
            }
        }
        for i, ranks in enumerate(tenths)
        if ranks
    ]


def _groups(
    groups: Mapping[str, Sequence[Judged]], values: Mapping[str, Mapping[str, float]]
) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "queries": len(group),
            "metrics": mean({one.query: values[one.query] for one in group}),
        }
        for name, group in groups.items()
        if group
    ]


def _calibration(judged: Sequence[Judged]) -> list[dict[str, float]]:
    """Return how often sentences with a score are answers, highest scores first; empty if scores
    are no logits.

    A row is of sentences from its score up to 1 above; the first and the last row have all beyond.
    "sigmoid" is of its middle: what the share of answers is if scores are calibrated. "..._above"
    are of this and all higher rows: the share of their sentences that are answers, and of all
    answers that are there.
    """
    sentences: Counter[int] = Counter()
    answers: Counter[int] = Counter()
    for one in judged:
        for name, (count, found) in one.scores.items():
            sentences[int(name)] += count
            answers[int(name)] += found
    total, rows = answers.total(), []
    seen = right = 0
    for score in sorted(sentences, reverse=True):
        seen, right = seen + sentences[score], right + answers[score]
        row: dict[str, float] = {
            "score": score,
            "sentences": sentences[score],
            "answers": answers[score],
        }
        row |= {
            "share": answers[score] / sentences[score],
            "sigmoid": 1 / (1 + math.exp(-score - 0.5)),
        }
        rows.append(row | {"share_above": right / seen, "found_above": right / max(1, total)})
    return rows


ScorerOf = Callable[[System], tuple[Scorer, str | None]]
"""Returns what scores sentences, and the fingerprint of its model."""


def context_of(given: str | None) -> int | None:
    """Return the tokens of a piece from --context: "sentence" is 1, as a piece holds one sentence
    at least.
    """
    if given is None or given == "sentence":
        return None if given is None else 1
    expect_count(
        int(given) if given.isdecimal() else given, "--context, which may also be sentence,"
    )
    return int(given)


def scorer_of(
    system: System, window: tuple[int, int] | None = None, *, keep: int = 1
) -> tuple[Scorer, str | None]:
    """Return what scores sentences, with the last `keep` documents as it has read them, and the
    fingerprint of its model.
    """
    if system.how == "bm25":
        return by_parts(lambda texts: bm25_scorer(texts, **system.bm25), system.chunk_words), None
    model, reading = load_model(system), system.reading
    if system.how == "sentences":
        return by_retriever(model, system.context, window), model.model.fingerprint()
    scorer = partial(
        embedder_scorer,
        embedder=model,
        max_tokens=reading.max_tokens,
        max_query_tokens=reading.max_query_tokens,
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
    }
    result |= {} if system.context is None else {"context": system.context}
    result |= {} if system.chunk_words is None else {"chunk_words": system.chunk_words}
    result |= {
        "unanswered": len(judged) - len(values),
        "sentences": sum(one.sentences for one in judged),
    }
    return result | summarize(judged, values), values


def name_of(path: Path) -> str:
    """Return the name of an evidence task."""
    return path.name.split(".")[0]


def _judged(path: Path, system: System, out: Path, scorer: ScorerOf) -> list[Judged]:
    """Return the ranks of each question, written to OUT unless they are there."""
    settings: dict[str, object] = {
        "model": system.model,
        "as": system.how,
        "evidence": file_digest(str(path)),
    }
    settings |= {**system.bm25, "prompts": dict(system.prompts), **system.reading.settings()}
    settings |= {"context": system.context, "format": _FORMAT}
    settings |= {} if system.chunk_words is None else {"chunk_words": system.chunk_words}
    dropped = Dropped()

    def load() -> Rows[tuple[int, Evidence]]:
        score, fingerprint = scorer(system)

        def judged_row(numbered: tuple[int, Evidence]) -> dict[str, object]:
            number, example = numbered
            scored = score(example.query, example.document, example.units)
            found = judge(example, *scored, logits=system.how == "sentences")
            return asdict(found) | {"query": example.id or str(number)}

        return (
            enumerate(read_evidence(path, dropped=dropped, unanswered=True), start=1),
            judged_row,
            fingerprint,
        )

    judged = [Judged(**row) for row in resumed_rows(out, settings, load)]
    if dropped.counts:
        say(f"note: {path}: {dropped}")
    repeated = next(
        (name for name, count in Counter(one.query for one in judged).items() if count > 1), None
    )
    if repeated is not None or not any(one.spans for one in judged):
        what = (
            "no question has evidence"
            if repeated is None
            else f"two questions have the id {repeated!r}"
        )
        raise InputError(
            f"{path}: {what}; expected each id once, and spans of evidence in one question at least"
        )
    return judged
