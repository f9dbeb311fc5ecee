"""Readers: how a model reads documents. Recurrent models carry a state through a text, encoders read it in passages of whole
sentences, other transformers each passage as a text of its own.

One pass gives a document's vector and those of its passages; with a state, each is conditioned on the text before it. For long
documents the pass also returns the state before the last passage: if text is appended later, reading resumes there.

P  passages   d  width of the vectors   D  width of hidden vectors
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.encoder.model import lay_out, passage_bounds
from runnel.backbones.state import State
from runnel.errors import InputError, StateError
from runnel.models.base import Model
from runnel.models.container import pack, unpack
from runnel.models.memory import DocumentState, Remembered, StateScorer
from runnel.models.scanner import Scanner
from runnel.models.sentence_vectors import SentenceSums, VectorScorer
from runnel.models.stream import PassageStream, StateStream, Stream
from runnel.request import Progress, Request, Result, TokenCount
from runnel.text.documents.document import DocumentText
from runnel.text.kinds import text_of
from runnel.text.sentences import read_sentences, sentence_of_tokens, split_sentences, whole_spans
from runnel.text.tokenizer import Encoded

if TYPE_CHECKING:
    from runnel.models.embedder import Embedder

log = logging.getLogger("runnel")
Documents = Sequence[str | DocumentText]


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


@dataclass(frozen=True)
class ReadOptions:
    """Options of `read_documents`."""

    passage_tokens: int = 256  # the most of a passage of several sentences, unless the model reads fewer or decides itself
    save_from: int = 16_384  # documents of so many tokens get `saved`
    remember: bool = False  # for a model that reads passages, or one whose reranker shares the pass (`Reranker.shares`)
    progress: Progress | None = None


class Reader(ABC):
    """What an embedder does differently for each kind of model."""

    stream: type[Stream]  # of a text that arrives in pieces

    def __init__(self, embedder: Embedder) -> None:
        self.embedder, self.model = embedder, embedder.model
        self.block = self.model.backbone.passage_tokens  # of the passages that the model reads; None: it has none

    @abstractmethod
    def read(self, documents: Documents, saved: Sequence[bytes | None], options: ReadOptions) -> list[ReadDocument]:
        """Read documents together; see `read_documents`."""

    def cuts(self, row: np.ndarray) -> bool:
        """Return whether a text with these ids (R,) is read in several passages, which only `lay_out` knows."""
        return self.block is not None and len(row) > (self.model.backbone.max_tokens or len(row))

    def lay_out(self, text: str, encoded: Encoded) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids to read for a text, and the index of each of its tokens in them."""
        backbone, tokenizer = self.model.backbone, self.model.tokenizer
        if self.block is None:
            rendered = self.model.templates["document"].render(tokenizer, document=encoded.ids)
            return rendered.ids, np.arange(len(encoded)) + rendered.slices["document"].start
        row = lay_out(encoded.ids, sentence_of_tokens(split_sentences(text), encoded), backbone, tokenizer.markers())
        return row.ids, row.places

    def _vectors(self, pooled: Sequence[Tensor]) -> list[np.ndarray]:
        """Compute the vectors of several documents in one call of the head: (n, D) -> (n, d) for each."""
        if not pooled:
            return []
        vectors = self.embedder.vectors(torch.cat(list(pooled)))
        return np.split(vectors, np.cumsum([len(part) for part in pooled])[:-1])


def expect_filled(embedder: Embedder, text: str, what: str) -> None:
    """Raise InputError for a text that cannot be embedded (`Embedder.is_empty`); `what` names it."""
    if embedder.is_empty(text):
        raise InputError(
            f"cannot embed an empty {what}; remove it, or replace it with a placeholder (it is {text[:20]!a}: only "
            "whitespace, or no character that the model has a token for)"
        )


def spans_in(text: str, spans: object, *, apart: bool = False) -> np.ndarray:
    """Return a user's spans (n, 2) int64; raise InputError for one that is empty, outside the text, or not `apart` in order."""
    given = whole_spans(spans)
    before = np.append(0, given[:-1, 1])[: len(given)] if apart else 0
    bad = np.flatnonzero((given[:, 0] >= given[:, 1]) | (given[:, 0] < before) | (given[:, 1] > len(text)))
    if len(bad):
        raise InputError(
            f"span {bad[0]} is {given[bad[0]].tolist()}; expected [start, end) with start < end, inside the text of {len(text)} "
            f"characters{' and after the previous span' if apart else ''}"
        )
    return given


def read_documents(
    embedder: Embedder, documents: Documents, saved: Sequence[bytes | None] | None = None, **options: Any
) -> list[ReadDocument]:
    """Read documents together with `ReadOptions`; recurrent models resume from `saved` of an earlier reading of a text's
    unchanged beginning.
    """
    for document in documents:
        expect_filled(embedder, text_of(document), "document")
    return embedder.reader.read(documents, saved or [None] * len(documents), ReadOptions(**options))


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


class StateReader(Reader):
    """A reader with a recurrent model."""

    stream = StateStream

    def read(self, documents: Documents, saved: Sequence[bytes | None], options: ReadOptions) -> list[ReadDocument]:
        readings = list(self._prepare(list(map(text_of, documents)), options))
        for reading, before in zip(readings, saved, strict=True):
            if before is not None:
                self._resume(reading, before)
        read = [len(reading.ids) - reading.begin for reading in readings]
        count, engine = TokenCount(options.progress), self.model.engine
        first = [reading for reading in readings if reading.split > reading.begin]
        for result in engine.map([self._request(each, each.split, keep_state=True) for each in first], count.add):
            self._take(result)
            result.tag.state, result.tag.begin = result.state, result.tag.split
        for reading in readings:
            if reading.split:
                reading.saved = self._dump(reading)
        requests = [self._request(each, len(each.ids), keep_state=options.remember) for each in readings]
        for result in engine.map(requests, count.add):
            after = self._take(result)
            if result.state is not None:
                result.tag.memory = self._remembered(result.tag, result.state, after)
        pooled: list[Tensor] = []
        for reading in readings:
            assert reading.known is not None and reading.sum is not None
            pooled.append(torch.cat([reading.known, (reading.sum / reading.total).float()[None]]))
        return [
            ReadDocument(vectors[-1], each.spans, vectors[:-1], len(each.ids), count, each.saved, each.memory)
            for each, vectors, count in zip(readings, self._vectors(pooled), read, strict=True)
        ]

    def _prepare(self, texts: Sequence[str], options: ReadOptions) -> Iterator[_Reading]:
        """Tokenize, in one call to the tokenizer, which uses all cores, and lay out documents."""
        model, template = self.model, self.model.templates["document"]
        prompt = model.prompts.get("document", "")
        encoded = template.encode_batch(model.tokenizer, "document", [prompt + text for text in texts])
        for text, one in zip(texts, encoded, strict=True):
            rendered, sentences = template.render(model.tokenizer, document=one.ids), split_sentences(text)
            own = one.shifted(-len(prompt))  # the prompt has negative offsets
            bounds = sentence_of_tokens(sentences, own)
            bounds[0] = np.searchsorted(own.starts, 0)
            chosen = passage_bounds(bounds, options.passage_tokens)
            tokens = bounds[chosen] + rendered.slices["document"].start
            spans = _passage_spans(text, sentences, chosen)
            reading = _Reading(rendered.ids, spans, tokens[:-1], tokens[1:], text=text)
            if len(rendered.ids) >= options.save_from and len(chosen) > 2:
                reading.split = int(tokens[-2])
            yield reading

    def _resume(self, reading: _Reading, saved: bytes) -> None:
        """Continue from an earlier reading if this document begins like that one and the saved data is not damaged."""
        try:
            values = unpack(saved, "the state of an earlier reading", self.model.backbone.fingerprint())
            at, count = int(values["at"]), len(values["known"])
            state = State({name[6:]: tensor for name, tensor in values.items() if name.startswith("state.")}, values["tokens"])
            state.check(self.model.backbone.state_shapes())
            known, total, sums, depends = values["known"], float(values["total"]), values["sum"], values["depends"].tolist()
        except (StateError, KeyError, IndexError) as error:
            log.warning("%s; reading the document from the start", error)
            return
        if at > reading.split or reading.starts[min(count, len(reading.starts) - 1)] != at:
            return
        if depends != _dependencies(reading, at, count):
            return
        reading.state, reading.begin = state, at
        reading.known, reading.sum, reading.total = known, sums, total

    def _dump(self, reading: _Reading) -> bytes:
        assert reading.state is not None and reading.known is not None and reading.sum is not None
        values = {f"state.{name}": tensor for name, tensor in reading.state.tensors.items()}
        values |= {
            "tokens": reading.state.tokens,
            "at": torch.tensor([reading.split]),
            "known": reading.known,
            "sum": reading.sum,
        }
        values["total"] = torch.tensor([reading.total], dtype=torch.float64)
        values["depends"] = torch.tensor(_dependencies(reading, reading.split, len(reading.known)))
        return pack(values, self.model.backbone.fingerprint())

    def _request(self, reading: _Reading, stop: int, *, keep_state: bool) -> Request:
        """Return the request for tokens `begin` to `stop`, which pools their passages, the tokens after the last, and all."""
        inside = (reading.starts >= reading.begin) & (reading.ends <= stop)
        starts, ends = reading.starts[inside] - reading.begin, reading.ends[inside] - reading.begin
        ids = reading.ids[reading.begin : stop]
        total = len(ids)
        starts, ends = np.append(starts, [min(ends[-1], total - 1), 0]), np.append(ends, [total, total])
        request = Request(ids, state=reading.state, keep_state=keep_state, tag=reading)
        if self.embedder.pooling == "mean":
            return replace(request, ranges=np.stack([starts, ends], axis=1))
        return replace(request, positions=ends - 1)

    def _take(self, result: Result) -> Tensor:
        """Add a result to its document: passages, and the total to the running sum. Return the pooled tokens after them (D,)."""
        reading: _Reading = result.get().tag
        if self.embedder.pooling == "mean":
            pooled, whole = result.means, result.sums[-1]
            reading.sum = whole if reading.sum is None else reading.sum + whole
            reading.total += float(result.totals[-1])
        else:
            pooled = result.hidden
            reading.sum, reading.total = pooled[-1].double(), 1.0  # the hidden vector at the last token so far
        reading.known = pooled[:-2] if reading.known is None else torch.cat([reading.known, pooled[:-2]])
        return pooled[-2]

    def _remembered(self, reading: _Reading, state: State, after: Tensor) -> DocumentState:
        """Make the remembered document from the end state, as the reranker: with the mean from the document's first token on."""
        assert reading.known is not None
        edges = np.unique([*reading.starts, reading.ends[-1], len(reading.ids)])
        weight = self.model.weight.numpy()[reading.ids].astype(np.float64)
        totals = torch.from_numpy(np.add.reduceat(weight, edges[:-1]))
        parts = torch.cat([reading.known, after[None]])[: len(totals)].double()
        document = np.unique(reading.ids[reading.starts[0] : reading.ends[-1]])
        return DocumentState.keep(reading.text, state, (totals @ parts / totals.sum()).float(), document, "int8")


def _dependencies(reading: _Reading, at: int, count: int) -> list[int]:
    """Return a digest of everything that the state and the first `count` passages, up to token `at`, depend on."""
    digest = hashlib.blake2b(reading.ids[:at].astype("<i4").tobytes(), digest_size=20)
    digest.update(reading.starts[:count].astype("<i8").tobytes())
    return list(digest.digest())


class PassageReader(Reader):
    """A reader with an encoder; each passage gets the vector of its text alone."""

    stream = PassageStream

    def read(self, documents: Documents, saved: Sequence[bytes | None], options: ReadOptions) -> list[ReadDocument]:
        model = self.model
        texts = [text_of(document) for document in documents]
        encoded = model.templates["document"].encode_batch(model.tokenizer, "document", texts)
        width = model.backbone.hidden_size
        requests = []
        for document, text, one in zip(documents, texts, encoded, strict=True):
            tokens = read_sentences(document, [one])
            sums = SentenceSums(model, tokens, passages=model.backbone.own_sentences)
            row = sums.layout
            mean = self.embedder.pooling == "mean"  # markers and prompt included, as of a text
            blocks = np.stack([row.edges[:-1], row.edges[1:]], axis=1)
            ranges = np.concatenate([blocks, [[0, len(row.ids)]]]) if mean else None
            positions = None if mean else blocks[:, 0] if self.embedder.pooling == "cls" else blocks[:, 1] - 1
            spans = _passage_spans(text, tokens.spans, row.passages)
            requests.append(Request(row.ids, positions, ranges, take=sums.take if options.remember else None, tag=(spans, sums)))
        results = (model.sentence_engine(texts=True) if options.remember else model.engine).run(
            requests, TokenCount(options.progress).add
        )
        read = []
        pooled = [
            result.means[:, :width] if self.embedder.pooling == "mean" else _with_whole(result, width) for result in results
        ]
        for result, vectors in zip(results, self._vectors(pooled), strict=True):
            spans, sums = result.tag
            tokens_read, memory = len(sums.layout.ids), sums.result() if options.remember else None
            read.append(ReadDocument(vectors[-1], spans, vectors[:-1], tokens_read, tokens_read, None, memory))
        return read


def _with_whole(result: Result, width: int) -> Tensor:
    """Return the pooled token of each passage and, for the document, their mean weighted by the passages' tokens, (P+1, D)."""
    first, (_, sums) = result.get().hidden[:, :width], result.tag
    counts = torch.from_numpy(np.diff(sums.layout.edges)).to(first.dtype)
    unit = torch.nn.functional.normalize(first, dim=-1)
    return torch.cat([first, counts[None] @ unit])


class WholeReader(Reader):
    """A reader with a transformer: its first token represents the text that it begins, and no other."""

    stream = StateStream  # raises: it has no state

    def read(self, documents: Documents, saved: Sequence[bytes | None], options: ReadOptions) -> list[ReadDocument]:
        model = self.model
        template, prompt = model.templates["document"], "document" if "document" in model.prompts else None
        most, longest = options.passage_tokens, model.backbone.longest_text
        if longest is not None:
            around = len(next(self.embedder.render(["a"], prompt=prompt)))  # the prompt and special tokens, and "a"
            most = min(most, longest - around)
        spans, rows, counts, texts = [], [], [], list(map(text_of, documents))
        for text, encoded in zip(texts, template.encode_batch(model.tokenizer, "document", texts), strict=True):
            sentences = split_sentences(text)
            spans.append(_passage_spans(text, sentences, passage_bounds(sentence_of_tokens(sentences, encoded), most)))
            read = list(self.embedder.render((text[start:end] for start, end in spans[-1]), prompt=prompt))
            rows += read
            counts.append(np.array([len(row) for row in read]))
        vectors, out = self.embedder.encode_rows(rows, options.progress), []
        for one, count in zip(spans, counts, strict=True):
            own = np.stack(list(itertools.islice(vectors, len(count))))
            mean, tokens = count.astype(np.float32) @ own, int(count.sum())
            out.append(ReadDocument(mean / np.linalg.norm(mean), one, own, tokens, tokens, None, None))
        return out


def _passage_spans(text: str, sentences: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the characters (P, 2) of passages that begin with the `chosen` sentences (P+1,); they tile the text."""
    edges = np.append(sentences[:, 0], len(text))[chosen]
    return np.stack([edges[:-1], edges[1:]], axis=1)


def reader_of(embedder: Embedder) -> Reader:
    """Return the reader for an embedder's model."""
    return {None: WholeReader, 1: StateReader}.get(embedder.model.backbone.block, PassageReader)(embedder)


def document_scorer(model: Model) -> StateScorer | VectorScorer:
    """Return what remembers documents and scores them."""
    vectors = stores_vectors(model, "rerank")
    return VectorScorer(model, passages=model.backbone.own_sentences) if vectors else StateScorer(model)


def sentence_scorer(model: Model) -> Scanner | VectorScorer:
    """Return what scores the sentences of documents; an encoder without a head for them gets fresh heads."""
    able = model.for_sentences
    return VectorScorer(able) if stores_vectors(able, "sentences") else Scanner(able)


def stores_vectors(model: Model, job: str) -> bool:
    """Return whether a job's head scores vectors of a document, which is read once for all queries."""
    return model.head(job).inputs == "vectors"


def has_sentence_layers(model: Model) -> bool:
    """Return whether layers of their own read sentences for a head over their vectors."""
    return stores_vectors(model, "sentences") and model.backbone.own_sentences
