"""How a model reads documents: readers of whole ones, and streams of text that is still being
written, in constant memory.

Encoders read passages of whole sentences; their stream keeps the text of the last passage, the only
one that new text can change. Recurrent models, which carry a state through a text, and other
transformers, which read each passage as a text of its own, are in `torch_readers.py`. One pass
gives a document's vector and those of its passages; with a state, each depends on what is before
it.

P  passages   d  width of the vectors   D  width of hidden vectors   R  ids of a text
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from runnel.checks import expect_text
from runnel.errors import InputError, NumericalError
from runnel.files import write
from runnel.models.heads import normalize
from runnel.models.memory import Remembered, damage_in_state, pack, unpack
from runnel.models.sentence_vectors import SentenceSums
from runnel.request import Array, Progress, Request, Result, TokenCount, space
from runnel.text.documents.document import DocumentText
from runnel.text.kinds import text_of
from runnel.text.sentences import (
    Layout,
    SentenceTokens,
    lay_out,
    read_sentences,
    sentence_of_tokens,
    split_sentences,
    whole_spans,
    whole_tokens,
)
from runnel.text.tokenizer import Encoded

if TYPE_CHECKING:
    from runnel.models.embedder import Embedder

Documents = Sequence[str | DocumentText]
_SETTLE_CHARS = 4096  # new text that a stream needs before it looks for complete passages


@dataclass(frozen=True, eq=False)
class ReadDocument:
    """The result of one pass over a document; a transformer reads each passage as a text of its
    own.
    """

    # (d,) float32, as from `Embedder.encode_document`, or the mean of the passages' weighted by
    # their tokens
    vector: np.ndarray
    spans: np.ndarray  # (P, 2) int64, characters of each passage; they tile the text
    # (P, d) float32, as from `Embedder.encode_spans` for `spans`, or `encode_document` for each
    passages: np.ndarray
    tokens: int  # special tokens included
    tokens_read: int  # that the backbone had to read, fewer than `tokens` if text was appended
    # input for `read_documents` to continue after this text; None for documents below `save_from`
    # tokens
    saved: bytes | None
    memory: Remembered | None  # in 8 bits


@dataclass(frozen=True)
class ReadOptions:
    """Options of `read_documents`."""

    # the most of a passage of several sentences, unless the model reads fewer or decides itself
    passage_tokens: int = 256
    save_from: int = 16_384  # documents of so many tokens get `saved`
    # for a model that reads passages, or one whose reranker shares the pass (`Reranker.shares`)
    remember: bool = False
    progress: Progress | None = None


class Stream(ABC):
    """The embedding of a text that is still being written, in constant memory.

    Call `feed` any number of times and `embedding` at any time: it equals `embedder.encode` of all
    text so far.
    """

    # read so far, with markers: all but the unsettled end of the text, or those of complete
    # passages
    tokens: int

    def __init__(self, embedder: Embedder, prompt: str = "") -> None:
        self._embedder, self._model = embedder, embedder.model
        self._sum = np.zeros(self._model.backbone.hidden_size)  # of hidden vectors so far
        self._empty = True  # nothing has been fed that has a token; the prompt does not count
        self._start(
            self._model.templates["document"].lead(self._model.tokenizer, "document") + prompt
        )

    def feed(self, text: str) -> Self:
        """Read more text. Words may be split between pieces."""
        expect_text(text, "the text")
        self._empty = self._empty and self._embedder.is_empty(text)
        self._add(text)
        return self

    def embedding(self) -> np.ndarray:
        """Return the vector of the text so far, float32 (d,), unit length.

        Raises:
            InputError: the stream has received no text with a token (`Embedder.is_empty`).
            NumericalError: the vector is NaN or infinite.
        """
        if self._empty:
            raise InputError(
                "this stream has received only whitespace, or characters without a token for this"
                " model; feed() some text first"
            )
        vector: np.ndarray = self._embedder.vectors(self._pooled())[0]
        if not np.isfinite(vector).all():
            raise NumericalError.while_reading("the stream's vector", "the saved stream")
        return vector

    def save(self, path: str | Path) -> None:
        """Write everything needed to continue to one file (atomically)."""
        values = {"sum": self._sum, "empty": np.array(self._empty), **self._values()}
        write(Path(path), pack(values, self._model.backbone.fingerprint(), "stream"))

    @classmethod
    def load(cls, embedder: Embedder, path: str | Path) -> Self:
        """Continue a stream written by `save`.

        Raises:
            StateError: the file is damaged or was written by another model.
        """
        stream = cls(embedder)
        with damage_in_state(place := f"the saved stream {path}"):
            values = unpack(
                Path(path).read_bytes(), place, embedder.model.backbone.fingerprint(), "stream"
            )
            stream._sum, stream._empty = values["sum"], bool(values["empty"])
            stream._restore(values)
        return stream

    @abstractmethod
    def _start(self, lead: str) -> None:
        """Begin with the text before the document."""

    @abstractmethod
    def _add(self, text: str) -> None: ...

    @abstractmethod
    def _pooled(self) -> Array:
        """Return what the head makes a vector of, (1, D)."""

    @abstractmethod
    def _values(self) -> Mapping[str, np.ndarray | bytes]:
        """Return what `_restore` needs."""

    @abstractmethod
    def _restore(self, values: Mapping[str, np.ndarray]) -> None: ...


class Reader(ABC):
    """What an embedder does differently for each kind of model."""

    stream: type[Stream]  # of a text that arrives in pieces

    def __init__(self, embedder: Embedder) -> None:
        self.embedder, self.model = embedder, embedder.model
        # of the passages that the model reads; None: it has none
        self.block = self.model.backbone.passage_tokens

    @abstractmethod
    def read(
        self, documents: Documents, saved: Sequence[bytes | None], options: ReadOptions
    ) -> list[ReadDocument]:
        """Read documents together; see `read_documents`."""

    def cuts(self, row: np.ndarray) -> bool:
        """Return whether a text with these ids (R,) is read in several passages, which only
        `lay_out` knows.
        """
        return self.block is not None and len(row) > (self.model.backbone.max_tokens or len(row))

    def lay_out(self, text: str, encoded: Encoded) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids to read for a text, and the index of each of its tokens in them."""
        backbone, tokenizer = self.model.backbone, self.model.tokenizer
        if self.block is None:
            rendered = self.model.templates["document"].render(tokenizer, document=encoded.ids)
            return rendered.ids, np.arange(len(encoded)) + rendered.slices["document"].start
        row = lay_out(
            encoded.ids,
            sentence_of_tokens(split_sentences(text), encoded),
            backbone,
            tokenizer.markers(),
        )
        return row.ids, row.places

    def _vectors(self, pooled: Sequence[Array]) -> list[np.ndarray]:
        """Compute the vectors of several documents in one call of the head: (n, D) -> (n, d) for
        each.
        """
        if not pooled:
            return []
        vectors = self.embedder.vectors(space(pooled[0]).concatenate(list(pooled)))
        return np.split(vectors, np.cumsum([len(part) for part in pooled])[:-1])


def expect_filled(embedder: Embedder, text: str, what: str) -> None:
    """Raise InputError for a text that cannot be embedded
    (`Embedder.is_empty`); `what` names it.
    """
    if embedder.is_empty(text):
        raise InputError(
            f"cannot embed an empty {what}; remove it, or replace it with a placeholder (it is"
            f" {text[:20]!a}: only whitespace, or no character that the model has a token for)"
        )


def spans_in(text: str, spans: object, *, apart: bool = False) -> np.ndarray:
    """Return a user's spans (n, 2) int64; raise InputError for one that is empty, outside the text,
    or not `apart` in order.
    """
    given = whole_spans(spans)
    before = np.append(0, given[:-1, 1])[: len(given)] if apart else 0
    bad = np.flatnonzero(
        (given[:, 0] >= given[:, 1]) | (given[:, 0] < before) | (given[:, 1] > len(text))
    )
    if len(bad):
        raise InputError(
            f"span {bad[0]} is {given[bad[0]].tolist()}; expected [start, end) with start < end,"
            f" inside the text of {len(text)}"
            f" characters{' and after the previous span' if apart else ''}"
        )
    return given


def read_documents(
    embedder: Embedder,
    documents: Documents,
    saved: Sequence[bytes | None] | None = None,
    **options: Any,
) -> list[ReadDocument]:
    """Read documents together with `ReadOptions`; recurrent models resume from `saved` of an
    earlier reading of a text's unchanged beginning.
    """
    for document in documents:
        expect_filled(embedder, text_of(document), "document")
    return embedder.reader.read(documents, saved or [None] * len(documents), ReadOptions(**options))


class PassageStream(Stream):
    """The stream of a model that reads passages."""

    def _start(self, lead: str) -> None:
        self.tokens = 0
        self._text = lead  # from the start of a passage
        self._look = _SETTLE_CHARS  # length of that text at which to look for complete passages

    def _add(self, text: str) -> None:
        self._text += text
        if len(self._text) >= self._look:
            self._settle()

    def _pooled(self) -> Array:
        ids = self._lay_out()[0].ids
        total = self._sum + self._read(ids) if len(ids) else self._sum
        return (total / (self.tokens + len(ids))).astype(np.float32)[None]

    def _values(self) -> Mapping[str, np.ndarray | bytes]:
        return {
            "tokens": np.array(self.tokens),
            "text": self._text.encode("utf-8", "surrogatepass"),
        }

    def _restore(self, values: Mapping[str, np.ndarray]) -> None:
        self._text = values["text"].tobytes().decode("utf-8", "surrogatepass")
        self.tokens, self._look = int(values["tokens"]), max(_SETTLE_CHARS, len(self._text))

    def _settle(self) -> None:
        layout, tokens = self._lay_out()
        # Not what could still be read as one: the last word may lose tokens when it is complete.
        whole = 0 if self.tokens else whole_tokens(self._model.backbone)
        if len(layout.passages) > 3:
            # A last sentence that is alone in its passage may then fit into the one before.
            last = -2 if layout.passages[-1] - layout.passages[-2] > 1 else -3
            if tokens.bounds[layout.passages[last]] > whole:
                self._sum = self._sum + self._read(layout.ids[: layout.edges[last]])
                self.tokens += int(layout.edges[last])
                self._text = self._text[tokens.spans[layout.passages[last], 0] :]
        # so that a very long sentence is not split too often
        self._look = len(self._text) + max(_SETTLE_CHARS, len(self._text))

    def _lay_out(self) -> tuple[Layout, SentenceTokens]:
        """Lay out the text from the start of the last passage."""
        tokens = read_sentences(self._text, [self._model.tokenizer.encode(self._text)])
        backbone, markers = self._model.backbone, self._model.tokenizer.markers()
        return lay_out(tokens.ids, tokens.bounds, backbone, markers, begun=self.tokens > 0), tokens

    def _read(self, ids: np.ndarray) -> np.ndarray:
        """Return the sum (D,) fp64 of the hidden vectors of a row."""
        (result,) = self._model.engine.run([Request(ids, ranges=np.array([[0, len(ids)]]))])
        return np.asarray(result.sums[0])


class PassageReader(Reader):
    """A reader with an encoder; each passage gets the vector of its text alone."""

    stream = PassageStream

    def read(
        self, documents: Documents, saved: Sequence[bytes | None], options: ReadOptions
    ) -> list[ReadDocument]:
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
            positions = (
                None
                if mean
                else blocks[:, 0]
                if self.embedder.pooling == "cls"
                else blocks[:, 1] - 1
            )
            spans = passage_spans(text, tokens.spans, row.passages)
            take = sums.take if options.remember else None
            requests.append(Request(row.ids, positions, ranges, take=take, tag=(spans, sums)))
        engine = model.engine_for("texts", "sentences") if options.remember else model.engine
        results = engine.run(requests, TokenCount(options.progress).add)
        read = []
        pooled = [
            (
                np.asarray(result.means)[:, :width]
                if self.embedder.pooling == "mean"
                else _with_whole(result, width)
            )
            for result in results
        ]
        for result, vectors in zip(results, self._vectors(pooled), strict=True):
            spans, sums = result.tag
            tokens_read, memory = len(sums.layout.ids), sums.result() if options.remember else None
            read.append(
                ReadDocument(
                    vectors[-1], spans, vectors[:-1], tokens_read, tokens_read, None, memory
                )
            )
        return read


def _with_whole(result: Result, width: int) -> np.ndarray:
    """Return the pooled token of each passage and, for the document, their mean weighted by the
    passages' tokens, (P+1, D).
    """
    first, (_, sums) = np.asarray(result.get().hidden)[:, :width], result.tag
    counts = np.diff(sums.layout.edges).astype(np.float32)
    return np.concatenate([first, counts[None] @ normalize(first)])


def passage_spans(text: str, sentences: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the characters (P, 2) of passages that begin with the `chosen` sentences (P+1,); they
    tile the text.
    """
    edges = np.append(sentences[:, 0], len(text))[chosen]
    return np.stack([edges[:-1], edges[1:]], axis=1)


def reader_of(embedder: Embedder) -> Reader:
    """Return the reader for an embedder's model."""
    block = embedder.model.backbone.block
    if block is None or block == 1:
        from runnel.models.torch_readers import StateReader, WholeReader

        return WholeReader(embedder) if block is None else StateReader(embedder)
    return PassageReader(embedder)
