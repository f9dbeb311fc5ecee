"""Vectors for documents and for their passages, each conditioned on the text before it, from one pass.

For long documents the pass also returns the state before the last passage: if text is appended later, reading resumes there.

P  passages   d  width of the vectors   D  width of hidden vectors
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.encoder.layout import passage_bounds
from runnel.backbones.state import State
from runnel.errors import InputError, StateError
from runnel.models.container import pack, unpack
from runnel.models.embedder import EMPTY, Embedder
from runnel.models.memory import DocumentState, Remembered
from runnel.models.sentence_vectors import SentenceSums
from runnel.request import Request, Result
from runnel.text.documents.document import DocumentText
from runnel.text.kinds import text_of
from runnel.text.sentences import read_sentences, sentence_of_tokens, split_sentences

log = logging.getLogger("runnel")


@dataclass(frozen=True, eq=False)
class ReadDocument:
    """The result of one pass over a document; a transformer reads each passage as a text of its own."""

    vector: np.ndarray  # (d,) float32, as from `Embedder.encode_document`, or the mean of the passages' weighted by their tokens
    spans: np.ndarray  # (P, 2) int64, characters of each passage; they tile the text
    passages: np.ndarray  # (P, d) float32, as from `Embedder.encode_spans` for `spans`, or `encode_document` for each
    tokens: int  # special tokens included
    tokens_read: int  # that the backbone had to read, fewer than `tokens` if text was appended
    saved: bytes | None  # input for `read_documents` to continue after this text; None for documents below `save_from` tokens
    memory: Remembered | None  # in 8 bits


@dataclass(eq=False)
class _Reading:
    """A document in progress. The last passage starts at token `split`, reading starts at token `begin`."""

    ids: np.ndarray
    spans: np.ndarray
    starts: np.ndarray  # (P,) tokens
    ends: np.ndarray
    begin: int = 0
    split: int = 0
    state: State | None = None
    total: float = 0.0  # sum of the weights of all tokens before `begin`, later before `split`
    sum: Tensor | None = None  # (D,) fp64, sum of the weighted hidden vectors of the same tokens
    known: Tensor | None = None  # (p, D) pooled passages before `begin`, later before `split`
    saved: bytes | None = None
    memory: Remembered | None = None
    text: str = ""


def read_documents(
    embedder: Embedder,
    documents: Sequence[str | DocumentText],
    saved: Sequence[bytes | None] | None = None,
    *,
    passage_tokens: int = 256,
    save_from: int = 16_384,
    remember: bool = False,
    progress: Callable[[int], None] | None = None,
) -> list[ReadDocument]:
    """Read documents together; recurrent models resume from `saved` of an earlier reading of a text's unchanged beginning.

    A passage of several sentences has at most `passage_tokens` tokens, or as many as the model reads; documents of `save_from`
    tokens or more get `saved`. `remember` needs a model that reads passages, or one whose reranker shares the pass
    (`Reranker.shares`).
    """
    texts = [text_of(document) for document in documents]
    if (empty := next(filter(embedder.is_empty, texts), None)) is not None:
        raise InputError(f"cannot read an empty document; remove it (it is {empty[:20]!a}: {EMPTY})")
    if embedder.model.backbone.reads_passages:
        return _read_in_blocks(embedder, documents, remember, progress)
    if not embedder.model.backbone.recurrent:
        return _read_apart(embedder, texts, passage_tokens, progress)
    readings = list(_prepare(embedder, texts, passage_tokens, save_from))
    for reading, before in zip(readings, saved or [None] * len(texts), strict=True):
        if before is not None:
            _resume(embedder, reading, before)
    engine, first = embedder.model.engine, [reading for reading in readings if reading.split > reading.begin]
    for result in engine.map([_request(embedder, one, one.split, keep_state=True) for one in first], progress):
        _take(embedder, result)
        result.tag.state = result.state
    for reading in readings:
        if reading.split:
            reading.saved = _dump(embedder, reading)
    read = [len(reading.ids) - reading.begin for reading in readings]
    for reading in first:
        reading.begin = reading.split
    for result in engine.map([_request(embedder, one, len(one.ids), keep_state=remember) for one in readings], progress):
        after = _take(embedder, result)
        if result.state is not None:
            result.tag.memory = _remembered(embedder, result.tag, result.state, after)
    return _finish(embedder, readings, read)


def _read_in_blocks(
    embedder: Embedder, documents: Sequence[str | DocumentText], remember: bool, progress: Callable[[int], None] | None
) -> list[ReadDocument]:
    """Read documents with a backbone that reads passages: each passage gets the vector of its text alone."""
    model = embedder.model
    texts = [text_of(document) for document in documents]
    encoded = model.templates["document"].encode_batch(model.tokenizer, "document", texts)
    width = model.backbone.hidden_size
    requests = []
    for document, text, one in zip(documents, texts, encoded, strict=True):
        tokens = read_sentences(document, [one])
        sums = SentenceSums(model, tokens, passages=True)
        row = sums.layout
        assert row is not None  # a text has a token
        mean = embedder.pooling == "mean"  # markers and prompt included, as of a text
        blocks = np.stack([row.edges[:-1], row.edges[1:]], axis=1)
        ranges = np.concatenate([blocks, [[0, len(row.ids)]]]) if mean else None
        positions = None if mean else blocks[:, 0] if embedder.pooling == "cls" else blocks[:, 1] - 1
        edges = np.append(tokens.spans[:, 0], len(text))[row.passages]
        requests.append(Request(row.ids, positions, ranges, take=sums.take if remember else None, tag=(edges, sums)))
    results = (model.sentence_engine(texts=True) if remember else model.engine).run(requests, progress)
    read = []
    pooled = [result.means[:, :width] if embedder.pooling == "mean" else _with_whole(result, width) for result in results]
    for result, vectors in zip(results, _vectors(embedder, pooled), strict=True):
        edges, sums = result.tag
        spans, tokens_read = np.stack([edges[:-1], edges[1:]], axis=1), len(requests[result.index].ids)
        memory = sums.result() if remember else None
        read.append(ReadDocument(vectors[-1], spans, vectors[:-1], tokens_read, tokens_read, None, memory))
    return read


def _with_whole(result: Result, width: int) -> Tensor:
    """Return the pooled token of each passage and, for the document, their mean weighted by the passages' tokens, (P+1, D)."""
    first, (_, sums) = result.get().hidden[:, :width], result.tag
    counts = torch.from_numpy(np.diff(sums.layout.edges)).to(first.dtype)
    unit = torch.nn.functional.normalize(first, dim=-1)
    return torch.cat([first, counts[None] @ unit])


def _read_apart(
    embedder: Embedder, texts: Sequence[str], passage_tokens: int, progress: Callable[[int], None] | None
) -> list[ReadDocument]:
    """Read each passage as a text of its own: a model's first token represents the text that it begins, and no other."""
    model = embedder.model
    template, prompt = model.templates["document"], "document" if "document" in model.prompts else None
    most, longest = passage_tokens, model.backbone.longest_text
    if longest is not None:
        most = min(most, longest - len(next(embedder.render(["a"], prompt=prompt))))  # the prompt and special tokens, and "a"
    spans, rows, counts = [], [], []
    for text, encoded in zip(texts, template.encode_batch(model.tokenizer, "document", texts), strict=True):
        sentences = split_sentences(text)
        edges = np.append(sentences[:, 0], len(text))[passage_bounds(sentence_of_tokens(sentences, encoded), most)]
        read = list(embedder.render((text[start:end] for start, end in itertools.pairwise(edges)), prompt=prompt))
        spans.append(np.stack([edges[:-1], edges[1:]], axis=1))
        rows += read
        counts.append(np.array([len(row) for row in read]))
    vectors, documents = embedder.encode_rows(rows, progress), []
    for one, count in zip(spans, counts, strict=True):
        own = np.stack(list(itertools.islice(vectors, len(count))))
        mean, tokens = count.astype(np.float32) @ own, int(count.sum())
        documents.append(ReadDocument(mean / np.linalg.norm(mean), one, own, tokens, tokens, None, None))
    return documents


def _prepare(embedder: Embedder, texts: Sequence[str], passage_tokens: int, save_from: int) -> Iterator[_Reading]:
    """Tokenize, in one call to the tokenizer, which uses all cores, and lay out documents."""
    model, template = embedder.model, embedder.model.templates["document"]
    prompt = model.prompts.get("document", "")
    encoded = template.encode_batch(model.tokenizer, "document", [prompt + text for text in texts])
    for text, one in zip(texts, encoded, strict=True):
        rendered, sentences = template.render(model.tokenizer, document=one.ids), split_sentences(text)
        own = one.shifted(-len(prompt))  # the prompt has negative offsets
        bounds = sentence_of_tokens(sentences, own)
        bounds[0] = np.searchsorted(own.starts, 0)
        chosen = passage_bounds(bounds, passage_tokens)
        tokens = bounds[chosen] + rendered.slices["document"].start
        starts = np.append(sentences[:, 0], len(text))[chosen]
        reading = _Reading(rendered.ids, np.stack([starts[:-1], starts[1:]], 1), tokens[:-1], tokens[1:], text=text)
        if model.backbone.recurrent and len(rendered.ids) >= save_from and len(chosen) > 2:
            reading.split = int(tokens[-2])
        yield reading


def _resume(embedder: Embedder, reading: _Reading, saved: bytes) -> None:
    """Continue from an earlier reading if this document begins like that one, or from the start if the saved data is damaged."""
    try:
        values = unpack(saved, "the state of an earlier reading", embedder.model.backbone.fingerprint())
        at, count = int(values["at"]), len(values["known"])
        state = State({name[6:]: tensor for name, tensor in values.items() if name.startswith("state.")}, values["tokens"])
        state.check(embedder.model.backbone.state_shapes())
        known, total, sums, depends = values["known"], float(values["total"]), values["sum"], values["depends"].tolist()
    except (StateError, KeyError) as error:
        log.warning("%s; reading the document from the start", error)
        return
    if at > reading.split or reading.starts[min(count, len(reading.starts) - 1)] != at:
        return
    if depends != _dependencies(reading, at, count):
        return
    reading.state, reading.begin = state, at
    reading.known, reading.sum, reading.total = known, sums, total


def _dump(embedder: Embedder, reading: _Reading) -> bytes:
    assert reading.state is not None and reading.known is not None and reading.sum is not None
    values = {f"state.{name}": tensor for name, tensor in reading.state.tensors.items()}
    values |= {"tokens": reading.state.tokens, "at": torch.tensor([reading.split]), "known": reading.known, "sum": reading.sum}
    values["total"] = torch.tensor([reading.total], dtype=torch.float64)
    values["depends"] = torch.tensor(_dependencies(reading, reading.split, len(reading.known)))
    return pack(values, embedder.model.backbone.fingerprint())


def _dependencies(reading: _Reading, at: int, count: int) -> list[int]:
    """Return a digest of everything that the state and the first `count` passages, up to token `at`, depend on."""
    digest = hashlib.blake2b(reading.ids[:at].astype("<i4").tobytes(), digest_size=20)
    digest.update(reading.starts[:count].astype("<i8").tobytes())
    return list(digest.digest())


def _request(embedder: Embedder, reading: _Reading, stop: int, *, keep_state: bool) -> Request:
    """Return the request for tokens `begin` to `stop`, which pools their passages, the tokens after the last, and all of them."""
    inside = (reading.starts >= reading.begin) & (reading.ends <= stop)
    starts, ends = reading.starts[inside] - reading.begin, reading.ends[inside] - reading.begin
    ids = reading.ids[reading.begin : stop]
    total = len(ids)
    starts, ends = np.append(starts, [min(ends[-1], total - 1), 0]), np.append(ends, [total, total])
    request = Request(ids, state=reading.state, keep_state=keep_state, tag=reading)
    if embedder.pooling == "mean":
        return replace(request, ranges=np.stack([starts, ends], axis=1))
    return replace(request, positions=ends - 1)


def _take(embedder: Embedder, result: Result) -> Tensor:
    """Add a result to its document: passages, and the total to the running sum. Return the pooled tokens after them (D,)."""
    reading: _Reading = result.get().tag
    if embedder.pooling == "mean":
        pooled, whole = result.means, result.sums[-1]
        reading.sum = whole if reading.sum is None else reading.sum + whole
        reading.total += float(result.totals[-1])
    else:
        pooled = result.hidden
        reading.sum, reading.total = pooled[-1].double(), 1.0  # the hidden vector at the last token so far
    reading.known = pooled[:-2] if reading.known is None else torch.cat([reading.known, pooled[:-2]])
    return pooled[-2]


def _remembered(embedder: Embedder, reading: _Reading, state: State, after: Tensor) -> DocumentState:
    """Make the remembered document from the end state, like the reranker: with the mean from the document's first token on."""
    assert reading.known is not None
    edges = np.unique([*reading.starts, reading.ends[-1], len(reading.ids)])
    weight = embedder.model.weight.numpy()[reading.ids].astype(np.float64)
    totals = torch.from_numpy(np.add.reduceat(weight, edges[:-1]))
    parts = torch.cat([reading.known, after[None]])[: len(totals)].double()
    document = np.unique(reading.ids[reading.starts[0] : reading.ends[-1]])
    return DocumentState.of(reading.text, state, (totals @ parts / totals.sum()).float(), document, "int8")


def _finish(embedder: Embedder, readings: Sequence[_Reading], read: Sequence[int]) -> list[ReadDocument]:
    """Compute all vectors in one call of the head. `read`: tokens read of each document."""
    parts: list[Tensor] = []
    for reading in readings:
        assert reading.known is not None and reading.sum is not None
        parts.append(torch.cat([reading.known, (reading.sum / reading.total).float()[None]]))
    return [
        ReadDocument(vectors[-1], one.spans, vectors[:-1], len(one.ids), count, one.saved, one.memory)
        for one, vectors, count in zip(readings, _vectors(embedder, parts), read, strict=True)
    ]


def _vectors(embedder: Embedder, pooled: Sequence[Tensor]) -> list[np.ndarray]:
    """Compute the vectors of several documents in one call of the head: (n, D) -> (n, d) for each."""
    if not pooled:
        return []
    vectors = embedder.vectors(torch.cat(list(pooled)))
    return np.split(vectors, np.cumsum([len(part) for part in pooled])[:-1])
