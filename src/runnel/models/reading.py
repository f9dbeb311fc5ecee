"""The base classes of the readers of an embedder's documents: `Reader` for whole documents, and
`Stream` for a text that is still being written, in constant memory.

Encoders read passages of whole sentences (`models/pocket/reader.py`), recurrent models carry a
state through a text (`models/recurrent/readers.py`), and other transformers read each passage as a
text of its own (`models/foreign/reader.py`). One pass over a document gives its vector and the
vectors of its passages. In a recurrent model, a passage's vector also depends on the text before
it.

P  passages   d  width of the vectors   D  width of hidden vectors   R  ids of a text
n  passages or spans of a text, as the function says
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from runnel.checks import expect_text
from runnel.errors import InputError, NumericalError
from runnel.files import write
from runnel.models.head import Pooling
from runnel.models.memory import Remembered, damage_in_state, pack, unpack
from runnel.models.model import Model
from runnel.request import Array, Progress
from runnel.text.documents.document import DocumentText
from runnel.text.kinds import text_of
from runnel.text.sentences import whole_spans
from runnel.text.tokenizer import Encoded

Documents = Sequence[str | DocumentText]


@dataclass(frozen=True, eq=False)
class ReadDocument:
    """The result of one pass over a document; a transformer that reads texts whole reads each
    passage as a text of its own, and only for it the second halves of the comments are true.
    """

    # (d,) float32: the vector of `Embedder.encode_document`, or the mean of the passages' vectors,
    # weighted by their tokens
    vector: np.ndarray
    spans: np.ndarray  # (P, 2) int64, characters of each passage; they tile the text
    # (P, d) float32: the vectors of `Embedder.encode_spans` for `spans`, or of `encode_document`
    # for each passage
    passages: np.ndarray
    tokens: int  # tokens of the document, special tokens included
    tokens_read: int  # tokens that the backbone had to read: fewer if text was appended
    # Given to `read_documents` as `saved`, with the same text or a longer one, it makes it continue
    # after this text. None for documents below `save_from` tokens.
    saved: bytes | None
    memory: Remembered | None  # in 8 bits, if `remember` was set


@dataclass(frozen=True)
class ReadOptions:
    """Options of `read_documents`."""

    # the most tokens of a passage of several sentences; an encoder has its own number
    passage_tokens: int = 256
    save_from: int = 16_384  # documents of this many tokens or more get `saved`
    # Return `memory` too: for a model that reads passages, or one whose reranker reads documents in
    # the same way (`Reranker.shares`).
    remember: bool = False
    language: str = "auto"  # the language of the documents, for sentence boundaries
    progress: Progress | None = None


class VectorMaker(Protocol):
    """The part of `Embedder` that readers and streams use; see there."""

    model: Model
    pooling: Pooling
    reader: "Reader"

    def is_empty(self, text: str) -> bool:
        """Return whether a text has no token that can be embedded."""

    def vectors(self, pooled: Sequence[Array]) -> np.ndarray:
        """Return the vectors (n, d) of pooled hidden vectors, arrays (any, D)."""

    def render(self, texts: Iterable[str], *, prompt: str | None = None) -> Iterator[np.ndarray]:
        """Yield the ids (R,) to read for each text."""

    def encode_rows(
        self, rows: Iterable[np.ndarray], progress: Progress | None = None
    ) -> Iterator[np.ndarray]:
        """Yield the vectors (d,) of texts given as ids from `render`."""


class Stream(ABC):
    """The embedding of a text that is still being written, in constant memory.

    Call `feed` any number of times and `embedding` at any time: it equals `embedder.encode` of all
    text so far.
    """

    # Tokens read so far, with markers. In a recurrent model they are all tokens except the last
    # word, which may go on; in an encoder the tokens of settled passages.
    tokens: int

    def __init__(self, embedder: VectorMaker, prompt: str = "") -> None:
        self._embedder, self._model = embedder, embedder.model
        # the sum of the hidden vectors of these tokens, fp64
        self._sum = np.zeros(self._model.backbone.hidden_size)
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
        vector: np.ndarray = self._embedder.vectors([self._pooled()])[0]
        if not np.isfinite(vector).all():
            raise NumericalError.while_reading("the stream's vector", "the saved stream")
        return vector

    def save(self, path: str | Path) -> None:
        """Write everything needed to continue to one file (atomically)."""
        values = {"sum": self._sum, "empty": np.array(self._empty), **self._values()}
        write(Path(path), pack(values, self._model.backbone.fingerprint(), "stream"))

    @classmethod
    def load(cls, embedder: VectorMaker, path: str | Path) -> Self:
        """Continue a stream written by `save`.

        Raises:
            StateError: the file is damaged or was written by another model.
        """
        stream = cls(embedder)
        with damage_in_state(place := f"the saved stream {path}"):
            values = unpack(
                Path(path).read_bytes(), place, embedder.model.backbone.fingerprint(), "stream"
            )
            stream._sum = values["sum"]
            stream._empty = bool(values["empty"])
            stream._restore(values)
        return stream

    @abstractmethod
    def _start(self, lead: str) -> None:
        """Begin with `lead`, the special tokens and the prompt before the document."""

    @abstractmethod
    def _add(self, text: str) -> None:
        """Take the text of a `feed`."""

    @abstractmethod
    def _pooled(self) -> Array:
        """Return the pooled hidden vector of the text so far, (1, D), the input of the head."""

    @abstractmethod
    def _values(self) -> Mapping[str, np.ndarray | bytes]:
        """Return the values that `save` stores and `_restore` takes."""

    @abstractmethod
    def _restore(self, values: Mapping[str, np.ndarray]) -> None:
        """Continue from the stored `_values`."""


class Reader(ABC):
    """Reads documents for an embedder; each kind of model has its own class."""

    stream: type[Stream] | None  # the model's kind of stream; None: it reads only whole texts

    def __init__(self, embedder: VectorMaker) -> None:
        self.embedder = embedder
        self.model = embedder.model
        # the most tokens of a passage, if the model reads in blocks of passages; None: it does not
        self.block = self.model.backbone.passage_tokens

    @abstractmethod
    def read(
        self, documents: Documents, saved: Sequence[bytes | None], options: ReadOptions
    ) -> list[ReadDocument]:
        """Read documents together; see `read_documents`."""

    @abstractmethod
    def splits(self, row: np.ndarray) -> bool:
        """Return whether a text with these ids (R,) is too long to be read at once, and must be
        divided into passages by `lay_out`, which needs the text.
        """

    @abstractmethod
    def lay_out(self, text: str, encoded: Encoded) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids to read for a text, and the index of each of its tokens in them."""

    def _vectors(self, pooled: Sequence[Array]) -> list[np.ndarray]:
        """Compute the vectors of several documents in one call of the head: (n, D) -> (n, d) for
        each.
        """
        if not pooled:
            return []
        vectors = self.embedder.vectors(pooled)
        return np.split(vectors, np.cumsum([len(part) for part in pooled])[:-1])


class TextReader(Reader):
    """A reader of texts in one piece."""

    def splits(self, row: np.ndarray) -> bool:
        return False

    def lay_out(self, text: str, encoded: Encoded) -> tuple[np.ndarray, np.ndarray]:
        rendered = self.model.templates["document"].render(
            self.model.tokenizer, document=encoded.ids
        )
        return rendered.ids, np.arange(len(encoded)) + rendered.slices["document"].start


def expect_filled(embedder: VectorMaker, text: str, what: str) -> None:
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
    or, with `apart`, not after the one before.
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
    embedder: VectorMaker,
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


def passage_spans(text: str, sentences: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the characters (P, 2) of passages that begin with the `chosen` sentences (P+1,); they
    tile the text.
    """
    edges = np.append(sentences[:, 0], len(text))[chosen]
    return np.stack([edges[:-1], edges[1:]], axis=1)
