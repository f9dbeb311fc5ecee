"""One pass over documents: a vector for each, and for each of their passages, conditioned on all that comes before.

Long documents also give the state before their last passage. If text is appended later, reading goes on from there, so the
old text costs nothing but its tokenization; the vectors are those of reading the whole.

Where the reranker of the same model reads a document as the embedder does (`Reranker.shares`), the pass also gives the document
as the reranker remembers it.

T  tokens of a document   P  passages   d  width of the vectors   D  width of hidden vectors
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from runnel.backbones.state import State
from runnel.engine import AtPositions, Reader, Request
from runnel.errors import InputError, StateError
from runnel.models.blocks import Row, lay_out, markers, passage_bounds
from runnel.models.embedder import Embedder
from runnel.models.memory import Piece, Remembered, piece
from runnel.models.readers import SpanMeans
from runnel.models.sentence_vectors import SentenceReader
from runnel.text.encoded import Encoded
from runnel.text.sentence_tokens import SentenceTokens, read_sentences, sentence_of_tokens
from runnel.text.sentences import split_sentences

log = logging.getLogger("runnel")
_Value = tuple[Tensor, Reader]  # pooled hidden vectors (passages + 1, D), and the reader that pooled them


@dataclass(frozen=True, eq=False)
class ReadDocument:
    """What one pass gives.

    Attributes:
        vector: (d,) float32, as `Embedder.encode_document` gives it.
        spans: (P, 2) int64, characters of each passage; they tile the text.
        passages: (P, d) float32, as `Embedder.encode_spans` gives them for `spans`.
        tokens: of the document, special ones included.
        tokens_read: how many the backbone had to read, less than `tokens` where text was appended.
        saved: what `read_documents` takes to go on after this text; None for documents below `save_from` tokens.
        memory: the document as it is remembered, in 8 bits, if that was asked for: its sentences (`SentenceVectors.to_bytes`)
            where the backbone reads passages, else as `Reranker.remember` keeps it.
    """

    vector: np.ndarray
    spans: np.ndarray
    passages: np.ndarray
    tokens: int
    tokens_read: int
    saved: bytes | None
    memory: Piece | None


@dataclass(eq=False)
class _Reading:
    """A document on its way. Token `split` is where the last passage starts, `begin` where reading starts."""

    ids: np.ndarray
    spans: np.ndarray
    starts: np.ndarray  # (P,) tokens
    ends: np.ndarray
    begin: int = 0
    split: int = 0
    state: State | None = None
    total: float = 0.0  # of the weights of all tokens before `begin`, and then before `split`
    sum: Tensor | None = None  # (D,) fp64, of the weighted hidden vectors of the same tokens
    known: Tensor | None = None  # (p, D) pooled passages before `begin`, then before `split`
    saved: bytes | None = None
    memory: Piece | None = None


def read_documents(
    embedder: Embedder,
    texts: Sequence[str],
    saved: Sequence[bytes | None] | None = None,
    *,
    passage_tokens: int = 256,
    save_from: int = 16_384,
    remember: bool = False,
    progress: Callable[[int], None] | None = None,
) -> list[ReadDocument]:
    """Read documents together.

    Args:
        saved: for each text what an earlier reading of its beginning has given as `saved`. If the text has changed before the
            place where that stopped, or the model is another one, it is read from the start.
        passage_tokens: the most tokens of a passage of several sentences; a longer sentence is a passage of its own. A model that
            reads passages has its own number.
        save_from: documents of this many tokens or more get `saved`, which is about as large as the backbone's state; for
            recurrent models.
        remember: also give `memory`; for a recurrent model whose reranker shares the pass (`Reranker.shares`), or a model that
            reads passages.
        progress: called after each step with the number of tokens just read.

    Raises:
        InputError: a text is empty, or the model pools the first token, so that passages have no vectors.
    """
    if embedder.pooling == "cls":
        raise InputError("this model's vector is its first token's, which no passage has; load it with pooling='mean' or 'eos'")
    if not all(text.strip() for text in texts):
        raise InputError("cannot read an empty document; leave it out")
    if embedder.model.backbone.reads_passages:
        return _read_in_blocks(embedder, texts, remember, progress)
    readings = _prepare_all(embedder, texts, passage_tokens, save_from)
    for reading, before in zip(readings, saved or [None] * len(texts), strict=True):
        if before is not None:
            _resume(embedder, reading, before)
    first = [reading for reading in readings if reading.split > reading.begin]
    for reading, value, state in _run(embedder, first, "split", progress, keep_state=True):
        _take(reading, value)
        reading.state = state
    for reading in readings:
        if reading.split:
            reading.saved = _dump(embedder, reading)
    read = [len(reading.ids) - reading.begin for reading in readings]
    for reading in first:
        reading.begin = reading.split
    for reading, value, state in _run(embedder, readings, "end", progress, keep_state=remember):
        after = _take(reading, value)
        if state is not None:
            reading.memory = _remembered(embedder, reading, state, after)
    return _finish(embedder, readings, read)


def _read_in_blocks(
    embedder: Embedder, texts: Sequence[str], remember: bool, progress: Callable[[int], None] | None
) -> list[ReadDocument]:
    """`read_documents` for a backbone that reads passages: each has the vector of its text alone."""
    model = embedder.model
    template, prompt = model.templates["document"], model.prompts.get("document", "")
    encoded = template.encode_batch(model.tokenizer, "document", [prompt + text for text in texts])
    documents: list[tuple[SentenceTokens, Row]] = []
    for text, one in zip(texts, encoded, strict=True):
        tokens = read_sentences(text, [one.shifted(-len(prompt))])
        if not len(tokens.ids):
            raise InputError(f"no token of this model is in the document {text[:40]!r}; leave it out")
        documents.append((tokens, lay_out(tokens.ids, tokens.bounds, model.backbone, model.tokenizer)))
    width = model.backbone.hidden_size
    readers = [
        (
            SpanMeans(row.ids, model.weight, row.edges[:-1], row.edges[1:]),
            SentenceReader(row, markers(model.tokenizer), width) if remember else None,
        )
        for _, row in documents
    ]
    requests = [Request(row.ids, reader=_Both(*reader)) for (_, row), reader in zip(documents, readers, strict=True)]
    model.engine.run(requests, progress)
    pooled = [means.result() for means, _ in readers]
    with torch.inference_mode():
        whole = torch.stack([(means.sum / means.total).float() for means, _ in readers])
        vectors = model.head("embed")(torch.cat([*pooled, whole])).numpy()
    parts = np.split(vectors, np.cumsum([len(part) for part in pooled]))
    found = []
    for number, (text, (tokens, row), (_, sentences)) in enumerate(zip(texts, documents, readers, strict=True)):
        starts = np.append(tokens.spans[:, 0], len(text))[row.passages]
        spans = np.stack([starts[:-1], starts[1:]], 1)
        memory = None if sentences is None else sentences.of(text, tokens).to_bytes()
        found.append(ReadDocument(parts[-1][number], spans, parts[number], len(row.ids), len(row.ids), None, memory))
    return found


class _Both:
    """A reader for two that look at the same hidden vectors; each keeps its own result."""

    def __init__(self, first: Reader, second: Reader | None) -> None:
        self._readers = [first] if second is None else [first, second]

    def read(self, start: int, hidden: Tensor) -> None:
        for reader in self._readers:
            reader.read(start, hidden)

    def result(self) -> None:
        return None


def _prepare_all(embedder: Embedder, texts: Sequence[str], passage_tokens: int, save_from: int) -> list[_Reading]:
    """Tokenized together, which uses all cores."""
    model = embedder.model
    prompt = model.prompts.get("document", "")
    encoded = model.templates["document"].encode_batch(model.tokenizer, "document", [prompt + text for text in texts])
    return [
        _prepare(embedder, text, one.shifted(-len(prompt)), passage_tokens, save_from)
        for text, one in zip(texts, encoded, strict=True)
    ]


def _prepare(embedder: Embedder, text: str, encoded: Encoded, passage_tokens: int, save_from: int) -> _Reading:
    """`encoded`: the prompt, which starts before 0, and the text."""
    model = embedder.model
    rendered = model.templates["document"].render(model.tokenizer, document=encoded.ids)
    sentences = split_sentences(text)
    bounds = sentence_of_tokens(sentences, encoded)
    bounds[0] = np.searchsorted(encoded.starts, 0)
    chosen = passage_bounds(bounds, passage_tokens)
    tokens = bounds[chosen] + rendered.slices["document"].start
    starts = np.append(sentences[:, 0], len(text))[chosen]
    spans = np.stack([starts[:-1], starts[1:]], 1)
    if tokens[0] == tokens[1]:
        raise InputError(f"no token of this model is in the document {text[:40]!r}; leave it out")
    reading = _Reading(rendered.ids, spans, tokens[:-1], tokens[1:])
    if model.backbone.recurrent and len(rendered.ids) >= save_from and len(spans) > 1:
        reading.split = int(tokens[-2])
    return reading


def _resume(embedder: Embedder, reading: _Reading, saved: bytes) -> None:
    """Continue from an earlier reading if this document begins as that one did; from the start if what was saved is damaged."""
    try:
        values = load(saved)
        at, count = int(values["at"]), len(values["known"])
        state = State({name[6:]: tensor for name, tensor in values.items() if name.startswith("state.")}, values["tokens"])
        _check_saved(embedder, values, state)
    except (SafetensorError, KeyError, ValueError, RuntimeError, TypeError) as error:  # torch raises the last two on odd shapes
        log.warning("what was saved of an earlier reading is damaged (%s); the document is read from the start", error)
        return
    if at > reading.split or reading.starts[min(count, len(reading.starts) - 1)] != at:
        return
    if bytes(values["digest"].flatten().tolist()) != _digest(embedder, reading, at, count):
        return
    reading.state, reading.begin = state, at
    reading.known, reading.sum, reading.total = values["known"], values["sum"], float(values["total"])


def _check_saved(embedder: Embedder, values: Mapping[str, Tensor], state: State) -> None:
    """Raise StateError unless `values` are what `_dump` writes: the kernels take shapes on trust."""
    backbone = embedder.model.backbone
    width, known = backbone.hidden_size, values["known"]
    wanted: dict[str, tuple[torch.dtype, tuple[int, ...]]]
    wanted = {"at": (torch.int64, (1,)), "sum": (torch.float64, (width,)), "total": (torch.float64, (1,))}
    wanted |= {"tokens": (torch.int64, (1,)), "digest": (torch.uint8, (20,)), "known": (torch.float32, (len(known), width))}
    state.check(backbone.state_shapes())
    for name, (dtype, shape) in wanted.items():
        if values[name].dtype != dtype or tuple(values[name].shape) != shape:
            raise StateError(f"{name!r} is {values[name].dtype} {tuple(values[name].shape)}, expected {dtype} {shape}")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in values.values()):
        raise StateError("it holds NaN or infinity")


def _dump(embedder: Embedder, reading: _Reading) -> bytes:
    assert reading.state is not None and reading.known is not None and reading.sum is not None
    digest = _digest(embedder, reading, reading.split, len(reading.known))
    values = {f"state.{name}": tensor.contiguous() for name, tensor in reading.state.tensors.items()}
    values |= {"tokens": reading.state.tokens, "at": torch.tensor([reading.split]), "known": reading.known, "sum": reading.sum}
    values |= {
        "total": torch.tensor([reading.total], dtype=torch.float64),
        "digest": torch.tensor(list(digest), dtype=torch.uint8),
    }
    return save(values)


def _digest(embedder: Embedder, reading: _Reading, at: int, count: int) -> bytes:
    """Of everything that the state and the first `count` passages, up to token `at`, depend on."""
    digest = hashlib.blake2b(embedder.model.backbone.fingerprint().encode(), digest_size=20)
    digest.update(reading.ids[:at].astype("<i4").tobytes())
    digest.update(reading.starts[:count].astype("<i8").tobytes())
    return digest.digest()


def _run(
    embedder: Embedder, readings: Sequence[_Reading], until: str, progress: Callable[[int], None] | None, *, keep_state: bool
) -> Iterator[tuple[_Reading, _Value, State | None]]:
    """Read each from `begin` to `split` or to its end. Pooled: its passages, what stands behind the last one, and the whole."""
    requests: list[Request] = []
    readers: list[Reader] = []
    for reading in readings:
        stop = reading.split if until == "split" else len(reading.ids)
        inside = (reading.starts >= reading.begin) & (reading.ends <= stop)
        starts, ends = reading.starts[inside] - reading.begin, reading.ends[inside] - reading.begin
        ids = reading.ids[reading.begin : stop]
        reader: SpanMeans | AtPositions
        if embedder.pooling == "mean":
            more = [min(ends[-1], len(ids) - 1), 0], [len(ids), len(ids)]
            reader = SpanMeans(ids, embedder.model.weight, np.append(starts, more[0]), np.append(ends, more[1]))
        else:
            reader = AtPositions(np.append(ends, [len(ids), len(ids)]) - 1)
        readers.append(reader)
        requests.append(Request(ids, reader=reader, state=reading.state, keep_state=keep_state))
    results = embedder.model.engine.map(requests, progress)
    for reading, used, result in zip(readings, readers, results, strict=True):
        yield reading, (result.get(), used), result.state


def _take(reading: _Reading, value: _Value) -> Tensor:
    """Add what was just read: pooled passages, and the whole to the running sum. Returns what stands behind them (D,)."""
    pooled, reader = value
    reading.known = pooled[:-2] if reading.known is None else torch.cat([reading.known, pooled[:-2]])
    if isinstance(reader, SpanMeans):
        reading.sum = reader.sum if reading.sum is None else reading.sum + reader.sum
        reading.total += reader.total
    else:
        reading.sum, reading.total = pooled[-1].double(), 1.0  # the hidden vector at the last token so far
    return pooled[-2]


def _remembered(embedder: Embedder, reading: _Reading, state: State, after: Tensor) -> Piece:
    """From the state at the end: as the reranker does it, with the mean over all that follows the document's first token."""
    assert reading.known is not None
    edges = np.unique([*reading.starts, reading.ends[-1], len(reading.ids)])
    weight = embedder.model.weight.numpy()[reading.ids].astype(np.float64)
    totals = torch.from_numpy(np.add.reduceat(weight, edges[:-1]))
    parts = torch.cat([reading.known, after[None]])[: len(totals)].double()
    document = np.unique(reading.ids[reading.starts[0] : reading.ends[-1]])
    return piece(Remembered("", None, state, (totals @ parts / totals.sum()).float(), document), "int8")


def _finish(embedder: Embedder, readings: Sequence[_Reading], read: Sequence[int]) -> list[ReadDocument]:
    """All vectors from one call of the head. `read`: tokens that were read of each."""
    parts: list[Tensor] = []
    for reading in readings:
        assert reading.known is not None and reading.sum is not None
        parts += [reading.known, (reading.sum / reading.total).float()[None]]
    if not parts:
        return []
    with torch.inference_mode():
        vectors = embedder.model.head("embed")(torch.cat(parts)).numpy()
    ends = np.cumsum([len(reading.spans) + 1 for reading in readings])
    return [
        ReadDocument(found[-1], one.spans, found[:-1], len(one.ids), count, one.saved, one.memory)
        for one, found, count in zip(readings, np.split(vectors, ends[:-1]), read, strict=True)
    ]
