"""Readers: how a model reads documents. Encoders read them in passages of whole sentences; recurrent models, which carry a state
through a text, and other transformers, which read each passage as a text of its own, are in `torch_readers.py`.

One pass gives a document's vector and those of its passages; with a state, each is conditioned on the text before it.

P  passages   d  width of the vectors   D  width of hidden vectors   R  ids of a text
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from runnel.backbones.encoder.layout import lay_out
from runnel.errors import InputError
from runnel.models.heads import normalize
from runnel.models.memory import Remembered
from runnel.models.sentence_vectors import SentenceSums
from runnel.models.stream import PassageStream, Stream
from runnel.request import Array, Progress, Request, Result, TokenCount, space
from runnel.text.documents.document import DocumentText
from runnel.text.kinds import text_of
from runnel.text.sentences import read_sentences, sentence_of_tokens, split_sentences, whole_spans
from runnel.text.tokenizer import Encoded

if TYPE_CHECKING:
    from runnel.models.embedder import Embedder

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

    def _vectors(self, pooled: Sequence[Array]) -> list[np.ndarray]:
        """Compute the vectors of several documents in one call of the head: (n, D) -> (n, d) for each."""
        if not pooled:
            return []
        vectors = self.embedder.vectors(space(pooled[0]).concatenate(list(pooled)))
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
            spans = passage_spans(text, tokens.spans, row.passages)
            take = sums.take if options.remember else None
            requests.append(Request(row.ids, positions, ranges, take=take, tag=(spans, sums)))
        results = (model.sentence_engine(texts=True) if options.remember else model.engine).run(
            requests, TokenCount(options.progress).add
        )
        read = []
        pooled = [
            np.asarray(result.means)[:, :width] if self.embedder.pooling == "mean" else _with_whole(result, width)
            for result in results
        ]
        for result, vectors in zip(results, self._vectors(pooled), strict=True):
            spans, sums = result.tag
            tokens_read, memory = len(sums.layout.ids), sums.result() if options.remember else None
            read.append(ReadDocument(vectors[-1], spans, vectors[:-1], tokens_read, tokens_read, None, memory))
        return read


def _with_whole(result: Result, width: int) -> np.ndarray:
    """Return the pooled token of each passage and, for the document, their mean weighted by the passages' tokens, (P+1, D)."""
    first, (_, sums) = np.asarray(result.get().hidden)[:, :width], result.tag
    counts = np.diff(sums.layout.edges).astype(np.float32)
    return np.concatenate([first, counts[None] @ normalize(first)])


def passage_spans(text: str, sentences: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the characters (P, 2) of passages that begin with the `chosen` sentences (P+1,); they tile the text."""
    edges = np.append(sentences[:, 0], len(text))[chosen]
    return np.stack([edges[:-1], edges[1:]], axis=1)


def reader_of(embedder: Embedder) -> Reader:
    """Return the reader for an embedder's model."""
    block = embedder.model.backbone.block
    if block is None or block == 1:
        from runnel.models.torch_readers import StateReader, WholeReader

        return WholeReader(embedder) if block is None else StateReader(embedder)
    return PassageReader(embedder)
